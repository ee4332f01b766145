/* The tasks of a bucket whose gradients are in GPU memory, see gpu.h. */
#include "step/gpu/gpu.h"
#include "step/bucket.h"
#include "step/residual_norm.h"
#include "step/verify.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

/* The task is run again when what is on the stream now is over. */
static gradcomp_status pause_here(engine *eng, bucket *b, void *stream, const char *why, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	if (!why)
		why = g->d->record(g->passed[b->pub.index], stream);
	b->later = why ? 0 : ++gpu_of(eng)->put;
	return device_check(why, "a bucket's work could not be put on its stream", err);
}

static const char *copy_down(const gpu *g, const bucket *b, int *to, const int *from, size_t bytes)
{
	return g->d->copy(b->work.queue, to, from, bytes);
}

/* Lists what the operators of whole buckets go by. With `back`: what FINISH gives them. */
static gradcomp_segment *segments(const engine *eng, const bucket *b, int back)
{
	gradcomp_segment *to = gpu_of(eng)->segments;
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		uint32_t k = b->pub.first + i;
		const gradcomp_tensor *t = &eng->layout.tensors[k];
		to[i] = (gradcomp_segment){.x = b->x[i],
		                           .grad = back && !b->copy_out ? NULL : eng->grads[k],
		                           .error = eng->arrays.memory ? eng->arrays.memory + t->offset : NULL,
		                           .n = t->numel,
		                           .dtype = t->dtype,
		                           .add = !back && eng->arrays.error};
	}
	return to;
}

/* Returns 1 when all lengths are known before anything is sent. */
static int fixed_lengths(const bucket *b)
{
	for (uint32_t k = 0; k < b->plan.nrounds; k++)
		if (b->plan.rounds[k].pattern == GRADCOMP_GATHERED && !(b->plan.rounds[k].flags & GRADCOMP_ROUND_FIXED))
			return 0;
	return 1;
}

/* A payload is the bucket's floats, which show by themselves that one is not finite. */
static int in_place(const bucket *b)
{
	return b->plan.rounds[0].pattern == GRADCOMP_SUMMED && b->plan.rounds[0].flags & GRADCOMP_ROUND_IN_PLACE;
}

static int passes(const engine *eng)
{
	return !!(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE);
}

/* All of x becomes 0 where *by is set, or, if it is NULL, where act `found` has found something. */
static void clear(const engine *eng, const bucket *b, gpu_acts *a, const int *by, uint32_t found)
{
	if (b->work.flat)
		gpu_acts_move(a, b->work.flat, NULL, b->pub.numel, by, found);
	for (uint32_t i = 0; !b->work.flat && i < b->pub.ntensors; i++)
		gpu_acts_move(a, b->x[i], NULL, eng->layout.tensors[b->pub.first + i].numel, by, found);
}

static gradcomp_status grow_kept(const engine *eng, bucket *b, gradcomp_error *err)
{
	return workspace_grow(&b->workspace->kept, (eng->compressor->state_arrays + 1) * b->pub.numel * sizeof(float),
	                      err);
}

static gradcomp_status unreadable(const engine *eng, const bucket *b, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "tensor '%s': its bucket has a type that cannot be read on a CUDA device",
	                 eng->layout.tensors[b->pub.first].name);
}

