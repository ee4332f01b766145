/* fp4: numbers are sent as floats of 4 bits, E2M1, whose values are 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with a sign. It is a
 * code: the collective adds floats, and codes them wherever they go over a link.
 *
 *     value = scale * code
 *
 *     mx  32 numbers share a power of two, 2^(exponent of the largest magnitude - 2), in a byte (OCP microscaling
 *         formats specification 1.0: MXFP4). Numbers may be 1.33 times what the largest code stands for.
 *     nv  16 numbers share a byte, an E4M3, and `group` numbers a float that it is multiplied with (NVFP4, as in
 *         NVIDIA's Pretraining large language models with NVFP4, arXiv 2509.25149). The float is the largest magnitude
 *         of the group / (6 * 448), the byte the largest of the 16 / 6 in units of that, to nearest. There the float
 *         is one of a whole tensor. Here it is one of a run of numbers, so that what collectives cut out of a code is a
 *         code.
 *
 * Rounding is to nearest even, and what is too large becomes the largest. What a rank's codes lose stays in that rank's
 * error memory. No scale is below 2^-127 (mx) or 2^-126 (nv): of still smaller blocks less is sent. No number becomes
 * a NaN or an Inf. Sums of finite numbers may be Inf: the scale of a block or group that has one is NaN, and it is NaN
 * wherever it goes from there.
 *
 * A run of n numbers: mx: ceil(n / 32) bytes, then ceil(n / 2). nv: 4 ceil(n / group) + ceil(n / 16) bytes of scales, a
 * float and then its bytes for one group after another, then ceil(n / 2). Of a byte of codes the first number has the
 * lower half. */
#include "plugins/common/compressors/float_code.h"

#include "gradcomp/sdk/passthrough.h"

enum { TYPE, GROUP, ROTATE, START_STEP };
enum { MX, NV, MX_BLOCK = 32, USUAL_GROUP = 4096 };

static const char *const types[] = {[MX] = "mx", [NV] = "nv", NULL};
static const gradcomp_param params[] = {
	[TYPE] = {.name = "type",
                  .type = GRADCOMP_PARAM_CHOICE,
                  .def = "nv",
                  .choices = types,
                  .help = "mx: 32 numbers share a power of two; nv: 16 share an 8-bit float, and a group a float"},
	[GROUP] = {.name = "group",
                   .type = GRADCOMP_PARAM_INT,
                   .def = "4096",
                   .min = 32,
                   .max = 65536,
                   .help = "nv: numbers that share a float, a multiple of 32"},
	[ROTATE] = ROTATION_ROW,
	[START_STEP] = SDK_START_STEP_ROW,
};

static gradcomp_status fp4_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	const long long group = (long long)values[GROUP].i;
	if (values[TYPE].i == MX && group != USUAL_GROUP)
		return host->fail(err, GRADCOMP_ERR_INVALID,
		                  "fp4: group=%lld: blocks of type=mx have %d numbers, leave it out", group, MX_BLOCK);
	if (group % 32 == 0)
		return values[ROTATE].i ? rotation_check(host, "fp4", (uint64_t)group, err) : GRADCOMP_OK;
	return host->fail(err, GRADCOMP_ERR_INVALID, "fp4: group=%lld: give a multiple of 32 from 32 to 65536", group);
}

static gradcomp_status fp4_create(const gradcomp_host *host, const gradcomp_value *values,
                                  const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	const int mx = values[TYPE].i == MX;
	const float_code form = {
		.c = {.host = host, .name = "fp4", .start_step = (uint64_t)values[START_STEP].i},
		.type = GRADCOMP_F4E2M1,
		.block = mx ? MX_BLOCK : (uint32_t)values[GROUP].i,
		.scales = mx ? GRADCOMP_SCALES_E8M0 : GRADCOMP_SCALES_E4M3,
	};
	gradcomp_status st = fp4_check(host, values, err);
	return st ? st : float_code_create(&form, values[ROTATE].i != 0, layout, instance, err);
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "fp4",
			.version = "1.0",
			.summary = "4-bit floats, a scale for each block of numbers: NVFP4, MXFP4",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.check = fp4_check,
	.create = fp4_create,
	.destroy = float_code_destroy,
	.plan = sdk_coded_plan,
	.encode = sdk_coded_encode,
	.decode = sdk_coded_decode,
	.code_bound = float_code_bound,
	.code = float_code_code,
	.code_decode = float_code_decode,
	.code_decode_add = float_code_decode_add,
	.cost = float_code_cost,
	.code_on = float_code_on,
	.code_layout = float_code_layout,
};
