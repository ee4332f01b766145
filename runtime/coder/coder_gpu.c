/* Calls of a coder on the device. See coder_gpu.h. */
#include "coder/coder_gpu.h"

#include "base/error.h"
#include "operators/operator_tables.h"
#include "plugin/code_view.h"
#include "trace/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No call takes more runs. */
#define RUN_BITS 24
/* A flag of a rank's, alone where NCCL reads well. */
#define FLAG_INTS 16
#define AHEAD 6
#define NOTES (AHEAD + 2)
#define TELL_MOST 5

/* NCCL adds up the first. */
enum {
	WORD_BAD,   /* something that a rank gave is not finite */
	WORD_FAULT, /* something that peers sent is not what it should be */
	WORD_VOID,  /* either */
	WORD_LOST,  /* the residual is not finite */
	WORD_LOCAL, /* something that this rank gave is not finite */
	WORDS = 16
};

/* A call leaves this for the host to learn. */
typedef struct note {
	int *words;          /* pinned */
	void *began, *ended; /* timers */
	coder_kind kind;
	uint32_t slot_number;
	uint64_t call;
	double bytes;
} note;

typedef struct growing {
	void *p;
	size_t bytes;
} growing;

struct coder_gpu {
	launcher launches;
	const device_calls *d;
	device_memory memory;
	const gradcomp_operators *ops;
	gradcomp_host host;
	int id;
	void *stream, *producer, *settled; /* ours, the caller's; an event */
	void **events;                     /* free ones of calls; under the lock */
	size_t nevents, room;
	uint64_t unclaimed; /* events that calls have: those that have not been waited for; under the lock */
	uint64_t *lengths;  /* each rank's */
	int *words;
	growing work, kept, flags; /* floats of a 16-bit type's; a residual as it was; by rank */
	note notes[NOTES];
	uint64_t put, learned; /* notes so far */
	void *last;            /* the timer that the host's clock was `clock` at */
	double clock;
	int told;
};

/* The functions below are for what the host learns. */

static gradcomp_status learn(gradcomp_coder *c, const note *n, gradcomp_error *err)
{
	coder_gpu *g = c->gpu;
	double before = 0, took = 0;
	if (n->words[WORD_FAULT])
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "coder '%s': what a rank sent in call %llu (%s) is damaged, or coded otherwise",
		                 c->name, (unsigned long long)n->call, coder_kind_name(n->kind));
	gradcomp_status st = device_check(g->d->elapsed(g->last, n->began, &before), "the time of a call", err);
	if (!st)
		st = device_check(g->d->elapsed(n->began, n->ended, &took), "the time of a call", err);
	if (st)
		return st;
	if (c->trace)
		trace_add(c->trace, &(trace_event){.start = g->clock + before,
		                                   .end = g->clock + before + took,
		                                   .step = n->call,
		                                   .bytes = (uint64_t)n->bytes,
		                                   .index = n->slot_number,
		                                   .reducer = c->trace_id,
		                                   .what = n->kind == CODER_REDUCE_SCATTER ? TRACE_REDUCE_SCATTER
		                                                                           : TRACE_ALL_GATHER});
	g->last = n->ended;
	g->clock += before + took;
	c->stats.exchange_s += took;
	c->stats.nonfinite += n->words[WORD_BAD] != 0;
	if (n->words[WORD_LOCAL] && g->told < TELL_MOST && ++g->told)
		log_line(&c->job->log, GRADCOMP_LOG_INFO,
		         "coder '%s': rank %d has a NaN or Inf in what it gave to a %s; %s NaN on all ranks%s", c->name,
		         c->job->rank, coder_kind_name(n->kind),
		         n->kind == CODER_ALL_GATHER ? "its block is" : "the result is",
		         g->told == TELL_MOST ? " (not told again)" : "");
	return GRADCOMP_OK;
}

