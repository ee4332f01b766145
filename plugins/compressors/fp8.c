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
#include "gradcomp/compressor.h"

#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/passthrough.h"

enum { TYPE, BLOCK, SCALES, START_STEP };

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
	[START_STEP] = SDK_START_STEP_ROW,
};

typedef struct fp8 {
	sdk_coded c;
	gradcomp_dtype type;
	uint32_t block;
	uint64_t scale_bytes;
	/* Where runs are coded: see code_on(). */
	const gradcomp_operators *op;
	void *queue;
	int *fault;
} fp8;

static gradcomp_status fp8_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	if (values[BLOCK].i % 32 == 0)
		return GRADCOMP_OK;
	return host->fail(err, GRADCOMP_ERR_INVALID, "fp8: block=%lld: give a multiple of 32 from 32 to 65536",
	                  (long long)values[BLOCK].i);
}

static gradcomp_status fp8_create(const gradcomp_host *host, const gradcomp_value *values,
                                  const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	gradcomp_status st = fp8_check(host, values, err);
	fp8 *p = st ? NULL : host->alloc(sizeof *p);
	(void)layout;
	if (st)
		return st;
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "fp8: no memory");
	p->c = (sdk_coded){.host = host, .name = "fp8", .start_step = (uint64_t)values[START_STEP].i};
	p->op = host->operators;
	p->type = values[TYPE].i ? GRADCOMP_F8E5M2 : GRADCOMP_F8E4M3;
	p->block = (uint32_t)values[BLOCK].i;
	p->scale_bytes = values[SCALES].i ? 1 : sizeof(float);
	*instance = p;
	return GRADCOMP_OK;
}

static void fp8_destroy(void *instance)
{
	fp8 *p = instance;
	if (p)
		p->c.host->release(p);
}

static uint64_t blocks_of(const fp8 *p, uint64_t n)
{
	return (n + p->block - 1) / p->block;
}

static uint64_t fp8_bound(void *instance, uint64_t n)
{
	const fp8 *p = instance;
	return blocks_of(p, n) * p->scale_bytes + n;
}

static gradcomp_status fp8_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                uint64_t *bytes, gradcomp_error *err)
{
	const fp8 *p = instance;
	(void)counter, (void)err;
	p->op->float8_pack(p->queue, out, in, n, p->block, p->type, p->scale_bytes == 1);
	*bytes = fp8_bound(instance, n);
	return GRADCOMP_OK;
}

/* add: out += what is decoded. */
static gradcomp_status decode(const fp8 *p, const uint8_t *in, uint64_t bytes, float *out, uint64_t n, int add,
                              gradcomp_error *err)
{
	int bad = 0, *fault = p->fault ? p->fault : &bad;
	gradcomp_status st = sdk_coded_length(&p->c, bytes, blocks_of(p, n) * p->scale_bytes + n, n, err);
	if (st)
		return st;
	(add ? p->op->float8_add : p->op->float8_read)(p->queue, out, in, n, p->block, p->type, p->scale_bytes == 1,
	                                               fault);
	return !bad ? GRADCOMP_OK
	            : p->c.host->fail(
			      err, GRADCOMP_ERR_MISMATCH,
			      "fp8: a run of %llu numbers came with a code that is NaN or Inf, or a scale that is none",
			      (unsigned long long)n);
}

static gradcomp_status fp8_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 0, err);
}

static gradcomp_status fp8_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                           gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 1, err);
}

static gradcomp_status fp8_code_on(void *instance, const gradcomp_operators *operators, void *queue, int *fault,
                                   gradcomp_error *err)
{
	fp8 *p = instance;
	(void)err;
	p->op = operators;
	p->queue = queue;
	p->fault = fault;
	return GRADCOMP_OK;
}

static void fp8_code_layout(void *instance, uint64_t n, gradcomp_code_layout *out)
{
	const fp8 *p = instance;
	*out = (gradcomp_code_layout){.struct_size = sizeof *out,
	                              .grain = p->block,
	                              .coding = {.struct_size = sizeof out->coding,
	                                         .kind = GRADCOMP_CODING_FLOAT8,
	                                         .block = p->block,
	                                         .type = p->type,
	                                         .powers = p->scale_bytes == 1},
	                              .values = blocks_of(p, n) * p->scale_bytes,
	                              .codes = n,
	                              .fault = p->fault};
}

static gradcomp_status fp8_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                gradcomp_error *err)
{
	const fp8 *p = instance;
	int dense = step < p->c.start_step;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = dense ? 4.0 * (double)bucket->numel : (double)fp8_bound(instance, bucket->numel);
	cost->passes = dense ? 0 : 5;
	return GRADCOMP_OK;
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
	.destroy = fp8_destroy,
	.plan = sdk_coded_plan,
	.encode = sdk_coded_encode,
	.decode = sdk_coded_decode,
	.code_bound = fp8_bound,
	.code = fp8_code,
	.code_decode = fp8_code_decode,
	.code_decode_add = fp8_code_decode_add,
	.cost = fp8_cost,
	.code_on = fp8_code_on,
	.code_layout = fp8_code_layout,
};
