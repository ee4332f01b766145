#include "kinds/autotune/tuner_gpu.h"

#include "base/error.h"
#include "operators/operator_tables.h"
#include "kinds/autotune/tuner_internal.h"

#include <stdlib.h>
#include <string.h>

/* Reducers are at most two steps ahead of the device, and a step's times need the end of the one before. */
enum { SLOTS = 4 };
enum { CAST = 1 << 20 }; /* floats of a 16-bit gradient that are cast at a time */

/* Timers of a step. */
typedef struct slot {
	void **given; /* by tensor of the layout */
	void *end;
} slot;

struct tuner_gpu {
	local_device bench;
	device_memory memory;
	gradcomp_host host;
	int id;
	void *stream, *producer; /* for the ends of steps and averages; the caller's */
	void *joined, *came;     /* events: of wait(); of what is waited for here */
	slot slots[SLOTS];
	uint64_t began, learned; /* steps: the first one with timers, and those that are known */
	/* those of a step that is learned of: by tensor, seconds after the end of the one before */
	double *made;
	device_coll *coll;
	float *zeroes;      /* timed all-reduces add up these */
	void *start, *stop; /* timers of what is timed here */
	/* These carry what reducers that have gone still owe. */
	float **carried; /* by the caller's tensor: on the device, while its step is under way */
	/* Guards what follows: the program gives gradients while others that have waited are passed on. */
	pthread_mutex_t cast_lock;
	float *cast;          /* the floats of 16-bit gradients, one after another on the caller's stream */
	pthread_mutex_t lock; /* guards what follows: several reducers' callbacks */
	char *pinned;
	size_t room;
};

static gradcomp_status check(const char *why, gradcomp_error *err)
{
	return device_check(why, "auto", err);
}

static gradcomp_status launched(const tuner_gpu *g, gradcomp_error *err)
{
	const char *why = g->bench.ops->failed();
	return why ? error_set(err, GRADCOMP_ERR_IO, "the CUDA device: a launch failed: %s", why) : GRADCOMP_OK;
}

static gradcomp_status await(const tuner *c, void *event, gradcomp_error *err)
{
	return device_coll_await(c->job, c->gpu->bench.d, event, "auto", err);
}

static const char *make_slots(tuner_gpu *g, uint32_t n)
{
	const device_calls *d = g->bench.d;
	const char *why = NULL;
	for (int k = 0; !why && k < SLOTS; k++) {
		slot *s = &g->slots[k];
		s->given = calloc(n, sizeof *s->given);
		why = s->given ? d->timer(&s->end) : "no memory";
		for (uint32_t i = 0; !why && i < n; i++)
			why = d->timer(&s->given[i]);
	}
	return why;
}

gradcomp_status tuner_gpu_open(tuner *c, const gradcomp_reducer_options *o, gradcomp_error *err)
{
	const gradcomp_operators *ops;
	tuner_gpu *g = c->gpu = calloc(1, sizeof *g);
	void *p = NULL;
	if (!g)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	pthread_mutex_init(&g->lock, NULL);
	pthread_mutex_init(&g->cast_lock, NULL);
	g->producer = o->queue;
	g->memory = (device_memory){NULL, o->device_alloc, o->device_release, o->device_ctx};
	gradcomp_status st = operators_on_device(c->job->config, "gradients", &g->memory, &ops, err);
	if (st)
		return st;
	const device_calls *d = g->memory.d;
	g->host = c->job->host;
	g->host.alloc = device_host_alloc;
	g->host.release = device_host_release;
	const char *why = d->current(&g->id);
	g->bench = (local_device){d, &g->memory, ops, &g->host, NULL};
	if (!why)
		why = d->stream(&g->stream, 0);
	/* A measurement while steps go on must not hold up their ends. */
	if (!why)
		why = d->stream(&g->bench.stream, 0);
	void **events[] = {&g->joined, &g->came}, **timers[] = {&g->start, &g->stop};
	for (int k = 0; !why && k < 2; k++) {
		why = d->event(events[k]);
		if (!why)
			why = d->timer(timers[k]);
	}
	g->made = calloc(c->ntensors, sizeof *g->made);
	g->carried = calloc(c->ntensors, sizeof *g->carried);
	if (!why)
		why = make_slots(g, c->ntensors);
	st = check(why, err);
	if (!st && (!g->made || !g->carried))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer of %u tensors", c->ntensors);
	if (!st)
		why = device_memory_take(&g->memory, &p, TUNER_FIT_MAX, g->bench.stream);
	g->zeroes = p;
	if (!st && !why)
		why = d->zero(g->bench.stream, p, TUNER_FIT_MAX);
	return st ? st : check(why, err);
}

