/* The compute tasks of a bucket: BEGIN, ENCODE, DECODE, FINISH. */
#include "reducer/bucket.h"
#include "reducer/exchange/exchange.h"
#include "reducer/gpu/gpu.h"
#include "reducer/hierarchical/hierarchical.h"
#include "reducer/residual_norm.h"
#include "reducer/verify.h"

#include "base/error.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Gradients are read in runs that stay in the first-level cache, so that the
 * finite check, the cast and the addition pass over memory once. */
#define RUN 4096

/* u = gradient + error memory, into x. Returns whether that is finite. A
 * memory that is not the host's to add still counts in *squares, of u. The error memory is
 * copied to `kept`, where that is not NULL, while it is in the cache. */
static int accumulate(const gradcomp_operators *ops, float *x, const void *gradient, gradcomp_dtype dtype,
                      const float *error, float *kept, const float *memory, uint64_t n, double *squares)
{
	int bad = 0;
	*squares = 0;
	for (uint64_t at = 0; at < n; at += RUN) {
		size_t len = n - at < RUN ? n - at : RUN;
		const gradcomp_segment run = {.x = x + at,
		                              .grad = (char *)(uintptr_t)gradient + at * gradcomp_dtype_bytes(dtype),
		                              .error = error ? error + at : NULL,
		                              .n = len,
		                              .dtype = dtype,
		                              .add = error != NULL};
		int run_bad = 0;
		ops->load_tensors(NULL, &run, 1, &run_bad, NULL, NULL);
		bad |= run_bad;
		if (kept)
			memcpy(kept + at, error + at, len * sizeof *kept);
		if (memory)
			*squares += residual_norm_run(x, error ? NULL : memory, at, n);
	}
	return !bad;
}

static gradcomp_status begin(engine *eng, bucket *b, gradcomp_error *err)
{
	const gradcomp_operators *ops = eng->job->host.operators;
	uint32_t first = b->pub.first;
	gradcomp_status st = bucket_place(eng, b, err);
	if (!st && eng->undo)
		st = engine_keep(eng, b, err);
	if (st)
		return st;
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &eng->layout.tensors[first + i];
		float *kept = eng->error && eng->undo ? eng->undo->array[0] + t->offset : NULL;
		if (!accumulate(ops, b->x[i], eng->grads[first + i], t->dtype, eng->error ? b->error[i] : NULL, kept,
		                eng->memory ? eng->memory + t->offset : NULL, t->numel, &eng->norms[first + i].u) &&
		    !b->local_bad)
			b->local_bad = (int)i + 1;
	}
	if (eng->verify)
		verify_input(eng, b);
	for (bucket *part = b->part; part; part = part->beside) {
		part->plan.nrounds = 0;
		part->bad = 0;
	}
	if (b->local_bad && (eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE))
		bucket_pass_on(eng, b);
	return GRADCOMP_OK;
}

