/* orthonormalise: orthonormal columns with the span of the input, the same bits on
 * every path, and sound columns out of unsound ones. */
#include <math.h>

#include "gradcomp/sdk/lowrank.h"
#include "tests/support/operator_input.h"

enum { VARIANTS = 3 };
static float *result[VARIANTS];

/* Largest departure of A^T A from the unit matrix; `zero` columns at the end are
 * expected to be 0. */
static double departure(const float *A, size_t n, size_t r, size_t zero)
{
	double worst = 0;
	for (size_t a = 0; a < r; a++)
		for (size_t b = 0; b <= a; b++) {
			double s = 0;
			for (size_t i = 0; i < n; i++)
				s += (double)A[i * r + a] * A[i * r + b];
			s = fabs(s - (a == b && a < r - zero));
			worst = s > worst || s != s ? s : worst;
		}
	return worst;
}

/* How far input column c lies outside of the span of columns 0..c, of its length. */
static double outside(const float *in, const float *A, size_t n, size_t r, size_t c)
{
	double *left = malloc(n * sizeof *left), len = 0, rest = 0;
	for (size_t i = 0; i < n; i++) {
		left[i] = in[i * r + c];
		len += left[i] * left[i];
	}
	for (size_t b = 0; b <= c; b++) {
		double s = 0;
		for (size_t i = 0; i < n; i++)
			s += left[i] * A[i * r + b];
		for (size_t i = 0; i < n; i++)
			left[i] -= s * A[i * r + b];
	}
	for (size_t i = 0; i < n; i++)
		rest += left[i] * left[i];
	free(left);
	return len > 0 ? sqrt(rest / len) : 0;
}

static void check(const char *what, const float *in, size_t n, size_t r, double span)
{
	static const char *const names[VARIANTS] = {"portable", "avx2", "avx512"};
	const gradcomp_operators *op[VARIANTS];
	size_t zero = r > n ? r - n : 0;
	for (int v = 0; v < VARIANTS; v++) {
		op[v] = operators_cpu_variant(names[v]);
		if (!op[v]) {
			skip("not run by this processor", "%s: %s", names[v], what);
			continue;
		}
		result[v] = test_alloc(n * r, 3);
		memcpy(result[v], in, n * r * sizeof *in);
		sdk_orthonormalise(op[v], NULL, result[v], n, r, NULL);
		double d = departure(result[v], n, r, zero);
		ok(d < 1e-6, "%s: %zux%zu %s: orthonormal within %.1e", names[v], n, r, what, d);
		double worst = 0;
		for (size_t c = 0; c + zero < r; c++) {
			d = outside(in, result[v], n, r, c);
			worst = d > worst ? d : worst;
		}
		if (zero == 0)
			ok(worst <= span, "%s: %zux%zu %s: spans the input within %.1e", names[v], n, r, what, worst);
	}
	for (int v = 1; v < VARIANTS; v++)
		if (op[v])
			ok(!memcmp(result[0], result[v], n * r * sizeof *in),
			   "%zux%zu %s: portable and %s agree to the bit", n, r, what, names[v]);
	for (int v = 0; v < VARIANTS; v++)
		if (op[v])
			ok(test_free(result[v], n * r, 3), "%s: nothing written outside", names[v]);
}

static void random_ones(void)
{
	static const size_t shapes[][2] = {{1, 1},   {2, 2},     {5, 3},     {64, 4},    {127, 4},  {128, 1},
	                                   {129, 8}, {1000, 5},  {4099, 4},  {300, 64},  {64, 64},  {3, 7},
	                                   {1, 4},   {20000, 2}, {300, 128}, {128, 128}, {200, 65}, {9, 100}};
	static const double sizes[] = {1, 1e-30, 1e30, 1e-40};
	for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
		for (int k = 0; k < 4; k++) {
			size_t n = shapes[s][0], r = shapes[s][1];
			float *A = test_alloc(n * r, 0);
			char what[32];
			for (size_t i = 0; i < n * r; i++)
				A[i] = (float)(test_normal() * sizes[k]);
			snprintf(what, sizeof what, "normal of size %g", sizes[k]);
			/* Square random matrices may be near singular, and 1e-40 has few bits:
			 * what is dropped there is noise. */
			check(what, A, n, r, 3e-6);
			test_free(A, n * r, 0);
		}
}

static void degenerate(void)
{
	size_t n = 200 + test_random() % 200, r = 6;
	float *A = test_alloc(n * r, 0);
	memset(A, 0, n * r * sizeof *A);
	check("of zeroes", A, n, r, 0);

	for (size_t i = 0; i < n; i++) {
		float a = test_normal(), b = test_normal();
		for (size_t c = 0; c < r; c++)
			A[i * r + c] = c == 3 ? 0 : (float)(c + 1) * a + (float)(c % 2) * b;
	}
	check("of rank 2 with a zero column", A, n, r, 3e-6);

	for (size_t i = 0; i < n; i++) {
		float a = test_normal();
		for (size_t c = 0; c < r; c++)
			A[i * r + c] = a + (c ? 1e-4f * test_normal() : 0);
	}
	check("nearly parallel columns", A, n, r, 3e-6);

	for (size_t i = 0; i < n * r; i++)
		A[i] = (float)(test_normal() * pow(10, 7 * ((double)(i % r) - 3)));
	check("columns from 1e-21 to 1e14", A, n, r, 3e-6);

	for (size_t i = 0; i < n; i++)
		for (size_t c = 0; c < r; c++)
			A[i * r + c] = c == 0 ? 1 : c == 1 ? 3e38f : (i == c ? 1e-45f : 0);
	check("constants, the largest float and the smallest", A, n, r, 3e-6);
	test_free(A, n * r, 0);
}

/* Most columns are filled in, where much and where little of a unit vector is left. */
static void low_rank(void)
{
	static const size_t shapes[][3] = {{64, 64, 30},  {64, 64, 63}, {70, 64, 1},  {86, 64, 60}, {128, 128, 100},
	                                   {140, 128, 1}, {9, 9, 4},    {9000, 5, 2}, {2, 2, 1}};
	for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
		const size_t n = shapes[s][0], r = shapes[s][1], rank = shapes[s][2];
		float *A = test_alloc(n * r, 0), *B = test_alloc(n * rank, 0), *C = test_alloc(rank * r, 0);
		for (size_t i = 0; i < n * rank; i++)
			B[i] = test_normal();
		for (size_t i = 0; i < rank * r; i++)
			C[i] = (float)((int)(test_random() % 5) - 2);
		for (size_t i = 0; i < n * r; i++) {
			A[i] = 0;
			for (size_t k = 0; k < rank; k++)
				A[i] += B[i / r * rank + k] * C[k * r + i % r];
		}
		check("of low rank", A, n, r, 1e-5);
		test_free(A, n * r, 0), test_free(B, n * rank, 0), test_free(C, rank * r, 0);
	}
}

int main(void)
{
	test_seed();
	random_ones();
	degenerate();
	low_rank();
	return done_testing();
}
