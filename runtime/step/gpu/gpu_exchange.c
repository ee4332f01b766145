/* The EXCHANGE task of a bucket in GPU memory. A collective that takes device memory
 * gets it after the compute stream has made it; for another, payloads are brought into
 * pinned host memory, exchanged there as any, and what came is brought back. */
#include "step/gpu/gpu.h"
#include "step/exchange/exchange.h"

#include "base/error.h"
#include "plugin/code_view.h"

#include <float.h>
#include <math.h>
#include <string.h>

gradcomp_status gpu_exchange_on(engine *eng, uint32_t stream, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	void *const to = g->device.arena->exchange[stream];
	if (to == g->exchange)
		return GRADCOMP_OK;
	g->exchange = g->wire.stream = to;
	for (engine *in = eng->list.shards; in; in = in->next)
		gpu_of(in)->exchange = to;
	gradcomp_status st = eng->coll_ctx.collective->set_queue(eng->coll_ctx.instance, to, err);
	if (!st && gpu_is_coded(eng))
		st = eng->compressor->code_on(eng->instance, g->ops, to, g->words + gpu_code_word(eng), err);
	return st;
}

static gradcomp_status look_after(engine *eng, int *busy, gradcomp_error *err)
{
	return eng->coll_ctx.collective->watch(eng->coll_ctx.instance, busy, err);
}

gradcomp_status gpu_watch(engine *eng, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	int busy = g->device.busy;
	if (!g->device.enqueues)
		return GRADCOMP_OK;
	gradcomp_status st = look_after(eng, &busy, err);
	g->device.busy = busy;
	return st;
}

gradcomp_status gpu_look(void *eng, gradcomp_error *err)
{
	int busy;
	return look_after(eng, &busy, err);
}

/* Returns when what is on the exchange stream has been done, or the collective has failed; at once with
 * `why`, what the device said of a call before. A stream whose peer has died comes to an end only when the
 * collective is looked after. */
static gradcomp_status settle(const engine *eng, const char *why, const char *what, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	return why ? device_check(why, what, err)
	           : device_arena_settle(g->device.arena, g->exchange, g->exchanged, &g->watch, what, err);
}

static gradcomp_status look_busy(void *ctx, gradcomp_error *err)
{
	return gpu_watch(ctx, err);
}

gradcomp_status gpu_drain(engine *eng, gradcomp_error *err)
{
	return device_arena_drain(eng->ways.device->arena, &(device_watch){look_busy, eng}, err);
}

/* exchange_merge() on the device, of payloads in host memory; what it makes has come when the call returns. */
static gradcomp_status merge(const engine *eng, const gradcomp_work *work, uint32_t round, const gradcomp_payload *a,
                             const gradcomp_payload *b, gradcomp_payload *out, gradcomp_error *err)
{
	static const char what[] = "payloads could not be merged on the device";
	const gpu *g = gpu_of(eng);
	char *there = g->merge_there, *here = g->merge_here;
	size_t stride = g->merge_stride, bytes = a->bytes;
	const gradcomp_payload x = {there, bytes, bytes}, y = {there + stride, bytes, bytes};
	gradcomp_payload sum = {there + 2 * stride, bytes, bytes};
	gradcomp_work on = *work;
	gradcomp_status st;
	on.queue = g->exchange;
	memcpy(here, a->data, bytes);
	memcpy(here + stride, b->data, bytes);
	st = device_check(g->d->copy(g->exchange, there, here, stride + bytes), what, err);
	if (!st)
		st = engine_merge(eng, &on, round, &x, &y, &sum, err);
	if (!st)
		st = gpu_failed(g, err);
	if (!st)
		st = settle(eng, g->d->copy(g->exchange, here + 2 * stride, sum.data, bytes), what, err);
	if (!st)
		memcpy(out->data, here + 2 * stride, bytes);
	out->bytes = sum.bytes;
	return st;
}

