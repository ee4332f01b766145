/* copy, fill, axpy and clamp to the bit, and what works with numbers that were found;
 * the sums to their bound; absmax. */
#include <math.h>

#include "tests/support/magnitudes.h"

#define OUTSIDE "nothing written outside"

static void steps(const char *name, const gradcomp_operators *op, size_t n)
{
	size_t odd = test_random() % 9;
	float *x = magnitudes(NORMAL, n, odd), *y = magnitudes(NORMAL, n, odd + 1), *z = test_alloc(n, odd + 3);
	float *want = test_alloc(n, 0), a = test_normal(), limit = (float)fabs(test_normal());
	for (size_t i = 0; i < n; i++) {
		if (i % 13 == 0)
			x[i] = i % 2 ? limit : -limit;
		if (i % 11 == 0)
			x[i] *= 1e-40f;
		want[i] = a * x[i];
		want[i] = y[i] + want[i];
	}
	op->axpy(NULL, y, a, x, n);
	case_of("axpy", !memcmp(y, want, n * sizeof *y), "%s: %zu", name, n);

	for (size_t i = 0; i < n; i++)
		want[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
	op->clamp(NULL, z, x, &limit, n);
	case_of("clamp", !memcmp(z, want, n * sizeof *z), "%s: %zu", name, n);
	op->clamp(NULL, x, x, &limit, n);
	case_of("clamp in place", !memcmp(x, want, n * sizeof *x), "%s: %zu", name, n);

	op->copy(NULL, y, x, n * sizeof *x);
	case_of("copy", !memcmp(y, x, n * sizeof *x), "%s: %zu bytes", name, n * sizeof *x);
	op->copy(NULL, (char *)y + 1, x, n ? n * sizeof *x - 3 : 0);
	case_of("copy to an odd place", !n || !memcmp((char *)y + 1, x, n * sizeof *x - 3), "%s: %zu", name, n);

	op->fill(NULL, z, a, n);
	int right = 1;
	for (size_t i = 0; i < n; i++)
		right &= !memcmp(&z[i], &a, sizeof a);
	case_of("fill", right, "%s: %zu", name, n);
	case_of(OUTSIDE,
	        test_free(x, n, odd) & test_free(y, n, odd + 1) & test_free(z, n, odd + 3) & test_free(want, n, 0),
	        "%s: axpy, clamp, copy or fill, %zu", name, n);
}

static void found(const char *name, const gradcomp_operators *op, size_t n)
{
	size_t odd = test_random() % 9;
	float *x = magnitudes(NORMAL, n, odd), *y = magnitudes(NORMAL, n, odd + 1), *want = test_alloc(n, 0),
	      a = test_normal();
	int fault = 0, high = 0, low = 0, nan = 0;
	for (size_t i = 0; i < n; i++) {
		want[i] = a * x[i];
		want[i] = y[i] + want[i];
	}
	op->axpy_by(NULL, y, &a, x, n);
	case_of("axpy_by", !memcmp(y, want, n * sizeof *y), "%s: %zu", name, n);
	for (size_t i = 0; i < n; i++)
		want[i] = a * x[i];
	op->scale_by(NULL, y, &a, x, n);
	case_of("scale_by", !memcmp(y, want, n * sizeof *y), "%s: %zu", name, n);
	op->scale_by(NULL, x, &a, x, n);
	case_of("scale_by in place", !memcmp(x, want, n * sizeof *x), "%s: %zu", name, n);
	for (size_t i = 0; i < n; i++)
		x[i] = i % 3 ? 2 : -1;
	op->range_check(NULL, &fault, x, n, -1, 2);
	size_t at = n ? test_random() % n : 0;
	if (n) {
		x[at] = nextafterf(2, 3);
		op->range_check(NULL, &high, x, n, -1, 2);
		x[at] = nextafterf(-1, -2);
		op->range_check(NULL, &low, x, n, -1, 2);
		x[at] = NAN;
		op->range_check(NULL, &nan, x, n, -INFINITY, INFINITY);
	}
	case_of("range_check finds what is outside, and a NaN", !fault && high == !!n && low == !!n && nan == !!n,
	        "%s: %zu of %zu", name, at, n);
	case_of(OUTSIDE, test_free(x, n, odd) & test_free(y, n, odd + 1) & test_free(want, n, 0),
	        "%s: axpy_by or scale_by, %zu", name, n);
}

static void moments(const char *name, const gradcomp_operators *op)
{
	const double sum = 48, none = 0;
	float m[4];
	op->moment(NULL, &m[0], &sum, 3, 2.5, GRADCOMP_MEAN);
	op->moment(NULL, &m[1], &sum, 3, 2.5, GRADCOMP_ROOT);
	op->moment(NULL, &m[2], &sum, 3, 2.5, GRADCOMP_INVERSE_ROOT);
	op->moment(NULL, &m[3], &none, 3, 2.5, GRADCOMP_INVERSE_ROOT);
	ok(m[0] == 40 && m[1] == 10 && m[2] == 0.625f && isinf(m[3]), "%s: moment: mean, root and its inverse", name);
}

/* Sums with their rounding errors caught (Neumaier), so that order hardly matters. */
typedef struct sum {
	double value, rest, size;
} sum;

static void add_to(sum *s, double v)
{
	double t = s->value + v;
	s->rest += fabs(s->value) >= fabs(v) ? (s->value - t) + v : (v - t) + s->value;
	s->value = t;
	s->size += fabs(v);
}

static int close_to(double got, const sum *s, size_t n)
{
	return fabs(got - (s->value + s->rest)) <= ((double)n + 1) * 0x1p-52 * s->size;
}

static void sums(const char *name, const gradcomp_operators *op, int kind, size_t n)
{
	size_t odd = test_random() % 9, bytes = op->sum_scratch(n);
	float *x = magnitudes(kind, n, odd), *scratch = test_alloc(bytes / 4, 0), largest = 7, want = 0;
	double got[2] = {7, 7}, again = 7;
	sum a = {0}, q = {0};
	for (size_t i = 0; i < n; i++) {
		double v = x[i];
		add_to(&a, fabs(v));
		add_to(&q, v * v);
		want = fabs(v) > want ? (float)fabs(v) : want;
	}
	op->sum_abs(NULL, &got[0], x, n, scratch);
	op->sum_squares(NULL, &got[1], x, n, scratch);
	op->absmax(NULL, &largest, x, n, scratch);
	case_of("sum of magnitudes", close_to(got[0], &a, n), "%s: of %zu, %s", name, n, kinds[kind]);
	case_of("sum of squares", close_to(got[1], &q, n), "%s: of %zu, %s", name, n, kinds[kind]);
	case_of("largest magnitude", !memcmp(&largest, &want, sizeof want), "%s: of %zu, %s", name, n, kinds[kind]);
	op->sum_squares(NULL, &again, x, n, scratch);
	case_of("sum of squares, the same again", again == got[1], "%s: of %zu, %s", name, n, kinds[kind]);
	case_of(OUTSIDE, test_free(scratch, bytes / 4, 0) & test_free(x, n, odd), "%s: sums of %zu, %s", name, n,
	        kinds[kind]);
}

static void each(const char *name, const gradcomp_operators *op)
{
	static const size_t sizes[] = {0, 1, 7, 8, 31, 32, 33, 63, 4097, 20011};
	for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
		steps(name, op, sizes[s]);
		found(name, op, sizes[s]);
		for (int kind = 0; kind < KINDS; kind++)
			sums(name, op, kind, sizes[s]);
	}
	steps(name, op, (1 << 20) + 3);
	found(name, op, (1 << 20) + 3);
	moments(name, op);
	sums(name, op, HEAVY, (1 << 20) + 3);
	tap_cases(name);

	float x[3] = {NAN, -0.0f, 1e30f}, y[3], limit = 0;
	op->clamp(NULL, y, x, &limit, 3);
	ok(isnan(y[0]) && signbit(y[1]) && y[2] == 0, "%s: clamp to 0 leaves a NaN and the sign of 0", name);
	op->copy(NULL, NULL, NULL, 0);
	op->fill(NULL, NULL, 1, 0);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
