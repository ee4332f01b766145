/* Operators whose launches are looked at: what CUDA says after the last launch of an
 * operator is kept with the operator's name until the thread asks for it, and until then
 * operators do nothing. A file that
 * includes this has device_error(): words for what has failed on this thread since it
 * was last called, or NULL. */
#ifndef OPERATORS_CUDA_CUDA_CHECKED_H
#define OPERATORS_CUDA_CUDA_CHECKED_H

#include <stdio.h>
#include <type_traits>

namespace
{

struct failure {
	bool pending;
	char words[128];
};
thread_local failure first_failure;

/* A launch that went well does not take back what an earlier one said, so one look
 * after all of an operator's is enough. What kernels did wrong while they ran comes
 * to whoever is next. */
inline void look(const char *name)
{
	const char *why = device_error();
	if (!why)
		return;
	first_failure.pending = true;
	snprintf(first_failure.words, sizeof first_failure.words, "%s: %s", name, why);
}

const char *checked_failed()
{
	const bool was = first_failure.pending;
	first_failure.pending = false;
	return was ? first_failure.words : nullptr;
}

/* NAME::text() names the operator F. */
template <class NAME, auto F, class TYPE = decltype(F)> struct checked;
template <class NAME, auto F, class R, class... A> struct checked<NAME, F, R (*)(A...)> {
	static R call(A... a)
	{
		if constexpr (std::is_void<R>::value) {
			if (first_failure.pending)
				return;
			F(a...);
			look(NAME::text());
		} else {
			if (first_failure.pending)
				return GRADCOMP_OK;
			const R st = F(a...);
			look(NAME::text());
			return st;
		}
	}
};

} // namespace

/* Every operator that puts work on a queue. */
#define EACH_OPERATOR(with) \
	with(add) with(scale) with(reduce) with(scale_as) with(nonfinite) with(cast_from_f32) with(cast_to_f32) with( \
		product_mq) with(product_mtp) with(low_rank_finish) with(orthonormalise) with(topk) with(scatter_add) \
		with(random_uniform) with(random_normal) with(copy) with(fill) with(axpy) with(clamp) with(sum) with( \
			sum_abs) with(sum_squares) with(absmax) with(product_mq_batch) with(product_mtp_batch) \
			with(low_rank_finish_batch) with(orthonormalise_batch) with(orthonormalise_split) with( \
				histogram) with(kth_magnitude) with(count_above) with(compact) with(mstopk) \
				with(gather) with(scatter) with(sparse_check) with(sparse_merge) with(quantise) with( \
					quantised_check) with(dequantise) with(dequantise_add) with(dequantise_error) \
					with(sign_pack) with(sign_means) with(sign_add) with(sign_error) with( \
						ternary_pack) with(ternary_add) with(moment) with(scale_by) \
						with(axpy_by) with(range_check) with(cast_scaled) with(sign_pairs) with( \
							random_indices) with(load_tensors) with(store_tensors) \
							with(sparse_sum) with(index_pack) with(index_unpack) with( \
								any_set) with(put_flag) with(copy_if) with(fill_if) \
								with(fill_tensors_if) with(power_pack) with( \
									power_read) with(power_add) with(float8_pack) \
									with(float8_read) with(float8_add) with( \
										blocks_sum_abs) with(blocks_gather) \
										with(blocks_scatter) with( \
											levels_pack) with(levels_read) \
											with(levels_add) with( \
												normalise_columns_batch) \
												with(dct_topk) \
													with(dct_back)

/* And those that only count. */
#define EACH_SIZE(with) \
	with(topk_scratch) with(sum_scratch) with(product_scratch) with(mstopk_scratch) with(sparse_merge_scratch) \
		with(tensors_scratch) with(index_scratch) with(orthonormalise_scratch)

/* t.name: the checked `function`. */
#define CHECKED(t, name, function) \
	do { \
		struct named { \
			static const char *text() { return #name; } \
		}; \
		(t).name = checked<named, function>::call; \
	} while (0)

#endif
