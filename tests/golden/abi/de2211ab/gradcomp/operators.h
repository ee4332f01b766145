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
 * - Results that are one number (counts, sums, thresholds, faults) are written to
 *   and read from memory of the table's device, so that one operator can use
 *   what another found without anybody waiting for the queue. Arrays of pointers
 *   and structures of settings are host memory, read before the call returns.
 * - A `fault` word is set to 1 when input is not what it should be, and left
 *   alone otherwise; on a device it tells when the queue has got there.
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

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers in few bits: every block shares a step, code * step is the value.
 *
 * In memory: the steps of all blocks, one float each (none with NORM_GIVEN), then
 * the codes, two's complement, 8 / bits to a byte, the first in the lowest bits;
 * unused bits are 0. */
typedef enum gradcomp_norm {
	GRADCOMP_NORM_ABSMAX = 0, /* step = largest magnitude of the block / levels */
	GRADCOMP_NORM_L2 = 1,     /* step = Euclidean norm of the block / levels (QSGD) */
	GRADCOMP_NORM_GIVEN = 2,  /* step = *given for all */
	/* ABSMAX, and x may have what is not finite: the step of such a block is the NaN 0x7fc00000
	 * and its codes are 0, so all of it comes back as NaN; quantised_check() lets that step pass. */
	GRADCOMP_NORM_ABSMAX_OR_NAN = 3
} gradcomp_norm;
typedef enum gradcomp_rounding {
	GRADCOMP_TO_NEAREST = 0, /* to even */
	GRADCOMP_TO_EITHER = 1,  /* up with the probability of the fraction: unbiased */
	GRADCOMP_TO_ZERO = 2     /* cut off */
} gradcomp_rounding;
typedef struct gradcomp_quantiser {
	uint32_t struct_size;
	uint32_t bits;      /* of a code: 2, 4 or 8 */
	uint32_t levels;    /* codes are -levels..levels; 1..2^(bits-1) - 1 */
	uint32_t block;     /* numbers a block: a multiple of 32, at most 65536 */
	uint32_t norm;      /* gradcomp_norm */
	uint32_t rounding;  /* gradcomp_rounding */
	const float *given; /* NORM_GIVEN: one float on the table's device, finite, not negative */
	/* TO_EITHER: number i rounds up when random_uniform's number first + i is less
	 * than the fraction. */
	uint64_t seed, stream, first;
} gradcomp_quantiser;

/* How k ascending indices below d are written, in words of 32 bits, unused bits 0. */
typedef enum gradcomp_index_coding {
	GRADCOMP_INDEX_RAW = 0, /* a word each */
	/* Elias-Fano: with l = floor(log2(d / k)), the lower l bits of each index, packed; then
	 * a string of k + ((d - 1) >> l) bits, whose bit (index >> l) + j stands for index j. */
	GRADCOMP_INDEX_DELTA = 1,
	GRADCOMP_INDEX_BITMAP = 2, /* d bits */
	GRADCOMP_INDEX_ALL = 3     /* nothing: k = d */
} gradcomp_index_coding;

/* What moment() gives. */
typedef enum gradcomp_moment {
	GRADCOMP_MEAN = 0,
	GRADCOMP_ROOT = 1,        /* of the mean */
	GRADCOMP_INVERSE_ROOT = 2 /* 1 / root */
} gradcomp_moment;

/* Bins of histogram(): the exponent and the upper four bits of the mantissa. */
#define GRADCOMP_HISTOGRAM_BINS 4096
#define GRADCOMP_NO_INDEX UINT32_MAX

/* What a sampled sum of squares reads: the first RUN numbers of every EVERY. */
#define GRADCOMP_SAMPLE_RUN 256
#define GRADCOMP_SAMPLE_EVERY 8192

/* One tensor of a bucket. x, grad and error overlap nobody's but for grad, which may be
 * x itself; then dtype is F32. */
typedef struct gradcomp_segment {
	float *x;           /* n numbers, as compressors see them */
	void *grad;         /* n of dtype, or NULL for store_tensors() */
	const float *error; /* n numbers of error memory, or NULL */
	uint64_t n;
	uint32_t dtype; /* F32, F16, BF16, F8E4M3, F8E5M2 */
	uint32_t add;   /* 1: error is added to x; 0: it only counts in the sample */
} gradcomp_segment;

