/* The end of a tensor's step: it is told of, and the last one ends the step of all parts. */
#include "kinds/autotune/tuner_gpu.h"
#include "kinds/autotune/tuner_internal.h"

#include "base/error.h"

#include <string.h>

/* Called with the lock held. What has failed here alone, as memory of a device may, others wait for: they are told. */
void tuner_fail(tuner *c, gradcomp_status status, const char *text)
{
	if (!c->failed) {
		c->failed = status;
		error_set(&c->failure, status, "%s", text);
		job_fail(c->job, status, text);
	}
	pthread_cond_broadcast(&c->turns.changed);
}

/* Called with the lock held, dropped during the callback. */
void tuner_tell(tuner *c, uint32_t i, gradcomp_status status, const gradcomp_error *err)
{
	c->turns.callbacks++;
	pthread_mutex_unlock(&c->lock);
	if (c->wants.options.done_run)
		c->wants.options.done_run(c->wants.options.ctx, i, 1, status, err);
	else if (c->wants.options.done)
		c->wants.options.done(c->wants.options.ctx, i, status, err);
	pthread_mutex_lock(&c->lock);
	c->turns.callbacks--;
	pthread_cond_broadcast(&c->turns.changed);
}

void tuner_part_done(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err)
{
	subreducer *q = ctx;
	tuner *c = q->of;
	uint32_t i = q->tensor[tensor];
	gradcomp_error own = {0};
	if (!status) {
		status = residual_carry_settle(c, i, c->step.given[i], &own);
		err = status ? &own : err;
	}
	pthread_mutex_lock(&c->lock);
	q->last = tensor;
	if (!status && c->step.ndone + 1 == c->ntensors && !c->failed) {
		status = tuner_gpu_step(c, &own);
		err = status ? &own : err;
	}
	if (status)
		tuner_fail(c, status, err->text);
	c->step.state[i] = TENSOR_DONE;
	if (++c->step.ndone == c->ntensors && !c->failed) {
		metrics_timer_step(c);
		c->step.ngiven = c->step.ndone = 0;
		memset(c->step.state, TENSOR_MISSING, c->ntensors);
		c->turns.busy = ++c->steps == c->next_check;
		if (c->turns.busy)
			pthread_cond_signal(&c->turns.wake);
	}
	pthread_cond_broadcast(&c->turns.changed);
	tuner_tell(c, i, status, err);
	pthread_mutex_unlock(&c->lock);
}