gradcomp_status coder_gpu_watch(gradcomp_coder *c, bool *busy, gradcomp_error *err)
{
	coder_gpu *g = c->gpu;
	int is = 1, owes;
	gradcomp_status st = c->parts.collective->watch(c->coll_ctx.instance, &owes, err);
	while (!st && is && g->learned < g->put) {
		const note *n = &g->notes[g->learned % NOTES];
		st = device_check(g->d->test(n->ended, &is), "a call's end", err);
		if (!st && is) {
			st = learn(c, n, err);
			g->learned++;
		}
	}
	*busy = !st && g->learned < g->put;
	return st;
}

static gradcomp_status look(void *coder, gradcomp_error *err)
{
	bool busy;
	return coder_gpu_watch(coder, &busy, err);
}

static gradcomp_status look_locked(void *coder, gradcomp_error *err)
{
	gradcomp_coder *c = coder;
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = look(c, err);
	pthread_mutex_unlock(&c->lock);
	return st;
}

/* Waits until at most `most` calls are ahead of the host. */
static gradcomp_status catch_up(gradcomp_coder *c, uint64_t most, gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	gradcomp_status st = GRADCOMP_OK;
	while (!st && g->put - g->learned > most) {
		st = device_await(g->d, g->notes[(g->put - most - 1) % NOTES].ended, &(device_watch){look_locked, c},
		                  "a call's end", err);
		if (!st)
			st = look_locked(c, err);
	}
	return st;
}

gradcomp_status coder_gpu_settle(gradcomp_coder *c, gradcomp_error *err)
{
	static const char what[] = "the end of its work";
	const coder_gpu *g = c->gpu;
	gradcomp_status st = device_check(g->d->record(g->settled, g->stream), what, err);
	return st ? st : device_await(g->d, g->settled, &(device_watch){look, c}, what, err);
}

static gradcomp_status take(gradcomp_coder *c, void **p, size_t bytes, gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	const char *why = device_memory_take(&g->memory, p, bytes, g->stream);
	return why ? error_set(err, GRADCOMP_ERR_NOMEM, "coder '%s': no CUDA memory for %zu bytes: %s", c->name, bytes,
	                       why)
	           : GRADCOMP_OK;
}

/* Makes room for so many bytes; what is there is lost. */
static gradcomp_status reserve(gradcomp_coder *c, growing *m, size_t bytes, gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	if (bytes <= m->bytes)
		return GRADCOMP_OK;
	gradcomp_status st = catch_up(c, 0, err);
	if (st)
		return st;
	device_memory_give_back(&g->memory, m->p);
	*m = (growing){NULL, 0};
	st = take(c, &m->p, bytes, err);
	m->bytes = st ? 0 : bytes;
	return st;
}

static gradcomp_status fill_slot(gradcomp_coder *c, coder_slot *s, gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	size_t bytes = (s->total + 1) * sizeof *s->e;
	void *p = NULL;
	if (s->e)
		return GRADCOMP_OK;
	const char *why = device_memory_take(&g->memory, &p, bytes, g->stream);
	if (!why)
		why = g->d->zero(g->stream, p, bytes);
	s->memory = &g->memory;
	s->e = p;
	return why ? error_set(err, GRADCOMP_ERR_NOMEM,
	                       "coder '%s': no CUDA memory for the %llu numbers of slot %u: %s", c->name,
	                       (unsigned long long)s->total, s->number, why)
	           : GRADCOMP_OK;
}

gradcomp_status coder_gpu_read_slot(gradcomp_coder *c, const coder_slot *s, float *to, gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	size_t bytes = s->total * sizeof *s->e;
	if (!s->e) {
		memset(to, 0, bytes);
		return GRADCOMP_OK;
	}
	gradcomp_status st = coder_gpu_settle(c, err);
	if (!st)
		st = device_check(g->d->copy(g->stream, to, s->e, bytes), "a residual could not be copied", err);
	return st ? st : coder_gpu_settle(c, err);
}

