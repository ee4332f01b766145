/* In order by default: a small method with error memory that works, its payloads of the
 * UNRULY_PATTERN. Told so, it breaks one rule on rank 1. */
#include "gradcomp/compressor.h"

#include <math.h>
#include <string.h>

enum { FAULT };
enum {
	SOUND,
	CUT,
	BEYOND,
	BROAD,
	MARK,
	OTHER,
	MUTE,
	STILLBORN,
	POISON,
	NOISE,
	MELT,
	LOSE,
	GREEDY,
	FLAGGED,
	TYPELESS,
	CHEERS,
	APPLAUDS
};

static const char *const faults[] = {"none",   "cut",       "beyond",   "broad",  "mark",     "other",
                                     "mute",   "stillborn", "poison",   "noise",  "melt",     "lose",
                                     "greedy", "flagged",   "typeless", "cheers", "applauds", NULL};
static const gradcomp_param params[] = {
	[FAULT] = {.name = "fault",
                   .type = GRADCOMP_PARAM_CHOICE,
                   .def = "none",
                   .choices = faults,
                   .help = "what rank 1 does"},
};

typedef struct unruly {
	const gradcomp_host *host;
	int fault, nranks;
} unruly;

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	unruly *u = host->alloc(sizeof *u);
	if (!u)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "unruly: no memory");
	*u = (unruly){host, layout->rank == 1 ? (int)values[FAULT].i : SOUND, layout->nranks};
	/* It does not say why, as with MUTE. */
	if (u->fault == STILLBORN) {
		host->release(u);
		return GRADCOMP_ERR_IO;
	}
	*instance = u;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	unruly *u = instance;
	if (u)
		u->host->release(u);
}

static const uint32_t pattern = UNRULY_PATTERN;

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	const unruly *u = instance;
	(void)step, (void)err;
	plan->nrounds = 1;
	plan->scratch_bytes = bucket->numel * sizeof(float);
	plan->rounds[0] = (gradcomp_round){.pattern = u->fault == OTHER ? GRADCOMP_GATHERED : pattern,
	                                   .flags = pattern == GRADCOMP_SUMMED     ? GRADCOMP_ROUND_MEAN
	                                            : pattern == GRADCOMP_GATHERED ? GRADCOMP_ROUND_FIXED
	                                                                           : 0,
	                                   .count = bucket->numel,
	                                   .bound = 4 * bucket->numel};
	if (u->fault == GREEDY)
		plan->scratch_bytes = UINT64_MAX;
	if (u->fault == FLAGGED)
		plan->rounds[0].flags |= 1u << 9;
	if (u->fault == TYPELESS)
		plan->rounds[0].dtype = (gradcomp_dtype)99;
	return GRADCOMP_OK;
}

/* Drops what is small. Returns what goes. */
static float drop_small(float v, float *dropped)
{
	float goes = v < 0.125f && v > -0.125f ? 0 : v;
	*dropped += v - goes;
	return goes;
}

/* Merged: all numbers go, and merging drops. */
static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	(void)round, (void)err;
	if (((const unruly *)instance)->fault == MUTE)
		return GRADCOMP_ERR_IO;
	if (((const unruly *)instance)->fault == CHEERS)
		return (gradcomp_status)1;
	if (work->bucket->numel) {
		memcpy(out->data, work->flat, 4 * work->bucket->numel);
		memset(work->scratch, 0, 4 * work->bucket->numel);
	}
	for (uint64_t i = 0; pattern != GRADCOMP_MERGED && i < work->bucket->numel; i++)
		((float *)out->data)[i] = drop_small(work->flat[i], &((float *)work->scratch)[i]);
	for (uint64_t i = 0; ((const unruly *)instance)->fault == LOSE && i < work->bucket->numel; i++)
		((float *)out->data)[i] /= 2;
	out->bytes = 4 * work->bucket->numel;
	return GRADCOMP_OK;
}

