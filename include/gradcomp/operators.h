/* gradcomp/operators.h: the compute vocabulary that compressors are written in. Its words stand in
 * gradcomp/operators.def, an entry each.
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
 * - Random numbers are those of the Philox4x32-10 counter generator. Uniform number j of a stream is word j % 4 of the
 *   block with counter (j/4 low, j/4 high, stream low, stream high) and key (seed low, seed high), of which the upper 24
 *   bits count: in [0,1).
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
	uint32_t bits;      /* those of a code: 2, 4 or 8 */
	uint32_t levels;    /* codes are -levels..levels; 1..2^(bits-1) - 1 */
	uint32_t block;     /* numbers a block: a multiple of 32, at most 65536 */
	uint32_t norm;      /* gradcomp_norm */
	uint32_t rounding;  /* gradcomp_rounding */
	const float *given; /* NORM_GIVEN: one float on the table's device, finite, not negative */
	/* TO_EITHER: number i rounds up when uniform number first + i is less
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

/* Says what moment() gives. */
typedef enum gradcomp_moment {
	GRADCOMP_MEAN = 0,
	GRADCOMP_ROOT = 1,        /* root of the mean */
	GRADCOMP_INVERSE_ROOT = 2 /* 1 / root */
} gradcomp_moment;

#define GRADCOMP_NO_INDEX UINT32_MAX

/* A sampled sum of squares reads the first RUN numbers of every EVERY. */
#define GRADCOMP_SAMPLE_RUN 256
#define GRADCOMP_SAMPLE_EVERY 8192

/* These are or-ed in `add` of a segment; load_tensors() alone reads them. */
typedef enum gradcomp_segment_flag {
	GRADCOMP_SEGMENT_ADD = 1,    /* error is added to x; else it only counts in the sample */
	GRADCOMP_SEGMENT_FINITE = 2, /* what is not finite of x becomes 0 when it has been found */
	/* This is no tensor, has no number and stands last: `grad` is an int, which becomes 1 when one of the tensors
	 * before it is not all finite, and else stays as it is. It has no place in what the call says of tensors. */
	GRADCOMP_SEGMENT_ANY = 4
} gradcomp_segment_flag;

/* One tensor of a bucket. x, grad and error overlap nobody's but for grad, which may be
 * x itself; then dtype is F32. */
typedef struct gradcomp_segment {
	float *x;           /* n numbers, as compressors see them */
	void *grad;         /* n of dtype, or NULL for store_tensors() */
	const float *error; /* n numbers of error memory, or NULL */
	uint64_t n;
	uint32_t dtype; /* F32, F16, BF16, F8E4M3, F8E5M2 */
	uint32_t add;   /* gradcomp_segment_flag */
} gradcomp_segment;

/* Acts of act_if(). The first builds of ABI 3 had fill_tensors_if() in its place, whose gradcomp_segments lie in memory
 * as acts do that fill: their `add` is FILL, or 1, which is the same. */
typedef enum gradcomp_act_kind {
	GRADCOMP_ACT_FILL = 0, /* to[i] = a when the call's word is set; `by` and `from` do not count */
	GRADCOMP_ACT_FIND = 2, /* *(int *)to = 1 when any of n ints, the next one `arg` bytes on, is set, else 0 */
	/* The same, and also 1 when one of the acts before it has found something. */
	GRADCOMP_ACT_FIND_TOO = 3,
	/* These are done when *by is set, or, where by is NULL, when act `arg` of the call has found something. */
	GRADCOMP_ACT_COPY = 4, /* to[i] = from[i] */
	GRADCOMP_ACT_CLEAR = 5 /* to[i] = 0 */
} gradcomp_act_kind;
typedef struct gradcomp_act {
	void *to;         /* n floats, or an int */
	const int *by;    /* a word, or NULL */
	const void *from; /* n floats, or ints */
	uint64_t n;
	uint32_t arg;
	uint32_t kind; /* gradcomp_act_kind */
} gradcomp_act;
#define GRADCOMP_ACTS 64

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
	uint32_t bits;    /* those of a code: 4 or 8 */
	uint32_t levels;  /* 1..2^(bits-1) - 1 */
	uint32_t block;   /* numbers of a block, restricted like a quantiser's */
	float value[128]; /* the values of codes 0..levels: ascending from 0 to 1 */
	float edge[128];  /* edge[c], c > 0: what lies above it is code c or a higher one; ascending */
} gradcomp_levels;

/* How the scales of small floats are written, one block after another: `powers` of float8_pack(). */
typedef enum gradcomp_scales {
	GRADCOMP_SCALES_F32 = 0,  /* a float */
	GRADCOMP_SCALES_E8M0 = 1, /* a power of two in a byte */
	/* A float, and then a byte for every 16 numbers of the block, an E4M3 that the float is multiplied with. F4E2M1
	 * alone has these. */
	GRADCOMP_SCALES_E4M3 = 2
} gradcomp_scales;

