/* Delayed averages in GPU memory, see delay_gpu.h. */
#include "kinds/delay/delay_gpu.h"

#include "base/error.h"
#include "operators/operator_tables.h"

#include <stdlib.h>
#include <string.h>

enum { RUN = 1 << 22 }; /* floats that are cast at a time: a step has few launches, and memory few numbers more */

/* Times a step: when its last gradient had been made, and when all were given back. */
typedef struct exposed {
	void *given, *end;
} exposed;

struct delay_gpu {
	const device_calls *d;
	device_memory memory;
	int id;
	void *producer, *front, *submit, *arrive;
	void *joined;              /* event of calls that join streams */
	void *averaged;            /* event of the submitter's */
	void **given;              /* events, by tensor */
	void **fronted, **arrived; /* events, by slot and tensor */
	float *run[2];             /* nrun floats, of `front`; of `arrive`, with the lock */
	uint64_t nrun;
	pthread_mutex_t lock; /* one tensor arrives at a time: `auto` behind has several threads */
	exposed *steps;       /* nsteps, which steps take turns with */
	uint32_t nsteps;
	uint64_t learned; /* steps whose times are known */
};

static gradcomp_status check(const char *why, gradcomp_error *err)
{
	return device_check(why, "delayed averages", err);
}

static void **at(const delay *d, void **events, uint64_t step, uint32_t i)
{
	return &events[step % d->delay * d->model.n + i];
}

gradcomp_status delay_gpu_open(delay *d, const gradcomp_reducer_options *o, void **submit, gradcomp_error *err)
{
	delay_gpu *g;
	if (o->device != GRADCOMP_CUDA)
		return GRADCOMP_OK;
	g = d->gpu = calloc(1, sizeof *g);
	if (!g)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	pthread_mutex_init(&g->lock, NULL);
	g->producer = o->queue;
	g->memory = (device_memory){NULL, o->device_alloc, o->device_release, o->device_ctx};
	gradcomp_status st = operators_on_device(d->group->job->config, "gradients", &g->memory, &d->ops, err);
	g->d = g->memory.d;
	if (st)
		return st;
	void **streams[] = {&g->front, &g->submit, &g->arrive};
	const char *why = g->d->current(&g->id);
	for (size_t k = 0; !why && k < sizeof streams / sizeof *streams; k++)
		why = g->d->stream(streams[k], 0);
	if (!why)
		why = g->d->event(&g->joined);
	if (!why)
		why = g->d->event(&g->averaged);
	*submit = g->submit;
	return check(why, err);
}

static const char *events(const delay_gpu *g, void ***out, size_t n)
{
	const char *why = NULL;
	*out = calloc(n, sizeof **out);
	for (size_t k = 0; *out && !why && k < n; k++)
		why = g->d->event(&(*out)[k]);
	return *out ? why : "no memory";
}

gradcomp_status delay_gpu_arrays(delay *d, gradcomp_error *err)
{
	delay_gpu *g = d->gpu;
	uint64_t most = 1;
	const char *why;
	if (!g)
		return GRADCOMP_OK;
	for (uint32_t i = 0; i < d->model.n; i++)
		most = d->model.tensors[i].numel > most ? d->model.tensors[i].numel : most;
	g->nrun = most < RUN ? most : RUN;
	why = events(g, &g->given, d->model.n);
	if (!why)
		why = events(g, &g->fronted, (size_t)d->model.n * d->delay);
	if (!why)
		why = events(g, &g->arrived, (size_t)d->model.n * d->delay);
	/* The reducer behind is at most two steps ahead of the device. */
	g->steps = calloc(d->delay + 4, sizeof *g->steps);
	g->nsteps = g->steps ? d->delay + 4 : 0;
	for (uint32_t k = 0; !why && k < g->nsteps; k++) {
		why = g->d->timer(&g->steps[k].given);
		if (!why)
			why = g->d->timer(&g->steps[k].end);
	}
	for (int k = 0; !why && k < 2; k++) {
		g->run[k] = delay_alloc(d, g->nrun * sizeof(float));
		why = g->run[k] ? NULL : "no CUDA memory for casts";
	}
	if (why || !g->steps)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for delayed averages of %u tensors: %s",
		                 d->model.n, why ? why : "of the host");
	return GRADCOMP_OK;
}

