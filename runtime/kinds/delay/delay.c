/* Delayed averaging as its user sees it: making one, feeding it, waiting for it. */
#include "kinds/delay/delay.h"
#include "kinds/delay/delay_gpu.h"
#include "reducer/reducer_consensus.h"
#include "kinds/kinds.h"
#include "reducer/arg_errors.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gradcomp_status delay_ready(gradcomp_reducer *base, uint32_t index, void *gradient, gradcomp_error *err)
{
	delay *d = (delay *)base;
	static char nothing[8];
	gradcomp_status st;
	if (index >= d->model.n)
		return arg_error_index(index, d->model.n, err);
	delay_tensor *t = &d->model.tensors[index];
	if (!gradient && t->numel)
		return arg_error_null(index, t->name, err);
	pthread_mutex_lock(&d->lock);
	st = delay_failure(d, err);
	if (!st && (t->given || t->n_done > d->step)) {
		arg_fail_twice(d->group->job, index, t->name, d->step);
		st = delay_failure(d, err);
	}
	if (!st)
		st = delay_gpu_given(d, index, gradient, err);
	if (!st) {
		t->given = gradient ? gradient : nothing;
		d->exposed.last_given = clock_now();
		d->now.given++;
		if (d->n_pending < d->delay || t->n_arrived + d->delay > d->step)
			delay_push(d, index);
	}
	pthread_mutex_unlock(&d->lock);
	return st;
}

/* Called with the lock held: returns true when tensor i was not given in the step in flight. */
static int missing(const delay *d, uint32_t i)
{
	return !d->model.tensors[i].given && d->model.tensors[i].n_done <= d->step;
}

static gradcomp_status delay_wait(gradcomp_reducer *base, gradcomp_error *err)
{
	delay *d = (delay *)base;
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&d->lock);
	if (d->now.given && d->now.given < d->model.n && !d->failed) {
		uint32_t i = d->model.n - 1;
		while (!missing(d, i))
			i--;
		st = arg_error_missing(d->now.given, d->model.n, d->step, i, d->model.tensors[i].name, err);
	}
	uint64_t step = d->step;
	while (!st && !d->failed && ((d->now.given && d->step == step) || d->calls.running))
		pthread_cond_wait(&d->change, &d->lock);
	if (!st)
		st = delay_failure(d, err);
	if (!st)
		st = delay_gpu_follow(d, DELAY_ALL, NULL, err);
	pthread_mutex_unlock(&d->lock);
	return st;
}

static gradcomp_status delay_wait_for(gradcomp_reducer *base, uint32_t index, gradcomp_error *err)
{
	delay *d = (delay *)base;
	gradcomp_status st = GRADCOMP_OK;
	if (index >= d->model.n)
		return arg_error_index(index, d->model.n, err);
	pthread_mutex_lock(&d->lock);
	if (d->now.given && !d->failed && missing(d, index))
		st = arg_error_not_given(index, d->model.tensors[index].name, d->step, err);
	while (!st && !d->failed && d->model.tensors[index].given)
		pthread_cond_wait(&d->change, &d->lock);
	if (!st)
		st = delay_failure(d, err);
	if (!st)
		st = delay_gpu_follow(d, index, NULL, err);
	pthread_mutex_unlock(&d->lock);
	return st;
}

static gradcomp_status delay_follow(gradcomp_reducer *base, uint32_t index, void *queue, gradcomp_error *err)
{
	delay *d = (delay *)base;
	if (index >= d->model.n)
		return arg_error_index(index, d->model.n, err);
	pthread_mutex_lock(&d->lock);
	gradcomp_status st = delay_gpu_follow(d, index, queue, err);
	pthread_mutex_unlock(&d->lock);
	return st;
}

/* Reports what the reducer behind counts, but for what the application waited. */
static void delay_get_stats(gradcomp_reducer *base, gradcomp_reducer_stats *stats)
{
	delay *d = (delay *)base;
	gradcomp_reducer_stats full = {.struct_size = sizeof full};
	uint32_t size = stats->struct_size;
	d->inner->ops->get_stats(d->inner, &full);
	pthread_mutex_lock(&d->lock);
	delay_gpu_learn(d);
	full.exposed_s = d->exposed.seconds;
	pthread_mutex_unlock(&d->lock);
	full.struct_size = size;
	memcpy(stats, &full, size < sizeof full ? size : sizeof full);
}

/* The report gets what the application waited, and the delay that made it so little. */
static void delay_kept(void *ctx, report_reducer *row)
{
	const delay *d = ctx;
	row->delay = d->delay;
	row->stats.exposed_s = d->exposed.seconds;
	job_keep_reducer(d->group->job, row);
}

