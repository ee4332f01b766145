/* Does what a reducer with gradients in GPU memory has to do beside the others. */
#include "step/gpu/gpu.h"
#include "step/levels/hierarchical.h"
#include "step/residual_norm.h"

#include "base/error.h"
#include "operators/operator_tables.h"
#include "plugin/compat.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns 1 when the collective takes device memory here. */
static int takes_device(const struct gradcomp_collective_v1 *c)
{
	return c->traits & GRADCOMP_TRAIT_CUDA && !(c->traits & GRADCOMP_TRAIT_ELSE_HOST && c->unusable());
}

/* Returns true when no step needs the host to wait, as far as these two go. */
static bool can_enqueue(const struct gradcomp_compressor_v1 *c, const struct gradcomp_collective_v1 *collective)
{
	return collective->enqueue && collective->watch && (!c->save || c->traits & GRADCOMP_TRAIT_HOLDS);
}

/* Says if the compressor's part can be done on the device. Codes are made where the collective has the floats. */
gpu_mode gpu_mode_of(const config *cf, const struct gradcomp_compressor_v1 *c, uint32_t patterns,
                     const struct gradcomp_collective_v1 *collective, bool levels)
{
	int direct = takes_device(collective);
	if (!(c->traits & GRADCOMP_TRAIT_CUDA))
		return GPU_WHOLE;
	/* Shards are where both levels are, and steps enqueued; what is made of them is verified on the host. */
	if (levels && !(direct && can_enqueue(c, collective) && !config_int(cf, SET_GRADCOMP_VERIFY)))
		return GPU_WHOLE;
	/* A collective on the device merges and codes there, too. */
	if (patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_MERGED) && direct && !can_enqueue(c, collective))
		return GPU_WHOLE;
	if (patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) && direct && !c->code_on)
		return GPU_WHOLE;
	return GPU_ON_DEVICE;
}

/* All ranks' payloads of a flat all-gather go into every node; of shards, or what is coded between nodes alone, 1/n of
 * that does. Sums that nobody chooses from go within nodes first over NCCL itself. */
static bool sends_less_in_levels(const config *cf, const plugin *const p[2])
{
	const struct gradcomp_compressor_v1 *c = p[0]->compressor;
	const struct gradcomp_collective_v1 *l = p[1]->collective;
	uint32_t patterns = compat_patterns(p[0], p[1]);
	bool shards = hierarchical_possible(c, patterns, l);
	return (shards || patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED)) && takes_device(l) &&
	       gpu_mode_of(cf, c, patterns, l, shards) == GPU_ON_DEVICE;
}

gradcomp_status gpu_pair(spec_table *t, const char *compressor, bool levels, const plugin *p[2], const spec *s[2],
                         char **aside, gradcomp_error *err)
{
	const char *why = NULL;
	gradcomp_error inner;
	gradcomp_status st;
	char in_levels[SPEC_NAME_MAX] = "";
	*aside = NULL;
	if (levels && config_is_default(t->config, SET_GRADCOMP_DEVICE_COLLECTIVE))
		compat_levels_on_device(t->config, in_levels);
	if (*in_levels && !spec_table_both(t, compressor, in_levels, p, s, &inner) &&
	    sends_less_in_levels(t->config, p))
		return GRADCOMP_OK;
	st = spec_table_both(t, compressor, config_str(t->config, SET_GRADCOMP_DEVICE_COLLECTIVE), p, s, &inner);
	if (!st && !(p[0]->compressor->traits & GRADCOMP_TRAIT_CUDA))
		return spec_table_both(t, compressor, NULL, p, s, err);
	if (st)
		why = inner.text;
	else if (p[1]->collective->unusable)
		why = p[1]->collective->unusable();
	if (!why)
		return GRADCOMP_OK;
	*aside = strdup(why);
	return spec_table_both(t, compressor, NULL, p, s, err);
}

static gradcomp_status events(gpu *g, gradcomp_error *err)
{
	const char *why = g->d->event(&g->exchanged);
	if (!why)
		why = g->d->event(&g->joined);
	if (!why)
		why = g->d->event(&g->caught_up);
	if (!why)
		why = g->d->timer(&g->clock_event);
	if (!why)
		why = g->d->record(g->clock_event, g->compute);
	if (!why)
		why = g->d->wait(g->clock_event);
	g->clock = clock_now();
	return device_check(why, "an event could not be made", err);
}

