/* The two threads of delayed averaging, and what they hand to each other. */
#include "reducer/delayed/delayed_gpu.h"

#include "base/error.h"
#include "base/thread.h"

#include <string.h>

void delay_push(delay *d, uint32_t tensor)
{
	d->to_complete[d->to_complete_end++] = tensor;
	pthread_cond_signal(&d->completer_wake);
}

void delay_fail(delay *d, gradcomp_status status, const gradcomp_error *err)
{
	if (d->failed)
		return;
	d->failed = status;
	error_set(&d->failure, status, "%s", err->text);
	pthread_cond_broadcast(&d->completer_wake);
	pthread_cond_broadcast(&d->submitter_wake);
	pthread_cond_broadcast(&d->change);
}

gradcomp_status delay_failure(delay *d, gradcomp_error *err)
{
	gradcomp_error known;
	if (!d->failed && transport_failure(d->group->job->transport, &known))
		delay_fail(d, known.status, &known);
	while (d->failed && !d->notified)
		pthread_cond_wait(&d->change, &d->lock);
	return d->failed ? error_set(err, d->failed, "%s", d->failure.text) : GRADCOMP_OK;
}

gradcomp_status delay_settle(delay *d, const char *what, gradcomp_error *err)
{
	if (d->n_given && d->n_given < d->n && !d->failed)
		return error_set(err, GRADCOMP_ERR_STATE, "%s in the middle of a step: wait for it first", what);
	while (!d->failed && (d->n_given || d->n_callbacks || d->n_averaged < d->step))
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
	delay_tensor *t = &d->tensors[tensor];
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

/* The step's gradient into its slot, and onto the gradient what the slot held. */
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

/* With the lock held. */
static void end_step(delay *d)
{
	d->exposed_s += d->gpu ? 0 : clock_now() - d->last_given;
	d->step++;
	d->n_pending += d->n_pending < d->delay;
	d->n_given = d->n_done = 0;
	d->to_complete_first = d->to_complete_end = 0;
}

/* With the lock held, dropped meanwhile. */
static void notify(delay *d, uint32_t tensor)
{
	gradcomp_status failed = d->failed;
	d->n_callbacks++;
	pthread_mutex_unlock(&d->lock);
	if (d->done_run)
		d->done_run(d->ctx, tensor, 1, failed, failed ? &d->failure : NULL);
	else if (d->done)
		d->done(d->ctx, tensor, failed, failed ? &d->failure : NULL);
	pthread_mutex_lock(&d->lock);
	d->n_callbacks--;
	pthread_cond_broadcast(&d->change);
}

static void *completer_main(void *arg)
{
	delay *d = arg;
	gradcomp_error err = {0};
	delay_gpu_bind(d);
	pthread_mutex_lock(&d->lock);
	while (!d->stop && !d->failed) {
		if (d->to_complete_first == d->to_complete_end) {
			pthread_cond_wait(&d->completer_wake, &d->lock);
			continue;
		}
		uint32_t i = d->to_complete[d->to_complete_first++];
		delay_tensor *t = &d->tensors[i];
		pthread_mutex_unlock(&d->lock);
		gradcomp_status st = delay_gpu_front(d, i, &err);
		if (!st)
			combine(d, t);
		if (!st)
			st = delay_gpu_fronted(d, i, &err);
		pthread_mutex_lock(&d->lock);
		if (!st && d->n_done + 1 == d->n)
			st = delay_gpu_end_step(d, &err);
		if (st)
			delay_fail(d, st, &err);
		if (d->failed)
			break;
		t->given = NULL;
		t->n_done = d->step + 1;
		d->to_submit[d->to_submit_end++ % ((uint64_t)d->n * (d->delay + 1))] = i;
		pthread_cond_signal(&d->submitter_wake);
		if (++d->n_done == d->n)
			end_step(d);
		notify(d, i);
	}
	if (d->failed)
		delay_gpu_drain(d);
	for (uint32_t i = 0; d->failed && i < d->n; i++)
		if (d->tensors[i].given)
			notify(d, i);
	d->notified = 1;
	pthread_cond_broadcast(&d->change);
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* This rank's gradient of step n_averaged to the reducer behind. */
static gradcomp_status submit(delay *d, uint32_t i, gradcomp_error *err)
{
	const delay_tensor *t = &d->tensors[i];
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
	while (!d->stop && !d->failed) {
		if (d->to_submit_first == d->to_submit_end) {
			pthread_cond_wait(&d->submitter_wake, &d->lock);
			continue;
		}
		uint32_t i = d->to_submit[d->to_submit_first++ % ((uint64_t)d->n * (d->delay + 1))];
		pthread_mutex_unlock(&d->lock);
		gradcomp_status st = submit(d, i, &err);
		if (!st && ++sent == d->n)
			st = d->inner->ops->wait(d->inner, &err);
		if (!st && sent == d->n)
			st = delay_gpu_averaged(d, &err);
		pthread_mutex_lock(&d->lock);
		if (st) {
			delay_fail(d, st, &err);
		} else if (sent == d->n) {
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
	int rc = thread_start(&d->completer, completer_main, d);
	if (!rc) {
		d->threads = 1;
		rc = thread_start(&d->submitter, submitter_main, d);
		d->threads += !rc;
	}
	if (rc)
		return error_set(err, GRADCOMP_ERR_NOMEM, "could not start the threads of delayed averages: %s",
		                 strerror(rc));
	return GRADCOMP_OK;
}

void delay_end(delay *d)
{
	pthread_mutex_lock(&d->lock);
	d->stop = 1;
	pthread_cond_broadcast(&d->completer_wake);
	pthread_cond_broadcast(&d->submitter_wake);
	pthread_mutex_unlock(&d->lock);
	if (d->threads > 0)
		pthread_join(d->completer, NULL);
	if (d->threads > 1)
		pthread_join(d->submitter, NULL);
}