/* u of a shard is where the node's sums are. */
static gradcomp_status begin_part(engine *in, bucket *part, gradcomp_error *err)
{
	const gpu *g = gpu_of(in);
	const int *whole_words = g->of->words + gpu_bucket_words(part->whole);
	const gpu_found found = gpu_found_of(g->words, part);
	uint32_t n = part->pub.ntensors;
	int *words = found.words;
	gradcomp_status st = bucket_place(in, part, err);
	part->slot = part->whole->slot;
	if (!st && !fixed_lengths(part))
		st = error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"compressor '%s' plans payloads of any length; in GPU memory two levels need such whose length is fixed",
			in->compressor->info.name);
	if (!st)
		st = grow_kept(in, part, err);
	if (st)
		return st;
	const char *why = g->d->zero(g->compute, words, BUCKET_WORDS * sizeof *words);
	if (!why && g->ops->load_tensors(g->compute, segments(in, part, 0), n, found.tensors,
	                                 in->arrays.memory ? found.u : NULL, g->chunks[0]))
		return unreadable(in, part, err);
	if (why)
		return device_check(why, "a shard's work could not be put on its stream", err);
	gpu_acts a = {.ops = g->ops, .stream = g->compute};
	gpu_acts_find(&a, words + WORD_OWN, found.tensors, sizeof *words, n, false);
	gpu_acts_find(&a, words + WORD_ABOVE, whole_words + WORD_BAD, sizeof *words, 1, false);
	const uint32_t local = gpu_acts_find(&a, words + WORD_LOCAL, NULL, 0, 0, true);
	if (in_place(part))
		gpu_acts_find(&a, words + WORD_BAD, whole_words + WORD_BAD, sizeof *words, 1, false);
	else
		clear(in, part, &a, NULL, local);
	gpu_acts_run(&a);
	return GRADCOMP_OK;
}

/* The word that says whether the gradient of this rank is not finite, before ranks have exchanged that. */
static int *own_word(const bucket *b, const gpu_found *found)
{
	return found->words + (b->plan.rounds[0].pattern == GRADCOMP_CODED ? WORD_BAD : WORD_LOCAL);
}

/* What is not finite of a bucket that is enqueued becomes 0 and sets a word as it is loaded, but where sums show it, or
 * where `verify` has to see it. */
static gradcomp_status load(const engine *eng, const bucket *b, const gpu_found *found)
{
	const gpu *g = gpu_of(eng);
	gradcomp_segment *const t = segments(eng, b, 0);
	const bool asks = b->slot && !passes(eng);
	uint32_t n = b->pub.ntensors;
	for (uint32_t i = 0; asks && !in_place(b) && !eng->checks.verify && i < n; i++)
		t[i].add |= GRADCOMP_SEGMENT_FINITE;
	if (asks)
		t[n++] = (gradcomp_segment){.grad = own_word(b, found), .add = GRADCOMP_SEGMENT_ANY};
	return g->ops->load_tensors(g->compute, t, n, found->tensors, eng->arrays.memory ? found->u : NULL,
	                            g->chunks[0]);
}

/* What a bucket begins with comes after all of the step before, and after the bucket that had its workspace. */
static const char *come_behind(engine *eng, const bucket *b)
{
	gpu *g = gpu_of(eng);
	const char *why = NULL;
	if (g->behind == g->compute)
		return NULL;
	if (g->step != eng->step + 1) {
		g->step = eng->step + 1;
		why = g->d->record(g->caught_up, g->behind);
		if (!why)
			why = g->d->follow(g->compute, g->caught_up);
	}
	return why || !b->workspace->over ? why : g->d->follow(g->compute, b->workspace->over);
}

static gradcomp_status begin(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	if (g->of)
		return begin_part(eng, b, err);
	const gpu_step *at = gpu_step_of(eng);
	uint32_t first = b->pub.first, n = b->pub.ntensors;
	const char *why = NULL;
	if (b->later) {
		b->later = 0;
		for (uint32_t i = 0; i < n && !b->local_bad; i++)
			b->local_bad = gpu_found_of(at->words, b).tensors[i] ? (int)i + 1 : 0;
		if (b->local_bad && passes(eng))
			bucket_pass_on(eng, b);
		return GRADCOMP_OK;
	}
	const gpu_found found = gpu_found_of(g->words, b);
	int *words = found.words;
	gradcomp_status st = device_check(come_behind(eng, b), "the step before", err);
	if (!st)
		st = bucket_place(eng, b, err);
	b->slot = NULL;
	if (!st && g->device.enqueues && fixed_lengths(b))
		gpu_learn_begin(eng, b);
	if (!st && b->slot && !b->part)
		st = grow_kept(eng, b, err);
	if (!st && eng->arrays.undo)
		st = engine_keep(eng, b, err);
	if (st)
		return st;
	for (uint32_t i = 0; !why && i < n; i++)
		why = g->d->follow(g->compute, at->ready[first + i]);
	if (!why && b->slot)
		why = gpu_learn_start(eng, b, t);
	if (!why)
		why = g->d->zero(g->compute, words, BUCKET_WORDS * sizeof *words);
	if (!why && load(eng, b, &found))
		st = unreadable(eng, b, err);
	if (!st && !why && eng->checks.verify)
		verify_input(eng, b);
	if (st || why || !b->slot) {
		if (!why && !st)
			why = copy_down(g, b, gpu_found_of(at->words, b).tensors, found.tensors, n * sizeof(int));
		return st ? st : pause_here(eng, b, b->work.queue, why, err);
	}
	if (!passes(eng) && eng->checks.verify && !in_place(b)) {
		gpu_acts a = {.ops = g->ops, .stream = g->compute};
		clear(eng, b, &a, own_word(b, &found), 0);
		gpu_acts_run(&a);
	}
	return GRADCOMP_OK;
}