static gradcomp_status create(engine *eng, gradcomp_error *err)
{
	gradcomp_error inner = {0};
	gpu *g = gpu_of(eng);
	g->host = eng->job->host;
	g->host.alloc = device_host_alloc;
	g->host.release = device_host_release;
	eng->layout.device = GRADCOMP_CUDA;
	gradcomp_status st = engine_create_instance(eng, &g->host, eng->values, &inner);
	if (st == GRADCOMP_ERR_UNSUPPORTED) {
		log_line(&eng->job->log, GRADCOMP_LOG_INFO, "%s", inner.text);
		eng->layout.device = GRADCOMP_HOST;
		g->mode = GPU_WHOLE;
		st = GRADCOMP_OK;
	}
	return st ? error_set(err, st, "%s", inner.text) : GRADCOMP_OK;
}

/* Device memory, zeroed, and the pinned memory it is read through. */
static const char *pair_of(gpu *g, size_t bytes, void **device, void **pinned)
{
	const char *why = device_arena_alloc(g->device.arena, device, bytes);
	if (!why)
		why = g->d->zero(g->compute, *device, bytes);
	if (!why)
		why = g->d->pin(pinned, bytes);
	if (!why)
		memset(*pinned, 0, bytes);
	return why;
}

/* Makes scratch for any bucket. */
static const char *chunks(engine *eng)
{
	gpu *g = gpu_of(eng);
	for (uint32_t i = 0; i < eng->layout.ntensors; i++)
		g->segments[i] = (gradcomp_segment){.n = eng->layout.tensors[i].numel};
	const size_t bytes = g->ops->tensors_scratch(g->segments, (size_t)eng->layout.ntensors + 1);
	const char *why = device_arena_alloc(g->device.arena, &g->chunks[0], bytes);
	return why ? why : device_arena_alloc(g->device.arena, &g->chunks[1], bytes);
}

/* For what operators find, and what it comes down into. */
static const char *words(engine *eng)
{
	gpu *g = gpu_of(eng);
	size_t bytes = (gpu_exchange_word(eng) + 1) * sizeof(int);
	void *p[2] = {0};
	const char *why = pair_of(g, bytes, &p[0], &p[1]);
	g->words = p[0];
	g->seen = p[1];
	for (int k = 0; !why && k < 2; k++) {
		why = g->d->pin(&p[1], bytes);
		g->steps[k].words = why ? NULL : memset(p[1], 0, bytes);
	}
	return why ? why : chunks(eng);
}

static gradcomp_status share(engine *in, const engine *eng, gradcomp_error *err)
{
	const gpu *of = gpu_of(eng);
	if (of->mode == GPU_WHOLE)
		return GRADCOMP_OK;
	gpu *g = calloc(1, sizeof *g);
	if (!g)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards");
	in->ways.ops = in->ways.whole = &gpu_ops;
	in->ways.device = &g->device;
	g->device.calls = of->device.calls;
	g->of = of;
	g->d = of->d;
	in->arrays.arena = g->device.arena = of->device.arena;
	in->room.wire = &of->wire;
	g->ops = of->ops;
	g->mode = of->mode;
	g->direct = of->direct;
	g->device.enqueues = of->device.enqueues;
	g->compute = g->behind = of->behind;
	g->exchange = of->exchange;
	return GRADCOMP_OK;
}

static gradcomp_status share_arrays(engine *in, uint32_t nbuckets, gradcomp_error *err)
{
	gpu *g = gpu_of(in);
	uint32_t n = in->layout.ntensors;
	g->room = nbuckets;
	g->segments = calloc((size_t)n + 1, sizeof *g->segments);
	const char *why = g->segments ? words(in) : NULL;
	return !g->segments ? error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u tensors", n)
	       : why        ? error_set(err, GRADCOMP_ERR_NOMEM, "no CUDA memory for shards of %u tensors: %s", n, why)
	                    : GRADCOMP_OK;
}