gradcomp_status coder_gpu_move_slot(gradcomp_coder *c, coder_slot *s, gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	float *from = s->e;
	s->e = NULL;
	gradcomp_status st = fill_slot(c, s, err);
	if (!st)
		st = device_check(g->d->copy(g->stream, s->e, from, s->total * sizeof *from),
		                  "a residual could not be copied", err);
	if (!st)
		st = coder_gpu_settle(c, err);
	free(from);
	return st;
}

static const char *open_notes(coder_gpu *g)
{
	const char *why = NULL;
	for (int k = 0; !why && k < NOTES; k++) {
		void *p = NULL;
		why = g->d->pin(&p, WORDS * sizeof(int));
		g->notes[k].words = p;
		if (!why)
			why = g->d->timer(&g->notes[k].began);
		if (!why)
			why = g->d->timer(&g->notes[k].ended);
	}
	return why;
}

gradcomp_status coder_gpu_open(gradcomp_coder *c, const gradcomp_coder_options *o, gradcomp_error *err)
{
	coder_gpu *g = c->gpu = calloc(1, sizeof *g);
	void *p = NULL;
	if (!g)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a coder");
	g->lengths = calloc((size_t)c->layout.nranks, sizeof *g->lengths);
	if (!g->lengths)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a coder");
	g->producer = o->queue;
	g->memory = (device_memory){NULL, o->device_alloc, o->device_release, o->device_ctx};
	gradcomp_status st = operators_on_device(c->job->config, "shards", &g->memory, &g->ops, err);
	g->d = g->memory.d;
	if (st)
		return st;
	g->host = c->job->host;
	g->host.alloc = device_host_alloc;
	g->host.release = device_host_release;
	c->layout.device = GRADCOMP_CUDA;
	const char *why = g->d->current(&g->id);
	if (!why)
		why = g->d->stream(&g->stream, 1);
	if (!why)
		why = g->d->event(&g->settled);
	st = device_check(why, "what a coder needs of it could not be had", err);
	if (!st)
		st = take(c, &p, WORDS * sizeof(int), err);
	if (st)
		return st;
	g->words = p;
	why = g->d->zero(g->stream, g->words, WORDS * sizeof(int));
	if (!why)
		why = open_notes(g);
	/* The last note is the first one's clock. */
	g->last = g->notes[NOTES - 1].ended;
	if (!why)
		why = g->d->record(g->last, g->stream);
	if (!why)
		why = g->d->wait(g->last);
	g->clock = clock_now();
	return device_check(why, "what a coder needs of it could not be had", err);
}

gradcomp_status coder_gpu_begin(gradcomp_coder *c, gradcomp_error *err)
{
	coder_gpu *g = c->gpu;
	const struct gradcomp_collective_v1 *k = c->parts.collective;
	gradcomp_status st = k->set_queue(c->coll_ctx.instance, g->stream, err);
	if (!st)
		st = launch_order_join(&g->launches, c->group, &c->coll_ctx, g->d, g->stream, err);
	if (!st)
		st = launch_order_begin(&g->launches, &c->coll_ctx, g->stream, false, err);
	if (st)
		return st;
	/* Whatever keeps ranks from meeting on their devices shows now and not in a call. */
	st = k->allreduce(c->coll_ctx.instance, g->words, 1, GRADCOMP_I32, GRADCOMP_SUM, 1.0, err);
	launch_order_end(&g->launches);
	return st ? st : k->enqueue(c->coll_ctx.instance, 1, err);
}

const device_memory *coder_gpu_memory(const gradcomp_coder *c)
{
	return &c->gpu->memory;
}

void coder_gpu_bind(gradcomp_coder *c)
{
	c->gpu->d->use(c->gpu->id);
}

gradcomp_status coder_gpu_instance(gradcomp_coder *c, gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	gradcomp_status st = coder_instance(&c->parts, &g->host, &c->layout, &c->instance, err);
	return st ? st : c->parts.compressor->code_on(c->instance, g->ops, g->stream, g->words + WORD_FAULT, err);
}