static gradcomp_status finished(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	const gpu_step *at = gpu_step_of(eng);
	const gpu_found found = gpu_found_of(at->words, b);
	b->later = 0;
	if (found.words[WORD_FAULT] || at->words[gpu_code_word(eng)])
		return bucket_damaged(eng, b, err);
	if (!b->bad && found.words[WORD_SUM]) {
		b->bad = BAD_SUM;
		bucket_tell_overflow(eng, b);
	}
	gpu_learn_norms(eng, &found, b->pub.first, b->bad ? 0 : b->pub.ntensors);
	return device_check(g->d->record(g->averaged[b->pub.index], b->work.queue), "a bucket's end", err);
}

/* Sums pass on what is not finite, and peers send nothing that could be damaged. */
static bool is_never_void(const engine *eng, const bucket *b)
{
	for (uint32_t k = 0; k < b->plan.nrounds; k++)
		if (b->plan.rounds[k].pattern != GRADCOMP_SUMMED)
			return false;
	return b->slot && !b->part && passes(eng);
}

/* The word that says whether the result is NaN. Where finite gradients have overflowed, what lasts becomes 0; where one
 * was not finite, it is as it was. Of sums in place it is not known which. */
static void void_result(engine *eng, bucket *b)
{
	const gpu *g = gpu_of(eng);
	int *words = g->words + gpu_bucket_words(b);
	if (is_never_void(eng, b))
		return;
	gpu_acts a = {.ops = g->ops, .stream = b->work.queue, .word = words + WORD_SUM};
	gpu_acts_find(&a, words + WORD_VOID, words, sizeof *words, VOID_WORDS, false);
	for (uint32_t s = 0; !passes(eng) && s <= eng->compressor->state_arrays && b->plan.nrounds && !in_place(b);
	     s++) {
		float *array = s ? b->state[s - 1] : b->work.error_flat;
		if (array)
			gpu_acts_clear(&a, array, b->pub.numel);
	}
	if (!passes(eng) && b->slot)
		gpu_keep(eng, b, &a, words + WORD_BAD, 1);
	gpu_acts_run(&a);
}

