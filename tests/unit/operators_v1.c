/* Plugins of ABI 1 and 2 find these: the twelve operators that are none of today's. histogram, kth_magnitude, count_above
 * and compact against counting, random_uniform against the generator, low rank against today's on one matrix. */
#include <math.h>

#include "base/philox_block.h"
#include "gradcomp/sdk/lowrank.h"
#include "plugin/operators_v1.h"
#include "tests/support/magnitudes.h"

#define OUTSIDE "nothing written outside"

static void bins(const char *name, const gradcomp_operators_v1 *op, const float *x, size_t n)
{
	float *counts = test_alloc(OPERATORS_V1_HISTOGRAM_BINS, 1);
	uint32_t want[OPERATORS_V1_HISTOGRAM_BINS] = {0};
	for (size_t i = 0; i < n; i++)
		want[key_of(x[i]) / (1 << 19)]++;
	op->histogram(NULL, (uint32_t *)counts, x, n);
	case_of("histogram", !memcmp(counts, want, sizeof want), "%s: of %zu", name, n);
	case_of(OUTSIDE, test_free(counts, OPERATORS_V1_HISTOGRAM_BINS, 1), "%s: histogram of %zu", name, n);
}

static size_t count(const float *x, size_t n, double t, int equal)
{
	size_t c = 0;
	for (size_t i = 0; i < n; i++)
		c += fabs(x[i]) > t || (equal && fabs(x[i]) == t);
	return c;
}

static void kth(const char *name, const gradcomp_operators_v1 *op, const float *x, size_t n, size_t k)
{
	size_t bytes = op->topk_scratch(n, k);
	float *scratch = test_alloc(bytes / 4, 0), v = -7;
	op->kth_magnitude(NULL, &v, x, n, k, scratch);
	case_of("kth_magnitude", !signbit(v) && count(x, n, v, 0) < k && count(x, n, v, 1) >= k,
	        "%s: magnitude %zu of %zu is %g", name, k, n, v);
	case_of(OUTSIDE, test_free(scratch, bytes / 4, 0), "%s: kth_magnitude %zu of %zu", name, k, n);
}

static void thresholds(const char *name, const gradcomp_operators_v1 *op, const float *x, size_t n, float t, size_t k)
{
	size_t bytes = op->topk_scratch(n, k), above = count(x, n, t, 0), m = 0, ties;
	float *scratch = test_alloc(bytes / 4, 0), *idx = test_alloc(k, 1), *val = test_alloc(k, 2);
	float *want = test_alloc(k, 0), *places = test_alloc(k, 0);
	uint32_t *at = (uint32_t *)places;
	uint64_t c = 77;
	ties = above < k ? k - above : 0;
	for (size_t i = 0; i < n && m < k; i++) {
		int tie = fabs(x[i]) == t && ties;
		if (!(fabs(x[i]) > t) && !tie)
			continue;
		ties -= (size_t)tie;
		want[m] = x[i];
		at[m++] = (uint32_t)i;
	}
	op->count_above(NULL, &c, x, n, &t);
	case_of("count_above", c == count(x, n, t, 1), "%s: %zu of %zu reach %g", name, (size_t)c, n, t);
	op->compact(NULL, (uint32_t *)idx, val, &c, x, n, &t, k, scratch);
	case_of("compact", c == m && !memcmp(idx, at, m * sizeof *at) && !memcmp(val, want, m * sizeof *val),
	        "%s: at most %zu of %zu above %g", name, k, n, t);
	case_of(OUTSIDE, test_free(scratch, bytes / 4, 0) & test_free(idx, k, 1) & test_free(val, k, 2),
	        "%s: compact, at most %zu of %zu", name, k, n);
	test_free(want, k, 0), test_free(places, k, 0);
}

static void one(const char *name, const gradcomp_operators_v1 *op, int kind, size_t n)
{
	size_t odd = 1 + test_random() % 8;
	float *x = magnitudes(kind, n, odd);
	bins(name, op, x, n);
	const size_t ks[] = {1, n / 1000, n / 9, n / 2, n};
	for (size_t k = 0; n && k < sizeof ks / sizeof ks[0]; k++)
		kth(name, op, x, n, ks[k] ? ks[k] : 1);
	/* Thresholds that are met, and such that are not. */
	const float ts[] = {n ? fabsf(x[test_random() % n]) : 1,
	                    n ? fabsf(x[test_random() % n]) : 2,
	                    0,
	                    -0.0f,
	                    -1,
	                    INFINITY,
	                    1e-42f,
	                    test_normal()};
	for (size_t i = 0; i < sizeof ts / sizeof ts[0]; i++) {
		size_t all = count(x, n, ts[i], 1), more = count(x, n, ts[i], 0);
		thresholds(name, op, x, n, ts[i], all);
		thresholds(name, op, x, n, ts[i], (all + more) / 2);
		if (i < 2) {
			thresholds(name, op, x, n, ts[i], more / 2);
			thresholds(name, op, x, n, ts[i], n);
			thresholds(name, op, x, n, ts[i], 0);
		}
	}
	test_free(x, n, odd);
}

