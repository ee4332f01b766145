/* onebit: a number is sent as its sign; the means of the negative and of the other
 * numbers of its column stand for them (1-bit SGD: Seide et al., Interspeech 2014).
 *
 * A column is what one output sees of its inputs: a row of the n x m matrix (n the
 * tensor's first dimension), which lies in one piece. Rows of less than 32 numbers
 * are taken together until there are as many; a vector is one column. column=N makes
 * it N numbers instead, whatever the shape.
 *
 * Payload: two means (F32) a column, then the signs, 32 to a word, columns beginning
 * a new one: about d / 8 + 8 columns bytes, 3 bits a number at the very worst.
 *
 * Over a collective that sums codes (direct: the paper's own aggregation) runs of the
 * bucket are coded the same way. Rows are not known there: a column is 1024 numbers. */
#include "gradcomp/compressor.h"

#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/signs.h"

enum { COLUMN, START_STEP };
enum { SHORTEST = 32 };

static const gradcomp_param params[] = {
	[COLUMN] = {.name = "column",
                    .type = GRADCOMP_PARAM_INT,
                    .def = "0",
                    .min = 0,
                    .max = 1 << 30,
                    .help = "numbers that share two means; 0: a row of the tensor, 1024 where sums are coded"},
	[START_STEP] = SDK_START_STEP_ROW,
};

static gradcomp_status onebit_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	if (!values[COLUMN].i || values[COLUMN].i >= SHORTEST)
		return GRADCOMP_OK;
	return host->fail(err, GRADCOMP_ERR_INVALID,
	                  "onebit: column=%lld: give 0 for a row, or at least %d (each takes 12 bytes or more)",
	                  (long long)values[COLUMN].i, SHORTEST);
}

static uint64_t column(const sdk_signs *s, const gradcomp_tensor *t)
{
	uint64_t row = t->ndim > 1 ? t->numel / t->dims[0] : t->numel;
	if (s->length)
		return s->length;
	return row < SHORTEST ? (SHORTEST + row - 1) / row * row : row;
}

static gradcomp_status onebit_create(const gradcomp_host *host, const gradcomp_value *values,
                                     const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	sdk_signs s = {
		.host = host,
		.layout = layout,
		.name = "onebit",
		.start_step = (uint64_t)values[START_STEP].i,
		.run = column,
		.length = (uint64_t)values[COLUMN].i,
		.values = 2,
	};
	gradcomp_status st = onebit_check(host, values, err);
	return st ? st : sdk_signs_create(host, &s, instance, err);
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "onebit",
			.version = "1.1",
			.summary = "signs, and two means for each row of a tensor",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.instead = SDK_SIGNS_INSTEAD,
	.check = onebit_check,
	.create = onebit_create,
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