static gradcomp_status merge_room(engine *eng, const bucket *b, uint64_t bound, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	scratch_buf *there = &b->workspace->gathered, *here = &b->workspace->mirror->gathered;
	gradcomp_status st;
	g->merge_stride = (size_t)(bound + 63) & ~(size_t)63;
	st = workspace_grow(there, 3 * g->merge_stride, err);
	if (!st)
		st = workspace_grow(here, 3 * g->merge_stride, err);
	g->merge_there = there->p;
	g->merge_here = here->p;
	return st;
}

/* The bucket's floats are coded on the host, and what that loses is noted there; both come up. */
static gradcomp_status coded_on_host(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
{
	static const char what[] = "a bucket could not be moved";
	const gpu *g = gpu_of(eng);
	workspace *mirror = b->workspace->mirror;
	size_t bytes = b->pub.numel * sizeof(float);
	const char *why = NULL;
	bucket view = *b;
	gradcomp_status st = workspace_grow(&mirror->own, bytes + 1, err);
	if (!st && b->work.error_flat)
		st = workspace_grow(&mirror->gathered, bytes + 1, err);
	if (st)
		return st;
	view.workspace = mirror;
	view.work.flat = mirror->own.p;
	view.work.error_flat = b->work.error_flat ? mirror->gathered.p : NULL;
	st = settle(eng, g->d->copy(g->exchange, view.work.flat, b->work.flat, bytes), what, err);
	if (!st)
		st = exchange_run(eng, &view, round, merge, err);
	b->bad = view.bad;
	if (st || b->bad)
		return st;
	b->own = (gradcomp_payload){b->work.flat, bytes, bytes};
	if (b->work.error_flat)
		why = g->d->copy(g->exchange, b->work.error_flat, view.work.error_flat, bytes);
	if (!why)
		why = g->d->copy(g->exchange, b->work.flat, view.work.flat, bytes);
	return settle(eng, why, what, err);
}

/* Where what a round sends is, and how much; what comes back takes as much, or with
 * gathered payloads all of `gathered`. */
static gradcomp_status through_host(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	const gradcomp_round *rd = &b->plan.rounds[round];
	workspace *mirror = b->workspace->mirror;
	bucket view = *b;
	int gathers = rd->pattern == GRADCOMP_GATHERED, merges = rd->pattern == GRADCOMP_MERGED;
	int fixed = gathers && rd->flags & GRADCOMP_ROUND_FIXED, in_place = !!(rd->flags & GRADCOMP_ROUND_IN_PLACE);
	size_t stride = payload_fixed_stride(eng, rd->bound), size = gradcomp_dtype_bytes(rd->dtype);
	void *own = in_place ? b->work.flat : b->own.data;
	static const char what[] = "a payload could not be moved";
	size_t bytes = in_place ? b->pub.numel * sizeof(float) : gathers || merges ? b->own.bytes : rd->count * size;
	size_t room = fixed    ? stride * (size_t)eng->layout.nranks
	              : merges ? merged_bytes(rd->bound)
	                       : bytes + SUMMED_MARKS * size;
	scratch_buf *buf = fixed ? &mirror->gathered : &mirror->own;
	gradcomp_status st = workspace_grow(buf, room, err);
	if (!st && merges)
		st = merge_room(eng, b, rd->bound, err);
	if (st)
		return st;
	view.workspace = mirror;
	view.own.data = fixed    ? (char *)buf->p + (size_t)eng->layout.rank * stride + PAYLOAD_HEAD
	                : merges ? (char *)buf->p + PAYLOAD_HEAD
	                         : buf->p;
	if (in_place)
		view.work.flat = buf->p;
	/* Nothing was encoded of a gradient that is not finite. */
	st = settle(eng, b->local_bad && !in_place ? NULL : g->d->copy(g->exchange, view.own.data, own, bytes), what,
	            err);
	if (!st)
		st = exchange_run(eng, &view, round, merge, err);
	b->bad = view.bad;
	if (st || b->bad)
		return st;
	if (!gathers) {
		b->own = (gradcomp_payload){own, bytes, bytes};
		return settle(eng, g->d->copy(g->exchange, own, view.own.data, bytes), what, err);
	}
	size_t all = 0;
	for (int p = 0; p < eng->layout.nranks; p++) {
		size_t end = (size_t)((char *)b->parts[p].data - (char *)mirror->gathered.p) + b->parts[p].bytes;
		all = end > all ? end : all;
	}
	st = workspace_grow(&b->workspace->gathered, all, err);
	for (int p = 0; !st && p < eng->layout.nranks; p++)
		b->parts[p].data =
			(char *)b->workspace->gathered.p + ((char *)b->parts[p].data - (char *)mirror->gathered.p);
	return st ? st
	          : settle(eng, g->d->copy(g->exchange, b->workspace->gathered.p, mirror->gathered.p, all), what, err);
}

void gpu_keep(const engine *eng, bucket *b, gpu_acts *a, const int *by, int restore)
{
	float *kept = b->workspace->kept.p;
	for (uint32_t s = 0; s <= eng->compressor->state_arrays; s++) {
		float *array = s ? b->state[s - 1] : b->work.error_flat;
		if (!array)
			continue;
		gpu_acts_move(a, restore ? array : kept, restore ? kept : array, b->pub.numel, by, 0);
		kept += b->pub.numel;
	}
}

/* What summed() and its like leave to be found in *a, if anything: first whether a rank's gradient is not finite, then
 * whether a sum is not. */
static gradcomp_status summed(engine *eng, bucket *b, uint32_t round, int *words, gpu_acts *a, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	const gradcomp_round *rd = &b->plan.rounds[round];
	double scale = rd->flags & GRADCOMP_ROUND_MEAN ? 1.0 / eng->layout.nranks : 1.0;
	int passes = !!(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE);
	size_t size = gradcomp_dtype_bytes(rd->dtype);
	gradcomp_status st;
	if (rd->flags & GRADCOMP_ROUND_IN_PLACE) {
		st = c->allreduce(eng->coll_ctx.instance, b->work.flat, rd->count, GRADCOMP_F32, GRADCOMP_SUM, scale,
		                  err);
		b->own = (gradcomp_payload){b->work.flat, rd->count * 4, rd->count * 4};
		if (!st && !passes) {
			g->ops->nonfinite(g->exchange, b->work.flat, b->pub.numel, words + WORD_SUM);
			g->ops->any_set(g->exchange, words + WORD_BAD, words, sizeof *words, sizeof *words, VOID_WORDS);
		}
		return st;
	}
	char *flag = (char *)b->own.data + rd->count * size;
	int flagged = round == 0 && !passes;
	if (flagged)
		g->ops->put_flag(g->exchange, flag, rd->dtype, words + WORD_LOCAL);
	if (!passes && rd->dtype == GRADCOMP_F32 && rd->count)
		g->ops->fill_if(g->exchange, b->own.data, NAN, 1, words + WORD_SUM);
	st = c->allreduce(eng->coll_ctx.instance, b->own.data, rd->count + (uint64_t)flagged, rd->dtype, GRADCOMP_SUM,
	                  scale, err);
	if (!st && flagged && size % sizeof(int))
		g->ops->any_set(g->exchange, words + WORD_BAD, flag, size, size, 1);
	else if (!st && flagged)
		gpu_acts_find(a, words + WORD_BAD, flag, sizeof(int), size / sizeof(int), false);
	if (!st && !passes && rd->dtype == GRADCOMP_F32)
		g->ops->range_check(g->exchange, words + WORD_SUM, b->own.data, rd->count, -FLT_MAX, FLT_MAX);
	return st;
}

/* The head of what this rank sends, and what those of n ranks say, `stride` apart: whether finite gradients have
 * overflowed, and whether one was not finite. */
enum { HEAD_FLAGS = PAYLOAD_HEAD / sizeof(int32_t) };

static void put_head(const gpu *g, char *head, const int *words)
{
	_Static_assert(WORD_LOCAL == WORD_SUM + 1 && sizeof *words == sizeof(int32_t), "both in one copy");
	g->ops->copy(g->exchange, head, words + WORD_SUM, PAYLOAD_HEAD);
}

static void read_heads(const engine *eng, const char *heads, size_t stride, size_t n, int *words, gpu_acts *a)
{
	if (eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE)
		return;
	gpu_acts_find(a, words + WORD_BAD, heads + sizeof(int32_t), stride, n, false);
	gpu_acts_find(a, words + WORD_SUM, heads, stride, n, false);
}

/* All lengths are known, so the head says no more than what is void. */
static gradcomp_status gathered(engine *eng, bucket *b, uint32_t round, int *words, gpu_acts *a, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	const gradcomp_round *rd = &b->plan.rounds[round];
	size_t stride = payload_fixed_stride(eng, rd->bound), written = PAYLOAD_HEAD + rd->bound,
	       P = (size_t)eng->layout.nranks;
	char *buf = b->workspace->gathered.p, *own = buf + (size_t)eng->layout.rank * stride;
	gradcomp_status st;
	put_head(g, own, words);
	for (size_t p = 0; p < P; p++)
		eng->room.lengths[p] = stride;
	st = memops_zero(eng, own + written, stride - written, err);
	if (!st)
		st = exchange_blocks(eng, buf, eng->room.lengths, err);
	if (!st)
		read_heads(eng, buf, stride, P, words, a);
	for (size_t p = 0; p < P; p++)
		b->parts[p] = (gradcomp_payload){buf + p * stride + PAYLOAD_HEAD, rd->bound, rd->bound};
	return st;
}

typedef struct merging {
	engine *eng;
	gradcomp_work work; /* the bucket's, on the exchange stream */
	uint32_t round;
	uint64_t bound;
} merging;

/* Heads say what is void; a gradient that was not finite has become 0. */
static gradcomp_status merge_two(void *ctx, const gradcomp_payload *a, const gradcomp_payload *b, gradcomp_payload *out,
                                 gradcomp_error *err)
{
	const merging *m = ctx;
	const gradcomp_operators *op = m->work.operators;
	void *queue = m->work.queue;
	uint64_t bound = m->bound, padding = out->bytes - PAYLOAD_HEAD - bound;
	gradcomp_payload x = {(char *)a->data + PAYLOAD_HEAD, bound, bound},
			 y = {(char *)b->data + PAYLOAD_HEAD, bound, bound},
			 sum = {(char *)out->data + PAYLOAD_HEAD, bound, bound};
	gradcomp_status st;
	op->copy(queue, out->data, a->data, PAYLOAD_HEAD);
	st = op->reduce(queue, out->data, b->data, HEAD_FLAGS, GRADCOMP_I32, GRADCOMP_MAX);
	if (!st && padding)
		st = memops_zero(m->eng, (char *)sum.data + bound, padding, err);
	if (!st)
		st = engine_merge(m->eng, &m->work, m->round, &x, &y, &sum, err);
	if (!st && sum.bytes != bound)
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "compressor '%s' merged to %llu bytes where it planned %llu",
		               m->eng->compressor->info.name, (unsigned long long)sum.bytes, (unsigned long long)bound);
	return st;
}

