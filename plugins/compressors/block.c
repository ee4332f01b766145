/* block: numbers are sent as integers of 8, 4 or 2 bits; `block` of them share a step,
 * their largest magnitude divided by 127, 7 or 1 (Dettmers, ICLR 2016). It is a
 * code: the collective adds floats, and codes them wherever they go over a link.
 *
 *     value = code * step        error: at most half a step, all of one when stochastic
 *
 * A run of n numbers: ceil(n / block) steps (F32), then the codes, two's complement,
 * 8 / bits to a byte: 4 ceil(n / block) + ceil(n bits / 8) bytes. What a rank's codes
 * lose stays in that rank's error memory, so that nothing is lost for good. With rotate=yes
 * the numbers are rotated first (rotation.h), and what is decoded is rotated back.
 *
 * Sums of finite numbers may be Inf. A block that has one gets the step NaN, and is NaN
 * wherever it goes from there. */
#include "plugins/common/compressors/rotation.h"

#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/random_stream.h"

enum { BITS, BLOCK, ROUNDING, ROTATE, START_STEP };

static const char *const widths[] = {"8", "4", "2", NULL};
static const char *const roundings[] = {"nearest", "stochastic", NULL};
static const gradcomp_param params[] = {
	[BITS] = {.name = "bits", .type = GRADCOMP_PARAM_CHOICE, .def = "8", .choices = widths, .help = "of a number"},
	[BLOCK] = {.name = "block",
                   .type = GRADCOMP_PARAM_INT,
                   .def = "256",
                   .min = 32,
                   .max = 65536,
                   .help = "numbers that share a step, a multiple of 32"},
	[ROUNDING] = {.name = "rounding",
                      .type = GRADCOMP_PARAM_CHOICE,
                      .def = "nearest",
                      .choices = roundings,
                      .help = "stochastic: up with the probability of the fraction"},
	[ROTATE] = ROTATION_ROW,
	[START_STEP] = SDK_START_STEP_ROW,
};

typedef struct block {
	sdk_coded c;
	gradcomp_quantiser q;
	const gradcomp_operators *op; /* where the code works */
	void *queue;
	int *fault; /* on a device, else NULL */
	rotation r;
} block;

static gradcomp_status block_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	if (values[BLOCK].i % 32 == 0)
		return values[ROTATE].i ? rotation_check(host, "block", (uint64_t)values[BLOCK].i, err) : GRADCOMP_OK;
	return host->fail(err, GRADCOMP_ERR_INVALID, "block: block=%lld: give a multiple of 32 from 32 to 65536",
	                  (long long)values[BLOCK].i);
}

static gradcomp_status block_create(const gradcomp_host *host, const gradcomp_value *values,
                                    const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	uint32_t bits = 8u >> values[BITS].i;
	gradcomp_status s = block_check(host, values, err);
	block *b = s ? NULL : host->alloc(sizeof *b);
	if (s)
		return s;
	if (!b)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "block: no memory");
	b->c = (sdk_coded){.host = host, .name = "block", .start_step = (uint64_t)values[START_STEP].i};
	b->op = host->operators;
	b->q = (gradcomp_quantiser){
		.struct_size = sizeof b->q,
		.bits = bits,
		.levels = (1u << (bits - 1)) - 1,
		.block = (uint32_t)values[BLOCK].i,
		.norm = GRADCOMP_NORM_ABSMAX_OR_NAN,
		.rounding = values[ROUNDING].i ? GRADCOMP_TO_EITHER : GRADCOMP_TO_NEAREST,
		.seed = sdk_random_rank_seed(layout),
	};
	if (values[ROTATE].i)
		s = rotation_open(&b->r, host, "block", b->q.block, layout, err);
	if (s)
		host->release(b);
	else
		*instance = b;
	return s;
}

static void block_destroy(void *instance)
{
	block *b = instance;
	if (b)
		b->c.host->release(b);
}

static uint64_t block_bound(void *instance, uint64_t n)
{
	const block *b = instance;
	return b->c.host->operators->quantised_bytes(&b->q, n);
}

/* A run that is rotated, and how its numbers are rounded. */
typedef struct rotated {
	const block *b;
	gradcomp_quantiser q;
} rotated;

static void rotated_sizes(void *ctx, uint64_t n, uint64_t *values, uint64_t *codes)
{
	const rotated *t = ctx;
	*values = (n + t->q.block - 1) / t->q.block * sizeof(float);
	*codes = t->b->op->quantised_bytes(&t->q, n) - *values;
}

