/* auto, made and taken down. */
#include "reducer/autotune/tuner_internal.h"
#include "reducer/bucketing/replan.h"

#include "base/error.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

void tuner_destroy(choice *c)
{
	partition_free(c, c->parts, c->started);
	for (uint32_t i = 0; c->owed && i < c->ntensors; i++)
		free(c->owed[i]);
	for (uint32_t i = 0; i < c->nchanges; i++)
		free(c->change[i].to);
	gradcomp_group_free(c->group);
	if (c->shape) {
		replan_close(c->shape);
		layout_free(c->shape);
		free(c->shape->collective_spec);
		free(c->shape);
	}
	tuner_config_clear(&c->wish);
	assignment_clear(&c->now);
	metrics_free(&c->facts);
	step_timer_free(&c->pulse);
	free(c->policy.of);
	free(c->change);
	free(c->owed);
	free(c->state);
	free(c->given);
	free(c->collective);
	free(c->schedule);
	pthread_cond_destroy(&c->wake);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static gradcomp_status copy_options(choice *c, const gradcomp_reducer_options *o, gradcomp_error *err)
{
	c->options = *o;
	c->collective = o->collective ? strdup(o->collective) : NULL;
	c->schedule = o->schedule ? strdup(o->schedule) : NULL;
	c->options.collective = c->collective;
	c->options.schedule = c->schedule;
	c->options.delay = 0;
	if ((o->collective && !c->collective) || (o->schedule && !c->schedule))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	if (o->device != GRADCOMP_HOST)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "auto reduces gradients in host memory; for those on a GPU name a compressor, or "
		                 "none");
	return tuner_config_read(c->job->config, o->compressor, &c->wish, err);
}

/* All that this rank can do without the others. */
static gradcomp_status prepare(choice *c, const gradcomp_tensor_desc *tensors, uint32_t n, gradcomp_error *err)
{
	const config *cf = c->job->config;
	gradcomp_error unknown = {0};
	gradcomp_status st = candidate_resolve(cf, c->collective, &c->wish.candidate[0], err);
	/* A list of the site's may be older than what is installed, but may hide a slip, too. */
	if (!c->job->rank && tuner_names_installed(cf, "auto.deny", config_str(cf, "auto.deny"), &unknown))
		log_line(&c->job->log, GRADCOMP_LOG_WARN, "%s: %s", config_origin(cf, "auto.deny"), unknown.text);
	if (!st && !c->wish.candidate[0].dense)
		st = error_set(err, GRADCOMP_ERR_INVALID,
		               "auto: its first candidate, '%s', keeps something back: others are compared with a "
		               "dense one",
		               c->wish.candidate[0].text);
	if (!st)
		st = layout_make(c->shape, tensors, n, c->options.seed, err);
	if (st)
		return st;
	c->ntensors = n;
	c->shape->compressor = c->wish.candidate[0].plugins[0]->compressor;
	c->shape->compressor_spec = c->wish.text;
	c->shape->collective_spec = strdup(c->collective ? c->collective : config_str(cf, "gradcomp.collective"));
	c->owed = calloc(n, sizeof *c->owed);
	c->state = calloc(n, sizeof *c->state);
	c->given = calloc(n, sizeof *c->given);
	c->now = (assignment){0, calloc(n, 1)};
	c->policy.of = calloc((size_t)n * TUNER_CANDIDATES, 1);
	if (!c->shape->collective_spec || !c->owed || !c->state || !c->given || !c->now.of || !c->policy.of)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer of %u tensors", n);
	for (uint32_t k = 0; k < TUNER_CANDIDATES; k++)
		memset(c->policy.of + (size_t)k * n, (int)k, n);
	st = metrics_make(&c->facts, n, c->wish.n, err);
	if (!st)
		st = step_timer_make(&c->pulse, n, err);
	if (!st)
		st = replan_open(c->shape, c->schedule, c->options.bucket_bytes, err);
	return st;
}

static void begin(choice *c)
{
	policy_start(&c->policy);
	c->last.phase = TUNER_LOOK;
	c->next_check = 1;
	c->measuring = c->measure;
	if (c->group->nranks > 1)
		return;
	c->next_check = UINT64_MAX;
	c->last.phase = TUNER_KEEP;
	c->last.reason = TUNER_ALONE;
	tuner_log(c, &c->last);
}

gradcomp_status tuner_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t n,
                            const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err)
{
	gradcomp_reducer *self = calloc(1, sizeof *self);
	choice *c = calloc(1, sizeof *c);
	gradcomp_error own = {0}, why = {0};
	int agreed = 0;
	if (c)
		c->shape = calloc(1, sizeof *c->shape);
	if (!self || !c || !c->shape) {
		free(self);
		free(c ? c->shape : NULL);
		free(c);
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	}
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->wake, NULL);
	pthread_cond_init(&c->changed, NULL);
	c->job = c->shape->job = group->job;
	c->shape->group = group;
	gradcomp_status st = copy_options(c, options, &own);
	if (!st)
		st = prepare(c, tensors, n, &own);
	why = own;
	st = reducer_consensus(c->shape, group, st, &why);
	if (!st)
		st = gradcomp_group_split(group, 0, group->me, &c->group, &why);
	if (!st)
		st = partition_make(c, &c->now, &c->parts, &why);
	if (!st)
		st = tuner_probe(c, &why);
	agreed = !st;
	if (!st) {
		begin(c);
		int rc = thread_start(&c->thread, tuner_main, c);
		if (rc)
			st = error_set(&why, GRADCOMP_ERR_NOMEM, "could not start the reducer's thread: %s",
			               strerror(rc));
	}
	if (st) {
		if (agreed)
			job_fail(c->job, st, why.text);
		tuner_destroy(c);
		free(self);
		return error_set(err, st, "%s", own.status ? own.text : why.text);
	}
	c->started = 1;
	c->self = self;
	self->calls = &tuner_ops;
	self->front = c;
	*out = self;
	return GRADCOMP_OK;
}
