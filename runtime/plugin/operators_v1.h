/* The table of operators that plugins of ABI 1 and 2 were built for: gradcomp_host.operators_v1 and
 * gradcomp_work.operators_v1. Twelve of its operators are none of today's (gradcomp/operators.def); old plugins have
 * them from here, for memory of the host. There is no such table of a device: a compressor of ABI 1 or 2 works on the
 * host wherever gradients are, and operators_v1_on() tells a collective so. */
#ifndef PLUGIN_OPERATORS_V1_H
#define PLUGIN_OPERATORS_V1_H

#include "gradcomp/operators.h"

enum { OPERATORS_V1_LAST_ABI = 2, OPERATORS_V1_HISTOGRAM_BINS = 4096 };

/* All of them, in the order of ABI 1. SAME(name): as in today's table. GONE(name, (parameters)): returns nothing. */
/* clang-format off */
#define OPERATORS_V1(SAME, GONE) \
	SAME(add) SAME(scale) SAME(reduce) SAME(scale_as) SAME(nonfinite) SAME(cast_from_f32) \
	SAME(cast_to_f32) \
	GONE(product_mq, (void *queue, float *P, const float *M, const float *Q, size_t n, size_t m, size_t r)) \
	GONE(product_mtp, (void *queue, float *Q, const float *M, const float *P, size_t n, size_t m, size_t r)) \
	GONE(low_rank_finish, (void *queue, float *X, float *E, const float *P, const float *Elocal, \
		const float *Q, size_t n, size_t m, size_t r)) \
	GONE(orthonormalise, (void *queue, float *A, size_t n, size_t r)) \
	SAME(topk_scratch) SAME(topk) SAME(scatter_add) \
	GONE(random_uniform, (void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, \
		uint64_t first)) \
	SAME(random_normal) SAME(copy) SAME(fill) SAME(axpy) SAME(clamp) SAME(sum_scratch) \
	GONE(sum, (void *queue, double *out, const float *x, size_t n, void *scratch)) \
	SAME(sum_abs) SAME(sum_squares) SAME(absmax) SAME(product_scratch) SAME(product_mq_batch) \
	SAME(product_mtp_batch) SAME(low_rank_finish_batch) \
	GONE(orthonormalise_batch, (void *queue, float *const *A, size_t count, size_t n, size_t r)) \
	GONE(histogram, (void *queue, uint32_t *counts, const float *x, size_t n)) \
	GONE(kth_magnitude, (void *queue, float *out, const float *x, size_t n, size_t k, void *scratch)) \
	GONE(count_above, (void *queue, uint64_t *count, const float *x, size_t n, const float *threshold)) \
	GONE(compact, (void *queue, uint32_t *idx, float *val, uint64_t *count, const float *x, size_t n, \
		const float *threshold, size_t k, void *scratch)) \
	SAME(mstopk_scratch) SAME(mstopk) SAME(gather) SAME(scatter) SAME(sparse_check) \
	SAME(sparse_merge_scratch) SAME(sparse_merge) SAME(quantised_bytes) SAME(quantise) \
	SAME(quantised_check) SAME(dequantise) SAME(dequantise_add) SAME(dequantise_error) \
	SAME(sign_words) SAME(sign_pack) SAME(sign_means) SAME(sign_add) SAME(sign_error) \
	SAME(ternary_pack) SAME(ternary_add) SAME(moment) SAME(scale_by) SAME(axpy_by) SAME(range_check) \
	SAME(cast_scaled) SAME(sign_pairs) SAME(random_indices) SAME(tensors_scratch) SAME(load_tensors) \
	SAME(store_tensors) SAME(sparse_sum) SAME(failed) SAME(index_words) SAME(index_pack) \
	SAME(index_scratch) SAME(index_unpack) SAME(any_set) SAME(put_flag) SAME(copy_if) SAME(fill_if) \
	GONE(fill_tensors_if, (void *queue, const gradcomp_segment *t, size_t count, float a, const int *word)) \
	SAME(power_pack) SAME(power_read) SAME(power_add) SAME(float8_pack) \
	SAME(float8_read) SAME(float8_add) SAME(orthonormalise_scratch) SAME(orthonormalise_split) \
	SAME(blocks_sum_abs) SAME(blocks_gather) SAME(blocks_scatter) SAME(levels_pack) SAME(levels_read) \
	SAME(levels_add) SAME(normalise_columns_batch) SAME(dct_topk) SAME(dct_back)
/* clang-format on */

#define OPERATORS_V1_SAME(name) __typeof__(((gradcomp_operators *)0)->name) name;
#define OPERATORS_V1_GONE(name, parameters) void(*name) parameters;
typedef struct gradcomp_operators_v1 {
	uint32_t struct_size;
	gradcomp_device device;
	OPERATORS_V1(OPERATORS_V1_SAME, OPERATORS_V1_GONE)
} gradcomp_operators_v1;
_Static_assert(sizeof(gradcomp_operators_v1) == 8 + 92 * sizeof(void *), "an operator of ABI 1 is missing");

/* The host's. Constant, never NULL; any thread. */
const gradcomp_operators_v1 *operators_v1(void);
/* For gradcomp_host.operators_on_v1: that one, or NULL and the reason in *err (may be NULL). Any thread. */
const gradcomp_operators_v1 *operators_v1_on(gradcomp_device device, gradcomp_error *err);

#endif
