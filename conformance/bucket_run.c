#include "conformance/bucket_run.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A SHAPED plugin must accept tensors that are not contiguous: in every other step they are not. */
static bool lies_apart(const ranks *s, const gradcomp_plan *plan)
{
	if (!(s->plugin->traits & GRADCOMP_TRAIT_SHAPED) || !(s->step & 1))
		return false;
	for (uint32_t k = 0; k < plan->nrounds; k++)
		if (plan->rounds[k].pattern == GRADCOMP_CODED || (plan->rounds[k].flags & GRADCOMP_ROUND_IN_PLACE))
			return false;
	return true;
}

static guarded alloc(const ranks *s, const char *what, size_t bytes, size_t align)
{
	guarded g = guard(what, bytes, align);
	if (s->device)
		guard_to_device(&g);
	return g;
}

static void take_arrays(ranks *s, bucket_run *f, int w, const gradcomp_bucket *b)
{
	f->memory = alloc(s, "the error memory of the bucket", b->numel * sizeof(float), 8);
	memcpy(f->memory.data, s->error[w] + b->offset - s->base, b->numel * sizeof(float));
	for (uint32_t k = 0; k < s->plugin->state_arrays; k++) {
		f->states[k] = alloc(s, "a state array of the bucket", b->numel * sizeof(float), 8);
		f->state[k] = (float *)(void *)f->states[k].data;
		memcpy(f->state[k], s->state[w] + k * s->numel + b->offset - s->base, b->numel * sizeof(float));
	}
}

void bucket_run_begin(ranks *s, bucket_run *f, int w, const gradcomp_bucket *b, const gradcomp_plan *plan,
                      const float *g)
{
	int remembers = gradcomp_keeps_error(s->plugin, s->values), apart = lies_apart(s, plan);
	memset(f, 0, sizeof *f);
	f->x = calloc(b->ntensors + 1, sizeof *f->x);
	f->error = calloc(b->ntensors + 1, sizeof *f->error);
	f->apart = calloc(b->ntensors + 1, sizeof *f->apart);
	if (!f->x || !f->error || !f->apart)
		exit(1);
	take_arrays(s, f, w, b);
	if (!apart)
		f->flat = alloc(s, "x of the bucket", b->numel * sizeof(float), 8);
	f->scratch = alloc(s, "scratch", plan->scratch_bytes, 64);
	f->fault = alloc(s, "the fault words", 2 * sizeof(int), sizeof(int));
	memset(f->fault.data, 0, 2 * sizeof(int));
	float *e = (float *)(void *)f->memory.data;
	for (uint32_t i = 0; i < b->ntensors; i++) {
		const gradcomp_tensor *t = &s->tensors[b->first + i];
		uint64_t at = t->offset - b->offset;
		if (apart)
			f->apart[i] = alloc(s, "x of a tensor", t->numel * sizeof(float), 8);
		f->x[i] = apart ? (float *)(void *)f->apart[i].data : (float *)(void *)f->flat.data + at;
		f->error[i] = e + at;
		for (uint64_t j = 0; j < t->numel; j++)
			f->x[i][j] = remembers ? g[t->offset - s->base + j] + e[at + j] : g[t->offset - s->base + j];
	}
	f->work = (gradcomp_work){
		.struct_size = sizeof f->work,
		.device = s->device,
		.bucket = b,
		.step = s->step,
		.x = f->x,
		.flat = apart ? NULL : (float *)(void *)f->flat.data,
		.error = remembers ? f->error : NULL,
		.error_flat = remembers ? e : NULL,
		.state = f->state,
		.scratch = f->scratch.data,
		.scratch_bytes = plan->scratch_bytes,
		.operators_v1 = s->host.operators_v1,
		.operators = s->device ? s->device_operators : s->host.operators,
		.fault = (int *)(void *)f->fault.data,
	};
}

void bucket_run_lock(bucket_run *f, int read_only)
{
	guard_lock(&f->flat, read_only);
	guard_lock(&f->memory, read_only);
	for (uint32_t i = 0; i < f->work.bucket->ntensors; i++)
		guard_lock(&f->apart[i], read_only);
	for (int k = 0; k < STATES_MAX; k++)
		guard_lock(&f->states[k], read_only);
}

