/* Products within their bound; the last pass and orthonormalisation to the bit; and
 * batches to the bit of single calls. */
#ifndef TESTS_CUDA_COMPARE_LOW_RANK_H
#define TESTS_CUDA_COMPARE_LOW_RANK_H

#include "gradcomp/sdk/lowrank.h"
#include "tests/cuda/device_arrays.h"

static float *normals(size_t n)
{
	float *x = malloc(4 * n + 1);
	for (size_t i = 0; i < n; i++)
		x[i] = test_normal();
	return x;
}

/* Returns true when A (n x r) is the product of n rows of M, `step` apart, elements `next` apart, with columns of B (m
 * x r). */
static bool is_product(const float *A, const float *M, const float *B, size_t n, size_t m, size_t r, size_t step,
                       size_t next)
{
	for (size_t i = 0; i < n; i++)
		for (size_t c = 0; c < r; c++) {
			double s = 0, size = 0;
			for (size_t k = 0; k < m; k++) {
				double t = (double)M[i * step + k * next] * B[k * r + c];
				s += t, size += fabs(t);
			}
			if (!(fabs(A[i * r + c] - s) <= (double)m * 0x1p-23 * size))
				return 0;
		}
	return 1;
}

enum { MATRICES = 3 };

typedef struct stack {
	float *host[MATRICES];
	watched w[MATRICES];
	float *at[MATRICES];
} stack;

static stack stack_of(size_t n)
{
	stack s;
	for (int i = 0; i < MATRICES; i++) {
		s.host[i] = normals(n);
		s.w[i] = watch(s.host[i], 4 * n, 4 * (size_t)i);
		s.at[i] = (float *)s.w[i].at;
	}
	return s;
}

/* Reads what is on the device now. */
static void stack_read(stack *s)
{
	for (int i = 0; i < MATRICES; i++)
		from_device(s->host[i], s->at[i], s->w[i].bytes);
}

static int stack_free(stack *s)
{
	int whole = 1;
	for (int i = 0; i < MATRICES; i++) {
		whole &= unwatch(&s->w[i], NULL);
		free(s->host[i]);
	}
	return whole;
}

#define CONST(s) (const float *const *)(s).at

static void step(size_t n, size_t m, size_t r)
{
	stack M = stack_of(n * m), X = stack_of(n * m), E = stack_of(n * m), P = stack_of(n * r), Q = stack_of(m * r);
	watched S = watch(NULL, gpu->product_scratch(MATRICES, n, m, r), 0);
	watched O = watch(NULL, 4 * (n > m ? n : m) * r, 4);
	float *one = malloc(O.bytes + 1), *x = malloc(4 * n * m + 1), *e = malloc(4 * n * m + 1);
	int good = 1, same = 1;
	gpu->product_mq_batch(NULL, P.at, CONST(M), CONST(Q), MATRICES, n, m, r, S.at);
	stack_read(&P);
	for (int i = 0; i < MATRICES; i++) {
		good &= is_product(P.host[i], M.host[i], Q.host[i], n, m, r, m, 1);
		sdk_product_mq(gpu, NULL, (float *)O.at, M.at[i], Q.at[i], n, m, r, S.at);
		from_device(one, O.at, 4 * n * r);
		same &= !memcmp(one, P.host[i], 4 * n * r);
	}
	ok(good, "P = M Q, %zux%zu, r=%zu", n, m, r);
	ok(same, "alone as in a batch");
	gpu->orthonormalise_split(NULL, P.at, MATRICES, n, r, NULL);
	same = 1;
	for (int i = 0; i < MATRICES; i++)
		sdk_orthonormalise(cpu, NULL, P.host[i], n, r, NULL);
	for (int i = 0; i < MATRICES; i++) {
		from_device(one, P.at[i], 4 * n * r);
		same &= !memcmp(one, P.host[i], 4 * n * r);
	}
	ok(same, "P orthonormal, with the host's bits");
	good = same = 1;
	gpu->product_mtp_batch(NULL, Q.at, CONST(M), CONST(P), MATRICES, n, m, r, S.at);
	stack_read(&Q);
	for (int i = 0; i < MATRICES; i++) {
		good &= is_product(Q.host[i], M.host[i], P.host[i], m, n, r, 1, m);
		sdk_product_mtp(gpu, NULL, (float *)O.at, M.at[i], P.at[i], n, m, r, NULL);
		from_device(one, O.at, 4 * m * r);
		same &= !memcmp(one, Q.host[i], 4 * m * r);
	}
	ok(good, "Q = M^T P");
	ok(same, "alone as in a batch");
	for (int error = 0; error < 2; error++) {
		stack L = stack_of(m * r);
		for (int i = 0; i < MATRICES; i++)
			to_device(X.at[i], X.host[i], 4 * n * m);
		gpu->low_rank_finish_batch(NULL, X.at, error ? E.at : NULL, CONST(P), error ? CONST(L) : NULL, CONST(Q),
		                           MATRICES, n, m, r);
		good = same = 1;
		for (int i = 0; i < MATRICES; i++) {
			memcpy(e, X.host[i], 4 * n * m);
			sdk_low_rank_finish(cpu, NULL, e, error ? x : NULL, P.host[i], L.host[i], Q.host[i], n, m, r);
			from_device(x, X.at[i], 4 * n * m);
			same &= !memcmp(e, x, 4 * n * m);
			from_device(e, E.at[i], 4 * n * m);
			for (size_t j = 0; error && j < n * m; j++) {
				double s = X.host[i][j], size = fabs(s);
				for (size_t c = 0; c < r; c++) {
					double t = (double)P.host[i][j / m * r + c] * L.host[i][j % m * r + c];
					s -= t, size += fabs(t);
				}
				good &= fabs(e[j] - s) <= (double)(r + 1) * 0x1p-23 * size;
			}
		}
		ok(same, "X = P Q^T, with the host's bits");
		ok(good, "E = X - P L^T");
		same = stack_free(&L);
	}
	same &= stack_free(&M) & stack_free(&X) & stack_free(&E) & stack_free(&P) & stack_free(&Q);
	ok(same & unwatch(&S, NULL) & unwatch(&O, NULL), "nothing written outside");
	free(one), free(x), free(e);
}