static gradcomp_status merged(engine *eng, bucket *b, uint32_t round, int *words, gpu_acts *a, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	merging m = {.eng = eng, .work = b->work, .round = round, .bound = b->plan.rounds[round].bound};
	gradcomp_merger merger = {.struct_size = sizeof merger, .ctx = &m, .merge = merge_two};
	uint64_t bytes = merged_bytes(m.bound), padding = bytes - PAYLOAD_HEAD - m.bound;
	char *head = (char *)b->own.data - PAYLOAD_HEAD;
	gradcomp_payload whole = {head, bytes, bytes};
	gradcomp_status st = GRADCOMP_OK;
	m.work.queue = g->exchange;
	put_head(g, head, words);
	if (padding)
		st = memops_zero(eng, (char *)b->own.data + m.bound, padding, err);
	if (!st)
		st = eng->coll_ctx.collective->merge(eng->coll_ctx.instance, &whole, bytes, &merger, err);
	if (!st)
		read_heads(eng, head, PAYLOAD_HEAD, 1, words, a);
	return st;
}

static gradcomp_status coded(engine *eng, bucket *b, int *words, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	code_source source = {eng->compressor, eng->instance};
	const gradcomp_codec codec = code_view(&source);
	uint64_t n = b->pub.numel;
	int passes = !!(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE);
	gradcomp_status st = GRADCOMP_OK;
	b->own = (gradcomp_payload){b->work.flat, n * sizeof(float), n * sizeof(float)};
	if (!passes) {
		st = c->allreduce(eng->coll_ctx.instance, words + WORD_BAD, 1, GRADCOMP_I32, GRADCOMP_SUM, 1.0, err);
		gpu_acts a = {.ops = g->ops, .stream = g->exchange};
		gpu_keep(eng, b, &a, words + WORD_BAD, 0);
		gpu_acts_run(&a);
	}
	if (!st)
		st = c->coded_allreduce(eng->coll_ctx.instance, b->work.flat, n, 1.0 / eng->layout.nranks, &codec,
		                        exchange_counter(eng, b), b->work.error_flat, err);
	if (!st && !passes)
		g->ops->nonfinite(g->exchange, b->work.flat, n, words + WORD_SUM);
	return st;
}

