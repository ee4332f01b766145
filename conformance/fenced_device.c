/* The operators of the fenced device: the host's, with the fence lowered while they
 * run. */
#include "conformance/fenced_device.h"
#include "conformance/guard.h"

static gradcomp_operators host;

/* A function of the table and its arguments. */
#define PLAIN(name, parameters, arguments) \
	static void fenced_##name parameters \
	{ \
		guard_fence(0); \
		host.name arguments; \
		guard_fence(1); \
	}
#define STATUS(name, parameters, arguments) \
	static gradcomp_status fenced_##name parameters \
	{ \
		gradcomp_status st; \
		guard_fence(0); \
		st = host.name arguments; \
		guard_fence(1); \
		return st; \
	}

/* clang-format off */
PLAIN(add, (void *queue, float *y, const float *x, size_t n), (queue, y, x, n))
PLAIN(scale, (void *queue, float *x, float a, size_t n), (queue, x, a, n))
STATUS(reduce, (void *queue, void *acc, const void *in, size_t n, gradcomp_dtype dtype, gradcomp_op op), (queue,
	acc, in, n, dtype, op))
STATUS(scale_as, (void *queue, void *x, double a, size_t n, gradcomp_dtype dtype), (queue, x, a, n, dtype))
PLAIN(nonfinite, (void *queue, const float *x, size_t n, int *bad), (queue, x, n, bad))
STATUS(cast_from_f32, (void *queue, void *out, const float *in, size_t n, gradcomp_dtype to, int saturate),
	(queue, out, in, n, to, saturate))
STATUS(cast_to_f32, (void *queue, float *out, const void *in, size_t n, gradcomp_dtype from), (queue, out, in,
	n, from))
PLAIN(product_mq, (void *queue, float *P, const float *M, const float *Q, size_t n, size_t m, size_t r), (queue,
	P, M, Q, n, m, r))
PLAIN(product_mtp, (void *queue, float *Q, const float *M, const float *P, size_t n, size_t m, size_t r),
	(queue, Q, M, P, n, m, r))
PLAIN(low_rank_finish, (void *queue, float *X, float *E, const float *P, const float *Elocal, const float *Q,
	size_t n, size_t m, size_t r), (queue, X, E, P, Elocal, Q, n, m, r))
PLAIN(orthonormalise, (void *queue, float *A, size_t n, size_t r), (queue, A, n, r))
PLAIN(topk, (void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, void *scratch), (queue,
	idx, val, x, n, k, scratch))
STATUS(scatter_add, (void *queue, float *y, size_t n, const uint32_t *idx, const float *val, size_t k, float a),
	(queue, y, n, idx, val, k, a))
PLAIN(random_uniform, (void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first),
	(queue, out, n, seed, stream, first))
PLAIN(random_normal, (void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first),
	(queue, out, n, seed, stream, first))
PLAIN(copy, (void *queue, void *to, const void *from, size_t bytes), (queue, to, from, bytes))
PLAIN(fill, (void *queue, float *x, float a, size_t n), (queue, x, a, n))
PLAIN(axpy, (void *queue, float *y, float a, const float *x, size_t n), (queue, y, a, x, n))
PLAIN(clamp, (void *queue, float *y, const float *x, const float *limit, size_t n), (queue, y, x, limit, n))
PLAIN(sum, (void *queue, double *out, const float *x, size_t n, void *scratch), (queue, out, x, n, scratch))
PLAIN(sum_abs, (void *queue, double *out, const float *x, size_t n, void *scratch), (queue, out, x, n, scratch))
PLAIN(sum_squares, (void *queue, double *out, const float *x, size_t n, void *scratch), (queue, out, x, n,
	scratch))
PLAIN(absmax, (void *queue, float *out, const float *x, size_t n, void *scratch), (queue, out, x, n, scratch))
PLAIN(product_mq_batch, (void *queue, float *const *P, const float *const *M, const float *const *Q, size_t
	count, size_t n, size_t m, size_t r, void *scratch), (queue, P, M, Q, count, n, m, r, scratch))
PLAIN(product_mtp_batch, (void *queue, float *const *Q, const float *const *M, const float *const *P, size_t
	count, size_t n, size_t m, size_t r, void *scratch), (queue, Q, M, P, count, n, m, r, scratch))
