/* gather, scatter, scatter_add, sparse_check and sparse_merge against plain code. */
#include <math.h>

#include "tests/support/magnitudes.h"

#define OUTSIDE "nothing written outside"

/* k ascending indices below n. */
static uint32_t *places(size_t n, size_t k)
{
	uint32_t *idx = malloc(k * sizeof *idx + 1);
	size_t j = 0;
	for (size_t i = 0; i < n && j < k; i++)
		if (test_uniform() * (double)(n - i) < (double)(k - j))
			idx[j++] = (uint32_t)i;
	return idx;
}

static void moves(const char *name, const gradcomp_operators *op, size_t n, size_t k)
{
	float *x = magnitudes(NORMAL, n, 1), *y = magnitudes(NORMAL, n, 2), *val = test_alloc(k, 3);
	float *want = test_alloc(n, 0);
	uint32_t *idx = places(n, k);
	int right = 1;
	op->gather(NULL, val, x, idx, k);
	for (size_t j = 0; j < k; j++)
		right &= val[j] == x[idx[j]];
	case_of("gather", right, "%s: %zu of %zu", name, k, n);
	memcpy(want, y, n * sizeof *y);
	for (size_t j = 0; j < k; j++)
		want[idx[j]] = val[j];
	op->scatter(NULL, y, idx, val, k);
	case_of("scatter", !memcmp(y, want, n * sizeof *y), "%s: %zu of %zu", name, k, n);
	for (size_t j = 0; j < k; j++)
		want[idx[j]] = 0;
	op->scatter(NULL, y, idx, NULL, k);
	case_of("scatter of zeroes", !memcmp(y, want, n * sizeof *y), "%s: %zu of %zu", name, k, n);
	case_of(OUTSIDE, test_free(x, n, 1) & test_free(y, n, 2) & test_free(val, k, 3), "%s: moves, %zu of %zu", name,
	        k, n);
	test_free(want, n, 0);
	free(idx);
}

static void adds(const char *name, const gradcomp_operators *op, size_t n, size_t k)
{
	float *y = magnitudes(NORMAL, n, 1), *want = test_alloc(n, 0), *val = magnitudes(NORMAL, k, 3);
	float *first = test_alloc(n, 0), a = test_normal();
	uint32_t *idx = malloc(k * sizeof *idx + 1);
	memcpy(want, y, n * sizeof *y);
	for (size_t j = 0; j < k; j++) {
		idx[j] = j % 5 == 3 ? GRADCOMP_NO_INDEX : (uint32_t)(test_random() % n); /* repetitions, too */
		if (idx[j] != GRADCOMP_NO_INDEX)
			want[idx[j]] += a * val[j];
		else if (j % 2)
			val[j] = NAN;
	}
	case_of("scatter_add ends well", op->scatter_add(NULL, y, n, idx, val, k, a) == GRADCOMP_OK, "%s: %zu to %zu",
	        name, k, n);
	case_of("scatter_add adds in order, and nothing without an index", !memcmp(y, want, n * sizeof *y),
	        "%s: %zu to %zu", name, k, n);
	memcpy(first, y, n * sizeof *y);
	for (size_t t = 0; k && t < 12; t++) {
		size_t j = t == 0 ? 0 : t == 1 ? k - 1 : test_random() % k;
		uint32_t keep = idx[j];
		idx[j] = t % 3 == 0 ? (uint32_t)n : t % 3 == 1 ? UINT32_MAX - 1 : (uint32_t)(n + test_random() % 1000);
		case_of("scatter_add refuses an index",
		        op->scatter_add(NULL, y, n, idx, val, k, 1) == GRADCOMP_ERR_RANGE, "%s: %u of %zu", name,
		        idx[j], n);
		idx[j] = keep;
	}
	case_of("scatter_add that refuses adds nothing", !memcmp(y, first, n * sizeof *y), "%s: %zu to %zu", name, k,
	        n);
	case_of(OUTSIDE, test_free(y, n, 1), "%s: scatter_add %zu to %zu", name, k, n);
	test_free(want, n, 0), test_free(val, k, 3), test_free(first, n, 0);
	free(idx);
}

static void checks(const char *name, const gradcomp_operators *op, size_t n, size_t k)
{
	uint32_t *idx = places(n, k);
	float *val = magnitudes(SPREAD, k, 1);
	int fault = 0;
	op->sparse_check(NULL, &fault, idx, val, k, n);
	case_of("sparse_check: sound pairs", fault == 0, "%s: %zu below %zu", name, k, n);
	fault = 1;
	op->sparse_check(NULL, &fault, idx, val, k, n);
	case_of("sparse_check: an earlier fault stays", fault == 1, "%s: %zu below %zu", name, k, n);
	for (int t = 0; k && t < 60; t++) {
		size_t j = t < 6 ? 0 : t < 12 ? k - 1 : test_random() % k;
		uint32_t keep = idx[j];
		float v = val[j];
		switch (t % 6) {
		case 0:
			val[j] = NAN;
			break;
		case 1:
			val[j] = j % 2 ? INFINITY : -INFINITY;
			break;
		case 2:
			idx[j] = (uint32_t)n + (uint32_t)(test_random() % 3);
			break;
		case 3:
			idx[j] = GRADCOMP_NO_INDEX;
			break;
		case 4:
			idx[j] = j ? idx[j - 1] : k > 1 ? idx[1] : (uint32_t)n;
			break;
		default:
			idx[j] = j + 1 < k ? idx[j + 1] + 1 : j ? idx[j - 1] - (idx[j - 1] > 0) : UINT32_MAX - 1;
		}
		fault = 0;
		op->sparse_check(NULL, &fault, idx, val, k, n);
		case_of("sparse_check finds every fault", fault == 1, "%s: kind %d at %zu of %zu: index %u, not %u",
		        name, t % 6, j, k, idx[j], keep);
		idx[j] = keep;
		val[j] = v;
	}
	test_free(val, k, 1);
	free(idx);
}