gradcomp_status tuner_gpu_network(tuner *c, gradcomp_error *err)
{
	const candidate *base = &c->config.candidate[0];
	return c->gpu && c->group->nranks > 1
	               ? device_coll_open(c->group, base->collective ? base->collective : c->wants.collective,
	                                  &c->gpu->coll, err)
	               : GRADCOMP_OK;
}

void tuner_gpu_close(tuner *c)
{
	tuner_gpu *g = c->gpu;
	if (!g)
		return;
	const device_calls *d = g->bench.d;
	if (d) {
		device_drain(d, (void *const[]){g->stream, g->bench.stream}, 2);
		device_coll_close(g->coll);
		for (uint32_t i = 0; g->carried && i < c->ntensors; i++)
			device_memory_give_back(&g->memory, g->carried[i]);
		device_memory_give_back(&g->memory, g->cast);
		device_memory_give_back(&g->memory, g->zeroes);
		d->unpin(g->pinned);
		for (int k = 0; k < SLOTS; k++) {
			for (uint32_t i = 0; g->slots[k].given && i < c->ntensors; i++)
				d->event_free(g->slots[k].given[i]);
			d->event_free(g->slots[k].end);
		}
		void *const events[] = {g->joined, g->came, g->start, g->stop};
		for (size_t k = 0; k < sizeof events / sizeof *events; k++)
			d->event_free(events[k]);
		d->stream_free(g->stream);
		d->stream_free(g->bench.stream);
	}
	for (int k = 0; k < SLOTS; k++)
		free(g->slots[k].given);
	free(g->made);
	free(g->carried);
	pthread_mutex_destroy(&g->lock);
	pthread_mutex_destroy(&g->cast_lock);
	free(g);
	c->gpu = NULL;
}

void tuner_gpu_bind(const tuner *c)
{
	if (c->gpu)
		c->gpu->bench.d->use(c->gpu->id);
}

const local_device *tuner_gpu_bench_of(const tuner *c)
{
	return c->gpu ? &c->gpu->bench : NULL;
}

/* Where payloads go through host memory the stream is idle meanwhile, and the host's clock tells. */
gradcomp_status tuner_gpu_timed(tuner *c, uint64_t count, double *seconds, gradcomp_error *err)
{
	const tuner_gpu *g = c->gpu;
	const device_calls *d = g->bench.d;
	const device_coll_call call = {.kind = DEVICE_ALLREDUCE,
	                               .buf = g->zeroes,
	                               .counts = &count,
	                               .dtype = GRADCOMP_F32,
	                               .op = GRADCOMP_SUM,
	                               .queue = g->bench.stream};
	double began = clock_now();
	gradcomp_status st = check(d->record(g->start, g->bench.stream), err);
	if (!st)
		st = device_coll_run(g->coll, &call, err);
	*seconds = clock_now() - began;
	if (st || !device_coll_direct(g->coll))
		return st;
	st = check(d->record(g->stop, g->bench.stream), err);
	if (!st)
		st = await(c, g->stop, err);
	return st ? st : check(d->elapsed(g->start, g->stop, seconds), err);
}

gradcomp_status tuner_gpu_copies(const tuner *c, size_t bytes, double *down, double *up, gradcomp_error *err)
{
	const tuner_gpu *g = c->gpu;
	const device_calls *d = g->bench.d;
	void *pinned = NULL, *on_device = NULL;
	const char *why = d->pin(&pinned, bytes);
	gradcomp_status st = GRADCOMP_OK;
	if (!why)
		why = device_memory_take(&g->memory, &on_device, bytes, g->bench.stream);
	for (int k = 0; !why && !st && k < 2; k++) {
		why = d->record(g->start, g->bench.stream);
		if (!why)
			why = d->copy(g->bench.stream, k ? on_device : pinned, k ? pinned : on_device, bytes);
		if (!why)
			why = d->record(g->stop, g->bench.stream);
		if (!why)
			st = await(c, g->stop, err);
		if (!why && !st)
			why = d->elapsed(g->start, g->stop, k ? up : down);
	}
	device_drain(d, &g->bench.stream, 1);
	device_memory_give_back(&g->memory, on_device);
	d->unpin(pinned);
	return st ? st : check(why, err);
}

