/* How the host operators are built. Every kernel file is compiled up to three
 * times: as it stands (NEON on Arm), through kernels_avx2.c with AVX2, FMA and F16C
 * switched on, and through kernels_avx512.c with AVX-512 as well. All see the same
 * vector types (GCC's and clang's vector extension, 32 bytes wide), which the
 * compiler splits where registers are narrower. So the order of additions is the
 * same in all, and as contraction is off, so are the bits.
 * Only kernels marked LOCAL in gradcomp/operators.h say FMA() (a b + c) or FNMA() (c - a b). */
#ifndef OPERATORS_CPU_KERNELS_H
#define OPERATORS_CPU_KERNELS_H

#include "gradcomp/operators.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#ifndef KERNEL
#define KERNEL(name) name##_portable
#endif
#ifndef KERNEL_DEVICE
#define KERNEL_DEVICE GRADCOMP_HOST
#endif

/* Vectors only travel between inlined functions. */
#pragma GCC diagnostic ignored "-Wpsabi"

/* Before a loop over a constant count that must become straight code. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float v8f __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));
typedef double v4d __attribute__((vector_size(32)));
typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
/* The same anywhere in memory. */
typedef float v8f_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t v8u_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef float v4f_any __attribute__((vector_size(16), aligned(4), may_alias));

#define LOAD8(p) (*(const v8f_any *)(p))
#define STORE8(p, v) (*(v8f_any *)(p) = (v))
#define SPLAT8(a) ((a) - (v8f){0})

#ifdef __FMA__
#define FMA(a, b, c) ((v8f)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define FNMA(a, b, c) ((v8f)_mm256_fnmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#define FNMA(a, b, c) ((c) - (a) * (b))
#endif

/* Four floats to doubles and back. Exact one way and rounded once the other,
 * however it is done; GCC's own is slow. */
#ifdef __AVX2__
#define WIDEN(v) ((v4d)_mm256_cvtps_pd((__m128)(v)))
#define NARROW(v) ((v4f)_mm256_cvtpd_ps((__m256d)(v)))
#else
#define WIDEN(v) __builtin_convertvector(v, v4d)
#define NARROW(v) __builtin_convertvector(v, v4f)
#endif

void KERNEL(add)(void *queue, float *y, const float *x, size_t n);
void KERNEL(scale)(void *queue, float *x, float a, size_t n);
gradcomp_status KERNEL(reduce)(void *queue, void *acc, const void *in, size_t n, gradcomp_dtype dtype, gradcomp_op op);
gradcomp_status KERNEL(scale_as)(void *queue, void *x, double a, size_t n, gradcomp_dtype dtype);
void KERNEL(nonfinite)(void *queue, const float *x, size_t n, int *bad);
gradcomp_status KERNEL(cast_from_f32)(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to,
                                      int saturate);
gradcomp_status KERNEL(cast_to_f32)(void *queue, float *out, const void *in, size_t n, gradcomp_dtype from);
void KERNEL(product_mq)(void *queue, float *P, const float *M, const float *Q, size_t n, size_t m, size_t r);
void KERNEL(product_mtp)(void *queue, float *Q, const float *M, const float *P, size_t n, size_t m, size_t r);
void KERNEL(low_rank_finish)(void *queue, float *X, float *E, const float *P, const float *Elocal, const float *Q,
                             size_t n, size_t m, size_t r);
void KERNEL(orthonormalise)(void *queue, float *A, size_t n, size_t r);
size_t KERNEL(topk_scratch)(size_t n, size_t k);
void KERNEL(topk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, void *scratch);
gradcomp_status KERNEL(scatter_add)(void *queue, float *y, size_t n, const uint32_t *idx, const float *val, size_t k,
                                    float a);

void KERNEL(copy)(void *queue, void *to, const void *from, size_t bytes);
void KERNEL(fill)(void *queue, float *x, float a, size_t n);
void KERNEL(axpy)(void *queue, float *y, float a, const float *x, size_t n);
void KERNEL(clamp)(void *queue, float *y, const float *x, const float *limit, size_t n);
size_t KERNEL(sum_scratch)(size_t n);
void KERNEL(sum)(void *queue, double *out, const float *x, size_t n, void *scratch);
void KERNEL(sum_abs)(void *queue, double *out, const float *x, size_t n, void *scratch);
void KERNEL(sum_squares)(void *queue, double *out, const float *x, size_t n, void *scratch);
void KERNEL(absmax)(void *queue, float *out, const float *x, size_t n, void *scratch);
size_t KERNEL(product_scratch)(size_t count, size_t n, size_t m, size_t r);
void KERNEL(product_mq_batch)(void *queue, float *const *P, const float *const *M, const float *const *Q, size_t count,
                              size_t n, size_t m, size_t r, void *scratch);
