/* Small matrices in double, row by row, for references of low-rank methods. */
#ifndef TESTS_CONTRACT_DOUBLE_MATRICES_H
#define TESTS_CONTRACT_DOUBLE_MATRICES_H

#include <math.h>

#include "tests/support/operator_input.h"

enum { N = 60, M = 80, R = 4 };

/* Gram-Schmidt, twice: the Q of the QR factorisation with a positive diagonal. */
__attribute__((unused)) static void orth(double *A, int n, int r)
{
	for (int c = 0; c < r; c++) {
		double len = 0;
		for (int k = 0; k < 2 * c; k++) {
			double dot = 0;
			for (int i = 0; i < n; i++)
				dot += A[i * r + c] * A[i * r + k % c];
			for (int i = 0; i < n; i++)
				A[i * r + c] -= dot * A[i * r + k % c];
		}
		for (int i = 0; i < n; i++)
			len += A[i * r + c] * A[i * r + c];
		for (int i = 0; i < n; i++)
			A[i * r + c] /= sqrt(len);
	}
}

__attribute__((unused)) static void random_orth(double *A, int n, int r)
{
	for (int i = 0; i < n * r; i++)
		A[i] = test_normal();
	orth(A, n, r);
}

/* out (n x r) = A (n x m) B (m x r) */
__attribute__((unused)) static void times(double *out, const double *A, const double *B, int n, int m, int r)
{
	for (int i = 0; i < n; i++)
		for (int c = 0; c < r; c++) {
			double s = 0;
			for (int k = 0; k < m; k++)
				s += A[i * m + k] * B[k * r + c];
			out[i * r + c] = s;
		}
}

/* out (m x n) = A^T */
__attribute__((unused)) static void flip(double *out, const double *A, int n, int m)
{
	for (int i = 0; i < n; i++)
		for (int k = 0; k < m; k++)
			out[k * n + i] = A[i * m + k];
}

__attribute__((unused)) static double norm(const double *x, int n)
{
	double s = 0;
	for (int i = 0; i < n; i++)
		s += x[i] * x[i];
	return sqrt(s);
}

/* A matrix with given singular values; U and V are new. */
__attribute__((unused)) static void spectrum(double *A, const double *sigma, int k)
{
	double U[N * N], V[M * N], W[N * M];
	random_orth(U, N, k);
	random_orth(V, M, k);
	flip(W, V, M, k);
	for (int i = 0; i < N; i++)
		for (int c = 0; c < k; c++)
			U[i * k + c] *= sigma[c];
	times(A, U, W, N, k, M);
}

#endif
