/* none: no compression. The bucket itself is reduced where it lies. */
#include "gradcomp/compressor.h"

static gradcomp_status none_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	(void)values, (void)layout, (void)err;
	*instance = (void *)(uintptr_t)host; /* no state: anything but NULL */
	return GRADCOMP_OK;
}

static void none_destroy(void *instance)
{
	(void)instance;
}

static gradcomp_status none_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){
		.pattern = GRADCOMP_SUMMED,
		.dtype = GRADCOMP_F32,
		.flags = GRADCOMP_ROUND_MEAN | GRADCOMP_ROUND_IN_PLACE,
		.count = bucket->numel,
	};
	return GRADCOMP_OK;
}

static gradcomp_status none_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	const gradcomp_host *host = instance;
	(void)work, (void)out;
	return host->fail(err, GRADCOMP_ERR_INTERNAL,
	                  "none: encode of round %u was called, but its payload is in place", round);
}

static gradcomp_status none_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	(void)instance, (void)work, (void)round, (void)in, (void)n, (void)err;
	return GRADCOMP_OK;
}

static gradcomp_status none_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	cost->rounds = 1;
	cost->wire_bytes = 4.0 * (double)bucket->numel;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "none",
			.version = "1.0",
			.summary = "no compression: gradients are averaged as they are",
			.licence = "MIT",
		},
	.traits = GRADCOMP_TRAIT_PASSES_NONFINITE | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = none_create,
	.destroy = none_destroy,
	.plan = none_plan,
	.encode = none_encode,
	.decode = none_decode,
	.cost = none_cost,
};
