/* loudest: of every RUN numbers the one with the largest magnitude. Two payloads become one up a tree of
 * ranks: of each run the same place adds up, and of different places the louder stays. So a payload has
 * the same length for any number of ranks, and the rank that merges keeps what it drops.
 *
 *     average = merged / P, 0 elsewhere     error = u, 0 where sent, + what this rank's merges have dropped
 */
#include <gradcomp/compressor.h>

#include <math.h>
#include <string.h>

enum { RUN = 16 };

/* A payload is one of these for every run. */
typedef struct pick {
	float value;
	uint32_t place; /* in the run */
} pick;

static uint64_t runs(const gradcomp_bucket *bucket)
{
	return (bucket->numel + RUN - 1) / RUN;
}

static uint64_t length(const gradcomp_bucket *bucket, uint64_t run)
{
	return bucket->numel - run * RUN < RUN ? bucket->numel - run * RUN : RUN;
}

typedef struct loudest {
	const gradcomp_host *host;
	int nranks;
} loudest;

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	loudest *s = host->alloc(sizeof *s);
	(void)values;
	if (!s)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "loudest: no memory");
	*s = (loudest){host, layout->nranks};
	*instance = s;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	loudest *s = instance;
	if (s)
		s->host->release(s);
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_MERGED, .bound = runs(bucket) * sizeof(pick)};
	/* Holds what merges drop, and the places that this rank has sent. Scratch is not zero at first. */
	plan->scratch_bytes = bucket->numel * sizeof(float) + runs(bucket) * sizeof(uint32_t);
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	float *dropped = work->scratch;
	uint32_t *sent = (void *)(dropped + work->bucket->numel);
	pick *to = out->data;
	(void)instance, (void)round, (void)err;
	memset(dropped, 0, work->bucket->numel * sizeof *dropped);
	for (uint64_t r = 0; r < runs(work->bucket); r++) {
		const float *u = work->flat + r * RUN;
		uint32_t best = 0;
		for (uint32_t i = 1; i < length(work->bucket, r); i++)
			if (fabsf(u[i]) > fabsf(u[best]))
				best = i;
		sent[r] = best;
		to[r] = (pick){u[best], best};
	}
	out->bytes = runs(work->bucket) * sizeof *to;
	return GRADCOMP_OK;
}

/* A payload may be another rank's. */
static gradcomp_status check(const loudest *s, const gradcomp_work *work, const gradcomp_payload *in,
                             gradcomp_error *err)
{
	const pick *p = in->data;
	if (in->bytes != runs(work->bucket) * sizeof *p)
		return s->host->fail(err, GRADCOMP_ERR_MISMATCH,
		                     "loudest: %llu bytes came for bucket %u, %llu are right",
		                     (unsigned long long)in->bytes, work->bucket->index,
		                     (unsigned long long)(runs(work->bucket) * sizeof *p));
	for (uint64_t r = 0; r < runs(work->bucket); r++)
		if (p[r].place >= length(work->bucket, r) || isnan(p[r].value))
			return s->host->fail(err, GRADCOMP_ERR_MISMATCH,
			                     "loudest: bucket %u, run %llu: place %u, value %g", work->bucket->index,
			                     (unsigned long long)r, p[r].place, (double)p[r].value);
	return GRADCOMP_OK;
}

static gradcomp_status merge(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *a,
                             const gradcomp_payload *b, gradcomp_payload *out, gradcomp_error *err)
{
	const pick *x = a->data, *y = b->data;
	float *dropped = work->scratch;
	pick *to = out->data;
	gradcomp_status st = check(instance, work, a, err);
	(void)round;
	if (!st)
		st = check(instance, work, b, err);
	for (uint64_t r = 0; !st && r < runs(work->bucket); r++) {
		int first = fabsf(x[r].value) >= fabsf(y[r].value);
		if (x[r].place == y[r].place) {
			to[r] = (pick){x[r].value + y[r].value, x[r].place};
			continue;
		}
		to[r] = first ? x[r] : y[r];
		dropped[r * RUN + (first ? y : x)[r].place] += (first ? y : x)[r].value;
	}
	out->bytes = a->bytes;
	return st;
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	const loudest *s = instance;
	const float *dropped = work->scratch;
	const uint32_t *sent = (const void *)(dropped + work->bucket->numel);
	const pick *p = in->data;
	gradcomp_status st = check(s, work, in, err);
	(void)round, (void)n;
	if (st)
		return st;
	memcpy(work->error_flat, work->flat, work->bucket->numel * sizeof(float));
	memset(work->flat, 0, work->bucket->numel * sizeof(float));
	for (uint64_t r = 0; r < runs(work->bucket); r++) {
		work->error_flat[r * RUN + sent[r]] = 0;
		work->flat[r * RUN + p[r].place] = p[r].value / (float)s->nranks;
	}
	for (uint64_t i = 0; i < work->bucket->numel; i++)
		work->error_flat[i] += dropped[i];
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = "loudest",
                 .version = "1.0",
                 .summary = "of every 16 numbers the largest, merged along a tree",
                 .licence = "MIT"},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_MERGED),
	.create = create,
	.destroy = destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
	.merge = merge,
};