static gradcomp_status arrays(engine *eng, void **given, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	uint32_t n = eng->layout.ntensors;
	const char *why = NULL;
	g->room = n;
	g->passed = calloc(n, sizeof *g->passed);
	g->arrived = calloc(n, sizeof *g->arrived);
	g->averaged = calloc(n, sizeof *g->averaged);
	g->segments = calloc((size_t)n + 1, sizeof *g->segments);
	for (int k = 0; k < 2; k++) {
		g->steps[k].ready = calloc(n, sizeof *g->steps[k].ready);
		g->steps[k].slots = calloc(g->device.enqueues ? n : 1, sizeof *g->steps[k].slots);
	}
	g->placed = calloc(n, sizeof *g->placed);
	g->given = given;
	eng->grads = given;
	if (g->mode == GPU_WHOLE)
		eng->grads = calloc(n, sizeof *eng->grads);
	if (!g->passed || !g->arrived || !g->averaged || !g->segments || !g->placed || !eng->grads ||
	    !g->steps[0].ready || !g->steps[1].ready || !g->steps[0].slots || !g->steps[1].slots)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u tensors", n);
	for (uint32_t i = 0; !why && i < n; i++) {
		why = g->d->event(&g->passed[i]);
		if (!why)
			why = g->d->event(&g->arrived[i]);
		if (!why)
			why = g->d->event(&g->averaged[i]);
		for (int k = 0; !why && k < 2; k++)
			why = g->d->timer(&g->steps[k].ready[i]);
	}
	for (int k = 0; !why && k < 2; k++)
		why = g->d->timer(&g->steps[k].over);
	if (why || g->mode == GPU_WHOLE)
		return device_check(why, "an event could not be made", err);
	why = words(eng);
	if (!why && g->direct) {
		size_t w = gpu_exchange_word(eng);
		g->wire = (memops){g->device.arena, g->exchange,  g->ops,  g->words + w,
		                   g->seen + w,     g->exchanged, g->watch};
		eng->room.wire = &g->wire;
	}
	return why ? error_set(err, GRADCOMP_ERR_NOMEM, "no CUDA memory for a reducer of %u tensors: %s", n, why)
	           : GRADCOMP_OK;
}

static void place(const engine *eng, bucket *b)
{
	const gpu *g = gpu_of(eng);
	if (g->mode == GPU_WHOLE)
		return;
	b->work.device = GRADCOMP_CUDA;
	b->work.operators = g->ops;
	b->work.queue = g->compute;
	b->work.fault = g->words + gpu_bucket_words(b) + WORD_FAULT;
	if (g->device.enqueues && eng->compressor->traits & GRADCOMP_TRAIT_HOLDS)
		b->work.hold = g->words + gpu_bucket_words(b) + WORD_HOLD;
}

/* The least that a sum of so many bytes of 16-bit floats takes; the first one makes connections. */
static gradcomp_status time_sum(engine *eng, void *zeroes, void *const timers[2], size_t bytes, double *least,
                                gradcomp_error *err)
{
	enum { TIMES = 4 };
	static const char what[] = "a sum could not be timed";
	const gpu *g = gpu_of(eng);
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st && k < TIMES; k++) {
		double s = 0;
		st = device_check(g->d->record(timers[0], g->exchange), what, err);
		if (!st)
			st = eng->coll_ctx.collective->allreduce(eng->coll_ctx.instance, zeroes, bytes / 2,
			                                         GRADCOMP_BF16, GRADCOMP_SUM, 1.0, err);
		const char *why = st ? NULL : g->d->record(timers[1], g->exchange);
		if (!st && !why)
			why = g->d->wait(timers[1]);
		if (!st && !why)
			why = g->d->elapsed(timers[0], timers[1], &s);
		st = st ? st : device_check(why, what, err);
		*least = k > 1 ? fmin(*least, s) : s;
	}
	return st;
}

/* Times what others are compared with that send less: sums of two sizes, which a line is laid through, or of the
 * shorter one where that takes so long that it is all bytes. */
static gradcomp_status sums(engine *eng, gradcomp_error *err)
{
	enum { MOST = 4 << 20, PARTS = 16 };
	const double LONG = 0.02;
	gpu *g = gpu_of(eng);
	const uint64_t whole = 2 * eng->layout.numel;
	const size_t most = whole < MOST ? whole : MOST, few = most / PARTS & ~(size_t)1;
	void *timers[2] = {NULL, NULL};
	double first = 0, all = 0;
	if (!few)
		return GRADCOMP_OK;
	const char *why = device_arena_alloc(g->device.arena, &g->zeroes, most);
	if (!why)
		why = g->d->zero(g->exchange, g->zeroes, most);
	for (int k = 0; !why && k < 2; k++)
		why = g->d->timer(&timers[k]);
	gradcomp_status st =
		why ? error_set(err, GRADCOMP_ERR_NOMEM, "no CUDA memory for %zu bytes of zeroes: %s", most, why)
		    : time_sum(eng, g->zeroes, timers, few, &first, err);
	/* All ranks go on with the same. */
	if (!st)
		st = eng->coll_ctx.collective->allreduce(eng->coll_ctx.instance, &first, 1, GRADCOMP_F64, GRADCOMP_MAX,
		                                         1.0, err);
	if (!st && first > LONG)
		g->device.sum_byte_s = first / (double)few;
	else if (!st)
		st = time_sum(eng, g->zeroes, timers, most, &all, err);
	if (!st && first <= LONG) {
		g->device.sum_byte_s = fmax(all - first, 0) / (double)(most - few);
		g->device.sum_s = fmax(first - (double)few * g->device.sum_byte_s, 0);
	}
	for (int k = 0; k < 2; k++)
		g->d->event_free(timers[k]);
	return st;
}