/* Frees all, behind the threads: they are not there any more, or never were. */
static void destroy(delay *d)
{
	reducer_dispose(d->inner);
	for (uint32_t i = 0; d->model.tensors && i < d->model.n; i++)
		free(d->model.tensors[i].name);
	delay_gpu_drain(d);
	for (uint32_t s = 0; d->model.slots && s < d->delay; s++)
		delay_release(d, d->model.slots[s]);
	delay_release(d, d->model.work);
	delay_gpu_close(d);
	free(d->model.tensors);
	free(d->model.slots);
	free(d->complete.tensors);
	free(d->submit.tensors);
	pthread_cond_destroy(&d->threads.completer_wake);
	pthread_cond_destroy(&d->threads.submitter_wake);
	pthread_cond_destroy(&d->change);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static void delay_free(gradcomp_reducer *base)
{
	delay *d = (delay *)base;
	gradcomp_error err;
	pthread_mutex_lock(&d->lock);
	if (delay_settle(d, "free", &err) == GRADCOMP_ERR_STATE && !d->failed) {
		gradcomp_job *job = d->group->job;
		error_set(&err, GRADCOMP_ERR_STATE, "rank %d gave up its reducer in the middle of a step", job->rank);
		job_fail(job, GRADCOMP_ERR_STATE, err.text);
		delay_fail(d, GRADCOMP_ERR_STATE, &err);
		delay_failure(d, &err);
	}
	while (d->calls.running)
		pthread_cond_wait(&d->change, &d->lock);
	pthread_mutex_unlock(&d->lock);
	delay_end(d);
	destroy(d);
}

static void delay_row(gradcomp_reducer *base, report_reducer *row)
{
	const delay *d = (delay *)base;
	d->inner->ops->row(d->inner, row);
	row->delay = d->delay;
}

static const reducer_ops ops = {delay_ready,       delay_wait, delay_wait_for,  delay_follow, delay_drain, delay_save,
                                delay_save_shared, delay_load, delay_get_stats, delay_free,   delay_row};

/* The reducer behind has found the tensors to be as they should. */
static gradcomp_status allocate(delay *d, const gradcomp_tensor_desc *tensors, gradcomp_error *err)
{
	uint64_t bytes = 0;
	char unnamed[32];
	d->model.tensors = calloc(d->model.n, sizeof *d->model.tensors);
	d->complete.tensors = calloc(d->model.n, sizeof *d->complete.tensors);
	d->submit.tensors = calloc(d->model.n, (d->delay + 1) * sizeof *d->submit.tensors);
	d->model.slots = calloc(d->delay, sizeof *d->model.slots);
	if (!d->model.tensors || !d->complete.tensors || !d->submit.tensors || !d->model.slots)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for delayed averages of %u tensors", d->model.n);
	for (uint32_t i = 0; i < d->model.n; i++) {
		delay_tensor *t = &d->model.tensors[i];
		t->numel = 1;
		for (uint32_t k = 0; k < tensors[i].ndim; k++)
			t->numel *= tensors[i].dims[k];
		t->dtype = tensors[i].dtype;
		t->offset = d->model.numel;
		d->model.numel += t->numel;
		bytes += (t->numel * gradcomp_dtype_bytes(t->dtype) + 63) & ~(uint64_t)63;
		snprintf(unnamed, sizeof unnamed, "tensor %u", i);
		t->name = strdup(tensors[i].name ? tensors[i].name : unnamed);
		if (!t->name)
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for tensor %u", i);
	}
	d->model.work = delay_alloc(d, bytes + 1);
	for (uint32_t s = 0; s < d->delay; s++)
		d->model.slots[s] = delay_alloc(d, (d->model.numel + 1) * sizeof(float));
	for (uint32_t s = 0; s < d->delay; s++)
		if (!d->model.work || !d->model.slots[s])
			return error_set(err, GRADCOMP_ERR_NOMEM,
			                 "no memory for averages that come %u steps late: %llu bytes", d->delay,
			                 (unsigned long long)(d->model.numel * sizeof(float) * d->delay + bytes));
	bytes = 0;
	for (uint32_t i = 0; i < d->model.n; i++) {
		d->model.tensors[i].work = d->model.work + bytes;
		bytes += (d->model.tensors[i].numel * gradcomp_dtype_bytes(d->model.tensors[i].dtype) + 63) &
		         ~(uint64_t)63;
	}
	return delay_gpu_arrays(d, err);
}

gradcomp_status delay_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                           const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err)
{
	gradcomp_reducer_options behind = *options;
	delay *d = calloc(1, sizeof *d);
	gradcomp_error own = {0};
	gradcomp_status st;
	if (!d) {
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	}
	d->group = group;
	d->ops = group->job->host.operators;
	d->delay = options->delay;
	d->model.n = ntensors;
	d->calls.done = options->done;
	d->calls.done_run = options->done_run;
	d->calls.ctx = options->ctx;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->threads.completer_wake, NULL);
	pthread_cond_init(&d->threads.submitter_wake, NULL);
	pthread_cond_init(&d->change, NULL);
	behind.done = delay_arrived;
	behind.done_run = NULL;
	behind.ctx = d;
	st = delay_gpu_open(d, options, &behind.queue, &own);
	if (st)
		st = reducer_consensus(group, &(reducer_request){.delay = d->delay}, st, &own);
	else
		st = kinds_open(group, tensors, ntensors, &behind, &d->inner, &own);
	if (!st) {
		st = allocate(d, tensors, &own);
		if (!st)
			st = delay_begin(d, &own);
		if (st)
			job_fail(group->job, st, own.text);
	}
	if (st) {
		delay_end(d);
		destroy(d);
		return error_set(err, st, "%s", own.text);
	}
	d->inner->report = delay_kept;
	d->inner->report_ctx = d;
	d->base.ops = &ops;
	*out = &d->base;
	return GRADCOMP_OK;
}