PLAIN(low_rank_finish_batch, (void *queue, float *const *X, float *const *E, const float *const *P, const float
	*const *Elocal, const float *const *Q, size_t count, size_t n, size_t m, size_t r), (queue, X, E, P, Elocal, Q,
	count, n, m, r))
PLAIN(orthonormalise_batch, (void *queue, float *const *A, size_t count, size_t n, size_t r), (queue, A, count,
	n, r))
PLAIN(orthonormalise_split, (void *queue, float *const *A, size_t count, size_t n, size_t r, void *scratch), (queue,
	A, count, n, r, scratch))
PLAIN(histogram, (void *queue, uint32_t *counts, const float *x, size_t n), (queue, counts, x, n))
PLAIN(kth_magnitude, (void *queue, float *out, const float *x, size_t n, size_t k, void *scratch), (queue, out,
	x, n, k, scratch))
PLAIN(count_above, (void *queue, uint64_t *count, const float *x, size_t n, const float *threshold), (queue,
	count, x, n, threshold))
PLAIN(compact, (void *queue, uint32_t *idx, float *val, uint64_t *count, const float *x, size_t n, const float
	*threshold, size_t k, void *scratch), (queue, idx, val, count, x, n, threshold, k, scratch))
PLAIN(mstopk, (void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, int samplings,
	uint64_t seed, uint64_t stream, void *scratch), (queue, idx, val, x, n, k, samplings, seed, stream, scratch))
PLAIN(gather, (void *queue, float *val, const float *x, const uint32_t *idx, size_t k), (queue, val, x, idx, k))
PLAIN(scatter, (void *queue, float *y, const uint32_t *idx, const float *val, size_t k), (queue, y, idx, val,
	k))
PLAIN(sparse_check, (void *queue, int *fault, const uint32_t *idx, const float *val, size_t k, size_t n),
	(queue, fault, idx, val, k, n))
PLAIN(sparse_merge, (void *queue, uint32_t *idx, float *val, uint32_t *left_idx, float *left_val, const uint32_t
	*a_idx, const float *a_val, const uint32_t *b_idx, const float *b_val, size_t k, void *scratch), (queue, idx,
	val, left_idx, left_val, a_idx, a_val, b_idx, b_val, k, scratch))
PLAIN(quantise, (void *queue, void *out, const float *x, size_t n, const gradcomp_quantiser *q), (queue, out, x,
	n, q))
PLAIN(quantised_check, (void *queue, int *fault, const void *in, size_t n, const gradcomp_quantiser *q), (queue,
	fault, in, n, q))
PLAIN(dequantise, (void *queue, float *y, const void *in, size_t n, const gradcomp_quantiser *q), (queue, y, in,
	n, q))
PLAIN(dequantise_add, (void *queue, float *y, float a, const void *in, size_t n, const gradcomp_quantiser *q),
	(queue, y, a, in, n, q))
PLAIN(dequantise_error, (void *queue, float *e, const float *x, const void *in, size_t n, const
	gradcomp_quantiser *q), (queue, e, x, in, n, q))
PLAIN(sign_pack, (void *queue, uint32_t *bits, const float *x, size_t n, size_t segment), (queue, bits, x, n,
	segment))
PLAIN(sign_means, (void *queue, float *pairs, const float *x, size_t n, size_t segment), (queue, pairs, x, n,
	segment))
PLAIN(sign_add, (void *queue, float *y, float a, const uint32_t *bits, const float *pairs, size_t n, size_t
	segment), (queue, y, a, bits, pairs, n, segment))
PLAIN(sign_error, (void *queue, float *e, const float *x, const uint32_t *bits, const float *pairs, size_t n,
	size_t segment), (queue, e, x, bits, pairs, n, segment))
PLAIN(ternary_pack, (void *queue, uint8_t *out, const float *x, size_t n, const float *scale, uint64_t seed,
	uint64_t stream, uint64_t first), (queue, out, x, n, scale, seed, stream, first))
PLAIN(ternary_add, (void *queue, float *y, float a, const uint8_t *in, const float *scale, size_t n, int
	*fault), (queue, y, a, in, scale, n, fault))
PLAIN(power_pack, (void *queue, uint8_t *out, const float *x, size_t n, uint64_t seed, uint64_t stream, uint64_t
	first), (queue, out, x, n, seed, stream, first))