/* What comes behind a round in one pass: what it has left to be found, gradcomp_work.hold, and what lasts is kept before
 * anything is decoded. */
static void find_and_keep(const engine *eng, bucket *b, uint32_t round, int *words, gpu_acts *a)
{
	const gradcomp_round *rd = &b->plan.rounds[round];
	const bool keeps = !round && rd->pattern != GRADCOMP_CODED && !(rd->flags & GRADCOMP_ROUND_IN_PLACE) &&
	                   !(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE);
	const uint32_t found = a->finders;
	/* Beside what has been found: the other words, which are not written in this pass. */
	_Static_assert(WORD_BAD == 0 && WORD_FAULT == 1 && WORD_SUM == 2 && VOID_WORDS == 3, "the words stand so");
	if (b->work.hold)
		gpu_acts_find(a, words + WORD_HOLD, words + (found ? WORD_FAULT : WORD_BAD), sizeof *words,
		              VOID_WORDS - found, true);
	if (keeps)
		gpu_keep(eng, b, a, found ? NULL : words + WORD_BAD, 0);
	gpu_acts_run(a);
}

static gradcomp_status carry(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	int *words = g->words + gpu_bucket_words(b);
	gpu_acts a = {.ops = g->ops, .stream = g->exchange};
	gradcomp_pattern pattern = b->plan.rounds[round].pattern;
	gradcomp_status st = pattern == GRADCOMP_SUMMED     ? summed(eng, b, round, words, &a, err)
	                     : pattern == GRADCOMP_GATHERED ? gathered(eng, b, round, words, &a, err)
	                     : pattern == GRADCOMP_MERGED   ? merged(eng, b, round, words, &a, err)
	                                                    : coded(eng, b, words, err);
	find_and_keep(eng, b, round, words, &a);
	return st;
}

