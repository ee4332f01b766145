/* The two threads of delayed averaging, and what they hand to each other. */
#include "kinds/delay/delay_gpu.h"

#include "base/error.h"
#include "base/thread.h"

#include <string.h>

void delay_push(delay *d, uint32_t tensor)
{
	d->complete.tensors[d->complete.end++] = tensor;
	pthread_cond_signal(&d->threads.completer_wake);
}

void delay_fail(delay *d, gradcomp_status status, const gradcomp_error *err)
{
	if (d->failed)
		return;
	d->failed = status;
	error_set(&d->failure, status, "%s", err->text);
	pthread_cond_broadcast(&d->threads.completer_wake);
	pthread_cond_broadcast(&d->threads.submitter_wake);
	pthread_cond_broadcast(&d->change);
}

gradcomp_status delay_failure(delay *d, gradcomp_error *err)
{
	gradcomp_error known;
	if (!d->failed && transport_failure(d->group->job->transport, &known))
		delay_fail(d, known.status, &known);
	while (d->failed && !d->calls.notified)
		pthread_cond_wait(&d->change, &d->lock);
	return d->failed ? error_set(err, d->failed, "%s", d->failure.text) : GRADCOMP_OK;
}

gradcomp_status delay_settle(delay *d, const char *what, gradcomp_error *err)
{
	if (d->now.given && d->now.given < d->model.n && !d->failed)
		return error_set(err, GRADCOMP_ERR_STATE, "%s in the middle of a step: wait for it first", what);
	while (!d->failed && (d->now.given || d->calls.running || d->n_averaged < d->step))
		pthread_cond_wait(&d->change, &d->lock);
	gradcomp_status st = delay_failure(d, err);
	return st ? st : delay_gpu_join(d, err);
}

/* The slot of a tensor whose average has come: average - own gradient. */
static void correct(const delay *d, const delay_tensor *t)
{
	float *slot = delay_slot(d, t->n_arrived) + t->offset, local[DELAY_RUN];
	const delay_run r = delay_arrive_run(d, local);
	for (uint64_t at = 0; at < t->numel; at += r.n) {
		size_t len = t->numel - at < r.n ? t->numel - at : r.n;
		d->ops->cast_to_f32(r.queue, r.x, t->work + at * gradcomp_dtype_bytes(t->dtype), len, t->dtype);
		d->ops->scale(r.queue, slot + at, -1, len);
		d->ops->add(r.queue, slot + at, r.x, len);
	}
}

void delay_arrived(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err)
{
	delay *d = ctx;
	delay_tensor *t = &d->model.tensors[tensor];
	gradcomp_error own = {0};
	if (!status) {
		status = delay_gpu_arrive(d, tensor, &own);
		if (!status)
			correct(d, t);
		status = delay_gpu_arrived(d, tensor, status, &own);
		err = &own;
	}
	pthread_mutex_lock(&d->lock);
	if (status)
		delay_fail(d, status, err);
	else if (t->n_arrived++ + d->delay == d->step && d->n_pending == d->delay && t->given)
		delay_push(d, tensor);
	pthread_mutex_unlock(&d->lock);
}

/* Puts the step's gradient into its slot, and adds to the gradient what the slot held. */
static void combine(const delay *d, const delay_tensor *t)
{
	float *slot = delay_slot(d, d->step) + t->offset, local[DELAY_RUN];
	const delay_run r = delay_front_run(d, local);
	int corrected = d->n_pending == d->delay;
	for (uint64_t at = 0; at < t->numel; at += r.n) {
		size_t len = t->numel - at < r.n ? t->numel - at : r.n;
		char *gradient = (char *)t->given + at * gradcomp_dtype_bytes(t->dtype);
		d->ops->cast_to_f32(r.queue, r.x, gradient, len, t->dtype);
		if (corrected) {
			d->ops->add(r.queue, slot + at, r.x, len);
			d->ops->cast_from_f32(r.queue, gradient, slot + at, len, t->dtype, 0);
		}
		d->ops->copy(r.queue, slot + at, r.x, len * sizeof *r.x);
	}
}

/* Called with the lock held. */
static void end_step(delay *d)
{
	d->exposed.seconds += d->gpu ? 0 : clock_now() - d->exposed.last_given;
	d->step++;
	d->n_pending += d->n_pending < d->delay;
	d->now.given = d->now.done = 0;
	d->complete.first = d->complete.end = 0;
}

