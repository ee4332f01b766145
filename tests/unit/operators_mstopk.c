/* mstopk against the method as it is published: every sampling counts all
 * magnitudes. */
#include <math.h>

#include "plugin/operators_v1.h"
#include "tests/support/selection_cases.h"

/* Inside of the library. */
double exact_sum_portable(float *top, const float *x, size_t n);
double exact_sum_avx2(float *top, const float *x, size_t n);

/* The exact sum of magnitudes, rounded once (Shewchuk 1997, as in Python's fsum). */
static double exact_sum(const float *x, size_t n)
{
	double part[64], hi = 0, lo = 0;
	size_t parts = 0;
	for (size_t i = 0; i < n; i++) {
		double v = fabs(x[i]);
		size_t kept = 0;
		for (size_t j = 0; j < parts; j++) {
			double a = v, b = part[j];
			if (a < b) {
				a = part[j];
				b = v;
			}
			hi = a + b;
			lo = b - (hi - a);
			if (lo != 0)
				part[kept++] = lo;
			v = hi;
		}
		parts = kept;
		part[parts++] = v;
	}
	hi = parts ? part[--parts] : 0;
	for (lo = 0; parts && lo == 0;) {
		double a = hi, b = part[--parts];
		hi = a + b;
		lo = b - (hi - a);
	}
	/* Half way, and what is left decides. */
	if (parts && lo != 0 && (lo < 0) == (part[parts - 1] < 0)) {
		double b = lo * 2, a = hi + b;
		hi = a - hi == b ? a : hi;
	}
	return hi;
}

static size_t reach(const float *x, size_t n, double t)
{
	size_t z = 0;
	for (size_t i = 0; i < n; i++)
		z += fabs(x[i]) >= t;
	return z;
}

/* Returns how many indices were found. */
static size_t reference(uint32_t *idx, const float *x, size_t n, size_t k, int samplings, float u)
{
	double mean = exact_sum(x, n) / (double)n, top = 0, lo = 0, hi = 1, low, span;
	for (size_t i = 0; i < n; i++)
		top = fabs(x[i]) > top ? fabs(x[i]) : top;
	size_t k1 = 0, k2 = n, zm = reach(x, n, mean), m = 0, seen = 0;
	double t1 = INFINITY, t2 = 0;
	low = mean;
	span = top - mean;
	if (zm < k) {
		k1 = zm;
		t1 = mean;
		low = 0;
		span = mean;
	}
	for (int s = 0; s < samplings && k1 != k; s++) {
		double q = (lo + hi) / 2, t = low + q * span;
		size_t z = reach(x, n, t);
		if (z <= k) {
			hi = q;
			if (z > k1) {
				k1 = z;
				t1 = t;
			}
		} else {
			lo = q;
			if (z < k2) {
				k2 = z;
				t2 = t;
			}
		}
	}
	size_t between = k2 - k1, offset = (size_t)floor((double)u * (double)(between - (k - k1) + 1));
	for (size_t i = 0; i < n; i++) {
		int sure = fabs(x[i]) >= t1, run = !sure && fabs(x[i]) >= t2;
		if (sure || (run && seen >= offset && seen < offset + (k - k1)))
			idx[m++] = (uint32_t)i;
		seen += (size_t)run;
	}
	return m;
}

/* Counts what has been tried of one kind of numbers, and keeps the first that was wrong. */
static struct {
	size_t tried, n, k;
	int samplings;
} seen;

static void one(const gradcomp_operators *op, const float *x, size_t n, size_t k, int samplings)
{
	uint64_t seed = test_random(), stream = test_random();
	size_t bytes = op->mstopk_scratch(n, k);
	float *scratch = test_alloc(bytes / 4, 0), *val = test_alloc(k, 1), *idx = test_alloc(k, 2), u;
	uint32_t *want = malloc((n + 1) * sizeof *want);
	operators_v1()->random_uniform(NULL, &u, 1, seed, stream, 0);
	size_t m = n && k ? reference(want, x, n, k, samplings, u) : 0;
	op->mstopk(NULL, (uint32_t *)idx, val, x, n, k, samplings, seed, stream, scratch);
	int right = m == k && !memcmp(idx, want, k * sizeof *want);
	for (size_t j = 0; right && j < k; j++)
		right = !memcmp(&val[j], &x[want[j]], sizeof *x);
	right &= test_free(scratch, bytes / 4, 0) & test_free(val, k, 1) & test_free(idx, k, 2);
	seen.tried++;
	if (!right && !seen.samplings) {
		seen.n = n;
		seen.k = k;
		seen.samplings = samplings + 1;
	}
	free(want);
}

static void summed(const char *name, double (*sum)(float *top, const float *x, size_t n), const float *x, size_t n)
{
	double want = exact_sum(x, n);
	float top = 7, most = 0;
	for (size_t i = 0; i < n; i++)
		most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
	case_of("the sum is exact", sum(&top, x, n) == want && top == most, "%s: of %zu", name, n);
}

static void sizes(const char *name, const gradcomp_operators *op, int kind, size_t n)
{
	static const int samplings[] = {30, 0, 1, 3, 8, 100};
	size_t odd = 1 + test_random() % 8;
	float *x = selection_numbers(kind, n, odd);
	if (!strcmp(name, "portable"))
		summed(name, exact_sum_portable, x, n);
#ifdef HAVE_AVX2_OBJECTS
	else if (!strcmp(name, "avx2"))
		summed(name, exact_sum_avx2, x, n);
#endif
	size_t ks[SELECTION_TAKEN + 3] = {0, n / 3, n * 3 / 5};
	if (n)
		selection_taken(ks + 3, n);
	for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++)
		for (size_t s = 0; s < (n > 10000 ? 1 : 6); s++)
			one(op, x, n, ks[i], n > 10000 && i % 3 == 0 ? samplings[test_random() % 6] : samplings[s]);
	/* k about as many as reach the mean. */
	size_t above = n ? reach(x, n, exact_sum(x, n) / (double)n) : 0;
	for (size_t k = above ? above - 1 : 0; n && k <= above + 1 && k <= n; k++)
		one(op, x, n, k, 30);
	test_free(x, n, odd);
}

static void each(const char *name, const gradcomp_operators *op)
{
	static const size_t small[] = {0, 1, 2, 7, 31, 32, 33, 4097};
	for (int kind = 0; kind < SELECTION_KINDS; kind++) {
		memset(&seen, 0, sizeof seen);
		for (size_t s = 0; s < sizeof small / sizeof small[0]; s++)
			sizes(name, op, kind, small[s]);
		sizes(name, op, kind, selection_edges[test_random() % SELECTION_EDGES]);
		sizes(name, op, kind, selection_size(SELECTION_EDGES + 1));
		ok(!seen.samplings, "%s, %s: %zu times what the method as it is published takes", name,
		   selection_kind(kind), seen.tried);
		if (seen.samplings)
			printf("# not %zu of %zu, %d samplings\n", seen.k, seen.n, seen.samplings - 1);
	}
	tap_cases(name);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