static delay_run run_of(const delay_gpu *g, int k, float *local)
{
	return g ? (delay_run){g->run[k], g->nrun, k ? g->arrive : g->front} : (delay_run){local, DELAY_RUN, NULL};
}

delay_run delay_front_run(const delay *d, float *local)
{
	return run_of(d->gpu, 0, local);
}

delay_run delay_arrive_run(const delay *d, float *local)
{
	return run_of(d->gpu, 1, local);
}

void *delay_submit_queue(const delay *d)
{
	return d->gpu ? d->gpu->submit : NULL;
}

void *delay_alloc(delay *d, size_t bytes)
{
	const delay_gpu *g = d->gpu;
	void *p = NULL;
	if (!g)
		return calloc(1, bytes);
	if (device_memory_take(&g->memory, &p, bytes, g->front))
		return NULL;
	if (!g->d->zero(g->front, p, bytes))
		return p;
	device_memory_give_back(&g->memory, p);
	return NULL;
}

void delay_release(delay *d, void *p)
{
	if (!d->gpu)
		free(p);
	else
		device_memory_give_back(&d->gpu->memory, p);
}

static void events_free(const delay_gpu *g, void **events, size_t n)
{
	for (size_t k = 0; events && k < n; k++)
		g->d->event_free(events[k]);
	free(events);
}

void delay_gpu_close(delay *d)
{
	delay_gpu *g = d->gpu;
	if (!g)
		return;
	if (g->d) {
		delay_gpu_drain(d);
		for (int k = 0; k < 2; k++)
			delay_release(d, g->run[k]);
		events_free(g, g->given, d->model.n);
		events_free(g, g->fronted, (size_t)d->model.n * d->delay);
		events_free(g, g->arrived, (size_t)d->model.n * d->delay);
		for (uint32_t k = 0; k < g->nsteps; k++) {
			g->d->event_free(g->steps[k].given);
			g->d->event_free(g->steps[k].end);
		}
		g->d->event_free(g->joined);
		g->d->event_free(g->averaged);
		g->d->stream_free(g->front);
		g->d->stream_free(g->submit);
		g->d->stream_free(g->arrive);
	}
	free(g->steps);
	pthread_mutex_destroy(&g->lock);
	free(g);
	d->gpu = NULL;
}

void delay_gpu_bind(const delay *d)
{
	if (d->gpu)
		d->gpu->d->use(d->gpu->id);
}

gradcomp_status delay_gpu_failed(const delay *d, gradcomp_error *err)
{
	const char *why = d->gpu ? d->ops->failed() : NULL;
	return why ? error_set(err, GRADCOMP_ERR_IO, "the CUDA device: a launch failed: %s", why) : GRADCOMP_OK;
}

gradcomp_status delay_gpu_given(delay *d, uint32_t i, const void *gradient, gradcomp_error *err)
{
	const delay_gpu *g = d->gpu;
	const delay_tensor *t = &d->model.tensors[i];
	gradcomp_status st = g ? device_refuse_capture(g->d, g->producer, t->name, err) : GRADCOMP_OK;
	if (!st && t->numel)
		st = g ? device_refuse_elsewhere(g->d, gradient, g->id, t->name, err)
		       : device_refuse_memory(gradient, t->name, err);
	if (st || !g)
		return st;
	const char *why = g->d->record(g->given[i], g->producer);
	if (!why && d->now.given + 1 == d->model.n)
		why = g->d->record(g->steps[d->step % g->nsteps].given, g->producer);
	return check(why, err);
}

gradcomp_status delay_gpu_front(delay *d, uint32_t i, gradcomp_error *err)
{
	const delay_gpu *g = d->gpu;
	if (!g)
		return GRADCOMP_OK;
	const char *why = g->d->follow(g->front, g->given[i]);
	if (!why && d->n_pending == d->delay)
		why = g->d->follow(g->front, *at(d, g->arrived, d->step, i));
	return check(why, err);
}

gradcomp_status delay_gpu_fronted(delay *d, uint32_t i, gradcomp_error *err)
{
	const delay_gpu *g = d->gpu;
	if (!g)
		return GRADCOMP_OK;
	gradcomp_status st = delay_gpu_failed(d, err);
	return st ? st : check(g->d->record(*at(d, g->fronted, d->step, i), g->front), err);
}

