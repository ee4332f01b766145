/* topk: of a bucket of d numbers the k = max(1, round(density * d)) of largest
 * magnitude are sent; the rest stays in the error memory (Aji, Heafield, EMNLP
 * 2017; Stich et al., NeurIPS 2018). Equal magnitudes go to the lower index.
 *
 *     average = 1/P * sum over ranks of what they sent       error = u, 0 where sent
 *
 * Payload: k values (F32), then their k indices in the bucket (32-bit, strictly
 * ascending), in the byte order of the machine; 8k bytes and no header, since k
 * follows from d. An empty bucket sends nothing. */
#include <string.h>

#include "gradcomp/compressor.h"

enum { DENSITY };

static const gradcomp_param params[] = {
	[DENSITY] = {.name = "density",
                     .type = GRADCOMP_PARAM_FLOAT,
                     .def = "0.01",
                     .min = 1e-9,
                     .max = 1,
                     .help = "the share of numbers that is sent"},
};

typedef struct topk {
	const gradcomp_host *host;
	double density;
	uint32_t nranks, rank;
} topk;

static uint64_t kept(const topk *t, uint64_t d)
{
	uint64_t k = (uint64_t)(t->density * (double)d + 0.5);
	return d == 0 ? 0 : k < 1 ? 1 : k > d ? d : k;
}

static gradcomp_status topk_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	topk *t = host->alloc(sizeof *t);
	if (!t)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "topk: no memory");
	t->host = host;
	t->density = values[DENSITY].f;
	t->nranks = (uint32_t)layout->nranks;
	t->rank = (uint32_t)layout->rank;
	*instance = t;
	return GRADCOMP_OK;
}

static void topk_destroy(void *instance)
{
	topk *t = instance;
	if (t)
		t->host->release(t);
}

static gradcomp_status topk_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	const topk *t = instance;
	uint64_t k = kept(t, bucket->numel);
	(void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] =
		(gradcomp_round){.pattern = GRADCOMP_GATHERED, .flags = GRADCOMP_ROUND_FIXED, .bound = k * 8};
	plan->scratch_bytes = t->host->operators->topk_scratch(bucket->numel, k);
	return GRADCOMP_OK;
}

static float *values_of(const gradcomp_payload *p)
{
	return p->data;
}

static uint32_t *indices_of(const gradcomp_payload *p, uint64_t k)
{
	return (uint32_t *)p->data + k;
}

static gradcomp_status topk_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	const topk *t = instance;
	uint64_t d = work->bucket->numel, k = kept(t, d);
	(void)round, (void)err;
	work->operators->topk(work->queue, indices_of(out, k), values_of(out), work->flat, d, k, work->scratch);
	out->bytes = k * 8;
	return GRADCOMP_OK;
}

/* What another rank sent is believed only if it could have come from encode(). */
static gradcomp_status check(const topk *t, const gradcomp_work *work, const gradcomp_payload *p, uint32_t rank,
                             gradcomp_error *err)
{
	uint64_t d = work->bucket->numel, k = kept(t, d);
	int bad = 0;
	if (p->bytes != k * 8)
		return t->host
		        ->fail(err, GRADCOMP_ERR_MISMATCH,
		               "topk: rank %u sent %llu bytes for bucket %u, %llu are right (%llu of %llu numbers)",
		               rank, (unsigned long long)p->bytes, work->bucket->index, (unsigned long long)(k * 8),
		               (unsigned long long)k, (unsigned long long)d);
	const uint32_t *idx = indices_of(p, k);
	for (uint64_t j = 0; j < k; j++)
		bad |= j && idx[j] <= idx[j - 1];
	if (bad || (k && idx[k - 1] >= d))
		return t->host->fail(err, GRADCOMP_ERR_MISMATCH,
		                     "topk: rank %u sent indices for bucket %u that do not ascend below %llu", rank,
		                     work->bucket->index, (unsigned long long)d);
	work->operators->nonfinite(work->queue, values_of(p), k, &bad);
	if (bad)
		return t->host->fail(err, GRADCOMP_ERR_MISMATCH,
		                     "topk: rank %u sent a value for bucket %u that is not finite", rank,
		                     work->bucket->index);
	return GRADCOMP_OK;
}

static gradcomp_status topk_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const topk *t = instance;
	uint64_t d = work->bucket->numel, k = kept(t, d);
	gradcomp_status s = GRADCOMP_OK;
	(void)round;
	if (n != t->nranks)
		return t->host->fail(err, GRADCOMP_ERR_INTERNAL, "topk: %u payloads for %u ranks", n, t->nranks);
	for (uint32_t w = 0; w < n && !s; w++)
		s = check(t, work, &in[w], w, err);
	if (s || !d)
		return s;
	memcpy(work->error_flat, work->flat, d * sizeof(float));
	memset(work->flat, 0, d * sizeof(float));
	const uint32_t *own = indices_of(&in[t->rank], k);
	for (uint64_t j = 0; j < k; j++)
		work->error_flat[own[j]] = 0;
	for (uint32_t w = 0; w < n && !s; w++)
		s = work->operators->scatter_add(work->queue, work->flat, d, indices_of(&in[w], k),
		                                 values_of(&in[w]), k, 1.0f / (float)n);
	return s;
}

static gradcomp_status topk_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	const topk *t = instance;
	(void)step, (void)err;
	cost->rounds = 1;
	cost->wire_bytes = 8.0 * (double)kept(t, bucket->numel);
	cost->passes = 5;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "topk",
			.version = "1.0",
			.summary = "the largest numbers of each bucket, exactly k of them",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED),
	.max_bucket = UINT32_MAX,
	.create = topk_create,
	.destroy = topk_destroy,
	.plan = topk_plan,
	.encode = topk_encode,
	.decode = topk_decode,
	.cost = topk_cost,
};
