/* cast: gradients are sent and added in 16 bits.
 *
 *     payload_w = round(u_w / P)        average = float(sum over ranks of payload_w)
 *
 * Each rank divides by P, in float, before it rounds. So the sum is never much
 * larger than the largest gradient, where a sum of F16 that is divided afterwards
 * overflows at 65504 / P; the price is log2 P bits less of F16's range below.
 * Rounding is to nearest even, here and at each hop of the collective.
 *
 * There is no error memory. Rounding to nearest has no direction, so it averages
 * out over steps; what the hops of the collective round away belongs to no rank;
 * and remembering the rest would cost as many bytes as the gradient. The mean is
 * conserved to rounding in the 16-bit type: (1 + P) units in the last place of
 * the largest partial sum. For the same reason NaN and Inf are simply passed on.
 *
 * There are no 8-bit floats: a sum that is rounded to two or three bits of mantissa
 * at every hop says little of its terms. `fp8` and `block` send 8 bits and add in 32.
 *
 * saturate=yes limits what a rank adds to its P-th part of the largest number of
 * the type, less what the hops can round upwards: finite gradients never make
 * Inf. A NaN or Inf in a gradient still comes out as one. */
#include "gradcomp/compressor.h"

enum { TYPE, SATURATE };

static const char *const types[] = {"bf16", "fp16", NULL};
static const gradcomp_param params[] = {
	[TYPE] = {.name = "type",
                  .type = GRADCOMP_PARAM_CHOICE,
                  .def = "bf16",
                  .choices = types,
                  .help = "bf16 has the range of a float and 8 bits, fp16 ends at 65504 and has 11"},
	[SATURATE] = {.name = "saturate",
                      .type = GRADCOMP_PARAM_BOOL,
                      .def = "no",
                      .help = "what is too large becomes about the largest number of the type, not Inf"},
};

typedef struct cast {
	const gradcomp_host *host;
	gradcomp_dtype type;
	int saturate;
	int nranks;
	float limit; /* most of a rank's part of the mean, when saturating */
} cast;

static float limit_of(gradcomp_dtype type, int nranks)
{
	double most = type == GRADCOMP_F16 ? 65504 : 0x1.fep127, hop = 1 + (type == GRADCOMP_F16 ? 0x1p-11 : 0x1p-8);
	double limit = most / nranks;
	for (int w = 1; w < nranks; w++)
		limit /= hop;
	return nranks == 1 ? (float)most : (float)(limit / hop);
}

static gradcomp_status cast_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	cast *c = host->alloc(sizeof *c);
	if (!c)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "cast: no memory");
	c->host = host;
	c->type = values[TYPE].i ? GRADCOMP_F16 : GRADCOMP_BF16;
	c->saturate = values[SATURATE].i != 0;
	c->nranks = layout->nranks;
	c->limit = limit_of(c->type, c->nranks);
	*instance = c;
	return GRADCOMP_OK;
}

static void cast_destroy(void *instance)
{
	cast *c = instance;
	if (c)
		c->host->release(c);
}

static gradcomp_status cast_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	const cast *c = instance;
	(void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){
		.pattern = GRADCOMP_SUMMED,
		.dtype = c->type,
		.count = bucket->numel,
	};
	return GRADCOMP_OK;
}

static gradcomp_status cast_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	const cast *c = instance;
	uint64_t n = work->bucket->numel;
	(void)round;
	gradcomp_status s = work->operators->cast_scaled(work->queue, out->data, work->flat, n, c->type,
	                                                 1.0f / (float)c->nranks, c->saturate ? c->limit : 0);
	out->bytes = n * sizeof(uint16_t);
	return s ? c->host->fail(err, s, "cast: these operators cannot write %s", types[c->type == GRADCOMP_F16]) : s;
}

static gradcomp_status cast_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const cast *c = instance;
	uint64_t want = work->bucket->numel * sizeof(uint16_t);
	(void)round, (void)n;
	if (in->bytes != want)
		return c->host->fail(err, GRADCOMP_ERR_INTERNAL, "cast: bucket %u brought %llu bytes, not %llu",
		                     work->bucket->index, (unsigned long long)in->bytes, (unsigned long long)want);
	gradcomp_status s =
		work->operators->cast_to_f32(work->queue, work->flat, in->data, work->bucket->numel, c->type);
	return s ? c->host->fail(err, s, "cast: these operators cannot read %s", types[c->type == GRADCOMP_F16]) : s;
}

static gradcomp_status cast_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	cost->rounds = 1;
	cost->wire_bytes = 2.0 * (double)bucket->numel;
	cost->passes = 3; /* reads 4, writes 2, reads 2, writes 4 bytes */
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "cast",
			.version = "1.0",
			.summary = "gradients are sent and added in 16 bits",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_PASSES_NONFINITE | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = cast_create,
	.destroy = cast_destroy,
	.plan = cast_plan,
	.encode = cast_encode,
	.decode = cast_decode,
	.cost = cast_cost,
};