static slot *slot_of(tuner_gpu *g, uint64_t step)
{
	return &g->slots[step % SLOTS];
}

/* Returns the seconds from one timer to another; before it, less than 0. */
static double between(const tuner_gpu *g, void *from, void *to)
{
	double s = 0;
	return g->bench.d->elapsed(from, to, &s) ? 0 : s;
}

/* Learns the times of a step. The first step has no beginning but its first gradient. */
static void learn_step(tuner *c, uint64_t step)
{
	tuner_gpu *g = c->gpu;
	const slot *s = slot_of(g, step);
	step_times t = {.step = step, .made = g->made};
	void *since = step > g->began ? slot_of(g, step - 1)->end : s->given[0];
	for (uint32_t i = 0; i < c->ntensors; i++) {
		g->made[i] = between(g, since, s->given[i]);
		t.first = !i || g->made[i] < t.first ? g->made[i] : t.first;
		t.last = !i || g->made[i] > t.last ? g->made[i] : t.last;
	}
	t.end = between(g, since, s->end);
	t.connected = step > g->began;
	metrics_timer_take(c, &t);
}

/* Called with the lock held: puts into the timer what the device has done of steps so far. */
static void learn(tuner *c)
{
	tuner_gpu *g = c->gpu;
	int is = 1;
	while (g && g->learned < c->steps && !g->bench.d->test(slot_of(g, g->learned)->end, &is) && is)
		learn_step(c, g->learned++);
}

gradcomp_status tuner_gpu_accepts(const tuner *c, const gradcomp_tensor *t, const void *gradient, gradcomp_error *err)
{
	const tuner_gpu *g = c->gpu;
	gradcomp_status st = g ? device_refuse_capture(g->bench.d, g->producer, t->name, err) : GRADCOMP_OK;
	if (st || !t->numel)
		return st;
	return g ? device_refuse_elsewhere(g->bench.d, gradient, g->id, t->name, err)
	         : device_refuse_memory(gradient, t->name, err);
}

gradcomp_status tuner_gpu_given(tuner *c, uint32_t i, gradcomp_error *err)
{
	tuner_gpu *g = c->gpu;
	gradcomp_status st = GRADCOMP_OK;
	if (!g)
		return st;
	/* A slot whose step nobody has learned of in all this time: rather that one is waited for than forgotten. */
	if (c->step.ngiven == 1 && c->steps >= g->learned + SLOTS - 1)
		st = await(c, slot_of(g, c->steps - SLOTS + 1)->end, err);
	if (!st && c->step.ngiven == 1)
		learn(c);
	return st ? st : check(g->bench.d->record(slot_of(g, c->steps)->given[c->ntensors - 1 - i], g->producer), err);
}

gradcomp_status tuner_gpu_step(tuner *c, gradcomp_error *err)
{
	tuner_gpu *g = c->gpu;
	gradcomp_status st = GRADCOMP_OK;
	if (!g)
		return st;
	/* A reducer's stream has what came before its last tensor, too. */
	for (uint32_t k = 0; !st && k < c->parts.partition->n; k++)
		st = c->parts.partition->sub[k].r->base.ops->follow(&c->parts.partition->sub[k].r->base,
		                                                    c->parts.partition->sub[k].last, g->stream, err);
	return st ? st : check(g->bench.d->record(slot_of(g, c->steps)->end, g->stream), err);
}

gradcomp_status tuner_gpu_settle(tuner *c, gradcomp_error *err)
{
	tuner_gpu *g = c->gpu;
	gradcomp_status st = GRADCOMP_OK;
	if (g && g->learned < c->steps)
		st = await(c, slot_of(g, c->steps - 1)->end, err);
	if (!st)
		learn(c);
	return st;
}

void tuner_gpu_restart(tuner *c)
{
	if (c->gpu)
		c->gpu->began = c->gpu->learned = c->steps;
}