static gradcomp_status merge(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *a,
                             const gradcomp_payload *b, gradcomp_payload *out, gradcomp_error *err)
{
	const unruly *u = instance;
	const float *x = a->data, *y = b->data;
	float *dropped = work->scratch, *sum = out->data;
	(void)round, (void)err;
	if (u->fault == APPLAUDS)
		return (gradcomp_status)1;
	for (uint64_t i = 0; i < work->bucket->numel; i++)
		sum[i] = drop_small(x[i] + y[i], &dropped[i]);
	out->bytes = u->fault == CUT ? 1 : 4 * work->bucket->numel;
	return GRADCOMP_OK;
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	const unruly *u = instance;
	(void)round, (void)err;
	if (u->fault == MARK)
		*work->fault = 1;
	if (pattern == GRADCOMP_CODED || !work->bucket->numel)
		return GRADCOMP_OK;
	memcpy(work->error_flat, work->scratch, 4 * work->bucket->numel);
	for (uint64_t i = 0; i < work->bucket->numel; i++) {
		float sum = 0;
		for (uint32_t w = 0; w < n; w++)
			sum += ((const float *)in[w].data)[i];
		work->flat[i] = pattern == GRADCOMP_SUMMED ? sum : sum / (float)u->nranks;
	}
	if (u->fault == POISON)
		work->error_flat[0] = NAN;
	if (u->fault == NOISE)
		work->flat[0] = nextafterf(work->flat[0], 1);
	if (u->fault == MELT)
		work->flat[0] = NAN;
	return GRADCOMP_OK;
}

/* Coded: the upper 16 bits of every number; trailing zeroes are left out. */
static uint64_t code_bound(void *instance, uint64_t n)
{
	const unruly *u = instance;
	return u->fault == BROAD ? 4 * n + n / 64 + 64 : 2 * n;
}

static gradcomp_status code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                            gradcomp_error *err)
{
	const unruly *u = instance;
	uint16_t *to = out;
	uint64_t last = 0;
	(void)counter, (void)err;
	if (u->fault == CHEERS || u->fault == MUTE)
		return u->fault == MUTE ? GRADCOMP_ERR_IO : (gradcomp_status)1;
	for (uint64_t i = 0; i < n; i++) {
		uint32_t w;
		memcpy(&w, &in[i], 4);
		to[i] = (uint16_t)(w >> 16);
		last = to[i] ? i + 1 : last;
	}
	*bytes = u->fault == CUT      ? 2 * last / 4 * 2 + 1
	         : u->fault == BEYOND ? code_bound(instance, n) + 1
	         : u->fault == BROAD  ? code_bound(instance, n)
	                              : 2 * last;
	return GRADCOMP_OK;
}

static gradcomp_status get(const unruly *u, const void *in, uint64_t bytes, float *out, uint64_t n, int add,
                           gradcomp_error *err)
{
	const uint16_t *from = in;
	if (bytes % 2 || bytes > 2 * n)
		return u->host->fail(err, GRADCOMP_ERR_MISMATCH, "unruly: %llu bytes are no code of %llu numbers",
		                     (unsigned long long)bytes, (unsigned long long)n);
	for (uint64_t i = 0; i < n; i++) {
		uint32_t w = i < bytes / 2 ? (uint32_t)from[i] << 16 : 0;
		float v;
		memcpy(&v, &w, 4);
		out[i] = add ? out[i] + (u->fault == LOSE ? v / 2 : v) : v;
	}
	if (n && !add && u->fault == NOISE)
		out[0] = nextafterf(out[0], 1);
	if (n && !add && u->fault == MELT)
		out[0] = NAN;
	return GRADCOMP_OK;
}

static gradcomp_status code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                   gradcomp_error *err)
{
	return get(instance, in, bytes, out, n, 0, err);
}

static gradcomp_status code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	return get(instance, in, bytes, out, n, 1, err);
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = UNRULY_NAME,
                 .version = "1.2",
                 .summary = "a fixture",
                 .licence = "MIT",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(UNRULY_PATTERN),
	.create = create,
	.destroy = destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
	.merge = merge,
	.code_bound = code_bound,
	.code = code,
	.code_decode = code_decode,
	.code_decode_add = code_decode_add,
};
