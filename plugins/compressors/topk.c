/* topk: of d numbers the k = max(1, round(density * d)) of largest magnitude are
 * sent; the rest stays in the error memory (Aji, Heafield, EMNLP 2017; Stich et
 * al., NeurIPS 2018). d is a bucket's, or each tensor's with `layerwise`. Equal
 * magnitudes go to the lower index.
 *
 *     average = 1/P * sum over ranks of what they sent       error = u - own share
 *
 * Payload: see sparse.h. By default k values (F32), then their k indices (32-bit,
 * strictly ascending): 8k bytes and no header. An empty bucket sends nothing.
 *
 * Over a collective that sums codes k is of each run that it codes (sparse: of a block,
 * at every hop), and what a rank drops on the way stays in its own error memory. */
#include "gradcomp/sdk/sparse.h"

static const gradcomp_param params[] = {SDK_SPARSE_SCHEDULE_ROWS, SDK_SPARSE_INDICES_ROW, SDK_SPARSE_VALUES_ROW,
                                        SDK_SPARSE_LAYERWISE_ROW};

static gradcomp_status check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	sdk_sparse_schedule s;
	return sdk_sparse_schedule_read(&s, host, values, "topk", err);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	gradcomp_status st = sdk_sparse_new(sizeof(sdk_sparse), host, values, layout, "topk",
	                                    SDK_SPARSE_LAYERWISE_PARAMS, instance, err);
	if (st || !(st = sdk_sparse_code_open(*instance, err)))
		return st;
	sdk_sparse_destroy(*instance);
	*instance = NULL;
	return st;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "topk",
			.version = "1.2",
			.summary = "the largest numbers of each bucket, exactly k of them",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.instead = SDK_SPARSE_INSTEAD,
	.max_bucket = UINT32_MAX,
	.check = check,
	.create = create,
	.destroy = sdk_sparse_destroy,
	.plan = sdk_sparse_plan,
	.encode = sdk_sparse_encode,
	.decode = sdk_sparse_decode,
	.code_bound = sdk_sparse_code_bound,
	.code = sdk_sparse_code,
	.code_decode = sdk_sparse_code_decode,
	.code_decode_add = sdk_sparse_code_decode_add,
	.cost = sdk_sparse_cost,
};
