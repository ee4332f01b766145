#include "plugin/operators_v1.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/philox_block.h"
#include "operators/operator_tables.h"

static void product_mq(void *queue, float *P, const float *M, const float *Q, size_t n, size_t m, size_t r)
{
	operators_cpu()->product_mq_batch(queue, &P, &M, &Q, 1, n, m, r, NULL);
}

static void product_mtp(void *queue, float *Q, const float *M, const float *P, size_t n, size_t m, size_t r)
{
	operators_cpu()->product_mtp_batch(queue, &Q, &M, &P, 1, n, m, r, NULL);
}

static void low_rank_finish(void *queue, float *X, float *E, const float *P, const float *Elocal, const float *Q,
                            size_t n, size_t m, size_t r)
{
	operators_cpu()->low_rank_finish_batch(queue, &X, E ? &E : NULL, &P, &Elocal, &Q, 1, n, m, r);
}

static void orthonormalise_batch(void *queue, float *const *A, size_t count, size_t n, size_t r)
{
	operators_cpu()->orthonormalise_split(queue, A, count, n, r, NULL);
}

static void orthonormalise(void *queue, float *A, size_t n, size_t r)
{
	orthonormalise_batch(queue, &A, 1, n, r);
}

static void random_uniform(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	uint32_t word[4];
	(void)queue;
	for (size_t i = 0; i < n; i++) {
		const uint64_t at = first + i, block = at / 4;
		const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
		                             (uint32_t)(stream >> 32)};

		if (!i || at % 4 == 0)
			philox_block(counter, key, word);
		out[i] = (float)(word[at % 4] >> 8) * 0x1p-24f;
	}
}

static void sum(void *queue, double *out, const float *x, size_t n, void *scratch)
{
	double s = 0;
	(void)queue, (void)scratch;
	for (size_t i = 0; i < n; i++)
		s += (double)x[i];
	*out = s;
}

/* A float without its sign, read as an integer, sorts like its magnitude. */
static uint32_t key_of(float x)
{
	uint32_t word;
	memcpy(&word, &x, sizeof word);
	return word & 0x7fffffff;
}

static void histogram(void *queue, uint32_t *counts, const float *x, size_t n)
{
	(void)queue;
	memset(counts, 0, OPERATORS_V1_HISTOGRAM_BINS * sizeof *counts);
	for (size_t i = 0; i < n; i++)
		counts[key_of(x[i]) >> 19]++;
}

/* The k-th largest key, eight bits at a time from the top. */
static void kth_magnitude(void *queue, float *out, const float *x, size_t n, size_t k, void *scratch)
{
	uint32_t key = 0;
	(void)queue, (void)scratch;
	if (!k || k > n)
		return;
	for (int shift = 24; shift >= 0; shift -= 8) {
		size_t count[256] = {0};
		int byte = 255;

		for (size_t i = 0; i < n; i++)
			if (shift == 24 || key_of(x[i]) >> (shift + 8) == key >> (shift + 8))
				count[key_of(x[i]) >> shift & 255]++;
		for (; count[byte] < k; byte--)
			k -= count[byte];
		key |= (uint32_t)byte << shift;
	}
	memcpy(out, &key, sizeof key);
}

static void count_above(void *queue, uint64_t *count, const float *x, size_t n, const float *threshold)
{
	uint64_t found = 0;
	(void)queue;
	for (size_t i = 0; i < n; i++)
		found += fabsf(x[i]) >= *threshold;
	*count = found;
}

static void compact(void *queue, uint32_t *idx, float *val, uint64_t *count, const float *x, size_t n,
                    const float *threshold, size_t k, void *scratch)
{
	size_t above = 0, equal, taken = 0;
	(void)queue, (void)scratch;
	for (size_t i = 0; i < n; i++)
		above += fabsf(x[i]) > *threshold;
	equal = above < k ? k - above : 0;
	for (size_t i = 0; i < n && taken < k; i++) {
		if (!(fabsf(x[i]) > *threshold)) {
			if (!equal || !(fabsf(x[i]) >= *threshold))
				continue;
			equal--;
		}
		idx[taken] = (uint32_t)i;
		val[taken++] = x[i];
	}
	*count = taken;
}

static void fill_tensors_if(void *queue, const gradcomp_segment *t, size_t count, float a, const int *word)
{
	for (size_t i = 0; i < count; i++)
		operators_cpu()->fill_if(queue, t[i].x, a, t[i].n, word);
}

static gradcomp_operators_v1 v1_table;

static void v1_fill(void)
{
	const gradcomp_operators *now = operators_cpu();
	v1_table.struct_size = sizeof v1_table;
	v1_table.device = GRADCOMP_HOST;
#define SAME(name) v1_table.name = now->name;
#define GONE(name, parameters) v1_table.name = name;
	OPERATORS_V1(SAME, GONE)
}

const gradcomp_operators_v1 *operators_v1(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, v1_fill);
	return &v1_table;
}

const gradcomp_operators_v1 *operators_v1_on(gradcomp_device device, gradcomp_error *err)
{
	if (device == GRADCOMP_HOST)
		return operators_v1();
	error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	          "plugins of ABI 1 and 2 have no operators on a device: build the plugin with the headers of ABI %d",
	          GRADCOMP_ABI_VERSION);
	return NULL;
}