static void orthonormal(const char *what, float *A, size_t n, size_t r)
{
	float *got = malloc(4 * n * r + 1), *alone = malloc(4 * n * r + 1);
	watched W = watch(A, 4 * n * r, 4), V = watch(A, 4 * n * r, 8);
	watched S = watch(NULL, gpu->orthonormalise_scratch(2, n, r), 0);
	float *const both[] = {(float *)V.at, (float *)W.at};
	gpu->orthonormalise_split(NULL, both, 1, n, r, S.at);
	from_device(alone, V.at, 4 * n * r);
	to_device(V.at, A, 4 * n * r);
	gpu->orthonormalise_split(NULL, both, 2, n, r, S.at);
	sdk_orthonormalise(cpu, NULL, A, n, r, NULL);
	ok(unwatch(&W, got) && !memcmp(A, got, 4 * n * r) && unwatch(&V, got) && !memcmp(A, got, 4 * n * r),
	   "orthonormalise two of %zux%zu %s", n, r, what);
	ok(!memcmp(A, alone, 4 * n * r), "alone as in a batch");
	ok(unwatch(&S, NULL), "and the scratch memory was enough");
	free(got), free(alone);
}

/* Without scratch memory, and so in one block, whatever the shape. */
static void orthonormal_plain(float *A, size_t n, size_t r)
{
	float *got = malloc(4 * n * r + 1);
	watched W = watch(A, 4 * n * r, 4);
	sdk_orthonormalise(gpu, NULL, (float *)W.at, n, r, NULL);
	sdk_orthonormalise(cpu, NULL, A, n, r, NULL);
	ok(unwatch(&W, got) && !memcmp(A, got, 4 * n * r), "orthonormalise %zux%zu without scratch memory", n, r);
	free(got);
}

/* Numbers of a kind: of any size, with zero columns, nearly parallel, not finite, zeroes, dependent. */
enum { ORTHO_KINDS = 7 };

static float *columns_of(int kind, size_t n, size_t r)
{
	static const char *const sizes[] = {"1e-30", "1", "1e30"};
	float *A = normals(n * r), *B = normals(n), size = strtof(sizes[test_random() % 3], NULL);
	for (size_t i = 0; i < n * r; i++)
		A[i] = kind == 0   ? A[i] * size
		       : kind == 1 ? (i % r % 3 ? A[i] : 0)
		       : kind == 2 ? A[i / r * r] + (i % r ? 1e-5f * A[i] : 0)
		       : kind == 3 ? (i % r == 1 ? NAN : A[i])
		       : kind == 4 ? 0
		       : kind == 5 ? (float)((int)(test_random() % 3) - 1)
		                   : (i % r < 2 ? A[i] : (float)(i % r) * B[i / r]);
	free(B);
	return A;
}

static const char *const ortho_kinds[] = {"of some size", "with zero columns", "nearly parallel", "with NaN",
                                          "of zeroes",    "of few values",     "of rank 3"};

/* Either side of what fits one block, of a chunk more than a block of rows, and of a tile. */
static void test_orthonormalise(void)
{
	static const size_t tall[][2] = {{1, 1},    {85, 64},  {64, 64},  {210, 64}, {211, 64}, {257, 63}, {700, 61},
	                                 {400, 33}, {600, 17}, {4096, 4}, {8193, 1}, {8320, 2}, {20000, 3}};
	for (size_t s = 0; s < sizeof tall / sizeof tall[0]; s++) {
		const int kind = s < 4 ? (int)(test_random() % ORTHO_KINDS) : s % 3 == 0 ? 2 : s % 3 == 1 ? 6 : 5;
		float *A = columns_of(kind, tall[s][0], tall[s][1]);
		orthonormal(ortho_kinds[kind], A, tall[s][0], tall[s][1]);
		free(A);
		A = columns_of(s % 2 ? 0 : 6, tall[s][0], tall[s][1]);
		orthonormal_plain(A, tall[s][0], tall[s][1]);
		free(A);
	}
	for (int kind = 0; kind < ORTHO_KINDS; kind++)
		for (int k = 0; k < 5; k++) {
			size_t n = 1 + test_random() % (k < 2 ? 400 : 1600), r = 1 + test_random() % (k % 2 ? 8 : 64);
			float *A = columns_of(kind, n, r);
			orthonormal(ortho_kinds[kind], A, n, r);
			free(A);
		}
}

static void test_low_rank(void)
{
	static const size_t shapes[][2] = {{1, 1}, {7, 3}, {31, 33}, {65, 130}, {300, 40}, {9, 1025}, {0, 5}};
	static const size_t ranks[] = {1, 2, 3, 4, 5, 8, 13, 31, 64};
	for (size_t s = 0; s < 7; s++)
		for (size_t i = 0; i < 9; i++)
			if (s < 3 || i % 3 == s % 3)
				step(shapes[s][0], shapes[s][1], ranks[i]);
	step(520, 600, 4);
	/* By tiles: on either side of a step, of a tile and of a chunk. */
	step(1025, 65, 17);
	step(1056, 31, 64);
	step(250, 129, 33);
	test_orthonormalise();
}

#endif