/* Called with the lock held, which is dropped meanwhile. */
static void notify(delay *d, uint32_t tensor)
{
	gradcomp_status failed = d->failed;
	d->calls.running++;
	pthread_mutex_unlock(&d->lock);
	if (d->calls.done_run)
		d->calls.done_run(d->calls.ctx, tensor, 1, failed, failed ? &d->failure : NULL);
	else if (d->calls.done)
		d->calls.done(d->calls.ctx, tensor, failed, failed ? &d->failure : NULL);
	pthread_mutex_lock(&d->lock);
	d->calls.running--;
	pthread_cond_broadcast(&d->change);
}

static void *completer_main(void *arg)
{
	delay *d = arg;
	gradcomp_error err = {0};
	delay_gpu_bind(d);
	pthread_mutex_lock(&d->lock);
	while (!d->threads.stop && !d->failed) {
		if (d->complete.first == d->complete.end) {
			pthread_cond_wait(&d->threads.completer_wake, &d->lock);
			continue;
		}
		uint32_t i = d->complete.tensors[d->complete.first++];
		delay_tensor *t = &d->model.tensors[i];
		pthread_mutex_unlock(&d->lock);
		gradcomp_status st = delay_gpu_front(d, i, &err);
		if (!st)
			combine(d, t);
		if (!st)
			st = delay_gpu_fronted(d, i, &err);
		pthread_mutex_lock(&d->lock);
		if (!st && d->now.done + 1 == d->model.n)
			st = delay_gpu_end_step(d, &err);
		if (st)
			delay_fail(d, st, &err);
		if (d->failed)
			break;
		t->given = NULL;
		t->n_done = d->step + 1;
		d->submit.tensors[d->submit.end++ % ((uint64_t)d->model.n * (d->delay + 1))] = i;
		pthread_cond_signal(&d->threads.submitter_wake);
		if (++d->now.done == d->model.n)
			end_step(d);
		notify(d, i);
	}
	if (d->failed)
		delay_gpu_drain(d);
	for (uint32_t i = 0; d->failed && i < d->model.n; i++)
		if (d->model.tensors[i].given)
			notify(d, i);
	d->calls.notified = 1;
	pthread_cond_broadcast(&d->change);
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* Gives this rank's gradient of step n_averaged to the reducer behind. */
static gradcomp_status submit(delay *d, uint32_t i, gradcomp_error *err)
{
	const delay_tensor *t = &d->model.tensors[i];
	gradcomp_status st = delay_gpu_submit(d, i, err);
	if (!st)
		d->ops->cast_from_f32(delay_submit_queue(d), t->work, delay_slot(d, d->n_averaged) + t->offset,
		                      t->numel, t->dtype, 0);
	if (!st)
		st = delay_gpu_failed(d, err);
	return st ? st : d->inner->ops->ready(d->inner, i, t->work, err);
}

static void *submitter_main(void *arg)
{
	delay *d = arg;
	gradcomp_error err = {0};
	uint32_t sent = 0;
	delay_gpu_bind(d);
	pthread_mutex_lock(&d->lock);
	while (!d->threads.stop && !d->failed) {
		if (d->submit.first == d->submit.end) {
			pthread_cond_wait(&d->threads.submitter_wake, &d->lock);
			continue;
		}
		uint32_t i = d->submit.tensors[d->submit.first++ % ((uint64_t)d->model.n * (d->delay + 1))];
		pthread_mutex_unlock(&d->lock);
		gradcomp_status st = submit(d, i, &err);
		if (!st && ++sent == d->model.n)
			st = d->inner->ops->wait(d->inner, &err);
		if (!st && sent == d->model.n)
			st = delay_gpu_averaged(d, &err);
		pthread_mutex_lock(&d->lock);
		if (st) {
			delay_fail(d, st, &err);
		} else if (sent == d->model.n) {
			sent = 0;
			d->n_averaged++;
			pthread_cond_broadcast(&d->change);
		}
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

gradcomp_status delay_begin(delay *d, gradcomp_error *err)
{
	int rc = thread_start(&d->threads.completer, completer_main, d);
	if (!rc) {
		d->threads.started = 1;
		rc = thread_start(&d->threads.submitter, submitter_main, d);
		d->threads.started += !rc;
	}
	if (rc)
		return error_set(err, GRADCOMP_ERR_NOMEM, "could not start the threads of delayed averages: %s",
		                 strerror(rc));
	return GRADCOMP_OK;
}

void delay_end(delay *d)
{
	pthread_mutex_lock(&d->lock);
	d->threads.stop = 1;
	pthread_cond_broadcast(&d->threads.completer_wake);
	pthread_cond_broadcast(&d->threads.submitter_wake);
	pthread_mutex_unlock(&d->lock);
	if (d->threads.started > 0)
		pthread_join(d->threads.completer, NULL);
	if (d->threads.started > 1)
		pthread_join(d->threads.submitter, NULL);
}