void KERNEL(product_mtp_batch)(void *queue, float *const *Q, const float *const *M, const float *const *P, size_t count,
                               size_t n, size_t m, size_t r, void *scratch);
void KERNEL(low_rank_finish_batch)(void *queue, float *const *X, float *const *E, const float *const *P,
                                   const float *const *Elocal, const float *const *Q, size_t count, size_t n, size_t m,
                                   size_t r);
void KERNEL(orthonormalise_batch)(void *queue, float *const *A, size_t count, size_t n, size_t r);
size_t KERNEL(orthonormalise_scratch)(size_t count, size_t n, size_t r);
void KERNEL(orthonormalise_split)(void *queue, float *const *A, size_t count, size_t n, size_t r, void *scratch);
void KERNEL(histogram)(void *queue, uint32_t *counts, const float *x, size_t n);
void KERNEL(kth_magnitude)(void *queue, float *out, const float *x, size_t n, size_t k, void *scratch);
void KERNEL(count_above)(void *queue, uint64_t *count, const float *x, size_t n, const float *threshold);
void KERNEL(compact)(void *queue, uint32_t *idx, float *val, uint64_t *count, const float *x, size_t n,
                     const float *threshold, size_t k, void *scratch);
size_t KERNEL(mstopk_scratch)(size_t n, size_t k);
void KERNEL(mstopk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, int samplings,
                    uint64_t seed, uint64_t stream, void *scratch);
void KERNEL(gather)(void *queue, float *val, const float *x, const uint32_t *idx, size_t k);
void KERNEL(scatter)(void *queue, float *y, const uint32_t *idx, const float *val, size_t k);
void KERNEL(sparse_check)(void *queue, int *fault, const uint32_t *idx, const float *val, size_t k, size_t n);
size_t KERNEL(sparse_merge_scratch)(size_t k);
void KERNEL(sparse_merge)(void *queue, uint32_t *idx, float *val, uint32_t *left_idx, float *left_val,
                          const uint32_t *a_idx, const float *a_val, const uint32_t *b_idx, const float *b_val,
                          size_t k, void *scratch);

void KERNEL(quantise)(void *queue, void *out, const float *x, size_t n, const gradcomp_quantiser *q);
void KERNEL(quantised_check)(void *queue, int *fault, const void *in, size_t n, const gradcomp_quantiser *q);
void KERNEL(dequantise)(void *queue, float *y, const void *in, size_t n, const gradcomp_quantiser *q);
void KERNEL(dequantise_add)(void *queue, float *y, float a, const void *in, size_t n, const gradcomp_quantiser *q);
void KERNEL(dequantise_error)(void *queue, float *e, const float *x, const void *in, size_t n,
                              const gradcomp_quantiser *q);
void KERNEL(sign_pack)(void *queue, uint32_t *bits, const float *x, size_t n, size_t segment);
void KERNEL(sign_means)(void *queue, float *pairs, const float *x, size_t n, size_t segment);
void KERNEL(sign_add)(void *queue, float *y, float a, const uint32_t *bits, const float *pairs, size_t n,
                      size_t segment);
void KERNEL(sign_error)(void *queue, float *e, const float *x, const uint32_t *bits, const float *pairs, size_t n,
                        size_t segment);
void KERNEL(ternary_pack)(void *queue, uint8_t *out, const float *x, size_t n, const float *scale, uint64_t seed,
                          uint64_t stream, uint64_t first);
void KERNEL(ternary_add)(void *queue, float *y, float a, const uint8_t *in, const float *scale, size_t n, int *fault);
void KERNEL(moment)(void *queue, float *out, const double *sum, double n, double a, uint32_t kind);
void KERNEL(scale_by)(void *queue, float *y, const float *a, const float *x, size_t n);
void KERNEL(axpy_by)(void *queue, float *y, const float *a, const float *x, size_t n);
void KERNEL(range_check)(void *queue, int *fault, const float *x, size_t n, float least, float most);
gradcomp_status KERNEL(cast_scaled)(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to, float a,
                                    float limit);
void KERNEL(sign_pairs)(void *queue, float *pairs, const float *values, size_t count);
void KERNEL(random_uniform)(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first);
size_t KERNEL(tensors_scratch)(const gradcomp_segment *t, size_t count);
gradcomp_status KERNEL(load_tensors)(void *queue, const gradcomp_segment *t, size_t count, int *bad, double *squares,
                                     void *scratch);
