#include "step/bucket.h"

#include "base/error.h"
#include "step/exchange/exchange.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

gradcomp_status bucket_open(engine *eng, bucket *b, gradcomp_error *err)
{
	uint32_t n = b->pub.ntensors, states = eng->compressor->state_arrays;
	b->of = eng;
	b->x = calloc(n, sizeof *b->x);
	b->error = calloc(n, sizeof *b->error);
	b->state = calloc(states + 1, sizeof *b->state);
	b->parts = calloc((size_t)eng->layout.nranks, sizeof *b->parts);
	if (!b->x || !b->error || !b->state || !b->parts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for bucket %u", b->pub.index);
	for (uint32_t i = 0; eng->arrays.error && i < n; i++)
		b->error[i] = eng->arrays.error + eng->layout.tensors[b->pub.first + i].offset;
	for (uint32_t s = 0; s < states; s++)
		b->state[s] = eng->arrays.state[s] ? eng->arrays.state[s] + b->pub.offset : NULL;
	b->work = (gradcomp_work){.struct_size = sizeof b->work,
	                          .device = GRADCOMP_HOST,
	                          .bucket = &b->pub,
	                          .x = b->x,
	                          .error = eng->arrays.error ? b->error : NULL,
	                          .error_flat = eng->arrays.error ? eng->arrays.error + b->pub.offset : NULL,
	                          .state = b->state,
	                          .operators_v1 = eng->job->host.operators_v1,
	                          .operators = eng->job->host.operators,
	                          .fault = b->fault};
	return GRADCOMP_OK;
}

void bucket_close(bucket *b)
{
	free(b->x);
	free(b->error);
	free(b->state);
	free(b->parts);
}

/* Returns 1 when the compressor can work in the caller's own memory: floats, and in one piece if it wants them so. */
static int in_callers_memory(const engine *eng, bucket *b)
{
	uint32_t first = b->pub.first;
	float *next = NULL, *flat = NULL;
	int together = 1;
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &eng->layout.tensors[first + i];
		float *g = eng->grads[first + i];
		if (t->dtype != GRADCOMP_F32 || (uintptr_t)g % sizeof(float))
			return 0;
		b->x[i] = g;
		if (!t->numel)
			continue;
		if (!flat)
			flat = g;
		else if (g != next)
			together = 0;
		next = g + t->numel;
	}
	b->work.flat = together ? flat : NULL;
	return together || (eng->compressor->traits & GRADCOMP_TRAIT_SHAPED);
}

static bool needs_flat(const bucket *b)
{
	for (uint32_t k = 0; k < b->plan.nrounds; k++)
		if (b->plan.rounds[k].pattern == GRADCOMP_CODED || (b->plan.rounds[k].flags & GRADCOMP_ROUND_IN_PLACE))
			return 1;
	return 0;
}

static gradcomp_status room(engine *eng, bucket *b, gradcomp_error *err)
{
	workspace *s = b->workspace;
	gradcomp_status st = workspace_grow(&s->scratch, b->plan.scratch_bytes + 1, err);
	for (uint32_t k = 0; !st && k < b->plan.nrounds; k++) {
		const gradcomp_round *rd = &b->plan.rounds[k];
		if (rd->pattern == GRADCOMP_SUMMED && !(rd->flags & GRADCOMP_ROUND_IN_PLACE))
			st = workspace_grow(&s->own, (rd->count + SUMMED_MARKS) * gradcomp_dtype_bytes(rd->dtype), err);
		if (rd->pattern == GRADCOMP_MERGED)
			st = workspace_grow(&s->own, merged_bytes(rd->bound), err);
		if (rd->pattern == GRADCOMP_GATHERED)
			st = rd->flags & GRADCOMP_ROUND_FIXED
			             ? workspace_grow(&s->gathered,
			                              payload_fixed_stride(eng, rd->bound) * (size_t)eng->layout.nranks,
			                              err)
			             : workspace_grow(&s->own, rd->bound, err);
	}
	b->work.scratch = s->scratch.p;
	b->work.scratch_bytes = b->plan.scratch_bytes;
	return st;
}

