/* The compute tasks of a bucket: BEGIN, ENCODE, DECODE, FINISH. */
#include "reducer/gpu/gpu.h"
#include "reducer/hierarchical/hierarchical.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Gradients are read in runs that stay in the first-level cache, so that the
 * finite check, the cast and the addition pass over memory once. */
#define RUN 4096

/* u = gradient + error memory, into x. Returns whether the gradient was finite. A
 * memory that is not the host's to add still counts in *squares, of u. */
static int accumulate(const gradcomp_operators *ops, float *x, const void *gradient, gradcomp_dtype dtype,
                      const float *error, const float *memory, uint64_t n, double *squares)
{
	int bad = 0;
	*squares = 0;
	for (uint64_t at = 0; at < n; at += RUN) {
		size_t len = n - at < RUN ? n - at : RUN;
		int run_bad;
		if ((const void *)x != gradient)
			ops->cast_to_f32(NULL, x + at, (const char *)gradient + at * gradcomp_dtype_bytes(dtype), len, dtype);
		ops->nonfinite(NULL, x + at, len, &run_bad);
		bad |= run_bad;
		if (error)
			ops->add(NULL, x + at, error + at, len);
		if (memory)
			*squares += residual_norm_run(x, error ? NULL : memory, at, n);
	}
	return !bad;
}

/* Whether the compressor can work in the caller's own memory: floats, and in one
 * piece if it wants them so. */
static int in_callers_memory(const gradcomp_reducer *r, bucket *b)
{
	uint32_t first = b->pub.first;
	float *next = NULL, *flat = NULL;
	int together = 1;
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &r->tensors[first + i];
		float *g = r->grads[first + i];
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
	return together || (r->compressor->traits & GRADCOMP_TRAIT_SHAPED);
}

static int needs_flat(const bucket *b)
{
	for (uint32_t k = 0; k < b->plan.nrounds; k++)
		if (b->plan.rounds[k].pattern == GRADCOMP_CODED || (b->plan.rounds[k].flags & GRADCOMP_ROUND_IN_PLACE))
			return 1;
	return 0;
}

static gradcomp_status room(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	workspace *s = b->workspace;
	gradcomp_status st = scratch_buf_grow(&s->scratch, b->plan.scratch_bytes + 1, err);
	for (uint32_t k = 0; !st && k < b->plan.nrounds; k++) {
		const gradcomp_round *rd = &b->plan.rounds[k];
		if (rd->pattern == GRADCOMP_SUMMED && !(rd->flags & GRADCOMP_ROUND_IN_PLACE))
			st = scratch_buf_grow(&s->own, (rd->count + 1) * gradcomp_dtype_bytes(rd->dtype), err);
		if (rd->pattern == GRADCOMP_MERGED)
			st = scratch_buf_grow(&s->own, merged_bytes(rd->bound), err);
		if (rd->pattern == GRADCOMP_GATHERED)
			st = rd->flags & GRADCOMP_ROUND_FIXED
			             ? scratch_buf_grow(&s->gathered, (16 + rd->bound) * (size_t)r->layout.nranks, err)
			             : scratch_buf_grow(&s->own, rd->bound, err);
	}
	b->work.scratch = s->scratch.p;
	b->work.scratch_bytes = b->plan.scratch_bytes;
	return st;
}

/* A compressor that passes NaN and Inf on: it is told of and otherwise forgotten. */
void task_pass_on(gradcomp_reducer *r, bucket *b)
{
	if (r->warned < 5) {
		r->warned++;
		log_line(&r->job->log, GRADCOMP_LOG_WARN, "step %llu: the gradient of '%s' on rank %d is not finite%s",
		         (unsigned long long)r->step, r->tensors[b->pub.first + (uint32_t)b->local_bad - 1].name,
		         r->group->ranks[r->layout.rank], r->warned == 5 ? " (not told again)" : "");
	}
	b->local_bad = 0;
}

gradcomp_status task_place(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	uint32_t first = b->pub.first;
	gradcomp_status st;
	memset(&b->plan, 0, sizeof b->plan);
	b->plan.struct_size = sizeof b->plan;
	b->work.step = r->step;
	b->local_bad = b->bad = b->fault = 0;
	st = r->shards ? GRADCOMP_OK : r->compressor->plan(r->instance, &b->pub, r->step, &b->plan, err);
	if (!st && !r->shards)
		st = task_list_check_plan(r->compressor, r->layout.patterns, b->pub.numel, &b->plan, err);
	if (!st)
		st = room(r, b, err);
	if (st)
		return st;
	b->copy_out = !in_callers_memory(r, b) || (needs_flat(b) && !b->work.flat);
	if (b->copy_out) {
		st = scratch_buf_grow(&b->workspace->flat, (b->pub.numel + 1) * sizeof(float), err);
		if (st)
			return st;
		b->work.flat = b->workspace->flat.p;
		for (uint32_t i = 0; i < b->pub.ntensors; i++)
			b->x[i] = b->work.flat + (r->tensors[first + i].offset - b->pub.offset);
	}
	return GRADCOMP_OK;
}