static gradcomp_status finish(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	(void)t;
	const gpu *g = gpu_of(eng);
	gpu_step *at = gpu_step_of(eng);
	const gpu_found found = gpu_found_of(g->words, b);
	const size_t code = gpu_code_word(eng), norms = eng->arrays.memory ? 2 * b->pub.ntensors * sizeof(double) : 0;
	const char *why;
	if (b->later)
		return finished(eng, b, err);
	/* The host knows of a bucket without a slot what the exchange has found. */
	if (b->bad == BAD_SUM)
		g->ops->fill(b->work.queue, (float *)(void *)(found.words + WORD_SUM), 1, 1);
	void_result(eng, b);
	for (uint32_t i = 0; b->bad && i < b->pub.ntensors; i++)
		g->ops->fill(b->work.queue, b->x[i], NAN, eng->layout.tensors[b->pub.first + i].numel);
	g->ops->store_tensors(b->work.queue, segments(eng, b, 1), b->pub.ntensors, found.words + WORD_VOID,
	                      eng->arrays.memory ? found.e : NULL, g->chunks[1]);
	if (eng->checks.verify) {
		verify_output(eng, b);
		verify_result(eng, b);
	}
	why = g->averaged ? g->d->record(g->averaged[b->pub.index], b->work.queue) : NULL;
	if (g->averaged)
		b->workspace->over = g->averaged[b->pub.index];
	if (!why)
		why = copy_down(g, b, gpu_found_of(at->words, b).words, found.words, found.bytes + norms);
	if (!why && b->plan.rounds[0].pattern == GRADCOMP_CODED)
		why = copy_down(g, b, at->words + code, g->words + code, sizeof(int));
	if (!b->slot)
		return pause_here(eng, b, b->work.queue, why, err);
	return device_check(why, "a bucket's end", err);
}

static gradcomp_status down(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	scratch_buf *buf = &b->workspace->mirror->flat;
	uint32_t first = b->pub.first, n = b->pub.ntensors;
	const char *why = NULL;
	size_t at = 0;
	gradcomp_status st = workspace_grow(buf, b->pub.numel * sizeof(float) + n * 64, err);
	for (uint32_t i = first; !st && !why && i < first + n; i++) {
		size_t bytes = eng->layout.tensors[i].numel * gradcomp_dtype_bytes(eng->layout.tensors[i].dtype);
		eng->grads[i] = (char *)buf->p + at;
		at += (bytes + 63) & ~(size_t)63;
		why = g->d->follow(g->compute, gpu_step_of(eng)->ready[i]);
		if (!why)
			why = g->d->copy(g->compute, eng->grads[i], g->given[i], bytes);
	}
	return st ? st : pause_here(eng, b, g->compute, why, err);
}

static gradcomp_status up(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	const char *why = NULL;
	for (uint32_t i = b->pub.first; !why && i < b->pub.first + b->pub.ntensors; i++)
		why = g->d->copy(g->compute, g->given[i], eng->grads[i],
		                 eng->layout.tensors[i].numel * gradcomp_dtype_bytes(eng->layout.tensors[i].dtype));
	if (!why)
		why = g->d->record(g->averaged[b->pub.index], g->compute);
	return pause_here(eng, b, g->compute, why, err);
}

static gradcomp_status whole(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	gradcomp_status st;
	if (t->kind == TASK_BEGIN && !b->later)
		return down(eng, b, err);
	if (t->kind == TASK_FINISH && b->later) {
		b->later = 0;
		return GRADCOMP_OK;
	}
	b->later = 0;
	st = engine_do(eng, b, t, err);
	return st || t->kind != TASK_FINISH ? st : up(eng, b, err);
}

/* Of sums in place: keeps what lasts before anything is decoded, and clears what is not finite, which nobody decodes. */
static void before_decode(const engine *eng, bucket *b, const task *t)
{
	const gpu *g = gpu_of(eng);
	const int *bad = g->words + gpu_bucket_words(b) + WORD_BAD;
	gpu_acts a = {.ops = g->ops, .stream = b->work.queue};
	if (t->round || !in_place(b) || passes(eng))
		return;
	gpu_keep(eng, b, &a, bad, 0);
	clear(eng, b, &a, bad, 0);
	gpu_acts_run(&a);
}

static gradcomp_status decode(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	if (b->slot)
		before_decode(eng, b, t);
	return bucket_decode(eng, b, t, err);
}

const engine_ops gpu_ops = {begin, bucket_encode, gpu_exchange, decode, finish, gpu_announce};

static bool is_behind(const bucket *b, const task *t)
{
	bool exchanged = t->kind == TASK_FINISH;
	for (const task *k = b->tasks; !exchanged && k < t; k++)
		exchanged = task_exchanges(k->kind);
	return exchanged;
}