gradcomp_status tuner_gpu_follow(const tuner *c, gradcomp_error *err)
{
	const tuner_gpu *g = c->gpu;
	if (!g)
		return GRADCOMP_OK;
	const char *why = g->bench.d->record(g->joined, g->stream);
	return why ? check(why, err) : device_let_follow(g->bench.d, g->producer, g->joined, err);
}

/* The functions below handle what is carried over. */

/* Device memory with what the host has. */
static gradcomp_status bring(tuner *c, uint32_t i, uint64_t numel, gradcomp_error *err)
{
	tuner_gpu *g = c->gpu;
	void *p = NULL;
	const char *why = g->carried[i] ? NULL : device_memory_take(&g->memory, &p, numel * sizeof(float), g->producer);
	if (!g->carried[i])
		g->carried[i] = p;
	if (!why && !g->cast && (c->layout.tensors[c->ntensors - 1 - i].dtype != GRADCOMP_F32)) {
		why = device_memory_take(&g->memory, &p, CAST * sizeof(float), g->producer);
		g->cast = why ? NULL : p;
	}
	if (why)
		return error_set(err, GRADCOMP_ERR_NOMEM,
		                 "no CUDA memory for %llu numbers that are still to be sent: %s",
		                 (unsigned long long)numel, why);
	return check(g->bench.d->copy(g->producer, g->carried[i], c->parts.carry[i], numel * sizeof(float)), err);
}

gradcomp_status tuner_gpu_carry(tuner *c, uint32_t i, void *gradient, gradcomp_error *err)
{
	tuner_gpu *g = c->gpu;
	const gradcomp_tensor *t = &c->layout.tensors[c->ntensors - 1 - i];
	const gradcomp_operators *ops = g->bench.ops;
	const size_t width = gradcomp_dtype_bytes(t->dtype);
	pthread_mutex_lock(&g->cast_lock);
	gradcomp_status st = bring(c, i, t->numel, err);
	if (!st && t->dtype == GRADCOMP_F32)
		ops->add(g->producer, gradient, g->carried[i], t->numel);
	for (uint64_t at = 0; !st && t->dtype != GRADCOMP_F32 && at < t->numel; at += CAST) {
		size_t len = t->numel - at < CAST ? t->numel - at : CAST;
		char *numbers = (char *)gradient + at * width;
		st = ops->cast_to_f32(g->producer, g->cast, numbers, len, t->dtype);
		ops->add(g->producer, g->cast, g->carried[i] + at, len);
		if (!st)
			st = ops->cast_from_f32(g->producer, numbers, g->cast, len, t->dtype, 0);
	}
	pthread_mutex_unlock(&g->cast_lock);
	return st ? st : launched(g, err);
}

gradcomp_status tuner_gpu_averaged(tuner *c, uint32_t i, const void *average, void **out, gradcomp_error *err)
{
	tuner_gpu *g = c->gpu;
	const device_calls *d = g->bench.d;
	const gradcomp_tensor *t = &c->layout.tensors[c->ntensors - 1 - i];
	const partition *p = c->parts.partition;
	size_t bytes = t->numel * gradcomp_dtype_bytes(t->dtype);
	void *room = NULL;
	pthread_mutex_lock(&g->lock);
	const char *why = bytes > g->room ? d->pin(&room, bytes) : NULL;
	if (room) {
		d->unpin(g->pinned);
		g->pinned = room;
		g->room = bytes;
	}
	gradcomp_status st = check(why, err);
	if (!st)
		st = p->sub[p->of[i]].r->base.ops->follow(&p->sub[p->of[i]].r->base, p->as[i], g->stream, err);
	if (!st)
		why = d->copy(g->stream, g->pinned, average, bytes);
	if (!st && !why)
		why = d->record(g->came, g->stream);
	if (!st)
		st = check(why, err);
	if (!st)
		st = await(c, g->came, err);
	*out = g->pinned;
	if (st)
		pthread_mutex_unlock(&g->lock);
	return st;
}

/* The device has done with what was added. */
void tuner_gpu_averaged_end(tuner *c, uint32_t i)
{
	tuner_gpu *g = c->gpu;
	device_memory_give_back(&g->memory, g->carried[i]);
	g->carried[i] = NULL;
	pthread_mutex_unlock(&g->lock);
}
