/* cast: gradients are sent in 16 bits, and added in 32.
 *
 * sum=f32: a code. The collective adds floats, and casts them where they go over a link:
 *
 *     average = round(sum over ranks of round(u_w) / P)
 *
 * Nobody keeps what a cast loses, so collectives cast no partial sums (GRADCOMP_CODEC_LOSES): a
 * rank owns a part of the numbers, gets all others' of it, adds them up as floats, casts the
 * mean once, and gives it out. The error is that of two roundings, however many ranks there are.
 * In two levels sums of a node are not cast, and take the place of u_w.
 *
 * sum=wire: payloads add up in 16 bits, on the way. So they do over collectives that sum no codes.
 *
 *     payload_w = round(u_w / P)        average = float(sum over ranks of payload_w)
 *
 * Each rank divides by P, in float, before it rounds. So the sum is never much
 * larger than the largest gradient, where a sum of F16 that is divided afterwards
 * overflows at 65504 / P; the price is log2 P bits less of F16's range below.
 * Rounding is to nearest even, here and at each hop of the collective. The mean is
 * conserved to rounding in the 16-bit type: (1 + P) units in the last place of
 * the largest partial sum.
 *
 * There is no error memory. Rounding to nearest has no direction, so it averages
 * out over steps; and remembering the rest would cost as many bytes as the gradient. For the
 * same reason NaN and Inf are simply passed on.
 *
 * There are no 8-bit floats: two or three bits of mantissa need a scale that fits.
 * `fp8` and `block` send 8 bits and add in 32.
 *
 * saturate=yes: what is too large for the type becomes its largest number, not Inf. Of sums in 16
 * bits a rank adds at most its P-th part of that, less what the hops can round upwards. A sum
 * that is too large for a float is Inf all the same, and a NaN or Inf in a gradient comes out as
 * one. */
#include "gradcomp/compressor.h"

#include "gradcomp/sdk/coded.h"

enum { TYPE, SATURATE, SUM };
enum { SUM_F32, SUM_WIRE };

static const char *const types[] = {"bf16", "fp16", NULL};
static const char *const sums[] = {"f32", "wire", NULL};
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
	[SUM] = {.name = "sum",
                 .type = GRADCOMP_PARAM_CHOICE,
                 .def = "f32",
                 .choices = sums,
                 .help = "f32: added as floats by the rank that owns a part; wire: added in 16 bits, on the way"},
};

typedef struct cast {
	sdk_coded c;
	gradcomp_dtype type;
	int saturate;
	int coded; /* sum=f32, over a collective that sums codes */
	int nranks;
	float limit; /* most of a rank's part of the mean in 16 bits, when saturating */
	gradcomp_coding coding;
	/* Where runs are coded: see code_on(). */
	const gradcomp_operators *op;
	void *queue;
} cast;

static float limit_of(gradcomp_dtype type, int nranks)
{
	double most = type == GRADCOMP_F16 ? 65504 : 0x1.fep127, hop = 1 + (type == GRADCOMP_F16 ? 0x1p-11 : 0x1p-8);
	double limit = most / nranks;
	for (int w = 1; w < nranks; w++)
		limit /= hop;
	return nranks == 1 ? (float)most : (float)(limit / hop);
}

/* Returns 1 when payloads of a pattern travel; a host that does not say carries the sums of codes. */
static int carries(const gradcomp_layout *layout, gradcomp_pattern p)
{
	return !GRADCOMP_HAS(layout, patterns) || !layout->patterns || layout->patterns & GRADCOMP_PATTERN_BIT(p);
}

static gradcomp_status cast_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	const int codes = carries(layout, GRADCOMP_CODED), adds = carries(layout, GRADCOMP_SUMMED);
	const int coded = codes && values[SUM].i == SUM_F32;
	if (values[SUM].i != SUM_F32 && !adds)
		return host->fail(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"cast: sum=wire adds payloads on the way, and numbers are only coded here: leave it out");
	if (values[SUM].i == SUM_F32 && !coded && layout->rank == 0 && layout->nranks > 1)
		host->log(host->ctx, GRADCOMP_LOG_WARN,
		          "cast: this collective sums no codes, so numbers add up in 16 bits, as with sum=wire; "
		          "collectives auto, ring, direct, hier and nccl add floats");
	cast *c = host->alloc(sizeof *c);
	if (!c)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "cast: no memory");
	c->c = (sdk_coded){.host = host, .name = "cast"};
	c->op = host->operators;
	c->type = values[TYPE].i ? GRADCOMP_F16 : GRADCOMP_BF16;
	c->saturate = values[SATURATE].i != 0;
	c->coded = coded;
	c->nranks = layout->nranks;
	c->limit = limit_of(c->type, c->nranks);
	c->coding =
		(gradcomp_coding){.struct_size = sizeof c->coding, .kind = GRADCOMP_CODING_FLOAT16, .type = c->type};
	*instance = c;
	return GRADCOMP_OK;
}