void coder_gpu_drain(const gradcomp_coder *c)
{
	if (c->gpu->d)
		device_drain(c->gpu->d, &c->gpu->stream, 1);
}

void coder_gpu_close(gradcomp_coder *c)
{
	coder_gpu *g = c->gpu;
	launch_order_leave(&g->launches);
	free(g->lengths);
	if (!g->d) {
		free(g);
		return;
	}
	for (int k = 0; k < NOTES; k++) {
		g->d->unpin(g->notes[k].words);
		g->d->event_free(g->notes[k].began);
		g->d->event_free(g->notes[k].ended);
	}
	while (g->nevents)
		g->d->event_free(g->events[--g->nevents]);
	free(g->events);
	g->d->event_free(g->settled);
	device_memory_give_back(&g->memory, g->words);
	device_memory_give_back(&g->memory, g->work.p);
	device_memory_give_back(&g->memory, g->kept.p);
	device_memory_give_back(&g->memory, g->flags.p);
	g->d->stream_free(g->stream);
	free(g);
}

/* Events are kept: there is room for all that calls have. */
static gradcomp_status take_event(coder_gpu *g, uint64_t inflight, void **event, gradcomp_error *err)
{
	if (g->nevents) {
		*event = g->events[--g->nevents];
		return GRADCOMP_OK;
	}
	if (inflight >= g->room) {
		size_t room = 2 * (size_t)inflight + 8;
		void **more = realloc(g->events, room * sizeof *more);
		if (!more)
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a call");
		g->events = more;
		g->room = room;
	}
	return device_check(g->d->event(event), "an event could not be made", err);
}

gradcomp_status coder_gpu_check(const gradcomp_coder *c, const void *p, const char *argument, coder_kind kind,
                                gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	int on;
	gradcomp_status st = device_check(g->d->where(p, &on), "memory of a call", err);
	if (st || on == g->id)
		return st;
	char place[32] = "in host memory";
	if (on >= 0)
		snprintf(place, sizeof place, "on CUDA device %d", on);
	return error_set(
		err, GRADCOMP_ERR_INVALID,
		"coder '%s': %s of the %s is %s, and this coder is for memory of CUDA device %d: move it there, "
		"or make another coder for it (option device; in Python cuda)",
		c->name, argument, coder_kind_name(kind), place, g->id);
}

gradcomp_status coder_gpu_given(gradcomp_coder *c, gradcomp_coder_request *q, gradcomp_error *err)
{
	coder_gpu *g = c->gpu;
	int captures = 0;
	gradcomp_status st = device_check(g->d->captures(g->producer, &captures), "the caller's stream", err);
	if (!st && captures)
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"coder '%s': the caller's stream is being captured into a CUDA graph, which would replay a "
			"call without the host's part of it: its order among ranks and its failures",
			c->name);
	if (!st)
		st = take_event(g, g->unclaimed, &q->event, err);
	if (st)
		return st;
	g->unclaimed++;
	return device_check(g->d->record(q->event, g->producer), "the caller's stream", err);
}

gradcomp_status coder_gpu_taken(gradcomp_coder *c, gradcomp_coder_request *q, gradcomp_error *err)
{
	coder_gpu *g = c->gpu;
	gradcomp_status st = GRADCOMP_OK;
	if (!q->event)
		return st;
	if (!q->status)
		st = device_let_follow(g->d, g->producer, q->event, err);
	g->events[g->nevents++] = q->event;
	g->unclaimed--;
	return st;
}

static void *at(const void *buf, uint64_t i, gradcomp_dtype dtype)
{
	return (char *)buf + i * gradcomp_dtype_bytes(dtype);
}

static double code_bytes(const gradcomp_coder *c, uint64_t n)
{
	return n ? (double)c->parts.compressor->code_bound(c->instance, n) : 0;
}

