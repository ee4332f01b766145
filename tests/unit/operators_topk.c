/* topk against a full sort. */
#include "tests/support/magnitudes.h"

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

static void each(const char *name, const gradcomp_operators *op)
{
	const size_t sizes[] = {1, 2, 7, 8, 9, 100, 4097, 65535, 65536, 200000 + test_random() % 1000};
	for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
		for (int kind = 0; kind < KINDS; kind++) {
			size_t n = sizes[s];
			size_t odd = 1 + test_random() % 8;
			float *x = magnitudes(kind, n, odd);
			uint32_t *order = sorted(x, n);
			const size_t ks[] = {0, 1, n / 1000, n / 100, n / 9, n / 2, n - 1, n};
			for (size_t k = 0; k < sizeof ks / sizeof ks[0]; k++)
				one(name, op, kinds[kind], x, order, n, ks[k]);
			free(order);
			test_free(x, n, odd);
		}
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
