/* auto, made and taken down. */
#include "kinds/autotune/tuner_gpu.h"
#include "kinds/autotune/tuner_internal.h"
#include "reducer/bucketing/replan.h"

#include "reducer/reducer_consensus.h"

#include "base/error.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

static gradcomp_status copy_options(tuner *c, const gradcomp_reducer_options *o, gradcomp_error *err)
{
	c->wants.options = *o;
	c->wants.collective = o->collective ? strdup(o->collective) : NULL;
	c->wants.schedule = o->schedule ? strdup(o->schedule) : NULL;
	c->wants.options.collective = c->wants.collective;
	c->wants.options.schedule = c->wants.schedule;
	if ((o->collective && !c->wants.collective) || (o->schedule && !c->wants.schedule))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	if (o->device != GRADCOMP_HOST && o->device != GRADCOMP_CUDA)
		return error_set(err, GRADCOMP_ERR_INVALID, "gradients on device %d: must be 0 (host) or 1 (CUDA)",
		                 (int)o->device);
	gradcomp_status st = tuner_config_read(&c->job->specs, o->compressor, &c->config, err);
	for (uint32_t k = 0; !st && k < c->config.n; k++)
		c->config.candidate[k].on_device = o->device == GRADCOMP_CUDA;
	return st;
}

/* All that this rank can do without the others. */
static gradcomp_status prepare(tuner *c, const gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t n,
                               gradcomp_error *err)
{
	const bool levels = c->wants.options.device == GRADCOMP_CUDA && group_has_levels(group);
	for (uint32_t k = 0; k < c->config.n; k++)
		c->config.candidate[k].in_levels = levels;
	gradcomp_status st = tuner_candidate_resolve(&c->job->specs, c->wants.collective, &c->config.candidate[0], err);
	if (!st && !c->config.candidate[0].dense)
		st = error_set(err, GRADCOMP_ERR_INVALID,
		               "auto: its first candidate, '%s', keeps something back: others are compared with a "
		               "dense one",
		               c->config.candidate[0].text);
	if (!st)
		st = layout_make(&c->layout, group, tensors, n, c->wants.options.seed, err);
	if (st)
		return st;
	c->ntensors = n;
	c->parts.carry = calloc(n, sizeof *c->parts.carry);
	c->step.state = calloc(n, sizeof *c->step.state);
	c->step.given = calloc(n, sizeof *c->step.given);
	c->parts.now = (assignment){0, calloc(n, 1)};
	c->choice.policy.of = calloc((size_t)n * TUNER_CANDIDATES, 1);
	if (!c->parts.carry || !c->step.state || !c->step.given || !c->parts.now.of || !c->choice.policy.of)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer of %u tensors", n);
	for (uint32_t k = 0; k < TUNER_CANDIDATES; k++)
		memset(c->choice.policy.of + (size_t)k * n, (int)k, n);
	st = c->wants.options.device == GRADCOMP_CUDA ? tuner_gpu_open(c, &c->wants.options, err) : GRADCOMP_OK;
	if (!st)
		st = metrics_make(&c->choice.metrics, n, c->config.n, err);
	if (!st)
		st = metrics_timer_make(&c->timer, n, err);
	if (!st)
		st = replan_request_read(&c->job->specs, c->wants.schedule, c->wants.options.bucket_bytes,
		                         &c->wants.asked, err);
	return st;
}

static void begin(tuner *c)
{
	policy_start(&c->choice.policy);
	c->choice.last.phase = TUNER_LOOK;
	c->next_check = 1;
	c->turns.measuring = c->turns.measure;
	if (c->group->nranks > 1)
		return;
	c->next_check = UINT64_MAX;
	c->choice.last.phase = TUNER_KEEP;
	c->choice.last.reason = TUNER_ALONE;
	tuner_log(c, &c->choice.last);
}

static gradcomp_status declare(const tuner *c, gradcomp_group *group, gradcomp_status mine, gradcomp_error *err)
{
	const reducer_request q = {.layout = &c->layout,
	                           .compressor = c->config.text,
	                           .collective = c->wants.collective
	                                                 ? c->wants.collective
	                                                 : config_str(c->job->config, SET_GRADCOMP_COLLECTIVE),
	                           .schedule = c->wants.asked.spec.text,
	                           .schedule_hash = mine ? 0 : replan_request_hash(&c->wants.asked, NULL),
	                           .bucket_bytes = c->wants.asked.bucket_bytes,
	                           .first_bucket_bytes = c->wants.asked.first_bucket_bytes,
	                           .delay = c->wants.options.delay};
	return reducer_consensus(group, &q, mine, err);
}

gradcomp_status tuner_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t n,
                           const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err)
{
	tuner *c = calloc(1, sizeof *c);
	gradcomp_error own = {0}, why = {0};
	int agreed = 0;
	if (!c) {
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	}
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->turns.wake, NULL);
	pthread_cond_init(&c->turns.changed, NULL);
	c->job = group->job;
	gradcomp_status st = copy_options(c, options, &own);
	if (!st)
		st = prepare(c, group, tensors, n, &own);
	why = own;
	st = declare(c, group, st, &why);
	if (!st)
		st = gradcomp_group_split(group, 0, group->me, &c->group, &why);
	if (!st)
		st = partition_make(c, &c->parts.now, &c->parts.partition, &why);
	if (!st)
		st = tuner_gpu_network(c, &why);
	if (!st)
		st = tuner_probe(c, &why);
	agreed = !st;
	if (!st) {
		begin(c);
		int rc = thread_start(&c->turns.thread, tuner_main, c);
		if (rc)
			st = error_set(&why, GRADCOMP_ERR_NOMEM, "could not start the reducer's thread: %s",
			               strerror(rc));
	}
	if (st) {
		if (agreed)
			job_fail(c->job, st, why.text);
		tuner_destroy(c);
		return error_set(err, st, "%s", own.status ? own.text : why.text);
	}
	c->turns.started = 1;
	c->base.ops = &tuner_ops;
	*out = &c->base;
	return GRADCOMP_OK;
}