static void rotated_pack(void *ctx, void *out, const float *x, uint64_t n, uint64_t at)
{
	rotated *t = ctx;
	t->q.first = at;
	t->b->op->quantise(NULL, out, x, n, &t->q);
}

static void rotated_read(void *ctx, float *y, const void *in, uint64_t n)
{
	const rotated *t = ctx;
	t->b->op->dequantise(NULL, y, in, n, &t->q);
}

static rotation_code rotated_code(rotated *t)
{
	return (rotation_code){.ctx = t, .sizes = rotated_sizes, .pack = rotated_pack, .read = rotated_read};
}

static gradcomp_status block_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                  uint64_t *bytes, gradcomp_error *err)
{
	const block *b = instance;
	rotated t = {b, b->q};
	const rotation_code code = rotated_code(&t);
	(void)err;
	t.q.stream = counter;
	if (b->r.width)
		rotation_pack(&b->r, &code, out, in, n);
	else
		b->op->quantise(b->queue, out, in, n, &t.q);
	*bytes = block_bound(instance, n);
	return GRADCOMP_OK;
}

static gradcomp_status checked(const block *b, const void *in, uint64_t bytes, uint64_t n, gradcomp_error *err)
{
	int bad = 0;
	gradcomp_status s = sdk_coded_length(&b->c, bytes, b->c.host->operators->quantised_bytes(&b->q, n), n, err);
	if (s)
		return s;
	b->op->quantised_check(b->queue, b->fault ? b->fault : &bad, in, n, &b->q);
	return !bad ? GRADCOMP_OK
	            : b->c.host->fail(err, GRADCOMP_ERR_MISMATCH,
	                              "block: a run of %llu numbers came with a step that is not finite and positive, "
	                              "or a code outside of -%u..%u",
	                              (unsigned long long)n, b->q.levels, b->q.levels);
}

/* add: out += what is decoded. */
static void read_rotated(const block *b, float *out, const void *in, uint64_t n, int add)
{
	rotated t = {b, b->q};
	const rotation_code code = rotated_code(&t);
	rotation_read(&b->r, &code, out, in, n, add);
}

static gradcomp_status block_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                         gradcomp_error *err)
{
	const block *b = instance;
	gradcomp_status s = checked(b, in, bytes, n, err);
	if (!s && b->r.width)
		read_rotated(b, out, in, n, 0);
	else if (!s)
		b->op->dequantise(b->queue, out, in, n, &b->q);
	return s;
}

static gradcomp_status block_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                             gradcomp_error *err)
{
	const block *b = instance;
	gradcomp_status s = checked(b, in, bytes, n, err);
	if (!s && b->r.width)
		read_rotated(b, out, in, n, 1);
	else if (!s)
		b->op->dequantise_add(b->queue, out, 1, in, n, &b->q);
	return s;
}

static gradcomp_status block_code_on(void *instance, const gradcomp_operators *operators, void *queue, int *fault,
                                     gradcomp_error *err)
{
	block *b = instance;
	(void)err;
	b->op = operators;
	b->queue = queue;
	b->fault = fault;
	return GRADCOMP_OK;
}

static void block_code_layout(void *instance, uint64_t n, gradcomp_code_layout *out)
{
	const block *b = instance;
	const uint64_t values = (n + b->q.block - 1) / b->q.block * sizeof(float);
	*out = (gradcomp_code_layout){
		.struct_size = sizeof *out,
		.grain = b->q.block,
		.coding = {.struct_size = sizeof out->coding, .kind = GRADCOMP_CODING_QUANTISED, .quantiser = &b->q},
		.values = values,
		.codes = block_bound(instance, n) - values,
		.fault = b->fault};
}

static gradcomp_status block_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                  gradcomp_error *err)
{
	const block *b = instance;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes =
		step < b->c.start_step ? 4.0 * (double)bucket->numel : (double)block_bound(instance, bucket->numel);
	cost->passes = step < b->c.start_step ? 0 : b->r.width ? 9 : 5;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "block",
			.version = "1.0",
			.summary = "integers of 8, 4 or 2 bits, a step for each block of numbers",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_STOCHASTIC | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.check = block_check,
	.create = block_create,
	.destroy = block_destroy,
	.plan = sdk_coded_plan,
	.encode = sdk_coded_encode,
	.decode = sdk_coded_decode,
	.code_bound = block_bound,
	.code = block_code,
	.code_decode = block_code_decode,
	.code_decode_add = block_code_decode_add,
	.cost = block_cost,
	.code_on = block_code_on,
	.code_layout = block_code_layout,
};
