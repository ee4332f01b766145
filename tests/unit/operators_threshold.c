/* histogram, kth_magnitude, count_above and compact against counting. */
#include <math.h>

#include "tests/support/magnitudes.h"

#define OUTSIDE "nothing written outside"

static void bins(const char *name, const gradcomp_operators *op, const float *x, size_t n)
{
	float *counts = test_alloc(GRADCOMP_HISTOGRAM_BINS, 1);
	uint32_t want[GRADCOMP_HISTOGRAM_BINS] = {0};
	for (size_t i = 0; i < n; i++)
		want[key_of(x[i]) / (1 << 19)]++;
	op->histogram(NULL, (uint32_t *)counts, x, n);
	case_of("histogram", !memcmp(counts, want, sizeof want), "%s: of %zu", name, n);
	case_of(OUTSIDE, test_free(counts, GRADCOMP_HISTOGRAM_BINS, 1), "%s: histogram of %zu", name, n);
}

static size_t count(const float *x, size_t n, double t, int equal)
{
	size_t c = 0;
	for (size_t i = 0; i < n; i++)
		c += fabs(x[i]) > t || (equal && fabs(x[i]) == t);
	return c;
}

static void kth(const char *name, const gradcomp_operators *op, const float *x, size_t n, size_t k)
{
	size_t bytes = op->topk_scratch(n, k);
	float *scratch = test_alloc(bytes / 4, 0), v = -7;
	op->kth_magnitude(NULL, &v, x, n, k, scratch);
	case_of("kth_magnitude", !signbit(v) && count(x, n, v, 0) < k && count(x, n, v, 1) >= k,
	        "%s: magnitude %zu of %zu is %g", name, k, n, v);
	case_of(OUTSIDE, test_free(scratch, bytes / 4, 0), "%s: kth_magnitude %zu of %zu", name, k, n);
}

static void thresholds(const char *name, const gradcomp_operators *op, const float *x, size_t n, float t, size_t k)
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

static void one(const char *name, const gradcomp_operators *op, int kind, size_t n)
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

static void each(const char *name, const gradcomp_operators *op)
{
	static const size_t sizes[] = {0, 1, 7, 31, 32, 33, 4097};
	for (int kind = 0; kind < KINDS; kind++)
		for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
			one(name, op, kind, sizes[s]);
	one(name, op, TIES, 70000);
	one(name, op, NORMAL, (1 << 20) + 3);
	tap_cases(name);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