/* k pairs of one rank's, and a vector that ranks' pairs are added up in. */
typedef struct gradcomp_pairs {
	const uint32_t *idx;
	const float *val;
	uint64_t k;
} gradcomp_pairs;
typedef struct gradcomp_sparse {
	float *y;
	uint64_t n; /* below 2^32 */
} gradcomp_sparse;

/* Numbers in few bits whose levels are given: code c of -levels..levels stands for sign(c) *
 * value[|c|] * the largest magnitude of its block. In memory they are as a gradcomp_quantiser's,
 * with those magnitudes in place of steps, so quantised_bytes() and quantised_check() hold. */
typedef struct gradcomp_levels {
	uint32_t struct_size;
	uint32_t bits;    /* of a code: 4 or 8 */
	uint32_t levels;  /* 1..2^(bits-1) - 1 */
	uint32_t block;   /* as a quantiser's */
	float value[128]; /* of codes 0..levels: ascending from 0 to 1 */
	float edge[128];  /* edge[c], c > 0: what lies above it is code c or a higher one; ascending */
} gradcomp_levels;

/* A matrix whose chunks are transformed, and what a rank sent of all chunks. */
typedef struct gradcomp_matrix {
	float *x; /* n x m */
	uint64_t n, m;
} gradcomp_matrix;
typedef struct gradcomp_coefficients {
	const float *val;
	const uint16_t *place;
} gradcomp_coefficients;
#define GRADCOMP_DCT_RANKS 64 /* that one dct_back() takes */
#define GRADCOMP_DCT_ADD (1u << 0)
#define GRADCOMP_DCT_SIGN (1u << 1)
#define GRADCOMP_DCT_SENDERS (1u << 2)
/* `chunk` of dct_topk() and dct_back() where chunks are not square. */
#define GRADCOMP_DCT_SIDES(rows, columns) ((uint32_t)(rows) | (uint32_t)(columns) << 16)