static void cast_destroy(void *instance)
{
	cast *c = instance;
	if (c)
		c->c.host->release(c);
}

static gradcomp_status cast_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	const cast *c = instance;
	if (c->coded)
		return sdk_coded_plan(instance, bucket, step, plan, err);
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
	if (c->coded)
		return sdk_coded_encode(instance, work, round, out, err);
	gradcomp_status s = work->operators->cast_scaled(work->queue, out->data, work->flat, n, c->type,
	                                                 1.0f / (float)c->nranks, c->saturate ? c->limit : 0);
	out->bytes = n * sizeof(uint16_t);
	return s ? c->c.host->fail(err, s, "cast: these operators cannot write %s", types[c->type == GRADCOMP_F16]) : s;
}

static gradcomp_status cast_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const cast *c = instance;
	uint64_t want = work->bucket->numel * sizeof(uint16_t);
	if (c->coded)
		return sdk_coded_decode(instance, work, round, in, n, err);
	if (in->bytes != want)
		return c->c.host->fail(err, GRADCOMP_ERR_INTERNAL, "cast: bucket %u brought %llu bytes, not %llu",
		                       work->bucket->index, (unsigned long long)in->bytes, (unsigned long long)want);
	gradcomp_status s =
		work->operators->cast_to_f32(work->queue, work->flat, in->data, work->bucket->numel, c->type);
	return s ? c->c.host->fail(err, s, "cast: these operators cannot read %s", types[c->type == GRADCOMP_F16]) : s;
}

static uint64_t cast_bound(void *instance, uint64_t n)
{
	(void)instance;
	return n * sizeof(uint16_t);
}

static gradcomp_status cast_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                 uint64_t *bytes, gradcomp_error *err)
{
	const cast *c = instance;
	(void)counter, (void)err;
	*bytes = n * sizeof(uint16_t);
	return c->op->cast_from_f32(c->queue, out, in, n, c->type, c->saturate);
}

static gradcomp_status cast_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                        gradcomp_error *err)
{
	const cast *c = instance;
	gradcomp_status st = sdk_coded_length(&c->c, bytes, n * sizeof(uint16_t), n, err);
	return st ? st : c->op->cast_to_f32(c->queue, out, in, n, c->type);
}

static gradcomp_status cast_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                            gradcomp_error *err)
{
	const cast *c = instance;
	const gradcomp_coded sum = {.y = out, .x = out, .n = n};
	gradcomp_status st = sdk_coded_length(&c->c, bytes, n * sizeof(uint16_t), n, err);
	if (!st)
		c->op->codes_sum(c->queue, &c->coding, &sum, 1, &in, 1, 1, NULL); /* all bits are right */
	return st;
}

static gradcomp_status cast_code_on(void *instance, const gradcomp_operators *operators, void *queue, int *fault,
                                    gradcomp_error *err)
{
	cast *c = instance;
	(void)fault, (void)err;
	c->op = operators;
	c->queue = queue;
	return GRADCOMP_OK;
}

static void cast_code_layout(void *instance, uint64_t n, gradcomp_code_layout *out)
{
	const cast *c = instance;
	*out = (gradcomp_code_layout){
		.struct_size = sizeof *out, .grain = 8, .coding = c->coding, .codes = n * sizeof(uint16_t)};
}

static gradcomp_status cast_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	const cast *c = instance;
	(void)step, (void)err;
	cost->rounds = 1;
	cost->wire_bytes = 2.0 * (double)bucket->numel;
	cost->passes = c->coded ? 4 : 3; /* reads 4, writes 2, reads 2, writes 4 bytes; codes are also added up */
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "cast",
			.version = "1.0",
			.summary = "gradients are sent in 16 bits, and added in 32",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_PASSES_NONFINITE | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.instead = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = cast_create,
	.destroy = cast_destroy,
	.plan = cast_plan,
	.encode = cast_encode,
	.decode = cast_decode,
	.code_bound = cast_bound,
	.code = cast_code,
	.code_decode = cast_code_decode,
	.code_decode_add = cast_code_decode_add,
	.cost = cast_cost,
	.code_on = cast_code_on,
	.code_layout = cast_code_layout,
};