static gradcomp_status port(engine *eng, bool time_sums, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	const struct gradcomp_compressor_v1 *c = eng->compressor;
	gradcomp_status st;
	/* All that has been zeroed so far must be zero before anybody else writes to it. */
	device_arena_flush(g->device.arena);
	if (!g->direct)
		return GRADCOMP_OK;
	st = eng->coll_ctx.collective->set_queue(eng->coll_ctx.instance, g->exchange, err);
	if (!st)
		st = launch_order_join(&g->launches, eng->group, &eng->coll_ctx, g->d, g->exchange, err);
	if (!st)
		st = launch_order_begin(&g->launches, &eng->coll_ctx, g->exchange, false, err);
	if (st)
		return st;
	/* Whatever keeps ranks from meeting on their devices shows now and not in a step. */
	st = eng->coll_ctx.collective->allreduce(eng->coll_ctx.instance, g->words + gpu_exchange_word(eng), 1,
	                                         GRADCOMP_I32, GRADCOMP_SUM, 1.0, err);
	if (!st && time_sums)
		st = sums(eng, err);
	launch_order_end(&g->launches);
	if (!st && gpu_is_coded(eng))
		st = c->code_on(eng->instance, g->ops, g->exchange, g->words + gpu_code_word(eng), err);
	if (!st && g->device.enqueues)
		st = eng->coll_ctx.collective->enqueue(eng->coll_ctx.instance, 1, err);
	return st;
}

static gradcomp_status ready(engine *eng, uint32_t tensor, const void *p, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	const gradcomp_tensor *t = &eng->layout.tensors[tensor];
	gradcomp_status st = device_refuse_capture(g->d, g->producer, t->name, err);
	/* Most gradients are where they were in the step before. */
	if (!st && t->numel && p != g->placed[tensor])
		st = device_refuse_elsewhere(g->d, p, g->device.arena->id, t->name, err);
	if (st)
		return st;
	g->placed[tensor] = p;
	return device_check(g->d->record(gpu_step_of(eng)->ready[tensor], g->producer), "the stream of gradients", err);
}

static gradcomp_status follow(const engine *eng, void *queue, const bucket *b, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	void *event = b ? g->averaged[b->pub.index] : g->joined;
	gradcomp_status st = b ? GRADCOMP_OK : device_check(g->d->record(event, g->behind), "averages", err);
	return st ? st : device_let_follow(g->d, queue ? queue : g->producer, event, err);
}

static gradcomp_status join(engine *eng, gradcomp_error *err)
{
	return device_check(gpu_of(eng)->d->wait(gpu_of(eng)->joined), "a step's end", err);
}

static void close_gpu(engine *eng)
{
	gpu *g = gpu_of(eng);
	launch_order_leave(&g->launches);
	if (g->d) {
		gpu_learn_close(eng);
		for (uint32_t i = 0; g->averaged && i < eng->layout.ntensors; i++)
			g->d->event_free(g->averaged[i]);
		for (uint32_t i = 0; g->arrived && i < eng->layout.ntensors; i++)
			g->d->event_free(g->arrived[i]);
		for (uint32_t i = 0; g->passed && i < eng->layout.ntensors; i++)
			g->d->event_free(g->passed[i]);
		g->d->unpin(g->seen);
	}
	if (g->device.arena) {
		device_arena_release(g->device.arena, g->words);
		device_arena_release(g->device.arena, g->chunks[0]);
		device_arena_release(g->device.arena, g->chunks[1]);
		device_arena_release(g->device.arena, g->zeroes);
	}
	if (g->d && g->device.arena && !g->of) {
		device_arena_flush(g->device.arena);
		g->d->event_free(g->exchanged);
		g->d->event_free(g->joined);
		g->d->event_free(g->caught_up);
		g->d->event_free(g->clock_event);
	}
	for (uint32_t i = 0; i < g->nmirrors; i++)
		workspace_free(&g->mirrors[i]);
	if (!g->of)
		device_arena_close(g->device.arena);
	free(g->mirrors);
	/* Not before gpu_arrays() has been. */
	if (g->mode == GPU_WHOLE && g->given)
		free(eng->grads);
	for (int k = 0; k < 2; k++) {
		free(g->steps[k].ready);
		free(g->steps[k].slots);
	}
	free(g->passed);
	free(g->arrived);
	free(g->averaged);
	free(g->segments);
	free(g->placed);
	free(g);
}