typedef struct pair {
	uint32_t idx;
	float val;
	int kept;
} pair;

static int by_size(const void *a, const void *b)
{
	const pair *x = a, *y = b;
	float p = fabsf(x->val), q = fabsf(y->val);
	return p > q ? -1 : p < q ? 1 : (x->idx > y->idx) - (x->idx < y->idx);
}

static int by_index(const void *a, const void *b)
{
	const pair *x = a, *y = b;
	return (x->idx > y->idx) - (x->idx < y->idx);
}

/* One output of sparse_merge against the pairs that are `kept` or not. */
static int holds(const float *idx, const float *val, const pair *p, size_t n, size_t k, int kept)
{
	const uint32_t none = GRADCOMP_NO_INDEX;
	size_t j = 0;
	for (size_t i = 0; i < n; i++)
		if (p[i].kept == kept) {
			if (j == k || memcmp(&idx[j], &p[i].idx, 4) || memcmp(&val[j], &p[i].val, 4))
				return 0;
			j++;
		}
	for (; j < k; j++)
		if (kept || memcmp(&idx[j], &none, 4) || key_of(val[j]))
			return 0;
	return 1;
}

static void merges(const char *name, const gradcomp_operators *op, int kind, size_t n, size_t k)
{
	uint32_t *a = places(n, k), *b = places(n, k);
	float *va = magnitudes(kind, k, 1), *vb = magnitudes(kind, k, 2);
	float *idx = test_alloc(k, 1), *val = test_alloc(k, 2), *left = test_alloc(k, 3), *rest = test_alloc(k, 4);
	size_t bytes = op->sparse_merge_scratch(k), m = 0, i = 0, j = 0;
	float *scratch = test_alloc(bytes / 4, 0);
	pair *p = malloc(2 * k * sizeof *p + 1);
	while (i < k || j < k) {
		if (j == k || (i < k && a[i] < b[j])) {
			p[m] = (pair){a[i], va[i], 0};
			i++;
		} else if (i == k || b[j] < a[i]) {
			p[m] = (pair){b[j], vb[j], 0};
			j++;
		} else {
			/* Some cancel. */
			if (i % 3 == 0)
				vb[j] = -va[i];
			p[m] = (pair){a[i], va[i] + vb[j], 0};
			i++, j++;
		}
		m++;
	}
	qsort(p, m, sizeof *p, by_size);
	for (i = 0; i < k; i++)
		p[i].kept = 1;
	qsort(p, m, sizeof *p, by_index);
	op->sparse_merge(NULL, (uint32_t *)idx, val, (uint32_t *)left, rest, a, va, b, vb, k, scratch);
	case_of("sparse_merge", holds(idx, val, p, m, k, 1), "%s: %zu of %zu pairs below %zu, %s", name, k, m, n,
	        kinds[kind]);
	case_of("sparse_merge leaves the rest", holds(left, rest, p, m, k, 0), "%s: %zu of %zu pairs below %zu, %s",
	        name, k, m, n, kinds[kind]);
	int whole = test_free(idx, k, 1) & test_free(val, k, 2) & test_free(left, k, 3) & test_free(rest, k, 4);
	case_of(OUTSIDE, whole & test_free(scratch, bytes / 4, 0), "%s: sparse_merge, %zu of %zu", name, k, n);
	test_free(va, k, 1), test_free(vb, k, 2);
	free(a), free(b), free(p);
}

static void each(const char *name, const gradcomp_operators *op)
{
	static const size_t sizes[] = {1, 2, 7, 31, 32, 33, 1000, 4097};
	for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
		size_t n = sizes[s];
		const size_t ks[] = {0, 1, n / 30, n / 3, n - 1, n};
		for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++) {
			moves(name, op, n, ks[i]);
			adds(name, op, n, ks[i]);
			checks(name, op, n, ks[i]);
			for (int kind = 0; kind < KINDS; kind++)
				merges(name, op, kind, n, ks[i]);
		}
	}
	merges(name, op, NORMAL, (1 << 20) + 3, 1 << 16);
	tap_cases(name);
	is_int(op->scatter_add(NULL, NULL, 0, NULL, NULL, 0, 1), GRADCOMP_OK, "%s: nothing to add", name);
	uint32_t zero = 0, none = GRADCOMP_NO_INDEX;
	float v = 1;
	is_int(op->scatter_add(NULL, &v, 0, &zero, &v, 1, 1), GRADCOMP_ERR_RANGE, "%s: nothing can be added to nothing",
	       name);
	is_int(op->scatter_add(NULL, &v, 0, &none, &v, 1, 1), GRADCOMP_OK, "%s: but no index can", name);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