/* A compressor that passes NaN and Inf on: it is logged and otherwise forgotten. */
void bucket_pass_on(engine *eng, bucket *b)
{
	if (eng->warned < 5) {
		eng->warned++;
		log_line(&eng->job->log, GRADCOMP_LOG_WARN,
		         "step %llu: the gradient of '%s' on rank %d is not finite%s", (unsigned long long)eng->step,
		         eng->layout.tensors[b->pub.first + (uint32_t)b->local_bad - 1].name,
		         eng->group->ranks[eng->layout.rank], eng->warned == 5 ? " (not told again)" : "");
	}
	b->local_bad = 0;
}

/* Unpacks what the bucket is owed. */
static gradcomp_status unpack(const engine *eng, bucket *b, gradcomp_error *err)
{
	gradcomp_status st = workspace_grow(&b->workspace->error, (b->pub.numel + 1) * sizeof(float), err);
	if (st)
		return st;
	b->work.error = b->error;
	b->work.error_flat = b->workspace->error.p;
	for (uint32_t i = 0; i < b->pub.ntensors; i++)
		b->error[i] = b->work.error_flat + (eng->layout.tensors[b->pub.first + i].offset - b->pub.offset);
	error_memory_read(eng->arrays.packed, b->pub.offset, b->pub.numel, b->work.error_flat);
	return GRADCOMP_OK;
}

void bucket_pack(const engine *eng, bucket *b)
{
	float *left = b->work.error_flat;
	if (!eng->arrays.packed || !left)
		return;
	if (b->bad == BAD_SUM)
		error_memory_write(eng->arrays.packed, b->pub.offset, b->pub.numel, left);
	else if (!b->bad)
		error_memory_store(eng->arrays.packed, b->pub.offset, b->pub.numel, left);
	b->work.error_flat = NULL;
}

float *bucket_held_back(const engine *eng, const bucket *b, uint32_t i)
{
	if (eng->arrays.memory)
		return eng->arrays.memory + eng->layout.tensors[b->pub.first + i].offset;
	return eng->arrays.packed ? b->error[i] : NULL;
}

gradcomp_status bucket_place(engine *eng, bucket *b, gradcomp_error *err)
{
	uint32_t first = b->pub.first;
	gradcomp_status st;
	memset(&b->plan, 0, sizeof b->plan);
	b->plan.struct_size = sizeof b->plan;
	b->work.step = eng->step;
	b->local_bad = b->bad = b->fault[0] = b->fault[1] = 0;
	st = b->part ? GRADCOMP_OK : eng->compressor->plan(eng->instance, &b->pub, eng->step, &b->plan, err);
	if (!st && !b->part)
		st = task_list_check_plan(eng->compressor, eng->layout.patterns, b->pub.numel, &b->plan, err);
	if (!st)
		st = room(eng, b, err);
	if (!st && eng->arrays.packed)
		st = unpack(eng, b, err);
	if (st)
		return st;
	/* A bucket without numbers is placed too, since its tensors' addresses may be NULL. */
	b->copy_out = !b->pub.numel || !in_callers_memory(eng, b) || (needs_flat(b) && !b->work.flat) ||
	              ((needs_flat(b) || b->part) && memops_on_device(eng) && (uintptr_t)b->work.flat % 16);
	if (b->copy_out) {
		st = workspace_grow(&b->workspace->flat, (b->pub.numel + 1) * sizeof(float), err);
		if (st)
			return st;
		b->work.flat = b->workspace->flat.p;
		for (uint32_t i = 0; i < b->pub.ntensors; i++)
			b->x[i] = b->work.flat + (eng->layout.tensors[first + i].offset - b->pub.offset);
	}
	return GRADCOMP_OK;
}

