/* gradcomp/operators.h: the compute vocabulary that compressors are written in.
 *
 * One table a device. A compressor written in these runs wherever a table
 * exists, and its author writes no kernel.
 *
 * Common to all:
 * - `queue` is the stream the work is put on; NULL on the host, where every
 *   operator has finished when it returns.
 * - Matrices are row-major and dense. n, m, r, k and counts are elements.
 * - Pointers are to the table's device. Inputs and outputs do not overlap
 *   unless said otherwise. A count of 0 does nothing.
 * - An operator never allocates; where it needs room it takes `scratch`, whose
 *   size its *_scratch() function gives, in bytes, aligned to 64. It may use
 *   200 KiB of stack.
 * - May be called on any thread, at the same time on different buffers.
 *
 * Two promises on rounding. Operators marked LOCAL work on one rank's own data:
 * the result is right to the stated bound and may differ in the last bits
 * between processors. Operators marked REPLICATED are run by every rank on
 * equal data and give the same bits on every processor of every kind (but for
 * the payload of a NaN that an addition or multiplication makes).
 */
#ifndef GRADCOMP_OPERATORS_H
#define GRADCOMP_OPERATORS_H

#include "abi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gradcomp_operators {
	uint32_t struct_size;
	gradcomp_device device;

	/* y[i] += x[i]. REPLICATED. */
	void (*add)(void *queue, float *y, const float *x, size_t n);
	/* x[i] *= a. REPLICATED. */
	void (*scale)(void *queue, float *x, float a, size_t n);
	/* acc[i] = acc[i] OP in[i], rounded once per element to `dtype`. REPLICATED.
	 * Returns GRADCOMP_ERR_UNSUPPORTED for a pair without meaning (BOR on
	 * floats). MAX and MIN pass a NaN on. Sums of integers wrap around. */
	gradcomp_status (*reduce)(void *queue, void *acc, const void *in, size_t n, gradcomp_dtype dtype,
	                          gradcomp_op op);
	/* x[i] = x[i] * a in `dtype` (floating types only; others: UNSUPPORTED).
	 * REPLICATED. */
	gradcomp_status (*scale_as)(void *queue, void *x, double a, size_t n, gradcomp_dtype dtype);
	/* *bad = 0 when all n values are finite, else 1. Host memory for `bad`. */
	void (*nonfinite)(void *queue, const float *x, size_t n, int *bad);

	/* Casts between float and F16/BF16 (F32 copies; other types: UNSUPPORTED):
	 * round to nearest even, denormals honoured, NaN stays NaN and becomes quiet,
	 * Inf stays Inf, overflow becomes Inf, or the largest finite value when
	 * `saturate`. REPLICATED. */
	gradcomp_status (*cast_from_f32)(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to,
	                                 int saturate);
	gradcomp_status (*cast_to_f32)(void *queue, float *out, const void *in, size_t n, gradcomp_dtype from);

	/* P (n x r) = M (n x m) Q (m x r). LOCAL: each element within
	 * m * 2^-23 * sum |M||Q| of the exact product. r <= 64. */
	void (*product_mq)(void *queue, float *P, const float *M, const float *Q, size_t n, size_t m, size_t r);
	/* Q (m x r) = M^T P. LOCAL, same bound with n for m. */
	void (*product_mtp)(void *queue, float *Q, const float *M, const float *P, size_t n, size_t m, size_t r);
	/* The last pass of a low-rank step, fused: on entry X (n x m) holds what was
	 * compressed; E = X - P Elocal^T (LOCAL; E may be NULL), then X = P Q^T
	 * (REPLICATED). Elocal and Q are m x r. X and E do not overlap. */
	void (*low_rank_finish)(void *queue, float *X, float *E, const float *P, const float *Elocal,
	                        const float *Q, size_t n, size_t m, size_t r);
	/* Orthonormalises the columns of A (n x r, r <= 64) in place. REPLICATED.
	 * Columns that are zero, or depend on earlier ones, are replaced by unit
	 * vectors orthogonal to the rest while n allows (r > n: the surplus columns
	 * become zero). Columns dependent within float rounding count as dependent,
	 * whatever their scale; a column that is not finite counts as zero. No NaN
	 * comes out. Does nothing when r > 64. */
	void (*orthonormalise)(void *queue, float *A, size_t n, size_t r);

	/* Exactly k (<= n < 2^32) indices of the largest |x|, ascending; equal
	 * magnitudes go to the lower index; -0 equals 0; x must be finite.
	 * REPLICATED. val[j] = x[idx[j]]. */
	size_t (*topk_scratch)(size_t n, size_t k);
	void (*topk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, void *scratch);
	/* y[idx[j]] += a * val[j], j ascending. idx comes from a peer and is checked:
	 * an index >= n returns GRADCOMP_ERR_RANGE before y is touched. REPLICATED. */
	gradcomp_status (*scatter_add)(void *queue, float *y, size_t n, const uint32_t *idx, const float *val,
	                               size_t k, float a);

	/* out[i] for i in [0,n) is number j = first + i of a stream of the
	 * Philox4x32-10 counter generator, whatever n is: word j % 4 of the block with
	 * counter (j/4 low, j/4 high, stream low, stream high) and key (seed low, seed
	 * high). Uniform in [0,1): its upper 24 bits. Normal, mean 0, variance 1, by
	 * Box-Muller: words 2i and 2i+1 are radius and angle of numbers 2i and 2i+1.
	 * REPLICATED. */
	void (*random_uniform)(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first);
	void (*random_normal)(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first);
} gradcomp_operators;

#ifdef __cplusplus
}
#endif
#endif
