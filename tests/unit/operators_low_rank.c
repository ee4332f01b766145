/* Products and the last pass of low rank, of one matrix, against products in double. */
#include <math.h>

#include "gradcomp/sdk/lowrank.h"
#include "tests/support/operator_input.h"

static const size_t shapes[][3] = {
	{1, 1, 1},     {1, 9, 1},   {9, 1, 1},    {2, 3, 2},    {7, 5, 5},      {8, 8, 8},     {33, 17, 3},
	{17, 33, 4},   {64, 64, 4}, {5, 1030, 4}, {1030, 5, 4}, {40, 2049, 6},  {12, 1024, 7}, {31, 1025, 16},
	{20, 300, 64}, {3, 0, 2},   {0, 3, 2},    {129, 65, 9}, {20, 300, 128}, {70, 90, 65},  {5, 9, 128},
};

static float *filled(size_t n, size_t odd, double size)
{
	float *p = test_alloc(n, odd);
	for (size_t i = 0; i < n; i++)
		p[i] = (float)(test_normal() * size);
	return p;
}

/* Returns true when got = A B to the promised bound; A is n x k by (ra, ca), B k x r. */
static int within(const float *got, const float *A, size_t ra, size_t ca, const float *B, size_t n, size_t k, size_t r)
{
	for (size_t i = 0; i < n; i++)
		for (size_t c = 0; c < r; c++) {
			double s = 0, mag = 0;
			for (size_t j = 0; j < k; j++) {
				double t = (double)A[i * ra + j * ca] * B[j * r + c];
				s += t;
				mag += fabs(t);
			}
			if (!(fabs(got[i * r + c] - s) <= (double)k * 0x1p-23 * mag)) {
				printf("# element %zu,%zu is %.9g, not %.9g\n", i, c, got[i * r + c], s);
				return 0;
			}
		}
	return 1;
}

static int close_to(double got, double want, double mag)
{
	return fabs(got - want) <= 140 * 0x1p-23 * mag;
}

static void one(const char *name, const gradcomp_operators *op, size_t n, size_t m, size_t r)
{
	size_t odd = test_random() % 16;
	float *M = filled(n * m, odd, 1e-3), *Q = filled(m * r, odd + 1, 1), *P = test_alloc(n * r, odd);
	float *L = filled(m * r, odd, 1e-3), *E = test_alloc(n * m, odd + 2), *X = test_alloc(n * m, odd + 3);
	float *Y = test_alloc(n * m, odd), *T = test_alloc(m * r, odd);
	sdk_product_mq(op, NULL, P, M, Q, n, m, r, NULL);
	ok(within(P, M, m, 1, Q, n, m, r), "%s: P = M Q, %zux%zu, r=%zu", name, n, m, r);
	sdk_product_mtp(op, NULL, T, M, P, n, m, r, NULL);
	ok(within(T, M, 1, m, P, m, n, r), "%s: Q = M^T P, %zux%zu, r=%zu", name, n, m, r);

	memcpy(X, M, n * m * sizeof *X);
	memcpy(Y, M, n * m * sizeof *Y);
	sdk_low_rank_finish(op, NULL, X, E, P, L, Q, n, m, r);
	sdk_low_rank_finish(op, NULL, Y, NULL, P, NULL, Q, n, m, r);
	int right = 1, exact = 1;
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < m; j++) {
			double x = 0, e = M[i * m + j], mx = 0, me = fabs(e);
			float f = P[i * r] * Q[j * r];
			for (size_t c = 0; c < r; c++) {
				x += (double)P[i * r + c] * Q[j * r + c];
				mx += fabs((double)P[i * r + c] * Q[j * r + c]);
				e -= (double)P[i * r + c] * L[j * r + c];
				me += fabs((double)P[i * r + c] * L[j * r + c]);
				if (c)
					f += P[i * r + c] * Q[j * r + c];
			}
			right &= close_to(X[i * m + j], x, mx) && close_to(E[i * m + j], e, me);
			exact &= X[i * m + j] == f;
		}
	ok(right, "%s: last pass, %zux%zu, r=%zu", name, n, m, r);
	ok(exact && !memcmp(X, Y, n * m * sizeof *X),
	   "%s: P Q^T is to the bit what plain code gives, with and without E", name);
	int whole = test_free(M, n * m, odd) & test_free(Q, m * r, odd + 1) & test_free(P, n * r, odd);
	whole &= test_free(L, m * r, odd) & test_free(E, n * m, odd + 2) & test_free(X, n * m, odd + 3);
	whole &= test_free(Y, n * m, odd) & test_free(T, m * r, odd);
	ok(whole, "%s: nothing written outside, %zux%zu, r=%zu", name, n, m, r);
}

static void each(const char *name, const gradcomp_operators *op)
{
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
		one(name, op, shapes[i][0], shapes[i][1], shapes[i][2]);
	for (size_t r = 1; r <= 9; r++)
		one(name, op, 1 + test_random() % 60, 1 + test_random() % 1500, r);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
