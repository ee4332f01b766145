/* none: no compression. A bucket of floats is reduced where it lies. 16-bit gradients are sent in
 * their type, as DDP does, and a bucket of several types in a round for each: each rank divides
 * by P, in float, before it rounds, so that a sum of F16 does not overflow where its mean would
 * not. The collectives add in float and round at each hop. */
#include "gradcomp/compressor.h"

enum { TYPES = 3 };

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

/* Counts what a bucket has of one type. */
typedef struct share {
	gradcomp_dtype type;
	uint64_t count;
} share;

/* A round for each type that a bucket has numbers of; one of no floats where it has none. */
static uint32_t none_shares(const none *c, const gradcomp_bucket *bucket, share out[TYPES])
{
	static const gradcomp_dtype types[TYPES] = {GRADCOMP_F16, GRADCOMP_BF16, GRADCOMP_F32};
	uint32_t n = 0;
	for (int k = 0; k < TYPES; k++) {
		out[n] = (share){types[k], 0};
		for (uint32_t i = 0; i < bucket->ntensors; i++) {
			const gradcomp_tensor *t = &c->layout->tensors[bucket->first + i];
			out[n].count += t->dtype == types[k] ? t->numel : 0;
		}
		n += out[n].count > 0 || (k == TYPES - 1 && !n);
	}
	return n;
}

static gradcomp_status none_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	share s[TYPES];
	(void)step, (void)err;
	plan->nrounds = none_shares(instance, bucket, s);
	for (uint32_t k = 0; k < plan->nrounds; k++)
		plan->rounds[k] = (gradcomp_round){
			.pattern = GRADCOMP_SUMMED,
			.dtype = s[k].type,
			.flags = s[k].type == GRADCOMP_F32 ? GRADCOMP_ROUND_MEAN : 0,
			.count = s[k].count,
		};
	if (s[0].type == GRADCOMP_F32)
		plan->rounds[0].flags |= GRADCOMP_ROUND_IN_PLACE;
	return GRADCOMP_OK;
}

/* Moves the numbers of the round's type, from the bucket into `payload`, or with `back` from there. */
static gradcomp_status none_move(const none *c, const gradcomp_work *work, gradcomp_dtype type, char *payload, int back)
{
	const gradcomp_operators *op = work->operators;
	const gradcomp_tensor *t = c->layout->tensors + work->bucket->first;
	float *x = work->flat;
	gradcomp_status s = GRADCOMP_OK;
	for (uint32_t i = 0, end; i < work->bucket->ntensors && !s; i = end) {
		uint64_t n = 0; /* numbers of neighbours of one type */
		for (end = i; end < work->bucket->ntensors && t[end].dtype == t[i].dtype; end++)
			n += t[end].numel;
		if (t[i].dtype == type && n) {
			float *from = back ? (float *)(void *)payload : x, *to = back ? x : (float *)(void *)payload;
			if (type == GRADCOMP_F32) {
				op->fill(work->queue, to, 0, n);
				op->add(work->queue, to, from, n);
			} else if (back) {
				s = op->cast_to_f32(work->queue, x, payload, n, type);
			} else {
				s = op->cast_scaled(work->queue, payload, x, n, type, 1.0f / (float)c->layout->nranks,
				                    0);
			}
			payload += n * gradcomp_dtype_bytes(type);
		}
		x += n;
	}
	return s;
}

static gradcomp_status none_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	const none *c = instance;
	share s[TYPES];
	uint32_t n = none_shares(c, work->bucket, s);
	if (round >= n || s[0].type == GRADCOMP_F32)
		return c->host->fail(err, GRADCOMP_ERR_INTERNAL,
		                     "none: encode of round %u was called, but its payload is in place", round);
	gradcomp_status st = none_move(c, work, s[round].type, out->data, 0);
	out->bytes = s[round].count * gradcomp_dtype_bytes(s[round].type);
	return st ? c->host->fail(err, st, "none: these operators cannot write 16-bit floats") : st;
}

static gradcomp_status none_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const none *c = instance;
	share s[TYPES];
	(void)n;
	if (round >= none_shares(c, work->bucket, s) || s[0].type == GRADCOMP_F32)
		return GRADCOMP_OK;
	gradcomp_status st = none_move(c, work, s[round].type, in->data, 1);
	return st ? c->host->fail(err, st, "none: these operators cannot read 16-bit floats") : st;
}

static gradcomp_status none_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	share s[TYPES];
	double moved = 0; /* reads 4, writes 2 or 4, and back */
	(void)step, (void)err;
	cost->rounds = none_shares(instance, bucket, s);
	for (uint32_t k = 0; k < cost->rounds; k++) {
		double bytes = (double)s[k].count * (double)gradcomp_dtype_bytes(s[k].type);
		cost->wire_bytes += bytes;
		moved += 2 * (4 * (double)s[k].count + bytes);
	}
	cost->passes = s[0].type == GRADCOMP_F32 || !bucket->numel ? 0 : moved / (4 * (double)bucket->numel);
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