/* Returns the bytes that this rank sends for a coded call, at least: NCCL counts none. In two levels numbers go as
 * they are within the node, and between nodes a code of each shard that this rank holds. */
static double coded_bytes(const gradcomp_coder *c, const gradcomp_coder_request *q)
{
	const struct gradcomp_collective_v1 *k = c->parts.collective;
	bool scatters = q->kind == CODER_REDUCE_SCATTER;
	int P = c->layout.nranks, me = c->layout.rank;
	double own = (double)q->counts[me], total = (double)q->total, held = 0, nodes = P, sent = 0, locals;
	for (uint32_t i = 0; k->serves & GRADCOMP_CAN_SHARD; i++) {
		gradcomp_shard s = {.struct_size = sizeof s, .rank = -1, .nranks = P};
		gradcomp_error unused;
		void *holders;
		gradcomp_status st = k->shard_at ? k->shard_at(c->coll_ctx.instance, i, q->total, &s, &holders, &unused)
		                     : i         ? GRADCOMP_ERR_RANGE
		                                 : k->shard(c->coll_ctx.instance, q->total, &s, &unused);
		if (st)
			break;
		nodes = s.nranks;
		if (s.rank < 0)
			break;
		held += (double)s.numel;
		sent += (nodes - 1) / nodes * code_bytes(c, s.numel);
	}
	if (nodes < P) {
		/* To the holders of shards and back; and sums to the owners of blocks, or blocks to the holders of
		 * shards. */
		locals = held > 0 ? total / held : P / nodes;
		return sent + sizeof(float) * (total - held + (locals - 1) * (scatters ? held / nodes : own));
	}
	sent = 0;
	for (int r = 0; scatters && r < P; r++)
		sent += r != me ? code_bytes(c, q->counts[r]) : 0;
	return scatters ? sent : code_bytes(c, q->counts[me]) * (P - 1);
}

static gradcomp_status scatter_coded(gradcomp_coder *c, const gradcomp_coder_request *q, uint64_t call, float *x,
                                     note *n, gradcomp_error *err)
{
	coder_gpu *g = c->gpu;
	const gradcomp_operators *ops = g->ops;
	const struct gradcomp_collective_v1 *k = c->parts.collective;
	code_source source = {c->parts.compressor, c->instance};
	const gradcomp_codec codec = code_view(&source);
	uint64_t own = q->counts[c->layout.rank];
	float *e = q->slot ? q->slot->e : NULL, *mine = x + q->begin;
	int *w = g->words, alone = c->layout.nranks == 1;
	if (x != q->in)
		ops->cast_to_f32(g->stream, x, q->in, q->total, q->dtype);
	if (!c->passes)
		ops->nonfinite(g->stream, x, q->total, w + WORD_LOCAL);
	ops->put_flag(g->stream, w + WORD_BAD, GRADCOMP_I32, w + WORD_LOCAL);
	gradcomp_status st = k->allreduce(c->coll_ctx.instance, w + WORD_BAD, 1, GRADCOMP_I32, GRADCOMP_SUM, 1.0, err);
	if (e) {
		ops->copy(g->stream, g->kept.p, e, q->total * sizeof *e);
		ops->add(g->stream, x, e, q->total);
	}
	ops->fill_if(g->stream, x, 0, q->total, w + WORD_BAD);
	if (!st && alone)
		st = ops->scale_as(g->stream, x, q->scale, q->total, GRADCOMP_F32);
	else if (!st)
		st = k->coded_reduce_scatter(c->coll_ctx.instance, x, q->counts, q->scale, &codec, call << RUN_BITS, e,
		                             err);
	n->bytes = coded_bytes(c, q);
	ops->any_set(g->stream, w + WORD_VOID, w, sizeof *w, sizeof *w, WORD_VOID);
	if (e) {
		ops->nonfinite(g->stream, e, q->total, w + WORD_LOST);
		ops->fill_if(g->stream, e, 0, q->total, w + WORD_LOST);
		ops->copy_if(g->stream, e, g->kept.p, q->total, w + WORD_BAD, 1);
	}
	ops->fill_if(g->stream, mine, NAN, own, w + WORD_VOID);
	if (!st && own && q->out != (void *)mine)
		st = ops->cast_from_f32(g->stream, q->out, mine, own, q->dtype, 0);
	return st;
}