/* Makes the compressor on shards. */
static gradcomp_status create_share(engine *in, const engine *eng, gradcomp_error *err)
{
	const gpu *g = gpu_of(eng);
	return engine_create_instance(in, g->mode == GPU_WHOLE ? &eng->job->host : &g->host, eng->values, err);
}

/* Returns the event of the bucket's work on the compute stream, NULL when it has come. An error counts as the
 * end, which the task then finds. */
static void *passed(const engine *eng, const bucket *b)
{
	const gpu *g = gpu_of(eng);
	void *event = g->passed[b->pub.index];
	int is = 0;
	return g->d->test(event, &is) || is ? NULL : event;
}

static const engine_device_calls calls = {.run = gpu_run,
                                          .arrays = arrays,
                                          .port = port,
                                          .place = place,
                                          .share = share,
                                          .share_arrays = share_arrays,
                                          .create = create_share,
                                          .close = close_gpu,
                                          .ready = ready,
                                          .follow = follow,
                                          .join = join,
                                          .passed = passed,
                                          .full = gpu_learn_full,
                                          .room = gpu_learn_room,
                                          .learn = gpu_learn,
                                          .watch = gpu_watch,
                                          .drain = gpu_drain};

gradcomp_status gpu_open(engine *eng, const struct gradcomp_collective_v1 *collective, bool levels,
                         const gradcomp_reducer_options *o, workspace *workspaces, uint32_t n, gradcomp_error *err)
{
	gradcomp_error inner = {0};
	gradcomp_status st;
	gpu *g = calloc(1, sizeof *g);
	if (!g)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	g->device.calls = &calls;
	eng->ways.device = &g->device;
	device_memory memory = {NULL, o->device_alloc, o->device_release, o->device_ctx};
	g->producer = o->queue;
	st = device_memory_check(&memory, err);
	if (st)
		return st;
	g->d = memory.d = device_open(eng->job->config, &inner);
	if (!g->d)
		return error_set(err, inner.status, "gradients in CUDA memory are not served here: %s", inner.text);
	st = device_arena_open(&memory, &g->device.arena, err);
	if (st)
		return st;
	g->compute = g->device.arena->compute;
	g->behind = g->compute;
	g->exchange = g->device.arena->exchange[0];
	st = events(g, err);
	if (st)
		return st;
	g->mode = gpu_mode_of(eng->job->config, eng->compressor, gpu_patterns(eng), collective, levels);
	if (g->mode == GPU_ON_DEVICE)
		st = create(eng, err);
	if (st)
		return st;
	g->direct = g->mode == GPU_ON_DEVICE && takes_device(collective);
	g->device.enqueues = g->direct && can_enqueue(eng->compressor, collective);
	if (g->device.enqueues)
		g->watch = (device_watch){gpu_look, eng};
	/* Whoever waits for the device, or looks at what tasks make there, counts on one stream. */
	if (g->device.enqueues && !config_int(eng->job->config, SET_GRADCOMP_VERIFY))
		g->behind = g->device.arena->behind;
	g->by_turns = g->behind != g->compute && collective->traits & GRADCOMP_TRAIT_TWO_QUEUES &&
	              (!gpu_is_coded(eng) || eng->compressor->code_layout);
	if (g->mode == GPU_ON_DEVICE) {
		eng->ways.ops = eng->ways.whole = &gpu_ops;
		eng->arrays.arena = g->device.arena;
		g->ops = operators_cuda(&inner);
		if (!g->ops)
			return error_set(err, inner.status, "gradients in CUDA memory are not served here: %s",
			                 inner.text);
	}
	g->mirrors = calloc(n, sizeof *g->mirrors);
	if (!g->mirrors)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	g->nmirrors = n;
	for (uint32_t i = 0; i < n; i++) {
		if (g->mode == GPU_ON_DEVICE)
			workspace_place(&workspaces[i], g->device.arena, false);
		workspace_place(&g->mirrors[i], g->device.arena, true);
		workspaces[i].mirror = &g->mirrors[i];
	}
	if (g->mode == GPU_WHOLE)
		log_line(&eng->job->log, GRADCOMP_LOG_INFO,
		         "'%s' over '%s' works on host memory: gradients go there and come back as a whole",
		         eng->compressor->info.name, collective->info.name);
	else if (!g->direct)
		log_line(&eng->job->log, GRADCOMP_LOG_INFO,
		         "collective '%s' takes no CUDA memory: payloads go through pinned host memory%s",
		         collective->info.name, gpu_is_coded(eng) ? ", and codes are made there" : "");
	return GRADCOMP_OK;
}