gradcomp_status delay_gpu_submit(delay *d, uint32_t i, gradcomp_error *err)
{
	const delay_gpu *g = d->gpu;
	return g ? check(g->d->follow(g->submit, *at(d, g->fronted, d->n_averaged, i)), err) : GRADCOMP_OK;
}

gradcomp_status delay_gpu_arrive(delay *d, uint32_t i, gradcomp_error *err)
{
	delay_gpu *g = d->gpu;
	if (!g)
		return GRADCOMP_OK;
	pthread_mutex_lock(&g->lock);
	return d->inner->ops->follow(d->inner, i, g->arrive, err);
}

gradcomp_status delay_gpu_arrived(delay *d, uint32_t i, gradcomp_status st, gradcomp_error *err)
{
	delay_gpu *g = d->gpu;
	if (!g)
		return st;
	if (!st)
		st = delay_gpu_failed(d, err);
	if (!st)
		st = check(g->d->record(*at(d, g->arrived, d->model.tensors[i].n_arrived, i), g->arrive), err);
	pthread_mutex_unlock(&g->lock);
	return st;
}

gradcomp_status delay_gpu_averaged(delay *d, gradcomp_error *err)
{
	const delay_gpu *g = d->gpu;
	if (!g)
		return GRADCOMP_OK;
	const char *why = g->d->record(g->averaged, g->arrive);
	return check(why ? why : g->d->follow(g->submit, g->averaged), err);
}

void delay_gpu_learn(delay *d)
{
	delay_gpu *g = d->gpu;
	int is = 1;
	while (g && g->learned < d->step && is) {
		const exposed *e = &g->steps[g->learned % g->nsteps];
		double took = 0;
		if (g->d->test(e->end, &is) || !is)
			return;
		if (!g->d->elapsed(e->given, e->end, &took))
			d->exposed.seconds += took;
		g->learned++;
	}
}

gradcomp_status delay_gpu_end_step(delay *d, gradcomp_error *err)
{
	delay_gpu *g = d->gpu;
	if (!g)
		return GRADCOMP_OK;
	gradcomp_status st = check(g->d->record(g->steps[d->step % g->nsteps].end, g->front), err);
	delay_gpu_learn(d);
	/* A time that nobody can learn any more is one that was not measured. */
	if (d->step - g->learned >= g->nsteps - 1)
		g->learned++;
	return st;
}

gradcomp_status delay_gpu_follow(delay *d, uint32_t i, void *queue, gradcomp_error *err)
{
	const delay_gpu *g = d->gpu;
	void *event;
	const char *why = NULL;
	if (!g || (i != DELAY_ALL && !d->model.tensors[i].n_done))
		return GRADCOMP_OK;
	event = i == DELAY_ALL ? g->joined : *at(d, g->fronted, d->model.tensors[i].n_done - 1, i);
	if (i == DELAY_ALL)
		why = g->d->record(event, g->front);
	return why ? check(why, err) : device_let_follow(g->d, queue ? queue : g->producer, event, err);
}

gradcomp_status delay_gpu_join(delay *d, gradcomp_error *err)
{
	const delay_gpu *g = d->gpu;
	const char *why = NULL;
	if (!g)
		return GRADCOMP_OK;
	void *const before[] = {g->producer, g->arrive};
	for (int k = 0; !why && k < 2; k++) {
		why = g->d->record(g->joined, before[k]);
		if (!why)
			why = g->d->follow(g->front, g->joined);
	}
	return check(why, err);
}

gradcomp_status delay_gpu_copy(delay *d, void *to, const void *from, size_t bytes, gradcomp_error *err)
{
	const delay_gpu *g = d->gpu;
	if (!g) {
		memcpy(to, from, bytes);
		return GRADCOMP_OK;
	}
	const char *why = g->d->copy(g->front, to, from, bytes);
	if (!why)
		why = g->d->record(g->joined, g->front);
	gradcomp_status st = check(why ? why : g->d->wait(g->joined), err);
	/* All that the device has done by now may have failed there, which the reducer behind finds. */
	return st ? st : d->inner->ops->wait(d->inner, err);
}

void delay_gpu_drain(const delay *d)
{
	const delay_gpu *g = d->gpu;
	if (g && g->d)
		device_drain(g->d, (void *const[]){g->front, g->submit, g->arrive}, 3);
}
