/* threshold: of every number at least t in magnitude t is sent, with its sign, in 2
 * bits; the rest stays in the error memory (Strom, Interspeech 2015).
 *
 *     average = t / nranks * sum over ranks of (-1, 0 or 1)       error = u - what was sent
 *
 * Payload: ceil(d / 4) bytes, the first number in the lowest bits, no header. */
#include "gradcomp/sdk/codes.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/payload.h"

enum { T, START_STEP };

static const gradcomp_param params[] = {
	[T] = {.name = "t",
               .type = GRADCOMP_PARAM_FLOAT,
               .def = "0.001",
               .min = 1e-30,
               .max = 1e30,
               .help = "what is sent of numbers that large; about the size of the largest gradients"},
	[START_STEP] = SDK_START_STEP_ROW,
};

typedef struct threshold {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	float t;
	uint64_t start_step;
} threshold;

static gradcomp_status threshold_create(const gradcomp_host *host, const gradcomp_value *values,
                                        const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	threshold *p = host->alloc(sizeof *p);
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "threshold: no memory");
	*p = (threshold){host, layout, (float)values[T].f, (uint64_t)values[START_STEP].i};
	*instance = p;
	return GRADCOMP_OK;
}

static void threshold_destroy(void *instance)
{
	threshold *p = instance;
	if (p)
		p->host->release(p);
}

static gradcomp_quantiser codes(const float *t)
{
	return (gradcomp_quantiser){.struct_size = sizeof(gradcomp_quantiser),
	                            .bits = 2,
	                            .levels = 1,
	                            .block = 65536,
	                            .norm = GRADCOMP_NORM_GIVEN,
	                            .rounding = GRADCOMP_TO_ZERO,
	                            .given = t};
}

static uint64_t packed(uint64_t d)
{
	return d / 4 + (d % 4 != 0);
}

static gradcomp_status threshold_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                      gradcomp_error *err)
{
	const threshold *p = instance;
	(void)err;
	if (step < p->start_step) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 1;
	plan->rounds[0] = sdk_gathered_round(packed(bucket->numel));
	plan->scratch_bytes = sizeof(float); /* t, on the device */
	return GRADCOMP_OK;
}

static gradcomp_status threshold_encode(void *instance, const gradcomp_work *work, uint32_t round,
                                        gradcomp_payload *out, gradcomp_error *err)
{
	const threshold *p = instance;
	gradcomp_quantiser q = codes(work->scratch);
	(void)round, (void)err;
	work->operators->fill(work->queue, work->scratch, p->t, 1);
	work->operators->quantise(work->queue, out->data, work->flat, work->bucket->numel, &q);
	out->bytes = packed(work->bucket->numel);
	return GRADCOMP_OK;
}

static gradcomp_status threshold_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                        const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const threshold *p = instance;
	const gradcomp_quantiser q = codes(work->scratch);
	(void)round;
	if (work->step < p->start_step) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	gradcomp_status st =
		sdk_gathered_expect(p->host, p->layout, "threshold", work, in, n, packed(work->bucket->numel), err);
	return st ? st
	          : sdk_quantised_average(p->host, "threshold", work, &q, in, n, p->layout->rank,
	                                  "a code other than -1, 0 and 1", err);
}

static gradcomp_status threshold_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                      gradcomp_error *err)
{
	const threshold *p = instance;
	int dense = step < p->start_step;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = dense ? 4.0 * (double)bucket->numel : (double)packed(bucket->numel);
	cost->passes = dense ? 1 : 4 + 2 * p->layout->nranks;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "threshold",
			.version = "1.0",
			.summary = "plus or minus t of each number that is as large, in 2 bits",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = threshold_create,
	.destroy = threshold_destroy,
	.plan = threshold_plan,
	.encode = threshold_encode,
	.decode = threshold_decode,
	.cost = threshold_cost,
};
