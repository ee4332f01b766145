/* Low-rank steps on many matrices of one shape. */
#include "operators/cpu/kernels.h"

/* No room is needed on this device. */
size_t KERNEL(product_scratch)(size_t count, size_t n, size_t m, size_t r)
{
	(void)count;
	(void)n;
	(void)m;
	(void)r;
	return 0;
}

void KERNEL(product_mq_batch)(void *queue, float *const *P, const float *const *M, const float *const *Q,
                              size_t count, size_t n, size_t m, size_t r, void *scratch)
{
	(void)scratch;
	for (size_t i = 0; i < count; i++)
		KERNEL(product_mq)(queue, P[i], M[i], Q[i], n, m, r);
}

void KERNEL(product_mtp_batch)(void *queue, float *const *Q, const float *const *M, const float *const *P,
                               size_t count, size_t n, size_t m, size_t r, void *scratch)
{
	(void)scratch;
	for (size_t i = 0; i < count; i++)
		KERNEL(product_mtp)(queue, Q[i], M[i], P[i], n, m, r);
}

void KERNEL(low_rank_finish_batch)(void *queue, float *const *X, float *const *E, const float *const *P,
                                   const float *const *Elocal, const float *const *Q, size_t count, size_t n,
                                   size_t m, size_t r)
{
	for (size_t i = 0; i < count; i++)
		KERNEL(low_rank_finish)(queue, X[i], E ? E[i] : NULL, P[i], E ? Elocal[i] : NULL, Q[i], n, m, r);
}

void KERNEL(orthonormalise_batch)(void *queue, float *const *A, size_t count, size_t n, size_t r)
{
	for (size_t i = 0; i < count; i++)
		KERNEL(orthonormalise)(queue, A[i], n, r);
}