static gradcomp_status begin(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	const gradcomp_operators *ops = r->job->host.operators;
	uint32_t first = b->pub.first;
	gradcomp_status st = task_place(r, b, err);
	if (st)
		return st;
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &r->tensors[first + i];
		if (!accumulate(ops, b->x[i], r->grads[first + i], t->dtype, r->error ? b->error[i] : NULL,
		                r->memory ? r->memory + t->offset : NULL, t->numel, &r->held[first + i].u) &&
		    !b->local_bad)
			b->local_bad = (int)i + 1;
	}
	if (b->part)
		b->part->plan.nrounds = 0;
	if (b->local_bad && (r->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE))
		task_pass_on(r, b);
	return GRADCOMP_OK;
}

static gradcomp_status encode(gradcomp_reducer *r, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gradcomp_round *rd = &b->plan.rounds[round];
	uint64_t want = round_bytes(rd);
	int exact = rd->pattern != GRADCOMP_GATHERED || (rd->flags & GRADCOMP_ROUND_FIXED);
	gradcomp_status st = GRADCOMP_OK;
	if (rd->pattern == GRADCOMP_CODED || (rd->flags & GRADCOMP_ROUND_IN_PLACE))
		return GRADCOMP_OK;
	b->own = (gradcomp_payload){b->workspace->own.p, want, want};
	if (rd->pattern == GRADCOMP_MERGED)
		b->own.data = (char *)b->workspace->own.p + PAYLOAD_HEAD;
	if (rd->pattern == GRADCOMP_GATHERED && (rd->flags & GRADCOMP_ROUND_FIXED))
		b->own.data = (char *)b->workspace->gathered.p +
		              (size_t)r->layout.rank * (PAYLOAD_HEAD + ((rd->bound + 7) & ~(uint64_t)7)) + PAYLOAD_HEAD;
	if (b->local_bad) {
		b->own.bytes = exact ? want : 0;
		return GRADCOMP_OK;
	}
	st = r->compressor->encode(r->instance, &b->work, round, &b->own, err);
	if (!st && (b->own.bytes > want || (exact && b->own.bytes != want)))
		st = error_set(err, GRADCOMP_ERR_INTERNAL,
		               "compressor '%s' made a payload of %llu bytes in round %u where it planned %s%llu",
		               r->compressor->info.name, (unsigned long long)b->own.bytes, round, exact ? "" : "at most ",
		               (unsigned long long)want);
	return st;
}

static gradcomp_status decode(gradcomp_reducer *r, bucket *b, uint32_t round, gradcomp_error *err)
{
	if (!r->compressor->decode)
		return GRADCOMP_OK;
	if (b->plan.rounds[round].pattern != GRADCOMP_GATHERED)
		return r->compressor->decode(r->instance, &b->work, round, &b->own, 1, err);
	return r->compressor->decode(r->instance, &b->work, round, b->parts, (uint32_t)r->layout.nranks, err);
}

gradcomp_status task_damaged(const gradcomp_reducer *r, const bucket *b, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "compressor '%s': what a rank sent in step %llu for the bucket of '%s' is damaged",
	                 r->compressor->info.name, (unsigned long long)r->step, r->tensors[b->pub.first].name);
}

static gradcomp_status finish(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	const gradcomp_operators *ops = r->job->host.operators;
	if (b->fault)
		return task_damaged(r, b, err);
	residual_norm_bucket(r, b);
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &r->tensors[b->pub.first + i];
		for (uint64_t k = 0; b->bad && k < t->numel; k++)
			b->x[i][k] = NAN;
		if (b->copy_out)
			ops->cast_from_f32(NULL, r->grads[b->pub.first + i], b->x[i], t->numel, t->dtype, 0);
	}
	return GRADCOMP_OK;
}

gradcomp_status task_run(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err)
{
	return r->gpu ? gpu_task(r, b, t, err) : task_host(r, b, t, err);
}

gradcomp_status task_host(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err)
{
	if (r->shards && t->kind != TASK_BEGIN && t->kind != TASK_FINISH)
		return hierarchical_task(r, b, t, err);
	switch (t->kind) {
	case TASK_BEGIN:
		return begin(r, b, err);
	case TASK_ENCODE:
		return encode(r, b, t->round, err);
	case TASK_EXCHANGE:
		return exchange_run(r, b, t->round, err);
	default: /* DECODE: the others are of shards.c */
		return decode(r, b, t->round, err);
	case TASK_FINISH:
		return finish(r, b, err);
	}
}
