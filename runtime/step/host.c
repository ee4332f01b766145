/* The tasks of a bucket whose numbers are in memory of the host. */
#include "step/bucket.h"
#include "step/exchange/exchange.h"
#include "step/residual_norm.h"
#include "step/verify.h"

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
		if (kept && error)
			memcpy(kept + at, error + at, len * sizeof *kept);
		if (memory)
			*squares += residual_norm_run(x, error ? NULL : memory, at, n);
	}
	return !bad;
}

static gradcomp_status begin(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	(void)t;
	const gradcomp_operators *ops = eng->job->host.operators;
	uint32_t first = b->pub.first;
	gradcomp_status st = bucket_place(eng, b, err);
	if (!st && eng->arrays.undo)
		st = engine_keep(eng, b, err);
	if (st)
		return st;
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *x = &eng->layout.tensors[first + i];
		float *kept = b->work.error && eng->arrays.undo ? eng->arrays.undo->array[0] + x->offset : NULL;
		if (!accumulate(ops, b->x[i], eng->grads[first + i], x->dtype, b->work.error ? b->error[i] : NULL, kept,
		                bucket_held_back(eng, b, i), x->numel, &eng->meter.norms[first + i].u) &&
		    !b->local_bad)
			b->local_bad = (int)i + 1;
	}
	if (eng->checks.verify)
		verify_input(eng, b);
	for (bucket *part = b->part; part; part = part->beside) {
		part->plan.nrounds = 0;
		part->bad = 0;
	}
	if (b->local_bad && (eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE))
		bucket_pass_on(eng, b);
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

		if (!average && (!b->work.error || looks_finite(eng, b->error[i], t->numel)))
			continue;
		eng->warned++;
		log_line(&eng->job->log, GRADCOMP_LOG_WARN,
		         "step %llu: compressor '%s' has made NaN or Inf of finite gradients, in the %s of '%s'%s",
		         (unsigned long long)eng->step, eng->compressor->info.name,
		         average ? "average" : "error memory", t->name, eng->warned == 5 ? " (not told again)" : "");
	}
}

/* Clears what is kept of numbers that have overflowed: with what they left, the next step would overflow, too. */
static void clear_kept(const engine *eng, bucket *b)
{
	if (b->work.error_flat)
		memset(b->work.error_flat, 0, b->pub.numel * sizeof(float));
	for (uint32_t s = 0; s < eng->compressor->state_arrays && !b->part; s++)
		memset(b->state[s], 0, b->pub.numel * sizeof(float));
	if (b->server_error)
		memset(b->server_error, 0, b->nserver_error * sizeof(float));
}

static gradcomp_status finish(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	(void)t;
	const gradcomp_operators *ops = eng->job->host.operators;
	if (b->fault[0])
		return bucket_damaged(eng, b, err);
	if (b->bad == BAD_SUM)
		clear_kept(eng, b);
	if (!b->bad && !b->part && !eng->checks.verify && !(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE))
		blame_compressor(eng, b);
	if (eng->checks.verify)
		verify_output(eng, b);
	residual_norm_bucket(eng, b);
	bucket_pack(eng, b);
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *x = &eng->layout.tensors[b->pub.first + i];
		for (uint64_t k = 0; b->bad && k < x->numel; k++)
			b->x[i][k] = NAN;
		if (b->copy_out)
			ops->cast_from_f32(NULL, eng->grads[b->pub.first + i], b->x[i], x->numel, x->dtype, 0);
	}
	if (eng->checks.verify && !eng->checks.row)
		verify_result(eng, b);
	return GRADCOMP_OK;
}

static gradcomp_status exchange(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	return exchange_run(eng, b, t->round, engine_merge, err);
}

static gradcomp_status announce(engine *eng, bucket *b, gradcomp_error *err)
{
	gradcomp_status st = exchange_largest_head(eng, b, err);
	return st || !b->bad ? st : exchange_nonfinite(eng, b, err);
}

const engine_ops host_ops = {begin, bucket_encode, exchange, bucket_decode, finish, announce};

static gradcomp_status nothing(engine *eng, gradcomp_error *err)
{
	(void)eng, (void)err;
	return GRADCOMP_OK;
}

static gradcomp_status nothing_of(engine *eng, uint32_t n, gradcomp_error *err)
{
	(void)n;
	return nothing(eng, err);
}

static gradcomp_status nothing_told(engine *eng, const struct step_observer *to, gradcomp_error *err)
{
	(void)to;
	return nothing(eng, err);
}

static gradcomp_status arrays(engine *eng, void **given, gradcomp_error *err)
{
	(void)given;
	return nothing(eng, err);
}

static gradcomp_status port(engine *eng, bool time_sums, gradcomp_error *err)
{
	(void)time_sums;
	return nothing(eng, err);
}

static gradcomp_status share(engine *in, const engine *eng, gradcomp_error *err)
{
	(void)eng;
	return nothing(in, err);
}

static gradcomp_status create(engine *in, const engine *eng, gradcomp_error *err)
{
	return engine_create_instance(in, &eng->job->host, eng->values, err);
}

static gradcomp_status ready(engine *eng, uint32_t tensor, const void *p, gradcomp_error *err)
{
	const gradcomp_tensor *t = &eng->layout.tensors[tensor];
	return t->numel ? device_refuse_memory(p, t->name, err) : GRADCOMP_OK;
}

static gradcomp_status follow(const engine *eng, void *queue, const bucket *b, gradcomp_error *err)
{
	(void)eng, (void)queue, (void)b, (void)err;
	return GRADCOMP_OK;
}

static void *passed(const engine *eng, const bucket *b)
{
	(void)eng, (void)b;
	return NULL;
}

static void *full(const engine *eng)
{
	return passed(eng, NULL);
}

static void place(const engine *eng, bucket *b)
{
	(void)eng, (void)b;
}

static void close_nothing(engine *eng)
{
	(void)eng;
}

static const engine_device_calls calls = {.run = engine_do,
                                          .arrays = arrays,
                                          .port = port,
                                          .place = place,
                                          .share = share,
                                          .share_arrays = nothing_of,
                                          .create = create,
                                          .close = close_nothing,
                                          .ready = ready,
                                          .follow = follow,
                                          .join = nothing,
                                          .passed = passed,
                                          .full = full,
                                          .room = nothing_told,
                                          .learn = nothing_told,
                                          .watch = nothing,
                                          .drain = nothing};
const engine_device host_device = {.calls = &calls};