gradcomp_status bucket_encode(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	const uint32_t round = t->round;
	const gradcomp_round *rd = &b->plan.rounds[round];
	uint64_t want = task_round_bytes(rd);
	int exact = rd->pattern != GRADCOMP_GATHERED || (rd->flags & GRADCOMP_ROUND_FIXED);
	gradcomp_status st = GRADCOMP_OK;
	if (rd->pattern == GRADCOMP_CODED || (rd->flags & GRADCOMP_ROUND_IN_PLACE))
		return GRADCOMP_OK;
	b->own = (gradcomp_payload){b->workspace->own.p, want, want};
	if (rd->pattern == GRADCOMP_MERGED)
		b->own.data = (char *)b->workspace->own.p + PAYLOAD_HEAD;
	if (rd->pattern == GRADCOMP_GATHERED && (rd->flags & GRADCOMP_ROUND_FIXED))
		b->own.data = (char *)b->workspace->gathered.p +
		              (size_t)eng->layout.rank * payload_fixed_stride(eng, rd->bound) + PAYLOAD_HEAD;
	if (b->local_bad) {
		b->own.bytes = exact ? want : 0;
		return GRADCOMP_OK;
	}
	st = eng->compressor->encode(eng->instance, &b->work, round, &b->own, err);
	if (st == GRADCOMP_ERR_OVERFLOW) {
		b->local_bad = LOCAL_OVERFLOW;
		b->own.bytes = exact ? want : 0;
		return GRADCOMP_OK;
	}
	if (!st && (b->own.bytes > want || (exact && b->own.bytes != want)))
		st = error_set(err, GRADCOMP_ERR_INTERNAL,
		               "compressor '%s' made a payload of %llu bytes in round %u where it planned %s%llu",
		               eng->compressor->info.name, (unsigned long long)b->own.bytes, round,
		               exact ? "" : "at most ", (unsigned long long)want);
	return st;
}

gradcomp_status bucket_decode(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	const uint32_t round = t->round;
	const int gathered = b->plan.rounds[round].pattern == GRADCOMP_GATHERED;
	gradcomp_status st;
	if (!eng->compressor->decode)
		return GRADCOMP_OK;
	st = eng->compressor->decode(eng->instance, &b->work, round, gathered ? b->parts : &b->own,
	                             gathered ? (uint32_t)eng->layout.nranks : 1, err);
	if (st != GRADCOMP_ERR_OVERFLOW)
		return st;
	b->bad = BAD_SUM;
	bucket_tell_overflow(eng, b);
	return GRADCOMP_OK;
}

void bucket_tell_overflow(engine *eng, const bucket *b)
{
	if (eng->warned >= 5)
		return;
	eng->warned++;
	log_line(
		&eng->job->log, GRADCOMP_LOG_INFO,
		"step %llu: gradients are finite on every rank, but not their sum, or what '%s' makes of them, in the bucket "
		"of '%s'; its result is NaN on all ranks and the error memory becomes 0%s",
		(unsigned long long)eng->step, eng->compressor->info.name, eng->layout.tensors[b->pub.first].name,
		eng->warned == 5 ? " (not told again)" : "");
}

gradcomp_status bucket_damaged(const engine *eng, const bucket *b, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "compressor '%s': what a rank sent in step %llu for the bucket of '%s' is damaged",
	                 eng->compressor->info.name, (unsigned long long)eng->step,
	                 eng->layout.tensors[b->pub.first].name);
}

const gradcomp_plan *bucket_plan(const bucket *b)
{
	const gradcomp_plan *most = &b->plan;
	for (const bucket *part = b->part; part; part = part->beside)
		if (part == b->part || part->plan.nrounds > most->nrounds)
			most = &part->plan;
	return most;
}

double bucket_round_bytes(const bucket *b, uint32_t round)
{
	double bytes = b->part ? 0 : (double)task_round_bytes(&b->plan.rounds[round]);
	for (const bucket *part = b->part; part; part = part->beside)
		if (round < part->plan.nrounds)
			bytes += (double)task_round_bytes(&part->plan.rounds[round]);
	return bytes;
}

bool bucket_given_up(const bucket *b)
{
	bool bad = false;
	for (const bucket *part = b->part; part; part = part->beside) {
		if (part->pub.numel && !part->bad)
			return false;
		bad |= part->bad;
	}
	return bad;
}