gradcomp_status bucket_run_encode(ranks *s, bucket_run *f, int w, const gradcomp_round *rd, uint32_t round)
{
	size_t capacity = rd->pattern == GRADCOMP_SUMMED  ? rd->count * gradcomp_dtype_bytes(rd->dtype)
	                  : rd->pattern == GRADCOMP_CODED ? rd->count * sizeof(float)
	                                                  : rd->bound;
	int exact =
		rd->pattern == GRADCOMP_SUMMED || rd->pattern == GRADCOMP_MERGED || (rd->flags & GRADCOMP_ROUND_FIXED);
	guard_free(&f->payload);
	if (rd->pattern == GRADCOMP_CODED || (rd->flags & GRADCOMP_ROUND_IN_PLACE)) {
		f->out = (gradcomp_payload){f->flat.data, capacity, capacity};
		if (s->made && rd->pattern == GRADCOMP_SUMMED)
			s->made(s, f->work.bucket, round, w, &f->out);
		return GRADCOMP_OK;
	}
	f->payload = alloc(s, "the payload", capacity, 8);
	if (s->stale)
		memset(f->payload.data, s->stale, capacity);
	f->out = (gradcomp_payload){f->payload.data, capacity, 0};
	bucket_run_lock(f, 1);
	gradcomp_status st =
		ranks_call(s,
	                   &(call){.which = CALL_ENCODE, .rank = w, .round = round, .work = &f->work, .out = &f->out});
	bucket_run_lock(f, 0);
	if (st == GRADCOMP_ERR_OVERFLOW || f->work.fault[1]) {
		f->overflown = true;
		return GRADCOMP_OK;
	}
	if (!st && f->out.data != f->payload.data)
		st = ranks_broke(s, RULE_BYTES,
		                 "encode() of round %u has put another address into out->data, which is the host's",
		                 round);
	if (!st && (f->out.bytes > capacity || (exact && f->out.bytes != capacity)))
		st = ranks_broke(s, RULE_BYTES,
		                 "a payload of %llu bytes in round %u, %s%zu were planned; out->bytes is what was "
		                 "written",
		                 (unsigned long long)f->out.bytes, round, exact ? "" : "at most ", capacity);
	if (!st && s->made)
		s->made(s, f->work.bucket, round, w, &f->out);
	return st;
}

static void release(ranks *s, guarded *g)
{
	s->intact &= !g->map || guard_intact(g);
	guard_free(g);
}

void bucket_run_end(ranks *s, bucket_run *f, int w, float *g)
{
	const gradcomp_bucket *b = f->work.bucket;
	if (f->overflown) {
		memset(f->memory.data, 0, b->numel * sizeof(float));
		for (uint32_t k = 0; k < s->plugin->state_arrays; k++)
			memset(f->state[k], 0, b->numel * sizeof(float));
		for (uint32_t i = 0; i < b->ntensors; i++)
			s->host.operators->fill(NULL, f->x[i], NAN, s->tensors[b->first + i].numel);
	}
	memcpy(s->error[w] + b->offset - s->base, f->memory.data, b->numel * sizeof(float));
	for (uint32_t k = 0; k < s->plugin->state_arrays; k++)
		memcpy(s->state[w] + k * s->numel + b->offset - s->base, f->state[k], b->numel * sizeof(float));
	for (uint32_t i = 0; g && i < b->ntensors; i++)
		memcpy(g + s->tensors[b->first + i].offset - s->base, f->x[i],
		       s->tensors[b->first + i].numel * sizeof(float));
	release(s, &f->flat);
	release(s, &f->memory);
	release(s, &f->scratch);
	release(s, &f->fault);
	for (uint32_t i = 0; i < b->ntensors; i++)
		release(s, &f->apart[i]);
	for (int k = 0; k < STATES_MAX; k++)
		release(s, &f->states[k]);
	release(s, &f->payload);
	free(f->x);
	free(f->error);
	free(f->apart);
}