gradcomp_status KERNEL(store_tensors)(void *queue, const gradcomp_segment *t, size_t count, const int *poison,
                                      double *squares, void *scratch);
void KERNEL(sparse_sum)(void *queue, const gradcomp_sparse *part, size_t parts, const gradcomp_pairs *pairs,
                        size_t ranks, float a, int *fault);
const char *KERNEL(failed)(void);
void KERNEL(any_set)(void *queue, int *out, const void *words, size_t width, size_t stride, size_t n);
void KERNEL(put_flag)(void *queue, void *to, gradcomp_dtype dtype, const int *word);
void KERNEL(copy_if)(void *queue, float *to, const float *from, size_t n, const int *word, int set);
void KERNEL(fill_if)(void *queue, float *x, float a, size_t n, const int *word);
void KERNEL(fill_tensors_if)(void *queue, const gradcomp_segment *t, size_t count, float a, const int *word);
void KERNEL(power_pack)(void *queue, uint8_t *out, const float *x, size_t n, uint64_t seed, uint64_t stream,
                        uint64_t first);
void KERNEL(power_read)(void *queue, float *y, const uint8_t *in, size_t n, int *fault);
void KERNEL(power_add)(void *queue, float *y, const uint8_t *in, size_t n, int *fault);
void KERNEL(float8_pack)(void *queue, uint8_t *out, const float *x, size_t n, uint32_t block, gradcomp_dtype type,
                         int powers);
void KERNEL(float8_read)(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type,
                         int powers, int *fault);
void KERNEL(float8_add)(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type,
                        int powers, int *fault);
void KERNEL(blocks_sum_abs)(void *queue, float *out, const float *x, size_t n, size_t width, float most);
void KERNEL(blocks_gather)(void *queue, float *out, const float *x, const uint32_t *idx, size_t k, size_t n,
                           size_t width);
void KERNEL(blocks_scatter)(void *queue, float *y, const uint32_t *idx, const float *val, size_t k, size_t n,
                            size_t width);
void KERNEL(levels_pack)(void *queue, void *out, const float *x, size_t n, const gradcomp_levels *l);
void KERNEL(levels_read)(void *queue, float *y, const void *in, size_t n, const gradcomp_levels *l);
void KERNEL(levels_add)(void *queue, float *y, float a, const void *in, size_t n, const gradcomp_levels *l);
void KERNEL(normalise_columns_batch)(void *queue, float *const *A, size_t count, size_t n, size_t r, float length);
void KERNEL(dct_topk)(void *queue, float *val, uint16_t *place, const gradcomp_matrix *t, size_t count, uint32_t chunk,
                      uint32_t k);
void KERNEL(dct_back)(void *queue, const gradcomp_matrix *t, size_t count, uint32_t chunk, uint32_t k,
                      const gradcomp_coefficients *from, size_t ranks, float a, uint32_t flags, int *fault);

/* 1 in a type, little-endian. */
static inline uint64_t flag_bits(gradcomp_dtype dtype)
{
	switch (dtype) {
	case GRADCOMP_F32:
		return 0x3f800000u;
	case GRADCOMP_F64:
		return UINT64_C(0x3ff0000000000000);
	case GRADCOMP_F16:
		return 0x3c00;
	case GRADCOMP_BF16:
		return 0x3f80;
	default:
		return 1;
	}
}

/* Built once: integer and plain double arithmetic, the same everywhere. */
size_t quantised_bytes(const gradcomp_quantiser *q, size_t n);
size_t sign_words(size_t n, size_t segment);
void random_normal(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first);
void random_indices(void *queue, uint32_t *idx, size_t k, size_t n, uint64_t seed, uint64_t stream, uint64_t which);
size_t index_words(size_t d, size_t k, uint32_t coding);
void index_pack(void *queue, uint32_t *out, const uint32_t *idx, size_t d, size_t k, uint32_t coding);
size_t index_scratch(size_t d, size_t k, uint32_t coding);
void index_unpack(void *queue, int *fault, uint32_t *idx, const uint32_t *in, size_t d, size_t k, uint32_t coding,
                  void *scratch);
/* Numbers 4 * block .. 4 * block + 3 of a stream. */
void random_draw(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t block);

