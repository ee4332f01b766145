/* The calls of auto: a gradient goes to the reducer that has its tensor, or waits while the
 * ranks are at a check. */
#include "kinds/autotune/tuner_gpu.h"
#include "kinds/autotune/tuner_internal.h"
#include "reducer/arg_errors.h"

#include "base/error.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

/* The reducer that has tensor i. */
static gradcomp_reducer *behind(const partition *p, uint32_t i)
{
	return &p->sub[p->of[i]].r->base;
}

/* Called with the lock held. */
static gradcomp_status failure(tuner *c, gradcomp_error *err)
{
	return c->failed ? error_set(err, c->failed, "%s", c->failure.text) : transport_failure(c->job->transport, err);
}

/* Called with the lock held, which is dropped meanwhile. The job has failed: what the reducers of parts were given
 * is done then. They look for themselves only when they are given more, or have all of a bucket. In a check they
 * have nothing, and may be gone. */
static void look(tuner *c)
{
	partition *p = c->parts.partition;
	if (c->turns.busy)
		return;
	c->turns.inside++;
	pthread_mutex_unlock(&c->lock);
	for (uint32_t k = 0; k < p->n; k++)
		reducer_look(p->sub[k].r);
	pthread_mutex_lock(&c->lock);
	c->turns.inside--;
	pthread_cond_signal(&c->turns.wake);
}

/* Does what failure() does, with the lock dropped meanwhile when it is news. */
static gradcomp_status failure_of_all(tuner *c, gradcomp_error *err)
{
	gradcomp_status st = failure(c, err);
	if (!st || c->failed)
		return st;
	tuner_fail(c, st, err->text);
	look(c);
	return st;
}

/* Called with the lock held: returns true while a tensor was given whose done() has not been called. */
static int owes(const tuner *c)
{
	return memchr(c->step.state, TENSOR_WAITS, c->ntensors) || memchr(c->step.state, TENSOR_FORWARDED, c->ntensors);
}

/* Called with the lock held, which is dropped meanwhile: returns when all that was given has been told of, and
 * nothing touches it any more. The program may free it as soon as it knows of the failure. */
static void settle_failed(tuner *c)
{
	if (c->failed)
		look(c);
	while (c->failed && (c->turns.busy || owes(c) || c->turns.callbacks))
		pthread_cond_wait(&c->turns.changed, &c->lock);
}

/* Called with the lock held, which is dropped meanwhile. */
static gradcomp_status forward(tuner *c, uint32_t i, gradcomp_error *err)
{
	partition *p = c->parts.partition;
	c->step.state[i] = TENSOR_FORWARDED;
	c->turns.inside++;
	pthread_mutex_unlock(&c->lock);
	gradcomp_status st = residual_carry_add(c, i, c->step.given[i], err);
	if (!st)
		st = behind(p, i)->ops->ready(behind(p, i), p->as[i], c->step.given[i], err);
	pthread_mutex_lock(&c->lock);
	c->turns.inside--;
	if (st)
		tuner_fail(c, st, err->text);
	pthread_cond_signal(&c->turns.wake);
	return st;
}

/* Called with the lock held: ready() says that it has failed, and done() does not. */
static void refuse(tuner *c, uint32_t i)
{
	c->step.state[i] = TENSOR_MISSING;
	c->step.ngiven--;
	pthread_cond_broadcast(&c->turns.changed);
}

/* Called with the lock held, when a check is over. Meanwhile the step may end and another check be due: what has
 * been given since waits for that. */
static void forward_all(tuner *c)
{
	gradcomp_error err;
	for (uint32_t i = 0; i < c->ntensors; i++) {
		if (c->step.state[i] != TENSOR_WAITS)
			continue;
		/* Its ready() has come back long ago: what fails now only done() can say. */
		if (c->failed || (!c->turns.busy && forward(c, i, &err))) {
			c->step.state[i] = TENSOR_DONE;
			tuner_tell(c, i, c->failed, &c->failure);
		}
	}
}