/* The stream that the task's work goes on comes after what the bucket did on another one. */
static const char *take_stream(const gpu *g, bucket *b, const task *t)
{
	void *const from = b->work.queue;
	const bool begins = t == b->tasks;
	b->work.queue = is_behind(b, t) ? g->behind : g->compute;
	if (!begins && task_exchanges(t[-1].kind))
		return g->direct ? g->d->follow(b->work.queue, g->arrived[b->pub.index]) : NULL;
	return begins || from == b->work.queue ? NULL : g->d->follow(b->work.queue, g->passed[b->pub.index]);
}

/* Puts a task of an enqueued bucket on the device between two timers; BEGIN starts its own, when it has found that
 * the bucket is such a one. */
static gradcomp_status compute(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	const int again = b->later != 0;
	const char *why = take_stream(g, b, t);
	if (!why && t->kind != TASK_BEGIN && b->slot)
		why = gpu_learn_start(eng, b, t);
	gradcomp_status st = why ? device_check(why, "a task's beginning", err) : engine_do(eng, b, t, err);
	if (st || b->later || again || (!b->slot && t->kind == TASK_BEGIN))
		return st;
	if (b->slot)
		why = gpu_learn_end(eng, b, t);
	if (!why && b->slot && t->kind == TASK_FINISH)
		why = g->d->record(gpu_step_of(eng)->over, b->work.queue);
	/* For the exchange thread to come after. */
	if (!why)
		why = g->d->record(g->passed[b->pub.index], b->work.queue);
	return device_check(why, "a bucket's work", err);
}

/* In two levels a turn is all that a bucket exchanges: ranks of a node may have shards of different rounds. */
static void end_turn(gpu *g, bucket *b)
{
	if (b && atomic_compare_exchange_strong(&g->turn_of, &b, NULL))
		launch_order_end(&g->launches);
}

static gradcomp_status begin_turn(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	bool within = b->part && t->kind != TASK_REDUCE_LOCAL;
	if (!within)
		end_turn(g, atomic_load(&g->turn_of));
	gradcomp_status st = launch_order_begin(&g->launches, &eng->coll_ctx, g->exchange, within, err);
	if (!st && !within)
		atomic_store(&g->turn_of, b);
	return st;
}

/* The exchange stream comes after what the bucket's other streams have made of it. */
static gradcomp_status exchange(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	gradcomp_status st = g->by_turns ? gpu_exchange_on(eng, b->pub.index % 2, err) : GRADCOMP_OK;
	if (!st)
		st = device_check(g->d->follow(g->exchange, g->passed[b->pub.index]), "a bucket's work", err);
	if (st)
		return st;
	if (b->slot)
		st = device_check(gpu_learn_start(eng, b, t), "an exchange's beginning", err);
	if (g->device.enqueues)
		g->device.busy = true;
	if (!st && g->direct)
		st = begin_turn(eng, b, t, err);
	if (st)
		return st;
	st = engine_do(eng, b, t, err);
	if (!b->part || t->kind == TASK_ALLGATHER_LOCAL)
		end_turn(g, b);
	if (!st && b->slot)
		st = device_check(gpu_learn_end(eng, b, t), "an exchange's end", err);
	if (st || !g->direct)
		return st;
	return device_check(g->d->record(g->arrived[b->pub.index], g->exchange), "a bucket's work", err);
}

gradcomp_status gpu_run(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	gradcomp_status st = GRADCOMP_OK;
	device_arena_sweep(g->device.arena);
	if (b->later) {
		int is;
		st = device_check(g->d->test(g->passed[b->pub.index], &is), "a bucket's work failed", err);
	}
	if (st) {
		b->later = 0;
		return st;
	}
	if (g->mode == GPU_WHOLE)
		return whole(eng, b, t, err);
	/* One that was given up has not exchanged all. */
	if (t->kind == TASK_FINISH)
		end_turn(g, b);
	st = task_exchanges(t->kind) ? exchange(eng, b, t, err) : compute(eng, b, t, err);
	gradcomp_status launched = gpu_failed(g, st ? NULL : err);
	if (launched)
		b->later = 0;
	return st ? st : launched;
}