#define KERNEL_TABLE \
	{ \
		.struct_size = sizeof(gradcomp_operators), .device = KERNEL_DEVICE, .add = KERNEL(add), \
		.scale = KERNEL(scale), .reduce = KERNEL(reduce), .scale_as = KERNEL(scale_as), \
		.nonfinite = KERNEL(nonfinite), .cast_from_f32 = KERNEL(cast_from_f32), \
		.cast_to_f32 = KERNEL(cast_to_f32), .product_mq = KERNEL(product_mq), \
		.product_mtp = KERNEL(product_mtp), .low_rank_finish = KERNEL(low_rank_finish), \
		.orthonormalise = KERNEL(orthonormalise), .topk_scratch = KERNEL(topk_scratch), .topk = KERNEL(topk), \
		.scatter_add = KERNEL(scatter_add), .random_uniform = KERNEL(random_uniform), \
		.random_normal = random_normal, .copy = KERNEL(copy), .fill = KERNEL(fill), .axpy = KERNEL(axpy), \
		.clamp = KERNEL(clamp), .sum_scratch = KERNEL(sum_scratch), .sum = KERNEL(sum), \
		.sum_abs = KERNEL(sum_abs), .sum_squares = KERNEL(sum_squares), .absmax = KERNEL(absmax), \
		.product_scratch = KERNEL(product_scratch), .product_mq_batch = KERNEL(product_mq_batch), \
		.product_mtp_batch = KERNEL(product_mtp_batch), \
		.low_rank_finish_batch = KERNEL(low_rank_finish_batch), \
		.orthonormalise_batch = KERNEL(orthonormalise_batch), .histogram = KERNEL(histogram), \
		.kth_magnitude = KERNEL(kth_magnitude), .count_above = KERNEL(count_above), \
		.compact = KERNEL(compact), .mstopk_scratch = KERNEL(mstopk_scratch), .mstopk = KERNEL(mstopk), \
		.gather = KERNEL(gather), .scatter = KERNEL(scatter), .sparse_check = KERNEL(sparse_check), \
		.sparse_merge_scratch = KERNEL(sparse_merge_scratch), .sparse_merge = KERNEL(sparse_merge), \
		.quantised_bytes = quantised_bytes, .quantise = KERNEL(quantise), \
		.quantised_check = KERNEL(quantised_check), .dequantise = KERNEL(dequantise), \
		.dequantise_add = KERNEL(dequantise_add), .dequantise_error = KERNEL(dequantise_error), \
		.sign_words = sign_words, .sign_pack = KERNEL(sign_pack), .sign_means = KERNEL(sign_means), \
		.sign_add = KERNEL(sign_add), .sign_error = KERNEL(sign_error), .ternary_pack = KERNEL(ternary_pack), \
		.ternary_add = KERNEL(ternary_add), .moment = KERNEL(moment), .scale_by = KERNEL(scale_by), \
		.axpy_by = KERNEL(axpy_by), .range_check = KERNEL(range_check), .cast_scaled = KERNEL(cast_scaled), \
		.sign_pairs = KERNEL(sign_pairs), .random_indices = random_indices, \
		.tensors_scratch = KERNEL(tensors_scratch), .load_tensors = KERNEL(load_tensors), \
		.store_tensors = KERNEL(store_tensors), .sparse_sum = KERNEL(sparse_sum), .failed = KERNEL(failed), \
		.index_words = index_words, .index_pack = index_pack, .index_scratch = index_scratch, \
		.index_unpack = index_unpack, .any_set = KERNEL(any_set), .put_flag = KERNEL(put_flag), \
		.copy_if = KERNEL(copy_if), .fill_if = KERNEL(fill_if), .fill_tensors_if = KERNEL(fill_tensors_if), \
		.power_pack = KERNEL(power_pack), .power_read = KERNEL(power_read), .power_add = KERNEL(power_add), \
		.float8_pack = KERNEL(float8_pack), .float8_read = KERNEL(float8_read), \
		.float8_add = KERNEL(float8_add), .orthonormalise_scratch = KERNEL(orthonormalise_scratch), \
		.orthonormalise_split = KERNEL(orthonormalise_split), .blocks_sum_abs = KERNEL(blocks_sum_abs), \
		.blocks_gather = KERNEL(blocks_gather), .blocks_scatter = KERNEL(blocks_scatter), \
		.levels_pack = KERNEL(levels_pack), .levels_read = KERNEL(levels_read), \
		.levels_add = KERNEL(levels_add), .normalise_columns_batch = KERNEL(normalise_columns_batch), \
		.dct_topk = KERNEL(dct_topk), .dct_back = KERNEL(dct_back), \
	}

/* The tables of kernels_avx2.c and kernels_avx512.c, when they are part of the build. */
extern const gradcomp_operators kernels_avx2, kernels_avx512;

#endif
