/* fp8: numbers are sent as 8-bit floats; `block` of them share a scale (types: Micikevicius et
 * al., FP8 formats for deep learning, arXiv 2209.05433; OCP 8-bit floating point specification
 * 1.0; scales of a byte: OCP microscaling formats specification 1.0). It is a code: the
 * collective adds floats, and codes them wherever they go over a link.
 *
 *     value = scale * code        scale f32: the block's largest magnitude is the type's largest
 *                                 scale e8m0: 2^(exponent of the largest magnitude - that of the type's)
 *
 * No scale is below 2^-126, or 2^-127 of e8m0: blocks of still smaller numbers (e4m3: 5.3e-36, e5m2: 6.7e-34)
 * have fewer bits of them.
 *
 * e4m3 has 3 bits of mantissa and ends at 448, e5m2 has 2 and ends at 57344. Rounding is to nearest
 * even, and what is too large for the type becomes its largest: with e8m0 numbers of up to 1.14
 * times that. What a rank's codes lose stays in that rank's error memory. No number becomes a NaN
 * or an Inf, and a code that is one is refused. Sums of finite numbers may be Inf: the scale of a
 * block that has one is NaN (a byte of 255), and it is NaN wherever it goes from there.
 *
 * A run of n numbers: ceil(n / block) scales, F32 or a byte with a bias of 127, then n codes:
 * (4 or 1) ceil(n / block) + n bytes. */
#include "plugins/common/compressors/float_code.h"

#include "gradcomp/sdk/passthrough.h"

enum { TYPE, BLOCK, SCALES, ROTATE, START_STEP };

static const char *const types[] = {"e4m3", "e5m2", NULL};
static const char *const scales[] = {"f32", "e8m0", NULL};
static const gradcomp_param params[] = {
	[TYPE] = {.name = "type",
                  .type = GRADCOMP_PARAM_CHOICE,
                  .def = "e4m3",
                  .choices = types,
                  .help = "bits of exponent and mantissa"},
	[BLOCK] = {.name = "block",
                   .type = GRADCOMP_PARAM_INT,
                   .def = "128",
                   .min = 32,
                   .max = 65536,
                   .help = "numbers that share a scale, a multiple of 32"},
	[SCALES] = {.name = "scales",
                    .type = GRADCOMP_PARAM_CHOICE,
                    .def = "f32",
                    .choices = scales,
                    .help = "e8m0: powers of two in a byte, as in microscaling formats, whose blocks have 32"},
	[ROTATE] = ROTATION_ROW,
	[START_STEP] = SDK_START_STEP_ROW,
};

static gradcomp_status fp8_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	if (values[BLOCK].i % 32 == 0)
		return values[ROTATE].i ? rotation_check(host, "fp8", (uint64_t)values[BLOCK].i, err) : GRADCOMP_OK;
	return host->fail(err, GRADCOMP_ERR_INVALID, "fp8: block=%lld: give a multiple of 32 from 32 to 65536",
	                  (long long)values[BLOCK].i);
}

static gradcomp_status fp8_create(const gradcomp_host *host, const gradcomp_value *values,
                                  const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	const float_code form = {
		.c = {.host = host, .name = "fp8", .start_step = (uint64_t)values[START_STEP].i},
		.type = values[TYPE].i ? GRADCOMP_F8E5M2 : GRADCOMP_F8E4M3,
		.block = (uint32_t)values[BLOCK].i,
		.scales = values[SCALES].i ? GRADCOMP_SCALES_E8M0 : GRADCOMP_SCALES_F32,
	};
	gradcomp_status st = fp8_check(host, values, err);
	return st ? st : float_code_create(&form, values[ROTATE].i != 0, layout, instance, err);
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "fp8",
			.version = "1.0",
			.summary = "8-bit floats, a scale for each block of numbers",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.check = fp8_check,
	.create = fp8_create,
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
