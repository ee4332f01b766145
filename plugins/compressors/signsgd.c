/* signsgd: a number is sent as its sign; the mean magnitude of its tensor stands for
 * all of them, and what that is off by stays in the error memory (EF-SignSGD:
 * Karimireddy et al., ICML 2019).
 *
 *     average = 1/P * sum over ranks of mean|u| sign(u), with sign(0) = 1
 *
 * There is no majority vote: it forgets how many were outvoted, so that what the
 * ranks gave is neither in the average nor in anybody's memory.
 *
 * Payload: a mean (F32) a tensor, then the signs, 32 to a word, tensors beginning a
 * new one: 4 + 4 ceil(n / 32) bytes for a tensor of n numbers.
 *
 * Over a collective that sums codes a run of the bucket takes the place of a tensor, as
 * in dist-EF-SGD (Zheng, Huang, Kwok, NeurIPS 2019), which compresses both ways. */
#include "gradcomp/compressor.h"

#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/signs.h"

enum { START_STEP };

static const gradcomp_param params[] = {
	[START_STEP] = SDK_START_STEP_ROW,
};

static uint64_t whole(const sdk_signs *s, const gradcomp_tensor *t)
{
	(void)s;
	return t->numel;
}

static gradcomp_status signsgd_create(const gradcomp_host *host, const gradcomp_value *values,
                                      const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	sdk_signs s = {
		.host = host,
		.layout = layout,
		.name = "signsgd",
		.start_step = (uint64_t)values[START_STEP].i,
		.run = whole,
		.values = 1,
	};
	return sdk_signs_create(host, &s, instance, err);
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "signsgd",
			.version = "1.1",
			.summary = "signs, and the mean magnitude of each tensor",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.instead = SDK_SIGNS_INSTEAD,
	.create = signsgd_create,
	.destroy = sdk_signs_destroy,
	.plan = sdk_signs_plan,
	.encode = sdk_signs_encode,
	.decode = sdk_signs_decode,
	.code_bound = sdk_signs_code_bound,
	.code = sdk_signs_code,
	.code_decode = sdk_signs_code_decode,
	.code_decode_add = sdk_signs_code_decode_add,
	.cost = sdk_signs_cost,
};
