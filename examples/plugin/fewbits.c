/* fewbits: numbers are sent as integers of `bits` bits, any count from 2 to 16, times a step of the rank's own:
 * its largest magnitude over the largest integer. Written with the SDK (gradcomp/sdk.h): it plans the
 * steps before start_step, packs the bits, checks lengths, cuts the scratch and keeps the error memory.
 *
 *     average = 1/P * sum over ranks of step * integer        error = u - own step * integer
 *
 * Payload: the step (F32), then the integers, two's complement: 4 + ceil(n bits / 8) bytes. */
#include <gradcomp/sdk.h>

#include <math.h>
#include <string.h>

enum { BITS, START_STEP };

static const gradcomp_param params[] = {
	[BITS] = {.name = "bits", .type = GRADCOMP_PARAM_INT, .def = "5", .min = 2, .max = 16, .help = "of a number"},
	[START_STEP] = SDK_START_STEP_ROW,
};

typedef struct fewbits {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	uint32_t bits;
	uint64_t start_step;
} fewbits;

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	fewbits *f = host->alloc(sizeof *f);
	if (!f)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "fewbits: no memory");
	*f = (fewbits){host, layout, (uint32_t)values[BITS].i, (uint64_t)values[START_STEP].i};
	*instance = f;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	fewbits *f = instance;
	if (f)
		f->host->release(f);
}

static uint64_t payload_bytes(const fewbits *f, uint64_t n)
{
	return sizeof(float) + sdk_bits_bytes(n, f->bits);
}

/* encode() leaves this for decode(): the numbers that were sent. The codes are for one of them at a time. */
typedef struct parts {
	float *sent;
	uint32_t *codes;
} parts;

static parts divide(uint64_t n, sdk_scratch *scratch)
{
	parts p = {.sent = sdk_scratch_take(scratch, n * sizeof *p.sent)};
	p.codes = sdk_scratch_take(scratch, n * sizeof *p.codes);
	return p;
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	const fewbits *f = instance;
	sdk_scratch scratch = {0};
	(void)err;
	if (step < f->start_step) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	divide(bucket->numel, &scratch);
	plan->nrounds = 1;
	plan->rounds[0] = sdk_gathered_round(payload_bytes(f, bucket->numel));
	plan->scratch_bytes = scratch.bytes;
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const fewbits *f = instance;
	const uint64_t n = work->bucket->numel;
	const float levels = (float)((1 << (f->bits - 1)) - 1);
	parts p = divide(n, &(sdk_scratch){.memory = work->scratch});
	float step, largest = 0;
	(void)round, (void)err;
	for (uint64_t i = 0; i < n; i++)
		largest = fmaxf(largest, fabsf(work->flat[i]));
	step = largest / levels;
	for (uint64_t i = 0; i < n; i++) {
		float q = step > 0 ? fminf(fmaxf(rintf(work->flat[i] / step), -levels), levels) : 0;
		p.codes[i] = (uint32_t)(int32_t)q;
		p.sent[i] = step * q;
	}
	memcpy(out->data, &step, sizeof step);
	sdk_bits_pack((char *)out->data + sizeof step, p.codes, n, f->bits);
	out->bytes = payload_bytes(f, n);
	return GRADCOMP_OK;
}

/* Whatever a rank's bits are, they are integers; its step must be a number that they can be multiplied by. */
static gradcomp_status check(const fewbits *f, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                             gradcomp_error *err)
{
	gradcomp_status st = sdk_gathered_expect(f->host, f->layout, "fewbits", work, in, n,
	                                         payload_bytes(f, work->bucket->numel), err);
	for (uint32_t w = 0; !st && w < n; w++) {
		float step;
		memcpy(&step, in[w].data, sizeof step);
		if (!(step >= 0 && isfinite(step * (float)(1 << (f->bits - 1)))))
			st = sdk_gathered_refuse(f->host, "fewbits", work, w, "a step that is negative or too large",
			                         err);
	}
	return st;
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	const fewbits *f = instance;
	parts p = divide(work->bucket->numel, &(sdk_scratch){.memory = work->scratch});
	gradcomp_status st;
	(void)round;
	if (work->step < f->start_step) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	st = check(f, work, in, n, err);
	if (st)
		return st;
	sdk_residual_all(work);
	sdk_residual_take(work, p.sent);
	work->operators->fill(work->queue, work->flat, 0, work->bucket->numel);
	for (uint32_t w = 0; w < n; w++) {
		float step;
		memcpy(&step, in[w].data, sizeof step);
		sdk_bits_unpack(p.codes, (const char *)in[w].data + sizeof step, work->bucket->numel, f->bits);
		for (uint64_t i = 0; i < work->bucket->numel; i++)
			work->flat[i] += step * (float)sdk_bits_signed(p.codes[i], f->bits) / (float)n;
	}
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = "fewbits",
                 .version = "1.0",
                 .summary = "integers of 2 to 16 bits, a step for each rank",
                 .licence = "MIT",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = create,
	.destroy = destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
};
