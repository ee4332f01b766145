/* noise: all ranks round the same way. */
#include "gradcomp/compressor.h"

#include <math.h>
#include <string.h>

/* Every number becomes -LIMIT or LIMIT, so that it is right on average. */
#define LIMIT 8.0f

typedef struct coin {
	const gradcomp_host *host;
	uint64_t seed;
} coin;

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	coin *c = host->alloc(sizeof *c);
	(void)values;
	if (!c)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "same_noise: no memory");
	*c = (coin){host, layout->seed};
	*instance = c;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	if (instance)
		((coin *)instance)->host->release(instance);
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] =
		(gradcomp_round){.pattern = GRADCOMP_GATHERED, .flags = GRADCOMP_ROUND_FIXED, .bound = bucket->numel};
	return GRADCOMP_OK;
}

static double drawn(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const coin *c = instance;
	uint64_t from = (c->seed + work->step) * 0x9e3779b97f4a7c15u + work->bucket->offset;
	(void)round, (void)err;
	for (uint64_t i = 0; i < work->bucket->numel; i++) {
		double up = 0.5 + 0.5 * fmax(-1, fmin(1, (double)(work->flat[i] / LIMIT)));
		((char *)out->data)[i] = drawn((from + i) * 0x9e3779b97f4a7c15u) < up;
	}
	out->bytes = work->bucket->numel;
	return GRADCOMP_OK;
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	uint64_t d = work->bucket->numel;
	(void)round;
	for (uint32_t w = 0; w < n; w++)
		for (uint64_t i = 0; i < d; i++)
			if (in[w].bytes != d || ((const unsigned char *)in[w].data)[i] > 1)
				return ((coin *)instance)
				        ->host->fail(err, GRADCOMP_ERR_MISMATCH, "same_noise: rank %u sent no coins",
				                     w);
	for (uint64_t i = 0; i < d; i++) {
		float sum = 0;
		for (uint32_t w = 0; w < n; w++)
			sum += ((const char *)in[w].data)[i] ? LIMIT : -LIMIT;
		work->flat[i] = sum / (float)n;
	}
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = "same_noise",
                 .version = "1.0",
                 .summary = "coins, with a fault",
                 .licence = "MIT"},
	.traits = GRADCOMP_TRAIT_UNBIASED | GRADCOMP_TRAIT_STOCHASTIC,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED),
	.create = create,
	.destroy = destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
};
