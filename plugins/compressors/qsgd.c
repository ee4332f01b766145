/* qsgd: every number becomes one of -levels..levels times its block's Euclidean norm
 * over `levels`, up or down at random so that the mean is the number (Alistarh et
 * al., NeurIPS 2017).
 *
 *     step = |block| / levels      code = floor(x / step), + 1 with the fraction's probability
 *     average = 1/P * sum over ranks of code * step         a block of zeros stays zero
 *
 * Payload: a step for every block of the bucket (F32), then the codes in 2, 4 or 8
 * bits, the fewest that hold them: 4 ceil(d / block) + ceil(d bits / 8) bytes.
 *
 * It is unbiased and needs no error memory. With error=yes it has one: as the
 * variance of a block is up to w = min(block / levels^2, sqrt(block) / levels) times
 * its square, and a memory that is fed with w > 1 grows without end, what is sent is
 * then divided by 1 + w (Stich, Cordonnier, Jaggi, NeurIPS 2018), and the memory
 * makes up for it. */
#include <math.h>

#include "gradcomp/compressor.h"

#include "gradcomp/sdk/codes.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/random_stream.h"
#include "gradcomp/sdk/payload.h"

enum { LEVELS, BLOCK, ERROR, START_STEP };

static const gradcomp_param params[] = {
	[LEVELS] = {.name = "levels",
                    .type = GRADCOMP_PARAM_INT,
                    .def = "7",
                    .min = 1,
                    .max = 127,
                    .help = "steps in a block's norm; 1 takes 2 bits a number, up to 7 four, more eight"},
	[BLOCK] = {.name = "block",
                   .type = GRADCOMP_PARAM_INT,
                   .def = "512",
                   .min = 32,
                   .max = 65536,
                   .help = "numbers that share a norm, a multiple of 32"},
	[ERROR] = {.name = "error",
                   .type = GRADCOMP_PARAM_BOOL,
                   .def = "no",
                   .help = "remember what was rounded away, and send less of it at random"},
	[START_STEP] = SDK_START_STEP_ROW,
};

typedef struct qsgd {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	gradcomp_quantiser q;
	uint64_t start_step;
	int remembers;
	float share; /* part of u that is sent when there is an error memory */
} qsgd;

static gradcomp_status qsgd_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	if (values[BLOCK].i % 32 == 0)
		return GRADCOMP_OK;
	return host->fail(err, GRADCOMP_ERR_INVALID, "qsgd: block=%lld: give a multiple of 32 from 32 to 65536",
	                  (long long)values[BLOCK].i);
}

static gradcomp_status qsgd_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	gradcomp_status s = qsgd_check(host, values, err);
	qsgd *t = s ? NULL : host->alloc(sizeof *t);
	double levels = (double)values[LEVELS].i, block = (double)values[BLOCK].i;
	if (s)
		return s;
	if (!t)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "qsgd: no memory");
	t->host = host;
	t->layout = layout;
	t->start_step = (uint64_t)values[START_STEP].i;
	t->remembers = values[ERROR].i != 0;
	t->share = (float)(1 / (1 + fmin(block / (levels * levels), sqrt(block) / levels)));
	t->q = (gradcomp_quantiser){
		.struct_size = sizeof t->q,
		.bits = levels <= 1   ? 2
	                : levels <= 7 ? 4
	                              : 8,
		.levels = (uint32_t)levels,
		.block = (uint32_t)block,
		.norm = GRADCOMP_NORM_L2,
		.rounding = GRADCOMP_TO_EITHER,
		.seed = layout->seed,
	};
	*instance = t;
	return GRADCOMP_OK;
}

static void qsgd_destroy(void *instance)
{
	qsgd *t = instance;
	if (t)
		t->host->release(t);
}

static uint64_t payload_bytes(const qsgd *t, uint64_t d)
{
	return t->host->operators->quantised_bytes(&t->q, d);
}

static gradcomp_status qsgd_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	const qsgd *t = instance;
	(void)err;
	if (step < t->start_step) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 1;
	plan->rounds[0] = sdk_gathered_round(payload_bytes(t, bucket->numel));
	return GRADCOMP_OK;
}

static gradcomp_status qsgd_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	const qsgd *t = instance;
	uint64_t d = work->bucket->numel;
	gradcomp_quantiser q = t->q;
	(void)round, (void)err;
	q.stream = sdk_random_stream(t->layout, work->step);
	q.first = work->bucket->offset;
	work->operators->quantise(work->queue, out->data, work->flat, d, &q);
	if (t->remembers)
		work->operators->scale(work->queue, out->data, t->share, (d + q.block - 1) / q.block);
	out->bytes = payload_bytes(t, d);
	return GRADCOMP_OK;
}

static gradcomp_status qsgd_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const qsgd *t = instance;
	uint64_t d = work->bucket->numel;
	gradcomp_status s;
	(void)round;
	if (work->step < t->start_step) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	s = sdk_gathered_expect(t->host, t->layout, "qsgd", work, in, n, payload_bytes(t, d), err);
	if (!s)
		s = sdk_quantised_average(t->host, "qsgd", work, &t->q, in, n, t->remembers ? t->layout->rank : -1,
		                          "a norm that is not finite and positive, or a code beyond the levels,", err);
	if (!s && !t->remembers && work->error_flat)
		work->operators->fill(work->queue, work->error_flat, 0, d);
	return s;
}

static gradcomp_status qsgd_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	const qsgd *t = instance;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = step < t->start_step ? 4.0 * (double)bucket->numel : (double)payload_bytes(t, bucket->numel);
	cost->passes = step < t->start_step ? 0 : 4 + 2 * t->layout->nranks;
	return GRADCOMP_OK;
}

static int qsgd_keeps_error(const gradcomp_value *values)
{
	return values[ERROR].i != 0;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "qsgd",
			.version = "1.0",
			.summary = "a few levels of each block's norm, rounded at random without bias",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_UNBIASED | GRADCOMP_TRAIT_STOCHASTIC |
                  GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.check = qsgd_check,
	.create = qsgd_create,
	.destroy = qsgd_destroy,
	.plan = qsgd_plan,
	.encode = qsgd_encode,
	.decode = qsgd_decode,
	.cost = qsgd_cost,
	.keeps_error = qsgd_keeps_error,
};