void *tuner_main(void *arg)
{
	tuner *c = arg;
	tuner_gpu_bind(c);
	/* While the program gets ready: on a slow network the first step decides. */
	if (c->turns.measure)
		tuner_measure(c);
	pthread_mutex_lock(&c->lock);
	c->turns.measuring = 0;
	pthread_cond_broadcast(&c->turns.changed);
	while (!c->turns.stop) {
		gradcomp_error err = {0};
		if (!c->turns.busy || c->turns.inside) {
			pthread_cond_wait(&c->turns.wake, &c->lock);
			continue;
		}
		c->turns.measure = 0;
		pthread_mutex_unlock(&c->lock);
		gradcomp_status st = tuner_check(c, &err);
		pthread_mutex_lock(&c->lock);
		if (st)
			tuner_fail(c, st, err.text);
		c->turns.busy = 0;
		forward_all(c);
		pthread_cond_broadcast(&c->turns.changed);
		if (c->turns.measure && !c->failed && !c->turns.stop) {
			c->turns.measuring = 1;
			pthread_mutex_unlock(&c->lock);
			tuner_measure(c);
			pthread_mutex_lock(&c->lock);
			c->turns.measuring = 0;
			pthread_cond_broadcast(&c->turns.changed);
		}
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* The functions below do what the public functions of the same names say. */

static gradcomp_status tuner_ready(gradcomp_reducer *base, uint32_t i, void *gradient, gradcomp_error *err)
{
	tuner *c = (tuner *)base;
	static char nothing[8];
	if (i >= c->ntensors)
		return arg_error_index(i, c->ntensors, err);
	const gradcomp_tensor *t = &c->layout.tensors[c->ntensors - 1 - i];
	gradcomp_error own;
	if (!gradient && t->numel)
		return arg_error_null(i, t->name, err);
	gradcomp_status st = tuner_gpu_accepts(c, t, gradient, err);
	if (st)
		return st;
	pthread_mutex_lock(&c->lock);
	st = failure_of_all(c, &own);
	if (!st && c->step.state[i]) {
		arg_fail_twice(c->job, i, t->name, c->steps);
		st = failure_of_all(c, &own);
	}
	if (st)
		error_set(err, st, "%s", own.text);
	if (!st) {
		c->step.given[i] = gradient ? gradient : nothing;
		c->step.state[i] = TENSOR_WAITS;
		c->step.ngiven++;
		metrics_timer_given(c, i);
		st = tuner_gpu_given(c, i, err ? err : &own);
		if (!st && !c->turns.busy)
			st = forward(c, i, err ? err : &own);
		if (st)
			refuse(c, i);
	}
	pthread_mutex_unlock(&c->lock);
	return st;
}

static gradcomp_status tuner_wait(gradcomp_reducer *base, gradcomp_error *err)
{
	tuner *c = (tuner *)base;
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&c->lock);
	if (c->step.ngiven && c->step.ngiven < c->ntensors && !c->failed) {
		uint32_t i = c->ntensors - 1;
		while (c->step.state[i])
			i--;
		st = arg_error_missing(c->step.ngiven, c->ntensors, c->steps, i,
		                       c->layout.tensors[c->ntensors - 1 - i].name, err);
	}
	uint64_t step = c->steps;
	while (!st && !c->failed && ((c->step.ngiven && c->steps == step) || c->turns.callbacks))
		pthread_cond_wait(&c->turns.changed, &c->lock);
	settle_failed(c);
	if (!st)
		st = failure(c, err);
	if (!st)
		st = tuner_gpu_follow(c, err);
	pthread_mutex_unlock(&c->lock);
	return st;
}

/* Called with the lock held. Of a tensor whose reducer has gone the average was in place before it went. */
static gradcomp_status follow_part(const tuner *c, uint32_t i, void *queue, gradcomp_error *err)
{
	const partition *p = c->parts.partition;
	return c->gpu ? behind(p, i)->ops->follow(behind(p, i), p->as[i], queue, err) : GRADCOMP_OK;
}

static gradcomp_status tuner_wait_for(gradcomp_reducer *base, uint32_t i, gradcomp_error *err)
{
	tuner *c = (tuner *)base;
	gradcomp_status st = GRADCOMP_OK;
	if (i >= c->ntensors)
		return arg_error_index(i, c->ntensors, err);
	pthread_mutex_lock(&c->lock);
	uint64_t step = c->steps;
	if (c->step.ngiven && !c->failed && !c->step.state[i])
		st = arg_error_not_given(i, c->layout.tensors[c->ntensors - 1 - i].name, step, err);
	while (!st && !c->failed && c->steps == step && c->step.state[i] == TENSOR_WAITS)
		pthread_cond_wait(&c->turns.changed, &c->lock);
	/* The part learns that its tensors are waited for one by one. */
	if (!st && !c->failed && c->steps == step && c->step.state[i] == TENSOR_FORWARDED) {
		partition *p = c->parts.partition;
		c->turns.inside++;
		pthread_mutex_unlock(&c->lock);
		st = behind(p, i)->ops->wait_for(behind(p, i), p->as[i], err);
		pthread_mutex_lock(&c->lock);
		c->turns.inside--;
		pthread_cond_signal(&c->turns.wake);
	}
	while (!st && !c->failed && c->steps == step && c->step.ngiven && c->step.state[i] != TENSOR_DONE)
		pthread_cond_wait(&c->turns.changed, &c->lock);
	settle_failed(c);
	if (!st)
		st = failure(c, err);
	if (!st)
		st = follow_part(c, i, NULL, err);
	pthread_mutex_unlock(&c->lock);
	return st;
}

static gradcomp_status tuner_follow(gradcomp_reducer *base, uint32_t i, void *queue, gradcomp_error *err)
{
	tuner *c = (tuner *)base;
	if (i >= c->ntensors)
		return arg_error_index(i, c->ntensors, err);
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = follow_part(c, i, queue, err);
	pthread_mutex_unlock(&c->lock);
	return st;
}

void tuner_destroy(tuner *c)
{
	partition_free(c, c->parts.aside, 0);
	c->parts.aside = NULL; /* all that it counted is with the parts that are gone */
	partition_free(c, c->parts.partition, c->turns.started);
	tuner_gpu_close(c);
	for (uint32_t i = 0; c->parts.carry && i < c->ntensors; i++)
		free(c->parts.carry[i]);
	for (uint32_t i = 0; i < c->choice.nchanges; i++)
		free(c->choice.change[i].to);
	gradcomp_group_free(c->group);
	replan_request_clear(&c->wants.asked);
	layout_free(&c->layout);
	tuner_config_clear(&c->config);
	tuner_assignment_clear(&c->parts.now);
	metrics_free(&c->choice.metrics);
	metrics_timer_free(&c->timer);
	free(c->choice.policy.of);
	free(c->choice.change);
	free(c->parts.carry);
	free(c->step.state);
	free(c->step.given);
	free(c->wants.collective);
	free(c->wants.schedule);
	pthread_cond_destroy(&c->turns.wake);
	pthread_cond_destroy(&c->turns.changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static gradcomp_status tuner_drain(gradcomp_reducer *base, void *const *corrections, void *const *weights, double rate,
                                   gradcomp_error *err)
{
	(void)corrections, (void)weights, (void)rate;
	return tuner_wait(base, err);
}

static void tuner_free(gradcomp_reducer *base)
{
	tuner *c = (tuner *)base;
	pthread_mutex_lock(&c->lock);
	while (((c->step.ngiven == c->ntensors || c->turns.busy) && !c->failed) || c->turns.callbacks)
		pthread_cond_wait(&c->turns.changed, &c->lock);
	int torn = c->step.ngiven && !c->failed;
	c->turns.stop = 1;
	pthread_cond_signal(&c->turns.wake);
	pthread_mutex_unlock(&c->lock);
	if (torn)
		job_fail(c->job, GRADCOMP_ERR_STATE, "it gave up its reducer in the middle of a step");
	pthread_join(c->turns.thread, NULL);
	tuner_destroy(c);
}

const reducer_ops tuner_ops = {
	.ready = tuner_ready,
	.wait = tuner_wait,
	.wait_for = tuner_wait_for,
	.follow = tuner_follow,
	.drain = tuner_drain,
	.save = tuner_save,
	.save_shared = tuner_save_shared,
	.load = tuner_load,
	.get_stats = tuner_stats,
	.free = tuner_free,
	.row = tuner_row,
};