PLAIN(power_read, (void *queue, float *y, const uint8_t *in, size_t n, int *fault), (queue, y, in, n, fault))
PLAIN(power_add, (void *queue, float *y, const uint8_t *in, size_t n, int *fault), (queue, y, in, n, fault))
PLAIN(float8_pack, (void *queue, uint8_t *out, const float *x, size_t n, uint32_t block, gradcomp_dtype type, int
	powers), (queue, out, x, n, block, type, powers))
PLAIN(float8_read, (void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type, int
	powers, int *fault), (queue, y, in, n, block, type, powers, fault))
PLAIN(float8_add, (void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type, int
	powers, int *fault), (queue, y, in, n, block, type, powers, fault))
PLAIN(moment, (void *queue, float *out, const double *sum, double n, double a, uint32_t kind), (queue, out, sum,
	n, a, kind))
PLAIN(scale_by, (void *queue, float *y, const float *a, const float *x, size_t n), (queue, y, a, x, n))
PLAIN(axpy_by, (void *queue, float *y, const float *a, const float *x, size_t n), (queue, y, a, x, n))
PLAIN(range_check, (void *queue, int *fault, const float *x, size_t n, float least, float most), (queue, fault,
	x, n, least, most))
STATUS(cast_scaled, (void *queue, void *out, const float *in, size_t n, gradcomp_dtype to, float a, float limit),
	(queue, out, in, n, to, a, limit))
PLAIN(sign_pairs, (void *queue, float *pairs, const float *values, size_t count), (queue, pairs, values, count))
PLAIN(random_indices, (void *queue, uint32_t *idx, size_t k, size_t n, uint64_t seed, uint64_t stream, uint64_t
	which), (queue, idx, k, n, seed, stream, which))
PLAIN(index_pack, (void *queue, uint32_t *out, const uint32_t *idx, size_t d, size_t k, uint32_t coding), (queue,
	out, idx, d, k, coding))
PLAIN(index_unpack, (void *queue, int *fault, uint32_t *idx, const uint32_t *in, size_t d, size_t k, uint32_t coding,
	void *scratch), (queue, fault, idx, in, d, k, coding, scratch))
PLAIN(sparse_sum, (void *queue, const gradcomp_sparse *part, size_t parts, const gradcomp_pairs *pairs, size_t ranks,
	float a, int *fault), (queue, part, parts, pairs, ranks, a, fault))
PLAIN(copy_if, (void *queue, float *to, const float *from, size_t n, const int *word, int set), (queue, to, from, n,
	word, set))
PLAIN(fill_if, (void *queue, float *x, float a, size_t n, const int *word), (queue, x, a, n, word))
STATUS(load_tensors, (void *queue, const gradcomp_segment *t, size_t count, int *bad, double *squares, void *scratch),
	(queue, t, count, bad, squares, scratch))
STATUS(store_tensors, (void *queue, const gradcomp_segment *t, size_t count, const int *poison, double *squares, void
	*scratch), (queue, t, count, poison, squares, scratch))
PLAIN(blocks_sum_abs, (void *queue, float *out, const float *x, size_t n, size_t width, float most), (queue, out, x, n,
	width, most))
PLAIN(blocks_gather, (void *queue, float *out, const float *x, const uint32_t *idx, size_t k, size_t n, size_t width),
	(queue, out, x, idx, k, n, width))
PLAIN(blocks_scatter, (void *queue, float *y, const uint32_t *idx, const float *val, size_t k, size_t n, size_t width),
	(queue, y, idx, val, k, n, width))
PLAIN(levels_pack, (void *queue, void *out, const float *x, size_t n, const gradcomp_levels *l), (queue, out, x, n, l))
PLAIN(levels_read, (void *queue, float *y, const void *in, size_t n, const gradcomp_levels *l), (queue, y, in, n, l))
PLAIN(levels_add, (void *queue, float *y, float a, const void *in, size_t n, const gradcomp_levels *l), (queue, y, a, in,
	n, l))
PLAIN(normalise_columns_batch, (void *queue, float *const *A, size_t count, size_t n, size_t r, float length), (queue, A,
	count, n, r, length))
PLAIN(dct_topk, (void *queue, float *val, uint16_t *place, const gradcomp_matrix *t, size_t count, uint32_t chunk, uint32_t
	k), (queue, val, place, t, count, chunk, k))
