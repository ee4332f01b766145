/* Many matrices at once: to the bit what they give one by one. */
#include "gradcomp/sdk/lowrank.h"
#include "tests/support/magnitudes.h"

enum { MOST = 9 };

static int same(float *const *a, float *const *b, size_t count, size_t n)
{
	for (size_t i = 0; i < count; i++)
		if (memcmp(a[i], b[i], n * sizeof **a) != 0)
			return 0;
	return 1;
}

/* count arrays, each at its own place. */
static void many(float **to, size_t count, size_t n)
{
	for (size_t i = 0; i < count; i++)
		to[i] = magnitudes(NORMAL, n, i);
}

static int drop(float **a, size_t count, size_t n)
{
	int whole = 1;
	for (size_t i = 0; i < count; i++)
		whole &= test_free(a[i], n, i);
	return whole;
}

static void one(const char *name, const gradcomp_operators *op, size_t count, size_t n, size_t m, size_t r)
{
	float *M[MOST], *X[MOST], *E[MOST], *F[MOST], *P[MOST], *Q[MOST], *P1[MOST], *Q1[MOST];
	const float *const *cM = (const float *const *)M, *const *cP = (const float *const *)P;
	const float *const *cQ = (const float *const *)Q;
	size_t bytes = op->product_scratch(count, n, m, r);
	float *scratch = test_alloc(bytes / 4, 0);
	many(M, count, n * m), many(X, count, n * m), many(E, count, n * m), many(F, count, n * m);
	many(P, count, n * r), many(P1, count, n * r), many(Q, count, m * r), many(Q1, count, m * r);

	op->product_mq_batch(NULL, P, cM, cQ, count, n, m, r, scratch);
	for (size_t i = 0; i < count; i++)
		sdk_product_mq(op, NULL, P1[i], M[i], Q[i], n, m, r, NULL);
	ok(same(P, P1, count, n * r), "%s: %zu of P = M Q, %zux%zu, r=%zu", name, count, n, m, r);

	op->orthonormalise_split(NULL, P, count, n, r, NULL);
	for (size_t i = 0; i < count; i++)
		sdk_orthonormalise(op, NULL, P1[i], n, r, NULL);
	ok(same(P, P1, count, n * r), "%s: orthonormalised", name);

	op->product_mtp_batch(NULL, Q, cM, cP, count, n, m, r, scratch);
	for (size_t i = 0; i < count; i++) {
		sdk_product_mtp(op, NULL, Q1[i], M[i], P[i], n, m, r, NULL);
		memcpy(X[i], M[i], n * m * sizeof **X);
	}
	ok(same(Q, Q1, count, m * r), "%s: Q = M^T P", name);

	op->low_rank_finish_batch(NULL, X, E, cP, cQ, cQ, count, n, m, r);
	for (size_t i = 0; i < count; i++)
		sdk_low_rank_finish(op, NULL, M[i], F[i], P[i], Q[i], Q[i], n, m, r);
	ok(same(X, M, count, n * m) && same(E, F, count, n * m), "%s: last pass", name);
	for (size_t i = 0; i < count; i++)
		memset(X[i], 0, n * m * sizeof **X);
	op->low_rank_finish_batch(NULL, X, NULL, cP, NULL, cQ, count, n, m, r);
	ok(same(X, M, count, n * m), "%s: last pass without error memory", name);

	int whole = drop(M, count, n * m) & drop(X, count, n * m) & drop(E, count, n * m) & drop(F, count, n * m);
	whole &= drop(P, count, n * r) & drop(P1, count, n * r) & drop(Q, count, m * r) & drop(Q1, count, m * r);
	ok(whole & test_free(scratch, bytes / 4, 0), "%s: nothing written outside", name);
}

static void each(const char *name, const gradcomp_operators *op)
{
	static const size_t shapes[][3] = {
		{0, 5, 5}, {1, 1, 1}, {2, 7, 3}, {3, 64, 64}, {MOST, 16, 9}, {4, 33, 31}, {2, 130, 1100}, {5, 8, 200},
	};
	for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
		for (size_t r = 1; r <= 9; r++)
			one(name, op, shapes[s][0], shapes[s][1], shapes[s][2], r);
	one(name, op, 3, 40, 50, 33);
	one(name, op, 2, 150, 140, 128);
	for (int k = 0; k < 10; k++)
		one(name, op, 1 + test_random() % MOST, 1 + test_random() % 150, 1 + test_random() % 150,
		    1 + test_random() % 12);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
