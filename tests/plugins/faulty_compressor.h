/* A compressor that keeps every rule: of a bucket of d numbers a run of (d + 3) / 4 is
 * sent, which begins elsewhere every step, on every rank. Each file in faulty/ spoils
 * one thing about it: it defines a macro, and perhaps a function, and includes this.
 *
 * Payload: where the run begins (64 bits), then its floats. State: for each tensor
 * how often it was sent, and by how much the next run is shifted. */
#include <string.h>

#include "gradcomp/compressor.h"

typedef struct runs {
	const gradcomp_host *host;
	uint64_t *turn, *shift; /* by tensor */
	uint32_t ntensors, rank;
#ifdef FAULT_MEMBERS
	FAULT_MEMBERS
#endif
} runs;

static uint64_t run_length(uint64_t d)
{
	return (d + 3) / 4;
}

static uint64_t run_begins(const runs *r, const gradcomp_work *work)
{
	uint64_t d = work->bucket->numel, t = work->bucket->first;
	return d ? (r->turn[t] * 101 + r->shift[t] * 13 + r->rank * 7) % (d - run_length(d) + 1) : 0;
}

#ifdef FAULT_INCLUDE
#include FAULT_INCLUDE
#endif

static void runs_destroy(void *instance)
{
	runs *r = instance;
#ifndef FAULT_DESTROY_NULL
	if (!r)
		return;
#endif
	r->host->release(r->turn);
#ifndef FAULT_LEAK
	r->host->release(r->shift);
#endif
	r->host->release(r);
}

static gradcomp_status runs_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	(void)values;
#ifdef FAULT_CREATE
	FAULT_CREATE;
#endif
	runs *r = host->alloc(sizeof *r);
	if (!r)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "runs: no memory");
	*r = (runs){.host = host, .ntensors = layout->ntensors, .rank = (uint32_t)layout->rank};
	r->turn = host->alloc(layout->ntensors * sizeof *r->turn + 1);
	r->shift = host->alloc(layout->ntensors * sizeof *r->shift + 1);
	if (!r->turn || !r->shift) {
		runs_destroy(r);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "runs: no memory");
	}
#ifdef FAULT_KEEP
	FAULT_KEEP(r, values);
#endif
	*instance = r;
	return GRADCOMP_OK;
}

#ifndef FAULT_BOUND
#define FAULT_BOUND(d) (8 + 4 * run_length(d))
#endif

static gradcomp_status runs_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){
		.pattern = GRADCOMP_GATHERED, .flags = GRADCOMP_ROUND_FIXED, .bound = FAULT_BOUND(bucket->numel)};
#ifdef FAULT_PLAN
	FAULT_PLAN;
#endif
	return GRADCOMP_OK;
}

static gradcomp_status runs_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	runs *r = instance;
	uint64_t begins = run_begins(r, work), n = run_length(work->bucket->numel);
	(void)round;
#ifdef FAULT_ENCODE
	FAULT_ENCODE;
#endif
	if (!work->flat)
		return r->host->fail(err, GRADCOMP_ERR_INVALID, "flat is NULL, and this compressor is not SHAPED");
	memcpy(out->data, &begins, 8);
	memcpy((char *)out->data + 8, work->flat + begins, n * 4);
	out->bytes = FAULT_BOUND(work->bucket->numel);
	return GRADCOMP_OK;
}

#ifndef FAULT_FIRST
#define FAULT_FIRST 0
#endif
#ifndef FAULT_NUMEL
#define FAULT_NUMEL(r, bucket) ((bucket)->numel)
#endif

static gradcomp_status runs_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	runs *r = instance;
	uint64_t d = FAULT_NUMEL(r, work->bucket), k = run_length(work->bucket->numel), begins;
	(void)round, (void)err;
	for (uint32_t w = 0; w < n; w++) {
		memcpy(&begins, in[w].data, in[w].bytes < 8 ? 0 : 8);
#ifndef FAULT_TRUSTING
		if (in[w].bytes != FAULT_BOUND(work->bucket->numel) || begins > d || k > d - begins)
			return r->host->fail(err, GRADCOMP_ERR_MISMATCH,
			                     "runs: rank %u sent %llu bytes for %llu to %llu", w,
			                     (unsigned long long)in[w].bytes, (unsigned long long)begins,
			                     (unsigned long long)d);
#endif
	}