PLAIN(dct_back, (void *queue, const gradcomp_matrix *t, size_t count, uint32_t chunk, uint32_t k, const
	gradcomp_coefficients *from, size_t ranks, float a, uint32_t flags, int *fault), (queue, t, count, chunk, k, from,
	ranks, a, flags, fault))
/* clang-format on */

/* Sizes (*_scratch() and the like) touch no memory and stay as they are. */
const gradcomp_operators *device_operators(const gradcomp_operators *of)
{
	static gradcomp_operators table;

	host = *of;
	table = *of;
	table.device = GRADCOMP_CUDA;
	table.add = fenced_add;
	table.scale = fenced_scale;
	table.reduce = fenced_reduce;
	table.scale_as = fenced_scale_as;
	table.nonfinite = fenced_nonfinite;
	table.cast_from_f32 = fenced_cast_from_f32;
	table.cast_to_f32 = fenced_cast_to_f32;
	table.product_mq = fenced_product_mq;
	table.product_mtp = fenced_product_mtp;
	table.low_rank_finish = fenced_low_rank_finish;
	table.orthonormalise = fenced_orthonormalise;
	table.topk = fenced_topk;
	table.scatter_add = fenced_scatter_add;
	table.random_uniform = fenced_random_uniform;
	table.random_normal = fenced_random_normal;
	table.copy = fenced_copy;
	table.fill = fenced_fill;
	table.axpy = fenced_axpy;
	table.clamp = fenced_clamp;
	table.sum = fenced_sum;
	table.sum_abs = fenced_sum_abs;
	table.sum_squares = fenced_sum_squares;
	table.absmax = fenced_absmax;
	table.product_mq_batch = fenced_product_mq_batch;
	table.product_mtp_batch = fenced_product_mtp_batch;
	table.low_rank_finish_batch = fenced_low_rank_finish_batch;
	table.orthonormalise_batch = fenced_orthonormalise_batch;
	table.orthonormalise_split = fenced_orthonormalise_split;
	table.histogram = fenced_histogram;
	table.kth_magnitude = fenced_kth_magnitude;
	table.count_above = fenced_count_above;
	table.compact = fenced_compact;
	table.mstopk = fenced_mstopk;
	table.gather = fenced_gather;
	table.scatter = fenced_scatter;
	table.sparse_check = fenced_sparse_check;
	table.sparse_merge = fenced_sparse_merge;
	table.quantise = fenced_quantise;
	table.quantised_check = fenced_quantised_check;
	table.dequantise = fenced_dequantise;
	table.dequantise_add = fenced_dequantise_add;
	table.dequantise_error = fenced_dequantise_error;
	table.sign_pack = fenced_sign_pack;
	table.sign_means = fenced_sign_means;
	table.sign_add = fenced_sign_add;
	table.sign_error = fenced_sign_error;
	table.ternary_pack = fenced_ternary_pack;
	table.ternary_add = fenced_ternary_add;
	table.power_pack = fenced_power_pack;
	table.power_read = fenced_power_read;
	table.power_add = fenced_power_add;
	table.float8_pack = fenced_float8_pack;
	table.float8_read = fenced_float8_read;
	table.float8_add = fenced_float8_add;
	table.moment = fenced_moment;
	table.scale_by = fenced_scale_by;
	table.axpy_by = fenced_axpy_by;
	table.range_check = fenced_range_check;
	table.cast_scaled = fenced_cast_scaled;
	table.sign_pairs = fenced_sign_pairs;
	table.random_indices = fenced_random_indices;
	table.index_pack = fenced_index_pack;
	table.index_unpack = fenced_index_unpack;
	table.sparse_sum = fenced_sparse_sum;
	table.copy_if = fenced_copy_if;
	table.fill_if = fenced_fill_if;
	table.load_tensors = fenced_load_tensors;
	table.store_tensors = fenced_store_tensors;
	table.blocks_sum_abs = fenced_blocks_sum_abs;
	table.blocks_gather = fenced_blocks_gather;
	table.blocks_scatter = fenced_blocks_scatter;
	table.levels_pack = fenced_levels_pack;
	table.levels_read = fenced_levels_read;
	table.levels_add = fenced_levels_add;
	table.normalise_columns_batch = fenced_normalise_columns_batch;
	table.dct_topk = fenced_dct_topk;
	table.dct_back = fenced_dct_back;
	return &table;
}
