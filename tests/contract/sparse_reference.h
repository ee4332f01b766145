/* A model for sparse compressors, and its numbers chosen by the definition. */
#ifndef TESTS_CONTRACT_SPARSE_REFERENCE_H
#define TESTS_CONTRACT_SPARSE_REFERENCE_H

#include "tests/support/compressor_ranks.h"
#include "tests/support/sparse_bytes.h"

enum { TENSORS = 5 };
static uint64_t dims[TENSORS][2] = {{40, 50}, {300, 0}, {0, 3}, {7, 9}, {1, 0}};
enum { D = 2000 + 300 + 0 + 63 + 1 };

/* Returns 1 when i comes before j. */
__attribute__((unused)) static int larger(const double *u, int i, int j)
{
	double a = fabs(u[i]), b = fabs(u[j]);
	return a > b || (a == b && i < j);
}

/* in[i] = 1 for the k largest of u. */
__attribute__((unused)) static void choose(char *in, const double *u, int d, uint64_t k)
{
	for (int i = 0; i < d; i++) {
		uint64_t before = 0;
		for (int j = 0; before < k && j < d; j++)
			before += larger(u, j, i);
		in[i] = before < k;
	}
}

__attribute__((unused)) static void fresh(job *j, double (*u)[D], int kind)
{
	for (int w = 0; w < j->s.P; w++)
		for (int i = 0; i < D; i++) {
			j->g[w][i] = fixture_gradient(kind, (uint64_t)i, 0);
			u[w][i] = (double)(j->g[w][i] + j->s.error[w][i]);
		}
}

#endif