/* Returns the bytes of the scales, and of the codes, that float8_pack() writes for n numbers. */
static inline uint64_t gradcomp_float8_scales(uint64_t n, uint32_t block, uint32_t powers)
{
	const uint64_t blocks = (n + block - 1) / block;
	if (powers == GRADCOMP_SCALES_E8M0)
		return blocks;
	return blocks * sizeof(float) + (powers == GRADCOMP_SCALES_E4M3 ? (n + 15) / 16 : 0);
}
static inline uint64_t gradcomp_float8_codes(uint64_t n, gradcomp_dtype type)
{
	return type == GRADCOMP_F4E2M1 ? (n + 1) / 2 : n;
}

/* How numbers are coded in payloads, for codes_sum(): of every part there are values, and codes that say which of
 * them a number is. */
typedef enum gradcomp_coding_kind {
	GRADCOMP_CODING_QUANTISED = 0,  /* values: steps (none with NORM_GIVEN), codes: as quantise() makes them */
	GRADCOMP_CODING_LEVELS = 1,     /* values: largest magnitudes, codes: as levels_pack() makes them */
	GRADCOMP_CODING_SIGNS = 2,      /* values: pairs as of sign_means(), codes: words of sign_pack() */
	GRADCOMP_CODING_MAGNITUDES = 3, /* values: v for each run, which stands for v and -v; codes as above */
	GRADCOMP_CODING_TERNARY = 4,    /* values: none, see gradcomp_coded.scale; codes: bytes of ternary_pack() */
	/* values: the numbers, finite and not negative; codes: none. They are not added up: y is the largest. */
	GRADCOMP_CODING_LARGEST = 5,
	GRADCOMP_CODING_FLOAT8 = 6, /* values: scales, codes: as float8_pack() makes them */
	GRADCOMP_CODING_POWERS = 7, /* values: exponents, codes: signs, as power_pack() makes them */
	GRADCOMP_CODING_FLOAT16 = 8 /* values: none, codes: numbers of `type`, F16 or BF16 */
} gradcomp_coding_kind;
typedef struct gradcomp_coding {
	uint32_t struct_size;
	uint32_t kind;                       /* gradcomp_coding_kind */
	const gradcomp_quantiser *quantiser; /* QUANTISED */
	const gradcomp_levels *levels;       /* LEVELS */
	/* FLOAT8, the arguments of float8_pack(): */
	uint32_t block;
	gradcomp_dtype type; /* FLOAT16 too */
	uint32_t powers;     /* gradcomp_scales */
	uint32_t reserved0;
} gradcomp_coding;

/* Says how a compressor's code of n numbers is laid out, see code_layout() in gradcomp/compressor.h. */
typedef struct gradcomp_code_layout {
	uint32_t struct_size;
	/* Where a run begins at a multiple of it, its code is a piece of the values and one of the codes of a longer
	 * one. */
	uint32_t grain;
	gradcomp_coding coding; /* what it points to lives as long as the instance */
	uint64_t values, codes; /* bytes of n numbers; the codes come behind the values */
	int *fault;             /* for codes_sum() */
} gradcomp_code_layout;

/* A vector that ranks' codes are added up in. */
typedef struct gradcomp_coded {
	float *y;       /* NULL: what ranks sent is only checked */
	const float *x; /* what it is added to, may be y; NULL: 0 */
	uint64_t n;
	/* Where they begin in each rank's payload, in bytes: multiples of 4 for values that are floats, and for codes
	 * of SIGNS, MAGNITUDES and FLOAT16. */
	uint64_t values, codes;
	union {
		uint64_t segment; /* SIGNS, MAGNITUDES: numbers of a run, not 0 */
		/* Others: y is multiplied with it in the end; 0: it is not. */
		float times;
	};
	const float *scale; /* TERNARY: what 1 stands for, on the table's device */
} gradcomp_coded;

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

/* The operators, in the order of gradcomp/operators.def, where each is described. */
#define GRADCOMP_OPERATOR(result, name, promise, host, parameters, arguments) result(*name) parameters;
#define GRADCOMP_SCRATCH(name, parameters, arguments) size_t(*name) parameters;
#define GRADCOMP_SIZE(name, parameters, arguments) size_t(*name) parameters;
typedef struct gradcomp_operators {
	uint32_t struct_size;
	gradcomp_device device;
	/* NULL: all that this thread's operators had to do since it last asked is on its queue.
	 * Else the name of the first one that could not be put there, and the device's words,
	 * such as "topk: invalid configuration argument"; they stay until the thread asks
	 * again. From that operator on none of this thread's has done anything, and what they
	 * were to write is not there. The host's do not fail. */
	const char *(*failed)(void);
#include "gradcomp/operators.def"
} gradcomp_operators;

#ifdef __cplusplus
}
#endif
#endif