typedef struct gradcomp_operators {
	uint32_t struct_size;
	gradcomp_device device;

	/* y[i] += x[i]. REPLICATED. */
	void (*add)(void *queue, float *y, const float *x, size_t n);
	/* x[i] *= a. REPLICATED. */
	void (*scale)(void *queue, float *x, float a, size_t n);
	/* acc[i] = acc[i] OP in[i], rounded once per element to `dtype`. REPLICATED.
	 * Returns GRADCOMP_ERR_UNSUPPORTED for a pair without meaning (BOR on
	 * floats). MAX and MIN pass a NaN on, acc's if both are; of 0 and -0
	 * they leave acc's. So the order counts where two ranks reduce the same pair: let acc be the
	 * lower rank's on both. Sums of integers wrap around. */
	gradcomp_status (*reduce)(void *queue, void *acc, const void *in, size_t n, gradcomp_dtype dtype,
	                          gradcomp_op op);
	/* x[i] = x[i] * a in `dtype` (floating types only; others: UNSUPPORTED).
	 * REPLICATED. */
	gradcomp_status (*scale_as)(void *queue, void *x, double a, size_t n, gradcomp_dtype dtype);
	/* *bad = 0 when all n values are finite, else 1. On a device `bad` is its memory, or
	 * host memory that it can write. */
	void (*nonfinite)(void *queue, const float *x, size_t n, int *bad);

	/* Casts between float and F16, BF16, F8E4M3, F8E5M2 (F32 copies; other types:
	 * UNSUPPORTED): round to nearest even, denormals honoured, NaN stays NaN with its
	 * sign and upper bits and becomes quiet, Inf stays Inf, overflow becomes Inf, or
	 * the largest finite value when `saturate`. F8E4M3 has no Inf, and one NaN of
	 * each sign: there both become NaN, or 448. REPLICATED. */
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
	void (*low_rank_finish)(void *queue, float *X, float *E, const float *P, const float *Elocal, const float *Q,
	                        size_t n, size_t m, size_t r);
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
	/* y[idx[j]] += a * val[j], j ascending; GRADCOMP_NO_INDEX is passed over. idx
	 * comes from a peer and is checked: any other index >= n returns
	 * GRADCOMP_ERR_RANGE before y is touched. (On a device it is left out and the
	 * call returns OK: use sparse_check() there; no index may stand twice.)
	 * REPLICATED. */
	gradcomp_status (*scatter_add)(void *queue, float *y, size_t n, const uint32_t *idx, const float *val, size_t k,
	                               float a);

	/* out[i] for i in [0,n) is number j = first + i of a stream of the
	 * Philox4x32-10 counter generator, whatever n is: word j % 4 of the block with
	 * counter (j/4 low, j/4 high, stream low, stream high) and key (seed low, seed
	 * high). Uniform in [0,1): its upper 24 bits. Normal, mean 0, variance 1, by
	 * Box-Muller: words 2i and 2i+1 are radius and angle of numbers 2i and 2i+1.
	 * REPLICATED. */
	void (*random_uniform)(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first);
	void (*random_normal)(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first);

	/* ---- memory and sums ---- */

	/* Either side may also be memory of gradcomp_host.alloc(): so an instance keeps a
	 * few floats (warm-start factors) from step to step. */
	void (*copy)(void *queue, void *to, const void *from, size_t bytes);
	void (*fill)(void *queue, float *x, float a, size_t n);
	/* y[i] += a * x[i], rounded after the product and after the sum. REPLICATED. */
	void (*axpy)(void *queue, float *y, float a, const float *x, size_t n);
	/* y[i] = x[i] held within -*limit..*limit; y may be x. REPLICATED. */
	void (*clamp)(void *queue, float *y, const float *x, const float *limit, size_t n);
	/* *out = sum of x, of |x|, of x^2, each term and sum in double: LOCAL, within
	 * n * 2^-52 of the sum of magnitudes, and the same in every run. */
	size_t (*sum_scratch)(size_t n);
	void (*sum)(void *queue, double *out, const float *x, size_t n, void *scratch);
	void (*sum_abs)(void *queue, double *out, const float *x, size_t n, void *scratch);
	void (*sum_squares)(void *queue, double *out, const float *x, size_t n, void *scratch);
	/* Largest |x|, 0 for n = 0; x is finite. REPLICATED. */
	void (*absmax)(void *queue, float *out, const float *x, size_t n, void *scratch);

	/* ---- low rank, many matrices of one shape at once ---- */

	/* As the operators without _batch on P[i], M[i], Q[i], and so on, i < count,
	 * with the same bits; faster where matrices are small. */
	size_t (*product_scratch)(size_t count, size_t n, size_t m, size_t r);
	void (*product_mq_batch)(void *queue, float *const *P, const float *const *M, const float *const *Q,
	                         size_t count, size_t n, size_t m, size_t r, void *scratch);
	void (*product_mtp_batch)(void *queue, float *const *Q, const float *const *M, const float *const *P,
	                          size_t count, size_t n, size_t m, size_t r, void *scratch);
	void (*low_rank_finish_batch)(void *queue, float *const *X, float *const *E, const float *const *P,
	                              const float *const *Elocal, const float *const *Q, size_t count, size_t n,
	                              size_t m, size_t r);
	void (*orthonormalise_batch)(void *queue, float *const *A, size_t count, size_t n, size_t r);

	/* ---- selection; n < 2^32, x finite, -0 equals 0. All REPLICATED ---- */

	/* counts[b] = how many i have bin (bits of |x[i]|) >> 19 == b. */
	void (*histogram)(void *queue, uint32_t *counts, const float *x, size_t n);
	/* *out = the k-th largest |x|, 1 <= k <= n. Scratch as topk. */
	void (*kth_magnitude)(void *queue, float *out, const float *x, size_t n, size_t k, void *scratch);
	/* *count = how many |x| >= *threshold. */
	void (*count_above)(void *queue, uint64_t *count, const float *x, size_t n, const float *threshold);
	/* Indices and values of all |x| > *threshold and of the lowest-indexed
	 * |x| == *threshold while fewer than k are taken, ascending; when there are
	 * more than k above it, the k lowest-indexed. *count = how many; idx and val have
	 * room for k, and what lies behind may be overwritten. Scratch as topk. */
	void (*compact)(void *queue, uint32_t *idx, float *val, uint64_t *count, const float *x, size_t n,
	                const float *threshold, size_t k, void *scratch);
	/* MSTopK (Shi et al. 2020): exactly k indices, ascending. mu is the exact sum of
	 * |x|, rounded to double, over n; z(t) counts the |x| >= t. Start with t1 =
	 * infinity, t2 = 0, on [low, high] = [mu, max |x|]; when z(mu) < k, with t1 = mu,
	 * t2 = 0, on [0, mu]. `samplings` times, in double, t = low + q (high - low), where
	 * q halves what is left of [0, 1]: z(t) <= k gives t1 = t and the lower half next,
	 * else t2 = t and the upper half. Taken are all |x| >= t1, and of the others >= t2,
	 * by index, k - z(t1) in a row from number floor(u (z(t2) - k + 1)) on; u is number
	 * 0 of random_uniform's stream. */
	size_t (*mstopk_scratch)(size_t n, size_t k);
	void (*mstopk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, int samplings,
	               uint64_t seed, uint64_t stream, void *scratch);

	/* ---- sparse vectors: k ascending indices and their values ---- */

	/* val[j] = x[idx[j]]; idx is this rank's own. */
	void (*gather)(void *queue, float *val, const float *x, const uint32_t *idx, size_t k);
	/* y[idx[j]] = val[j], or 0 when val is NULL; idx is this rank's own. */
	void (*scatter)(void *queue, float *y, const uint32_t *idx, const float *val, size_t k);
	/* *fault = 1 unless idx ascends strictly below n and val, if it is not NULL, is finite. */
	void (*sparse_check)(void *queue, int *fault, const uint32_t *idx, const float *val, size_t k, size_t n);
	/* gTop-k's sum: of a + b (k pairs each) the k largest by magnitude, ties to
	 * the lower index, go to (idx, val), and the rest of the union to (left_idx,
	 * left_val): k pairs, filled up with GRADCOMP_NO_INDEX and 0. scatter_add()
	 * passes over those. All ascending; a and b have passed sparse_check(). On a
	 * device values may be infinite or NaN: those are the largest. REPLICATED. */
	size_t (*sparse_merge_scratch)(size_t k);
	void (*sparse_merge)(void *queue, uint32_t *idx, float *val, uint32_t *left_idx, float *left_val,
	                     const uint32_t *a_idx, const float *a_val, const uint32_t *b_idx, const float *b_val,
	                     size_t k, void *scratch);

	/* ---- quantisers ---- */

	/* Bytes of n quantised numbers; 0 when a field of q is out of its range. */
	size_t (*quantised_bytes)(const gradcomp_quantiser *q, size_t n);
	/* A code is x / step, rounded to float, held within the levels, and rounded as
	 * asked. REPLICATED, but for NORM_L2. x is finite, but for NORM_ABSMAX_OR_NAN. A step
	 * that would be less than 2^-126 is 0, and so are its codes. One found in a block is at
	 * most the largest whose product with the levels is finite. */
	void (*quantise)(void *queue, void *out, const float *x, size_t n, const gradcomp_quantiser *q);
	/* *fault = 1 unless all steps are finite and not negative, but for NORM_ABSMAX_OR_NAN, and
	 * all codes within the levels. Dequantising anything else is safe and gives what it gives. */
	void (*quantised_check)(void *queue, int *fault, const void *in, size_t n, const gradcomp_quantiser *q);
	/* v[i] = code * step, rounded once. y = v; y += a * v (rounded after each); e =
	 * x - v (e may be x). REPLICATED. */
	void (*dequantise)(void *queue, float *y, const void *in, size_t n, const gradcomp_quantiser *q);
	void (*dequantise_add)(void *queue, float *y, float a, const void *in, size_t n, const gradcomp_quantiser *q);
	void (*dequantise_error)(void *queue, float *e, const float *x, const void *in, size_t n,
	                         const gradcomp_quantiser *q);

	/* Signs: x is runs of `segment` numbers, the last may be shorter; every run
	 * begins a new word of 32 bits, lowest first, 1 for x < 0; unused bits are 0.
	 * pairs[2 s] and pairs[2 s + 1] are the values that stand for 0 and 1 in run s. */
	size_t (*sign_words)(size_t n, size_t segment);
	void (*sign_pack)(void *queue, uint32_t *bits, const float *x, size_t n, size_t segment);
	/* pairs = means of the non-negative and of the negative numbers of each run,
	 * 0 where there are none. LOCAL, and the same in every run. */
	void (*sign_means)(void *queue, float *pairs, const float *x, size_t n, size_t segment);
	/* y += a * v, e = x - v, as above. REPLICATED. */
	void (*sign_add)(void *queue, float *y, float a, const uint32_t *bits, const float *pairs, size_t n,
	                 size_t segment);
	void (*sign_error)(void *queue, float *e, const float *x, const uint32_t *bits, const float *pairs, size_t n,
	                   size_t segment);

	/* Ternary, five to a byte: the sum of (t + 1) 3^j over a byte's numbers j,
	 * t = sign of x with probability |x| / *scale (random_uniform's number
	 * first + i is less than it), else 0; numbers past the end count as t = 0. All
	 * t are 0 when *scale is 0. REPLICATED. */
	void (*ternary_pack)(void *queue, uint8_t *out, const float *x, size_t n, const float *scale, uint64_t seed,
	                     uint64_t stream, uint64_t first);
	/* y[i] += a * (*scale t); a byte above 242 counts as five 0s and sets *fault.
	 * REPLICATED. */
	void (*ternary_add)(void *queue, float *y, float a, const uint8_t *in, const float *scale, size_t n,
	                    int *fault);

	/* ---- with numbers that other operators have found ---- */

	/* m = *sum / n. *out = a m, a sqrt(m) or a / sqrt(m) as `kind` says, in double, and
	 * then rounded to float. REPLICATED. */
	void (*moment)(void *queue, float *out, const double *sum, double n, double a, uint32_t kind);
	/* y[i] = *a * x[i], y may be x; y[i] += *a * x[i], rounded after the product and
	 * after the sum. REPLICATED. */
	void (*scale_by)(void *queue, float *y, const float *a, const float *x, size_t n);
	void (*axpy_by)(void *queue, float *y, const float *a, const float *x, size_t n);
	/* *fault = 1 unless least <= x[i] <= most for all i. */
	void (*range_check)(void *queue, int *fault, const float *x, size_t n, float least, float most);
	/* cast_from_f32() of a * in[i], rounded to float; with limit > 0 held within
	 * -limit..limit when it is finite, and saturated. REPLICATED. */
	gradcomp_status (*cast_scaled)(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to, float a,
	                               float limit);
	/* pairs[2 s] = values[s], pairs[2 s + 1] = -values[s]: for signs that stand for
	 * one magnitude. */
	void (*sign_pairs)(void *queue, float *pairs, const float *values, size_t count);
	/* idx = the first k (<= n < 2^32) places of a pseudorandom permutation of 0..n-1: a
	 * Feistel network over pairs of residues (Black, Rogaway: Ciphers with arbitrary
	 * finite domains, CT-RSA 2002), keyed with random_uniform's numbers 16 `which` to
	 * 16 `which` + 15. REPLICATED. */
	void (*random_indices)(void *queue, uint32_t *idx, size_t k, size_t n, uint64_t seed, uint64_t stream,
	                       uint64_t which);

	/* ---- whole buckets: many tensors at once, and errors ---- */

	/* Room for load_tensors() and store_tensors(). */
	size_t (*tensors_scratch)(const gradcomp_segment *t, size_t count);
	/* Of every tensor i < count: x = grad, or grad + error; bad[i] = 0 when all of x is finite,
	 * else 1; squares[i] (may be NULL) = sampled sum of x^2, or of (x + error)^2
	 * where there is error that is not added. x is REPLICATED, squares is LOCAL and the
	 * same in every run. Other types than a segment's: UNSUPPORTED, and nothing is done. */
	gradcomp_status (*load_tensors)(void *queue, const gradcomp_segment *t, size_t count, int *bad, double *squares,
	                                void *scratch);
	/* The way back: grad = x, cast as cast_from_f32() without saturation, but where grad is
	 * NULL or x. Where *poison (may be NULL) is not 0, x and grad become NaN instead.
	 * squares[i] (may be NULL) = sampled sum of error^2, 0 without error. */
	gradcomp_status (*store_tensors)(void *queue, const gradcomp_segment *t, size_t count, const int *poison,
	                                 double *squares, void *scratch);
	/* What ranks' pairs come to: of every part p < parts, part[p].y becomes 0, and then in
	 * the order of ranks y[idx[j]] += a * val[j] of the pairs[rank * parts + p]. They come
	 * from peers and are checked as by sparse_check(); where *fault was set, the y are
	 * anything. REPLICATED. */
	void (*sparse_sum)(void *queue, const gradcomp_sparse *part, size_t parts, const gradcomp_pairs *pairs,
	                   size_t ranks, float a, int *fault);

	/* NULL: all that this thread's operators had to do since it last asked is on its queue.
	 * Else the name of the first one that could not be put there, and the device's words,
	 * such as "topk: invalid configuration argument"; they stay until the thread asks
	 * again. From that operator on none of this thread's has done anything, and what they
	 * were to write is not there. The host's do not fail. */
	const char *(*failed)(void);

	/* ---- codings of indices, see gradcomp_index_coding; 1 <= k <= d < 2^32 ---- */

	size_t (*index_words)(size_t d, size_t k, uint32_t coding);
	/* idx is this rank's own. REPLICATED. */
	void (*index_pack)(void *queue, uint32_t *out, const uint32_t *idx, size_t d, size_t k, uint32_t coding);
	/* Reads index_words() and writes k indices, whatever `in` holds. *fault = 1 when a
	 * string has not k bits set; that the indices ascend below d is for sparse_check()
	 * to find. REPLICATED where there is no fault. */
	size_t (*index_scratch)(size_t d, size_t k, uint32_t coding);
	void (*index_unpack)(void *queue, int *fault, uint32_t *idx, const uint32_t *in, size_t d, size_t k,
	                     uint32_t coding, void *scratch);

	/* ---- as a word on the table's device says; `word` is not 0: it is set ---- */

	/* *out = 1 when any of n words of `width` bytes (at most 8), the next one `stride` bytes
	 * on, is not 0, else 0. */
	void (*any_set)(void *queue, int *out, const void *words, size_t width, size_t stride, size_t n);
	/* *to = 1 of the type when the word is set, else 0. F32, F64, F16, BF16 and integers. */
	void (*put_flag)(void *queue, void *to, gradcomp_dtype dtype, const int *word);
	/* to[i] = from[i] when the word is set (set = 1), or is not (set = 0); else nothing. On a
	 * device either side may also be memory of gradcomp_host.alloc(). */
	void (*copy_if)(void *queue, float *to, const float *from, size_t n, const int *word, int set);
	/* x[i] = a when the word is set, else nothing. */
	void (*fill_if)(void *queue, float *x, float a, size_t n, const int *word);
	/* The same of the x of all tensors. */
	void (*fill_tensors_if)(void *queue, const gradcomp_segment *t, size_t count, float a, const int *word);

	/* ---- numbers as small floats. All REPLICATED ---- */

	/* Powers of two: n exponents as floats have them, then n signs of a bit each, lowest first,
	 * 1 for x < 0. The exponent is one more when random_uniform's number first + i is less
	 * than the fraction of x / 2^exponent, and at most 254; 255 for an x that is not finite.
	 * n + ceil(n / 8) bytes. */
	void (*power_pack)(void *queue, uint8_t *out, const float *x, size_t n, uint64_t seed, uint64_t stream,
	                   uint64_t first);
	/* y = v; y += v. An exponent of 255 is an Inf. No bits are wrong: `fault` is not used, and may be
	 * NULL. */
	void (*power_read)(void *queue, float *y, const uint8_t *in, size_t n, int *fault);
	void (*power_add)(void *queue, float *y, const uint8_t *in, size_t n, int *fault);
	/* F8E4M3 or F8E5M2: a scale for every `block` numbers (a multiple of 32), then n codes. A
	 * scale is the block's largest magnitude by that of the type as a float, at most the
	 * largest whose product with that is finite and at least 2^-126, or 0 when all are 0. With
	 * powers = 1 it is 2^(byte - 127), the byte the block's exponent less the type's largest, or 0. A
	 * code is cast_scaled() of x by 1 / scale, held within the type's largest. Where x is not
	 * finite the block's scale is the NaN 0x7fc00000, or the byte 255, and its codes are 0. */
	void (*float8_pack)(void *queue, uint8_t *out, const float *x, size_t n, uint32_t block, gradcomp_dtype type,
	                    int powers);
	/* v = code * scale, rounded, NaN where the scale is. y = v; y += v. *fault = 1 when a code is NaN or
	 * Inf, or a scale is not one that float8_pack() can write; then the host writes nothing, and
	 * a device anything. */
	void (*float8_read)(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type,
	                    int powers, int *fault);
	void (*float8_add)(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type,
	                   int powers, int *fault);

	/* ---- low rank, with room ---- */

	/* orthonormalise_batch() with its bits, and with scratch memory that lets a device divide
	 * a tall matrix among several of its processors. */
	size_t (*orthonormalise_scratch)(size_t count, size_t n, size_t r);
	void (*orthonormalise_split)(void *queue, float *const *A, size_t count, size_t n, size_t r, void *scratch);

	/* ---- blocks: number b of n numbers are `width` from b * width on, the last may be shorter ---- */

	/* out[b] = the sum of |x| of block b, in double, held below `most`, then rounded to float.
	 * LOCAL, and the same in every run. */
	void (*blocks_sum_abs)(void *queue, float *out, const float *x, size_t n, size_t width, float most);
	/* width numbers of out for each j < k: block idx[j] of x, zeros behind a shorter one. Back:
	 * block idx[j] of y = those of val, or 0 when val is NULL. idx is this rank's own; for the
	 * way back no index stands twice. */
	void (*blocks_gather)(void *queue, float *out, const float *x, const uint32_t *idx, size_t k, size_t n,
	                      size_t width);
	void (*blocks_scatter)(void *queue, float *y, const uint32_t *idx, const float *val, size_t k, size_t n,
	                       size_t width);

	/* ---- levels that are given, see gradcomp_levels. All REPLICATED ---- */

	/* The code of a finite x is the highest c with |x| / largest magnitude > edge[c], or 0, and
	 * has the sign of x. A magnitude that is infinite counts as the largest finite one. */
	void (*levels_pack)(void *queue, void *out, const float *x, size_t n, const gradcomp_levels *l);
	/* v = largest magnitude * value, rounded, with the sign; codes beyond the levels count as the
	 * last. y = v; y += a * v (rounded after each). */
	void (*levels_read)(void *queue, float *y, const void *in, size_t n, const gradcomp_levels *l);
	void (*levels_add)(void *queue, float *y, float a, const void *in, size_t n, const gradcomp_levels *l);

	/* The columns of A[i] (n x r), i < count, become `length` long; those of zeros stay. What is not
	 * finite comes out as no number. Squares are added in double: those of rows l, l + 64, l + 128,
	 * ... in this order, for each l < 64, then the 64 sums in halves. REPLICATED. */
	void (*normalise_columns_batch)(void *queue, float *const *A, size_t count, size_t n, size_t r, float length);

	/* ---- cosine transforms (DCT-II, orthonormal) of chunks. All REPLICATED ----
	 *
	 * Matrices are cut into chunks of `chunk` x `chunk` numbers (1 <= chunk <= 64), or of both sides of
	 * GRADCOMP_DCT_SIDES(), smaller ones at
	 * their ends, in the order of matrices, rows and columns of chunks. Each has min(k, its
	 * numbers) coefficients: a value, and a place in the chunk, row by row. With B_n[j][b] =
	 * sqrt((b ? 2 : 1) / n) cos(pi (2 j + 1) b / 2 n) in double, then rounded, a chunk X of r rows and
	 * c columns has B_r^T (X B_c); back it is B_r (C B_c^T). Sums run in the order of indices, from
	 * 0 on, rounded after each product and each sum. */

	/* The k of each chunk that topk() would choose, by place. x is finite, and held within
	 * -1e32..1e32. */
	void (*dct_topk)(void *queue, float *val, uint16_t *place, const gradcomp_matrix *t, size_t count,
	                 uint32_t chunk, uint32_t k);
	/* x = what the coefficients of `ranks` <= GRADCOMP_DCT_RANKS come to, each times a and added
	 * to 0 in the order of ranks; DCT_ADD: x += that. DCT_SIGN: the result becomes its sign, 1, 0 or -1.
	 * DCT_SENDERS: each sum is divided by how many of `ranks` sent it; the host's table then takes any number of ranks. Coefficients
	 * come from peers: *fault = 1 unless places ascend within their chunk and values are finite; then
	 * x is anything. */
	void (*dct_back)(void *queue, const gradcomp_matrix *t, size_t count, uint32_t chunk, uint32_t k,
	                 const gradcomp_coefficients *from, size_t ranks, float a, uint32_t flags, int *fault);
} gradcomp_operators;

#ifdef __cplusplus
}
#endif
#endif