static gradcomp_status gather_coded(gradcomp_coder *c, const gradcomp_coder_request *q, uint64_t call, float *x,
                                    note *n, gradcomp_error *err)
{
	coder_gpu *g = c->gpu;
	const gradcomp_operators *ops = g->ops;
	const struct gradcomp_collective_v1 *k = c->parts.collective;
	code_source source = {c->parts.compressor, c->instance};
	const gradcomp_codec codec = code_view(&source);
	int *w = g->words, *flags = g->flags.p, P = c->layout.nranks, me = c->layout.rank;
	uint64_t own = q->counts[me], begin = 0, lengths = FLAG_INTS * sizeof *flags;
	float *mine = x + q->begin;
	if (own && (void *)mine != q->in)
		ops->cast_to_f32(g->stream, mine, q->in, own, q->dtype);
	if (!c->passes)
		ops->nonfinite(g->stream, mine, own, w + WORD_LOCAL);
	ops->fill_if(g->stream, mine, 0, own, w + WORD_LOCAL);
	ops->put_flag(g->stream, flags + (size_t)me * FLAG_INTS, GRADCOMP_I32, w + WORD_LOCAL);
	for (int r = 0; r < P; r++)
		g->lengths[r] = lengths;
	gradcomp_status st = k->allgather(c->coll_ctx.instance, flags, g->lengths, err);
	if (!st && P > 1)
		st = k->coded_allgather(c->coll_ctx.instance, x, q->counts, &codec, call << RUN_BITS, NULL, err);
	n->bytes = coded_bytes(c, q);
	ops->any_set(g->stream, w + WORD_BAD, flags, sizeof *flags, lengths, (size_t)P);
	for (int r = 0; r < P; begin += q->counts[r++])
		if (q->counts[r])
			ops->fill_if(g->stream, x + begin, NAN, q->counts[r], flags + (size_t)r * FLAG_INTS);
	ops->fill_if(g->stream, x, NAN, q->total, w + WORD_FAULT);
	if (!st && q->total && x != q->out)
		st = ops->cast_from_f32(g->stream, q->out, x, q->total, q->dtype, 0);
	return st;
}

/* A sum of 16-bit numbers could overflow where what comes out after `scale` does not. */
static gradcomp_status scatter_dense(gradcomp_coder *c, const gradcomp_coder_request *q, float *x, note *n,
                                     gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	const gradcomp_operators *ops = g->ops;
	uint64_t own = q->counts[c->layout.rank];
	void *mine = at(q->in, q->begin, q->dtype);
	bool first = q->dtype != GRADCOMP_F32 && fabs(q->scale) < 1;
	if (first) {
		ops->cast_to_f32(g->stream, x, q->in, q->total, q->dtype);
		ops->scale_as(g->stream, x, q->scale, q->total, GRADCOMP_F32);
		ops->cast_from_f32(g->stream, q->in, x, q->total, q->dtype, 0);
	}
	gradcomp_status st = c->parts.collective->reduce_scatter(c->coll_ctx.instance, q->in, q->counts, q->dtype,
	                                                         GRADCOMP_SUM, first ? 1 : q->scale, err);
	if (!st && own && q->out != mine)
		ops->copy(g->stream, q->out, mine, own * gradcomp_dtype_bytes(q->dtype));
	n->bytes = (double)(q->total - own) * (double)gradcomp_dtype_bytes(q->dtype);
	return st;
}