/* Tells the host what encode() has found to overflow on the device. */
static gradcomp_status ask_overflow(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	size_t at = gpu_bucket_words(b) + WORD_SUM;
	gradcomp_status st = settle(eng, g->d->copy(g->exchange, g->seen + at, g->words + at, sizeof(int)),
	                            "what an encoding says could not be read", err);
	if (!st && g->seen[at] && !b->local_bad)
		b->local_bad = LOCAL_OVERFLOW;
	return st;
}

gradcomp_status gpu_announce(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	int *words = g->words + gpu_bucket_words(b);
	g->ops->put_flag(g->exchange, words + WORD_BAD, GRADCOMP_I32, words + WORD_LOCAL);
	return eng->coll_ctx.collective->allreduce(eng->coll_ctx.instance, words + WORD_BAD, 1, GRADCOMP_I32,
	                                           GRADCOMP_SUM, 1.0, err);
}

gradcomp_status gpu_exchange(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	const gradcomp_pattern pattern = b->plan.rounds[t->round].pattern;
	gradcomp_status st = GRADCOMP_OK;
	if (b->slot)
		return carry(eng, b, t->round, err);
	if (pattern != GRADCOMP_CODED)
		st = ask_overflow(eng, b, err);
	if (st)
		return st;
	if (gpu_of(eng)->direct)
		return exchange_run(eng, b, t->round, engine_merge, err);
	return pattern == GRADCOMP_CODED ? coded_on_host(eng, b, t->round, err) : through_host(eng, b, t->round, err);
}
