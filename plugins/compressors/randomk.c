/* randomk: the same k = max(1, round(density * d)) random indices on all ranks, from
 * the seed they share, so that values add up and no index is sent (Stich,
 * Cordonnier, Jaggi: Sparsified SGD with memory, NeurIPS 2018).
 *
 *     average = mean over ranks of u, 0 elsewhere             error = u, 0 where sent
 *
 * The indices are the first k of a pseudorandom permutation of the d, a Feistel
 * network over pairs of residues (Black, Rogaway: Ciphers with arbitrary finite
 * domains, CT-RSA 2002) keyed with Philox's numbers of the step and the bucket.
 * They are distinct, and every index is as likely as any other.
 *
 * Payload: k values (F32), 4k bytes. */
#include "plugins/common/sparse.h"

static const gradcomp_param params[] = {SPARSE_SCHEDULE_ROWS};

enum { ROUNDS = 8 };

typedef struct permutation {
	uint64_t key[ROUNDS];
	uint64_t d;
	uint32_t a, b; /* d <= a b < d + a */
} permutation;

static permutation permute(const sparse *s, const gradcomp_work *work)
{
	float u[2 * ROUNDS];
	permutation p = {.d = work->bucket->numel, .a = 1};
	while ((uint64_t)p.a * p.a < p.d)
		p.a++;
	p.b = (uint32_t)((p.d + p.a - 1) / p.a);
	s->host->operators->random_uniform(NULL, u, 2 * ROUNDS, s->layout->seed, work->step,
	                                   work->bucket->offset * (2 * ROUNDS));
	for (int i = 0; i < ROUNDS; i++)
		p.key[i] = (uint64_t)(u[2 * i] * 0x1p24f) << 24 | (uint64_t)(u[2 * i + 1] * 0x1p24f);
	return p;
}

/* A number below `below` out of v: murmur3's mixer, upper bits. */
static uint32_t mixed(uint64_t key, uint32_t v, uint32_t below)
{
	uint64_t z = (key + v) * 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 33) * 0xff51afd7ed558ccdu;
	z = (z ^ z >> 33) * 0xc4ceb9fe1a85ec53u;
	return (uint32_t)((z >> 32) * below >> 32);
}

static uint32_t sum_below(uint32_t x, uint32_t y, uint32_t below)
{
	uint32_t z = x + y;
	return z >= below ? z - below : z;
}

/* What falls outside of d goes through again. */
static uint32_t image(const permutation *p, uint64_t at)
{
	do {
		uint32_t l = (uint32_t)(at / p->b), r = (uint32_t)(at % p->b);
		for (int i = 0; i < ROUNDS; i += 2) {
			l = sum_below(l, mixed(p->key[i], r, p->a), p->a);
			r = sum_below(r, mixed(p->key[i + 1], l, p->b), p->b);
		}
		at = (uint64_t)l * p->b + r;
	} while (at >= p->d);
	return (uint32_t)at;
}

static gradcomp_status check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	sparse_schedule s;
	return sparse_schedule_read(&s, host, values, "randomk", err);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values,
                              const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	return sparse_new(sizeof(sparse), host, values, layout, "randomk", SPARSE_INDICES, instance, err);
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	const sparse *s = instance;
	uint64_t k = sparse_part_at(s, bucket, step, 0).k;
	(void)err;
	if (sparse_is_passthrough(s, step)) {
		passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){
		.pattern = GRADCOMP_SUMMED, .dtype = GRADCOMP_F32, .flags = GRADCOMP_ROUND_MEAN, .count = k};
	plan->scratch_bytes = k * sizeof(uint32_t);
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const sparse *s = instance;
	uint64_t k = sparse_part_at(s, work->bucket, work->step, 0).k;
	uint32_t *idx = work->scratch;
	(void)round, (void)err;
	permutation p = permute(s, work);
	for (uint64_t j = 0; j < k; j++)
		idx[j] = image(&p, j);
	work->operators->gather(work->queue, out->data, work->flat, idx, k);
	out->bytes = k * sizeof(float);
	return GRADCOMP_OK;
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	const sparse *s = instance;
	const gradcomp_operators *op = work->operators;
	uint64_t d = work->bucket->numel, k = sparse_part_at(s, work->bucket, work->step, 0).k;
	(void)round;
	if (sparse_is_passthrough(s, work->step)) {
		passthrough_decode(work);
		return GRADCOMP_OK;
	}
	if (n != 1 || in->bytes != k * sizeof(float))
		return s->host->fail(err, GRADCOMP_ERR_INTERNAL,
		                     "randomk: a sum of %llu bytes for bucket %u, %llu are right",
		                     (unsigned long long)in->bytes, work->bucket->index,
		                     (unsigned long long)(k * sizeof(float)));
	op->copy(work->queue, work->error_flat, work->flat, d * sizeof(float));
	op->scatter(work->queue, work->error_flat, work->scratch, NULL, k);
	op->fill(work->queue, work->flat, 0, d);
	op->scatter(work->queue, work->flat, work->scratch, in->data, k);
	return GRADCOMP_OK;
}

static gradcomp_status cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                            gradcomp_error *err)
{
	const sparse *s = instance;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes =
		4.0 * (double)(sparse_is_passthrough(s, step) ? bucket->numel : sparse_part_at(s, bucket, step, 0).k);
	cost->passes = sparse_is_passthrough(s, step) ? 1 : 3;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "randomk",
			.version = "1.0",
			.summary = "the same random numbers of each bucket on all ranks, summed",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_STOCHASTIC,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.max_bucket = UINT32_MAX,
	.check = check,
	.create = create,
	.destroy = sparse_destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
	.cost = cost,
};
