/* topk against a full sort, scatter_add against plain code. */
#include "operators.h"

static const float *sort_x;

static int by_rank(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	float x = sort_x[i] < 0 ? -sort_x[i] : sort_x[i], y = sort_x[j] < 0 ? -sort_x[j] : sort_x[j];
	return x > y ? -1 : x < y ? 1 : (i > j) - (i < j);
}

static int by_index(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	return (i > j) - (i < j);
}

static uint32_t *sorted(const float *x, size_t n)
{
	uint32_t *idx = malloc(n * sizeof *idx + 1);
	for (size_t i = 0; i < n; i++)
		idx[i] = (uint32_t)i;
	sort_x = x;
	qsort(idx, n, sizeof *idx, by_rank);
	return idx;
}

static void one(const char *name, const gradcomp_operators *op, const char *what, const float *x,
                const uint32_t *order, size_t n, size_t k)
{
	uint32_t *want = malloc(k * sizeof *want + 1);
	memcpy(want, order, k * sizeof *want);
	qsort(want, k, sizeof *want, by_index);
	float *val = test_alloc(k, 1), *idx = test_alloc(k, 2);
	size_t bytes = op->topk_scratch(n, k);
	float *scratch = test_alloc(bytes / 4, 0);
	op->topk(NULL, (uint32_t *)idx, val, x, n, k, scratch);
	int right = !k || !memcmp(idx, want, k * sizeof *want);
	for (size_t j = 0; right && j < k; j++)
		right = !memcmp(&val[j], &x[want[j]], sizeof *x);
	ok(right, "%s: %zu largest of %zu, %s", name, k, n, what);
	ok(test_free(val, k, 1) & test_free(idx, k, 2) & test_free(scratch, bytes / 4, 0),
	   "%s: nothing written outside", name);
	free(want);
}

enum { NORMAL, UNIFORM, CONSTANT, ZERO, TIES, SIGNED_ZERO, DENORMAL, ASCENDING, PERIODIC, SPREAD, KINDS };
static const char *const kinds[] = {
	"normal",   "uniform",   "constant", "all zero",     "many ties", "zeroes of both signs",
	"denormal", "ascending", "periodic", "all exponents"};

static float value(int kind, size_t i)
{
	switch (kind) {
	case NORMAL:
		return test_normal();
	case UNIFORM:
		return (float)test_uniform() - 0.5f;
	case CONSTANT:
		return i % 2 ? -2.5f : 2.5f;
	case ZERO:
		return 0;
	case TIES:
		return (float)(int)(test_random() % 7) - 3;
	case SIGNED_ZERO:
		return test_random() % 1000 ? (i % 2 ? -0.0f : 0.0f) : 1.0f;
	case DENORMAL:
		return test_bits((uint32_t)test_random() % 5000 | (uint32_t)(i % 2) << 31);
	case ASCENDING:
		return (float)i;
	case PERIODIC:
		return i % 64 ? 0.001f * test_normal() : test_normal();
	default:
		return test_bits((uint32_t)(test_random() % 0x7f800000u) | (uint32_t)(i % 2) << 31);
	}
}

static void each(const char *name, const gradcomp_operators *op)
{
	const size_t sizes[] = {1, 2, 7, 8, 9, 100, 4097, 65535, 65536, 200000 + test_random() % 1000};
	for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
		for (int kind = 0; kind < KINDS; kind++) {
			size_t n = sizes[s];
			float *x = test_alloc(n, 1 + test_random() % 8);
			size_t odd = ((uintptr_t)x & 63) / 4;
			for (size_t i = 0; i < n; i++)
				x[i] = value(kind, i);
			uint32_t *order = sorted(x, n);
			const size_t ks[] = {0, 1, n / 1000, n / 100, n / 9, n / 2, n - 1, n};
			for (size_t k = 0; k < sizeof ks / sizeof ks[0]; k++)
				one(name, op, kinds[kind], x, order, n, ks[k]);
			free(order);
			test_free(x, n, odd);
		}

	enum { N = 1000, K = 77 };
	float y[N], z[N], val[K];
	uint32_t idx[K];
	for (int i = 0; i < N; i++)
		y[i] = z[i] = test_normal();
	for (int j = 0; j < K; j++) {
		idx[j] = (uint32_t)test_random() % N; /* repetitions, too */
		val[j] = test_normal();
		z[idx[j]] += 0.3f * val[j];
	}
	is_int(op->scatter_add(NULL, y, N, idx, val, K, 0.3f), GRADCOMP_OK, "%s: scatter_add", name);
	ok(!memcmp(y, z, sizeof y), "%s: scatter_add adds in order, repeated indices too", name);
	for (int j = 0; j < K; j += 19) {
		uint32_t keep = idx[j];
		idx[j] = j % 2 ? N : UINT32_MAX - 1;
		is_int(op->scatter_add(NULL, y, N, idx, val, K, 1), GRADCOMP_ERR_RANGE,
		       "%s: index %u of %d is refused", name, idx[j], N);
		idx[j] = keep;
	}
	ok(!memcmp(y, z, sizeof y), "%s: and nothing was added", name);
	is_int(op->scatter_add(NULL, y, 0, idx, val, 1, 1), GRADCOMP_ERR_RANGE,
	       "%s: nothing can be added to nothing", name);
	is_int(op->scatter_add(NULL, NULL, 0, NULL, NULL, 0, 1), GRADCOMP_OK, "%s: nothing to add", name);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
