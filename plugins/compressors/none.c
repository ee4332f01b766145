/* none: no compression. A bucket of floats is reduced where it lies. One of 16-bit gradients,
 * all of one type, is sent in that type, as DDP does: each rank divides by P, in float, before
 * it rounds, so that a sum of F16 does not overflow where its mean would not. The collectives
 * add in float and round at each hop. */
#include "gradcomp/compressor.h"

enum { TILE = 4096 }; /* floats divided at a time: small enough for the cache */

typedef struct none {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
} none;

static gradcomp_status none_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	none *c = host->alloc(sizeof *c);
	(void)values;
	if (!c)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "none: no memory");
	*c = (none){host, layout};
	*instance = c;
	return GRADCOMP_OK;
}

static void none_destroy(void *instance)
{
	none *c = instance;
	if (c)
		c->host->release(c);
}

/* The type that a bucket is sent in. */
static gradcomp_dtype none_type(const none *c, const gradcomp_bucket *bucket)
{
	gradcomp_dtype type = GRADCOMP_F32;
	for (uint32_t i = 0; i < bucket->ntensors; i++) {
		gradcomp_dtype t = c->layout->tensors[bucket->first + i].dtype;
		if (t == GRADCOMP_F32 || (i && t != type))
			return GRADCOMP_F32;
		type = t;
	}
	return type;
}

/* On a device a call for every tile would cost more than the memory. */
static uint64_t none_tile(const none *c, const gradcomp_bucket *bucket)
{
	return c->layout->device == GRADCOMP_HOST && bucket->numel > TILE ? TILE : bucket->numel;
}

static gradcomp_status none_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	const none *c = instance;
	gradcomp_dtype type = none_type(c, bucket);
	(void)step, (void)err;
	plan->nrounds = 1;
	if (type != GRADCOMP_F32) {
		plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_SUMMED, .dtype = type, .count = bucket->numel};
		plan->scratch_bytes = none_tile(c, bucket) * sizeof(float);
		return GRADCOMP_OK;
	}
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
	const none *c = instance;
	const gradcomp_operators *op = work->operators;
	gradcomp_dtype type = none_type(c, work->bucket);
	uint64_t n = work->bucket->numel, tile = none_tile(c, work->bucket);
	uint16_t *to = out->data;
	gradcomp_status s = GRADCOMP_OK;
	if (type == GRADCOMP_F32)
		return c->host->fail(err, GRADCOMP_ERR_INTERNAL,
		                     "none: encode of round %u was called, but its payload is in place", round);
	for (uint64_t i = 0; i < n && !s; i += tile) {
		uint64_t count = n - i < tile ? n - i : tile;
		op->fill(work->queue, work->scratch, 0, count);
		op->add(work->queue, work->scratch, work->flat + i, count);
		op->scale(work->queue, work->scratch, 1.0f / (float)c->layout->nranks, count);
		s = op->cast_from_f32(work->queue, to + i, work->scratch, count, type, 0);
	}
	out->bytes = n * sizeof *to;
	return s ? c->host->fail(err, s, "none: these operators cannot write 16-bit floats") : s;
}

static gradcomp_status none_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const none *c = instance;
	gradcomp_dtype type = none_type(c, work->bucket);
	gradcomp_status s = GRADCOMP_OK;
	(void)round, (void)n;
	if (type != GRADCOMP_F32)
		s = work->operators->cast_to_f32(work->queue, work->flat, in->data, work->bucket->numel, type);
	return s ? c->host->fail(err, s, "none: these operators cannot read 16-bit floats") : s;
}

static gradcomp_status none_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	int floats = none_type(instance, bucket) == GRADCOMP_F32;
	(void)step, (void)err;
	cost->rounds = 1;
	cost->wire_bytes = (floats ? 4.0 : 2.0) * (double)bucket->numel;
	cost->passes = floats ? 0 : 3; /* reads 4, writes 2, reads 2, writes 4 bytes */
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