static gradcomp_status encode(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
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

static gradcomp_status decode(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
{
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

/* All numbers are looked at in the first steps, afterwards one of so many, others in each step. */
enum { LOOK_STEPS = 4, LOOK_APART = 1021 };

static bool looks_finite(const engine *eng, const float *p, uint64_t n)
{
	int bad = 0;

	if (eng->step < LOOK_STEPS)
		eng->job->host.operators->nonfinite(NULL, p, n, &bad);
	else
		for (uint64_t i = eng->step % LOOK_APART; i < n; i += LOOK_APART)
			bad |= !isfinite(p[i]);
	return !bad;
}

/* Gradients were finite on all ranks, and so was their sum: what is not finite now is of the
 * compressor's making. The next step's gradients would be blamed for it. */
static void blame_compressor(engine *eng, const bucket *b)
{
	for (uint32_t i = 0; i < b->pub.ntensors && eng->warned < 5; i++) {
		const gradcomp_tensor *t = &eng->layout.tensors[b->pub.first + i];
		bool average = !looks_finite(eng, b->x[i], t->numel);

		if (!average && (!eng->error || looks_finite(eng, b->error[i], t->numel)))
			continue;
		eng->warned++;
		log_line(&eng->job->log, GRADCOMP_LOG_WARN,
		         "step %llu: compressor '%s' has made NaN or Inf of finite gradients, in the %s of '%s'%s",
		         (unsigned long long)eng->step, eng->compressor->info.name,
		         average ? "average" : "error memory", t->name, eng->warned == 5 ? " (not told again)" : "");
	}
}

/* Of numbers that have overflowed nothing is kept: with what they left, the next step would overflow, too. */
static void clear_kept(const engine *eng, bucket *b)
{
	for (uint32_t s = 0; s < !!eng->error + eng->compressor->state_arrays && !eng->hierarchical; s++)
		memset(engine_array(eng, s) + b->pub.offset, 0, b->pub.numel * sizeof(float));
	if (b->server_error)
		memset(b->server_error, 0, b->nserver_error * sizeof(float));
}

static gradcomp_status finish(engine *eng, bucket *b, gradcomp_error *err)
{
	const gradcomp_operators *ops = eng->job->host.operators;
	if (b->fault[0])
		return bucket_damaged(eng, b, err);
	if (b->bad == BAD_SUM)
		clear_kept(eng, b);
	if (!b->bad && !eng->hierarchical && !eng->verify &&
	    !(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE))
		blame_compressor(eng, b);
	if (eng->verify)
		verify_output(eng, b);
	residual_norm_bucket(eng, b);
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &eng->layout.tensors[b->pub.first + i];
		for (uint64_t k = 0; b->bad && k < t->numel; k++)
			b->x[i][k] = NAN;
		if (b->copy_out)
			ops->cast_from_f32(NULL, eng->grads[b->pub.first + i], b->x[i], t->numel, t->dtype, 0);
	}
	if (eng->verify && !eng->verify_row)
		verify_result(eng, b);
	return GRADCOMP_OK;
}

/* What a plugin has failed in that gives no reason, or a status above 0, which peers would not take for one. */
static gradcomp_status wordless(const engine *eng, const bucket *b, const task *t, gradcomp_status st,
                                gradcomp_error *err)
{
	int exchanges = task_exchanges(t->kind);
	const char *calls = exchanges                ? "a call"
	                    : t->kind == TASK_BEGIN  ? "plan()"
	                    : t->kind == TASK_ENCODE ? "encode()"
	                                             : "decode()";
	const char *kind = exchanges ? "collective" : "compressor";
	const char *name = exchanges ? eng->coll_ctx.collective->info.name : eng->compressor->info.name;
	const char *tensor = eng->layout.tensors[b->pub.first].name;
	if (st > 0)
		return error_set(
			err, GRADCOMP_ERR_INTERNAL,
			"%s '%s': %s returned %d in round %u of step %llu, for the bucket of '%s': 0 or a negative status is right",
			kind, name, calls, (int)st, t->round, (unsigned long long)eng->step, tensor);
	return error_set(err, st,
	                 "%s '%s': %s failed in round %u of step %llu, for the bucket of '%s', and gave no reason (%s)",
	                 kind, name, calls, t->round, (unsigned long long)eng->step, tensor, gradcomp_strerror(st));
}

gradcomp_status task_run(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	gradcomp_status st = eng->gpu ? gpu_task(eng, b, t, err) : task_host(eng, b, t, err);
	return st > 0 || (st && !*err->text) ? wordless(eng, b, t, st, err) : st;
}

gradcomp_status task_host(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	if (eng->hierarchical && t->kind != TASK_BEGIN && t->kind != TASK_FINISH)
		return hierarchical_task(eng, b, t, err);
	switch (t->kind) {
	case TASK_BEGIN:
		return begin(eng, b, err);
	case TASK_ENCODE:
		return encode(eng, b, t->round, err);
	case TASK_EXCHANGE:
		return exchange_run(eng, b, t->round, engine_merge, err);
	default: /* DECODE: the others are of hierarchical.c */
		return decode(eng, b, t->round, err);
	case TASK_FINISH:
		return finish(eng, b, err);
	}
}