#ifdef FAULT_DECODE
	FAULT_DECODE;
#endif
	begins = run_begins(r, work);
	if (work->error_flat) {
		memcpy(work->error_flat, work->flat, d * 4);
		memset(work->error_flat + begins, 0, k * 4);
	}
	memset(work->flat, 0, d * 4);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t w = (FAULT_FIRST + i) % n;
		memcpy(&begins, in[w].data, 8);
		for (uint64_t j = 0; j < k; j++)
			work->flat[begins + j] += 1.0f / (float)n * ((const float *)in[w].data)[2 + j];
	}
	for (uint32_t t = work->bucket->first; t < work->bucket->first + work->bucket->ntensors; t++) {
		r->turn[t]++;
		r->shift[t] = (r->shift[t] + r->turn[t]) % 64;
	}
#ifdef FAULT_AFTER
	FAULT_AFTER;
#endif
	return GRADCOMP_OK;
}

#ifndef FAULT_SAVED
#define FAULT_SAVED(r) 2
#endif

/* A mark, turns, shifts. */
static gradcomp_status runs_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	runs *r = instance;
	uint64_t array = 8 * (uint64_t)r->ntensors, mark = 0x31736e7572 + array;
	*bytes = 8 + FAULT_SAVED(r) * array;
	if (!out)
		return GRADCOMP_OK;
	if (capacity < *bytes)
		return r->host->fail(err, GRADCOMP_ERR_INVALID, "runs: no room to save");
	memcpy(out, &mark, 8);
	memcpy((char *)out + 8, r->turn, array);
	if (FAULT_SAVED(r) == 2)
		memcpy((char *)out + 8 + array, r->shift, array);
	return GRADCOMP_OK;
}

static gradcomp_status runs_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err)
{
	runs *r = instance;
	uint64_t array = 8 * (uint64_t)r->ntensors, mark = 0;
#ifndef FAULT_LOADS_ALL
	if (bytes != 8 + FAULT_SAVED(r) * array || (memcpy(&mark, in, 8), mark != 0x31736e7572 + array))
		return r->host->fail(err, GRADCOMP_ERR_INVALID, "runs: %llu bytes are no state of %u tensors",
		                     (unsigned long long)bytes, r->ntensors);
#else
	(void)err, (void)mark;
	if (bytes < 8 + 2 * array)
		return GRADCOMP_OK;
#endif
	memcpy(r->turn, (const char *)in + 8, array);
	if (FAULT_SAVED(r) == 2)
		memcpy(r->shift, (const char *)in + 8 + array, array);
	return GRADCOMP_OK;
}

static gradcomp_status runs_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	cost->rounds = 1;
	cost->wire_bytes = 8 + 4 * (double)run_length(bucket->numel);
	return GRADCOMP_OK;
}

#ifdef FAULT_CHOICE
static const char *runs_choice(void *instance, uint32_t tensor)
{
	(void)instance;
	return tensor % 2 ? NULL : "runs";
}
#endif

#ifdef FAULT_NO_MEAN
static int runs_conserves(const gradcomp_value *values)
{
	(void)values;
	return 0;
}
#endif

#ifndef FAULT_PARAMS
#define FAULT_PARAMS NULL
#define FAULT_NPARAMS 0
#else
#define FAULT_NPARAMS 1
#endif
#ifndef FAULT_ABI
#define FAULT_ABI GRADCOMP_ABI_VERSION
#endif
#ifndef FAULT_TRAITS
#define FAULT_TRAITS GRADCOMP_TRAIT_ERROR_FEEDBACK
#endif

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = FAULT_ABI,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = FAULT_NAME,
			.version = "1.0",
			.summary = "runs of numbers, with a fault",
			.licence = "MIT",
			.params = FAULT_PARAMS,
			.nparams = FAULT_NPARAMS,
		},
	.traits = FAULT_TRAITS,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED),
	.create = runs_create,
	.destroy = runs_destroy,
	.plan = runs_plan,
	.encode = runs_encode,
	.decode = runs_decode,
	.save = runs_save,
	.load = runs_load,
	.cost = runs_cost,
#ifdef FAULT_CHOICE
	.choice = runs_choice,
#endif
#ifdef FAULT_NEUTRAL
	.neutral = FAULT_NEUTRAL,
#endif
#ifdef FAULT_NO_MEAN
	.conserves = runs_conserves,
#endif
};