static void each(const char *name, const gradcomp_operators_v1 *op)
{
	static const size_t sizes[] = {0, 1, 7, 31, 32, 33, 4097};
	for (int kind = 0; kind < KINDS; kind++)
		for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
			one(name, op, kind, sizes[s]);
	one(name, op, TIES, 70000);
	one(name, op, NORMAL, (1 << 20) + 3);
	tap_cases(name);
}

/* Where the lower word of a block's number runs over, and the numbers end, too. */
static void uniform(const gradcomp_operators_v1 *op)
{
	enum { N = 200 };
	int right = 1;
	float got[N + 1];
	for (int k = 0; k < 400; k++) {
		uint64_t seed = test_random(), stream = test_random(), first = test_random() >> test_random() % 64;
		first = k % 4 == 1 ? ((uint64_t)1 << 34) - first % N : k % 4 == 2 ? 0 - first % N : first;
		size_t n = test_random() % (N + 1);
		got[n] = -1;
		op->random_uniform(NULL, got, n, seed, stream, first);
		for (size_t i = 0; i < n; i++) {
			uint64_t at = first + i, block = at / 4;
			uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
			                       (uint32_t)(stream >> 32)};
			uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, w[4];
			philox_block(counter, key, w);
			right &= got[i] == (float)(w[at % 4] >> 8) * 0x1p-24f;
		}
		right &= got[n] == -1;
	}
	ok(right, "uniform numbers are the generator's, whatever the first and how many");
}

static void sums(const gradcomp_operators_v1 *op)
{
	float x[1000];
	double got = 0, want = 0, size = 0;
	for (int i = 0; i < 1000; i++) {
		x[i] = test_normal();
		want += x[i];
		size += fabs(x[i]);
	}
	op->sum(NULL, &got, x, 1000, NULL);
	ok(fabs(got - want) <= 1000 * 0x1p-52 * size, "sum: %g is %g", got, want);
}

static void filled(const gradcomp_operators_v1 *op)
{
	float x[6] = {1, 2, 3, 4, 5, 6};
	const gradcomp_segment t[] = {{.x = x, .n = 2}, {.x = x + 3, .n = 2, .add = 1}};
	const int not_set = 0, set = -1;
	op->fill_tensors_if(NULL, t, 2, 9, &not_set);
	ok(x[0] == 1 && x[4] == 5, "fill_tensors_if leaves tensors alone");
	op->fill_tensors_if(NULL, t, 2, 9, &set);
	ok(x[0] == 9 && x[1] == 9 && x[2] == 3 && x[3] == 9 && x[4] == 9 && x[5] == 6, "... or fills them");
}

static void low_rank(const gradcomp_operators_v1 *op)
{
	enum { ROWS = 700, COLUMNS = 90, RANK = 4 };
	static float M[ROWS * COLUMNS], Q[COLUMNS * RANK], a[2][ROWS * COLUMNS], b[2][ROWS * COLUMNS];
	const gradcomp_operators *now = operators_cpu();
	now->random_normal(NULL, M, ROWS * COLUMNS, 1, 2, 0);
	now->random_normal(NULL, Q, COLUMNS * RANK, 3, 4, 0);
	op->product_mq(NULL, a[0], M, Q, ROWS, COLUMNS, RANK);
	sdk_product_mq(now, NULL, b[0], M, Q, ROWS, COLUMNS, RANK, NULL);
	ok(!memcmp(a[0], b[0], ROWS * RANK * sizeof **a), "product_mq is of one matrix");
	op->product_mtp(NULL, a[1], M, a[0], ROWS, COLUMNS, RANK);
	sdk_product_mtp(now, NULL, b[1], M, a[0], ROWS, COLUMNS, RANK, NULL);
	ok(!memcmp(a[1], b[1], COLUMNS * RANK * sizeof **a), "product_mtp");
	op->orthonormalise(NULL, a[0], ROWS, RANK);
	sdk_orthonormalise(now, NULL, b[0], ROWS, RANK, NULL);
	ok(!memcmp(a[0], b[0], ROWS * RANK * sizeof **a), "orthonormalise");
	float *const both[] = {a[0], a[1]};
	op->orthonormalise_batch(NULL, both, 2, COLUMNS, RANK);
	sdk_orthonormalise(now, NULL, b[0], COLUMNS, RANK, NULL);
	sdk_orthonormalise(now, NULL, b[1], COLUMNS, RANK, NULL);
	ok(!memcmp(a[0], b[0], ROWS * RANK * sizeof **a) && !memcmp(a[1], b[1], COLUMNS * RANK * sizeof **a),
	   "orthonormalise_batch");
	memcpy(a[0], M, sizeof M), memcpy(b[0], M, sizeof M);
	op->low_rank_finish(NULL, a[0], a[1], M, Q, Q, ROWS, COLUMNS, RANK);
	sdk_low_rank_finish(now, NULL, b[0], b[1], M, Q, Q, ROWS, COLUMNS, RANK);
	ok(!memcmp(a[0], b[0], sizeof M) && !memcmp(a[1], b[1], sizeof M), "low_rank_finish");
}

int main(void)
{
	const gradcomp_operators_v1 *op = operators_v1();
	test_seed();
	each("v1", op);
	uniform(op);
	sums(op);
	filled(op);
	low_rank(op);
	return done_testing();
}