static gradcomp_status gather_dense(gradcomp_coder *c, const gradcomp_coder_request *q, note *n, gradcomp_error *err)
{
	const coder_gpu *g = c->gpu;
	size_t size = gradcomp_dtype_bytes(q->dtype);
	uint64_t own = q->counts[c->layout.rank] * size;
	void *mine = at(q->out, q->begin, q->dtype);
	for (int r = 0; r < c->layout.nranks; r++)
		g->lengths[r] = q->counts[r] * size;
	if (own && mine != q->in)
		g->ops->copy(g->stream, mine, q->in, own);
	n->bytes = (double)own * (c->layout.nranks - 1);
	return c->parts.collective->allgather(c->coll_ctx.instance, q->out, g->lengths, err);
}

/* Makes room for the call in memory that only grows. */
static gradcomp_status reserve_all(gradcomp_coder *c, const gradcomp_coder_request *q, gradcomp_error *err)
{
	coder_gpu *g = c->gpu;
	gradcomp_status st = catch_up(c, AHEAD - 1, err);
	if (!st && q->dtype != GRADCOMP_F32)
		st = reserve(c, &g->work, q->total * sizeof(float), err);
	if (!st && q->slot)
		st = reserve(c, &g->kept, q->total * sizeof(float), err);
	if (!st && !c->parts.dense)
		st = reserve(c, &g->flags, (size_t)c->layout.nranks * FLAG_INTS * sizeof(int), err);
	if (!st && q->slot)
		st = fill_slot(c, q->slot, err);
	if (st || c->parts.dense || q->total <= c->layout.numel)
		return st;
	/* A compressor may size what it works with by the model that it is made for. */
	st = catch_up(c, 0, err);
	if (st)
		return st;
	c->parts.compressor->destroy(c->instance);
	c->instance = NULL;
	c->shard.numel = c->layout.numel = q->total;
	return coder_gpu_instance(c, err);
}

gradcomp_status coder_gpu_call(gradcomp_coder *c, const gradcomp_coder_request *q, uint64_t call, gradcomp_error *err)
{
	coder_gpu *g = c->gpu;
	bool scatters = q->kind == CODER_REDUCE_SCATTER;
	gradcomp_status st = reserve_all(c, q, err);
	if (st)
		return st;
	note *n = &g->notes[g->put % NOTES];
	*n = (note){.words = n->words,
	            .began = n->began,
	            .ended = n->ended,
	            .kind = q->kind,
	            .slot_number = q->slot_number,
	            .call = call};
	float *x = q->dtype != GRADCOMP_F32 ? g->work.p : scatters ? q->in : q->out;
	const char *why = g->d->follow(g->stream, q->event);
	if (!why)
		why = g->d->record(n->began, g->stream);
	if (!why)
		why = g->d->zero(g->stream, g->words, WORDS * sizeof(int));
	st = device_check(why, "a call's beginning", err);
	if (!st)
		st = launch_order_begin(&g->launches, &c->coll_ctx, g->stream, false, err);
	if (st)
		return st;
	st = scatters         ? c->parts.dense ? scatter_dense(c, q, x, n, err) : scatter_coded(c, q, call, x, n, err)
	             : c->parts.dense ? gather_dense(c, q, n, err)
	                      : gather_coded(c, q, call, x, n, err);
	launch_order_end(&g->launches);
	/* Whatever else is wrong came of it. */
	why = g->ops->failed();
	if (why)
		return error_set(err, GRADCOMP_ERR_IO, "the CUDA device: a launch failed: %s", why);
	if (!st)
		why = g->d->copy(g->stream, n->words, g->words, WORDS * sizeof(int));
	if (!st && !why)
		why = g->d->record(n->ended, g->stream);
	if (!st && !why)
		why = g->d->record(q->event, g->stream);
	if (st || why)
		return st ? st : device_check(why, "a call's end", err);
	pthread_mutex_lock(&c->lock);
	c->sent += n->bytes;
	g->put++;
	pthread_mutex_unlock(&c->lock);
	return GRADCOMP_OK;
}
