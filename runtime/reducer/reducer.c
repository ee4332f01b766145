/* gradcomp_reducer: making one, feeding it, waiting for it. */
#include "reducer/reducer_ops.h"
#include "reducer/gpu/gpu.h"
#include "reducer/arg_errors.h"
#include "reducer/bucketing/profile.h"
#include "reducer/bucketing/replan.h"
#include "reducer/hierarchical/hierarchical.h"
#include "reducer/timeline.h"

#include "base/error.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

/* What the options leave out comes from the job's settings. */
static gradcomp_status choose(gradcomp_reducer *r, const gradcomp_reducer_options *o, const plugin *plugins[2],
                              spec specs[2], gradcomp_error *err)
{
	const config *c = r->job->config;
	const char *usual = config_str(c, "gradcomp.collective");
	gradcomp_status st = registry_both(c, o->compressor, o->collective, plugins, specs, err);
	if (st)
		return st;
	if (!o->collective && strncmp(usual, plugins[1]->info->name, strcspn(usual, ":")))
		log_line(&r->job->log, GRADCOMP_LOG_INFO, "'%s' goes over collective '%s', since '%s' cannot carry it",
		         plugins[0]->info->name, plugins[1]->info->name, usual);
	r->compressor = plugins[0]->compressor;
	r->asked = strdup(o->compressor ? o->compressor : config_str(c, "gradcomp.compressor"));
	r->compressor_spec = strdup(specs[0].text);
	r->collective_spec = strdup(specs[1].text);
	r->done = o->done;
	r->ctx = o->ctx;
	if (!r->asked || !r->compressor_spec || !r->collective_spec)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	if (o->device != GRADCOMP_HOST && o->device != GRADCOMP_CUDA)
		return error_set(err, GRADCOMP_ERR_INVALID, "gradients on device %d: must be 0 (host) or 1 (CUDA)",
		                 (int)o->device);
	return replan_open(r, o->schedule, o->bucket_bytes, err);
}

/* Zeroed, where the compressor works. */
static gradcomp_status array(const gradcomp_reducer *r, size_t bytes, const char *what, float **out, gradcomp_error *err)
{
	const gpu *g = r->gpu;
	void *p = NULL;
	if (g && g->way == GPU_ON_DEVICE) {
		const char *why = g->d->alloc(&p, bytes);
		*out = p;
		if (!why)
			why = g->d->zero(g->compute, p, bytes);
		return why ? error_set(err, GRADCOMP_ERR_NOMEM, "no CUDA memory for %s of %zu bytes: %s", what, bytes, why)
		           : GRADCOMP_OK;
	}
	*out = calloc(1, bytes);
	return *out ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %s of %zu bytes", what, bytes);
}

static void array_free(const gradcomp_reducer *r, float *p)
{
	if (p && r->gpu && r->gpu->way == GPU_ON_DEVICE)
		r->gpu->d->release(p);
	else
		free(p);
}

gradcomp_status reducer_allocate(gradcomp_reducer *r, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	size_t bytes = r->layout.numel * sizeof(float) + sizeof(float);
	uint32_t states = r->compressor->state_arrays;
	if (r->compressor->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK && !r->shards) {
		st = array(r, bytes, "an error memory", &r->error, err);
		if (st)
			return st;
	}
	r->state = calloc(states + 1, sizeof *r->state);
	r->lengths = calloc((size_t)r->layout.nranks, 2 * sizeof *r->lengths);
	r->held = calloc(r->layout.ntensors, sizeof *r->held);
	if (!r->state || !r->lengths || !r->held)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	for (uint32_t s = 0; !st && s < states && !r->shards; s++)
		st = array(r, bytes, "a state array", &r->state[s], err);
	r->grads = r->given;
	r->memory = r->error;
	if (states && !r->shards && (r->compressor->traits & GRADCOMP_TRAIT_OWN_MOMENTUM))
		r->memory = r->state[states - 1];
	return st;
}

/* What the compressor works on, and the compressor. */
static gradcomp_status equip(gradcomp_reducer *r, const gradcomp_value *values, gradcomp_error *err)
{
	step_plan plan = {0};
	bucketing d = {0};
	gradcomp_status st = reducer_allocate(r, err);
	if (!st && r->gpu)
		st = gpu_arrays(r, err);
	if (!st)
		st = replan_first(r, &plan, err);
	if (!st)
		st = bucketing_make(r, &plan, &d, err);
	if (!st)
		bucketing_swap(r, &d);
	bucketing_free(r, &d);
	step_plan_clear(&plan);
	if (!st && !r->instance && !r->shards)
		st = r->compressor->create(&r->job->host, values, &r->layout, &r->instance, err);
	return st;
}

static void destroy(gradcomp_reducer *r)
{
	if (r->instance)
		r->compressor->destroy(r->instance);
	bucketing d = bucketing_current(r);
	bucketing_free(r, &d);
	coll_ctx_close(&r->coll_ctx);
	for (uint32_t s = 0; r->state && s < r->compressor->state_arrays; s++)
		array_free(r, r->state[s]);
	for (int s = 0; s < REDUCER_WORKSPACES; s++)
		reducer_workspace_free(&r->workspaces[s]);
	free(r->state);
	free(r->lengths);
	free(r->held);
	array_free(r, r->error);
	gpu_close(r);
	replan_close(r);
	profile_close(r);
	layout_free(r);
	free(r->asked);
	free(r->compressor_spec);
	free(r->collective_spec);
	pthread_cond_destroy(&r->compute_wake);
	pthread_cond_destroy(&r->exchange_wake);
	pthread_cond_destroy(&r->step_over);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

gradcomp_status reducer_create(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                               const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err)
{
	const gradcomp_reducer_options o = *options;
	const plugin *plugins[2] = {0};
	spec specs[2] = {{0}, {0}};
	gradcomp_error own = {0}, why = {0};
	gradcomp_reducer *r;
	gradcomp_status st;
	int agreed;
	r = calloc(1, sizeof *r);
	if (!r) {
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	}
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->compute_wake, NULL);
	thread_condition(&r->exchange_wake);
	pthread_cond_init(&r->step_over, NULL);
	r->job = group->job;
	r->group = group;
	st = choose(r, &o, plugins, specs, &own);
	if (!st)
		st = layout_make(r, tensors, ntensors, o.seed, &own);
	if (!st)
		st = profile_open(r, replan_rows(r), &own);
	if (!st)
		st = replan_file(r, &own);
	if (!st)
		r->layout.patterns = registry_patterns(plugins[0], plugins[1]);
	if (!st)
		st = layout_limits(r, &own);
	if (!st && o.device == GRADCOMP_CUDA)
		st = gpu_open(r, plugins[1]->collective, specs[0].values, o.queue, &own);
	/* What the compressor works on is known when the nodes are, from the collective. */
	int late = !st && !r->gpu && hierarchical_wanted(r, plugins[1]->collective);
	if (!st && !late)
		st = equip(r, specs[0].values, &own);
	why = own;
	st = reducer_consensus(r, group, st, &why);
	agreed = !st;
	if (!st)
		st = coll_ctx_open(group, plugins[1], &specs[1], &r->coll_ctx, &why);
	if (!st && late) {
		st = hierarchical_open(r, &own);
		if (!st)
			st = equip(r, specs[0].values, &own);
		why = own;
		st = reducer_consensus(r, group, st, &why);
		agreed = !st;
	}
	if (!st && r->gpu)
		st = gpu_port(r, &why);
	if (!st) {
		bucketing d = bucketing_current(r);
		st = bucketing_server_error(r, &d, &why);
		r->server_error = d.server_error;
		r->nserver_error = d.nserver_error;
	}
	if (!st)
		st = workers_start(r, &why);
	spec_clear(&specs[0]);
	spec_clear(&specs[1]);
	if (st) {
		if (agreed)
			job_fail(r->job, st, why.text);
		workers_stop(r);
		destroy(r);
		return error_set(err, st, "%s", own.status ? own.text : why.text);
	}
	if (r->job->trace && trace_keeps(r->job->trace, r->job->rank)) {
		r->trace = r->job->trace;
		r->trace_id = trace_reducer(r->trace);
	}
	job_count(r->job, 1);
	*out = r;
	return GRADCOMP_OK;
}

/* What the report keeps of a reducer that goes. */
static void keep(gradcomp_reducer *r)
{
	uint32_t n = r->layout.ntensors;
	report_tensor *t = calloc(n, sizeof *t);
	report_reducer kept = {.nranks = r->layout.nranks, .tensors = t, .ntensors = n};
	if (!t)
		return;
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	reducer_get_stats(r, &stats);
	kept.stats = stats;
	for (uint32_t i = 0; i < n; i++) {
		const gradcomp_tensor *from = &r->tensors[n - 1 - i];
		const char *choice = r->shards                ? hierarchical_choice(r, n - 1 - i)
		                     : r->compressor->choice ? r->compressor->choice(r->instance, n - 1 - i)
		                                             : r->compressor->info.name;
		const struct held *held = r->shards ? hierarchical_residual_norm(r, n - 1 - i) : &r->held[n - 1 - i];
		t[i] = (report_tensor){.name = strdup(from->name), .numel = from->numel, .choice = strdup(choice),
		                       .error = held->steps ? held->shares / (double)held->steps : -1};
	}
	kept.asked = r->asked;
	kept.compressor = r->compressor_spec;
	kept.collective = r->collective_spec;
	kept.schedule = replan_report(r);
	r->asked = r->compressor_spec = r->collective_spec = NULL;
	if (r->keep)
		r->keep(r->keep_ctx, &kept);
	else
		job_keep_reducer(r->job, &kept);
}

void reducer_free(gradcomp_reducer *r)
{
	pthread_mutex_lock(&r->lock);
	while ((r->ngiven == r->layout.ntensors && !r->failed) || r->callbacks)
		pthread_cond_wait(&r->step_over, &r->lock);
	workers_replan_settle(r);
	if (r->ngiven && !r->failed) {
		uint32_t i = reducer_missing(r);
		gradcomp_error err;
		error_set(&err, GRADCOMP_ERR_STATE,
		          "rank %d gave up its reducer in the middle of a step, without tensor %u '%s' of step %llu",
		          r->job->rank, r->layout.ntensors - 1 - i, r->tensors[i].name, (unsigned long long)r->step);
		workers_fail(r, GRADCOMP_ERR_STATE, &err);
	}
	pthread_mutex_unlock(&r->lock);
	workers_stop(r);
	model_capture_reducer(r->job->model_capture, r);
	keep(r);
	job_count(r->job, -1);
	destroy(r);
}

int reducer_was_given(const gradcomp_reducer *r, uint32_t i)
{
	return r->given[i] || r->schedule.bucket[r->bucket_of[i]].state == SCHEDULE_ENDED;
}

uint32_t reducer_missing(const gradcomp_reducer *r)
{
	uint32_t i = 0;
	while (reducer_was_given(r, i))
		i++;
	return i;
}

/* With the lock held: a failure of the job shows even when nothing is in flight. */
static gradcomp_status failure(gradcomp_reducer *r, gradcomp_error *err)
{
	gradcomp_error known;
	if (!r->failed && transport_failure(r->job->transport, &known))
		workers_fail(r, known.status, &known);
	return r->failed ? error_set(err, r->failed, "%s", r->failure.text) : GRADCOMP_OK;
}

gradcomp_status reducer_ready(gradcomp_reducer *r, uint32_t index, void *gradient, gradcomp_error *err)
{
	uint32_t n = r->layout.ntensors, i = n - 1 - index;
	static char nothing[8];
	gradcomp_status st;
	if (index >= n)
		return arg_error_index(index, n, err);
	if (!gradient && r->tensors[i].numel)
		return arg_error_null(index, r->tensors[i].name, err);
	pthread_mutex_lock(&r->lock);
	st = failure(r, err);
	if (!st && reducer_was_given(r, i))
		st = arg_error_twice(index, r->tensors[i].name, r->step, err);
	if (!st && r->gpu)
		st = gpu_ready(r, i, err);
	if (!st) {
		r->given[i] = gradient ? gradient : nothing;
		r->last_given = clock_now();
		if (!r->ngiven++)
			r->step_began = r->last_given;
		profile_ready(r, i, r->last_given);
		timeline(r, TRACE_READY, r->step, index, r->last_given, r->last_given);
		workers_given(r, r->bucket_of[i]);
	}
	pthread_mutex_unlock(&r->lock);
	return st;
}

/* With the lock held: when nothing touches the program's gradients any more, which it may
 * free as soon as it knows of the failure. */
static void settle_failed(gradcomp_reducer *r)
{
	while (r->failed && (r->running || r->callbacks))
		pthread_cond_wait(&r->step_over, &r->lock);
}

gradcomp_status reducer_wait(gradcomp_reducer *r, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&r->lock);
	if (r->ngiven && r->ngiven < r->layout.ntensors && !r->failed) {
		uint32_t i = reducer_missing(r), n = r->layout.ntensors;
		st = arg_error_missing(r->ngiven, n, r->step, n - 1 - i, r->tensors[i].name, err);
	}
	uint64_t step = r->step;
	double began = clock_now();
	while (!st && !r->failed && ((r->ngiven && r->step == step) || r->callbacks))
		pthread_cond_wait(&r->step_over, &r->lock);
	settle_failed(r);
	double end = clock_now();
	profile_waited(r, end - began, 0);
	timeline(r, TRACE_WAIT, step, 0, began, end);
	if (!st)
		st = failure(r, err);
	pthread_mutex_unlock(&r->lock);
	return st;
}

/* With the lock held: the step that was the so-many-th has begun and not ended, and tensor i
 * of the layout is not done. */
static int in_flight(const gradcomp_reducer *r, uint32_t i, uint64_t step)
{
	return r->ngiven && r->stats.steps == step &&
	       r->schedule.bucket[r->bucket_of[i]].state != SCHEDULE_ENDED;
}

gradcomp_status reducer_wait_for(gradcomp_reducer *r, uint32_t index, gradcomp_error *err)
{
	uint32_t n = r->layout.ntensors, i = n - 1 - index;
	gradcomp_status st = GRADCOMP_OK;
	if (index >= n)
		return arg_error_index(index, n, err);
	pthread_mutex_lock(&r->lock);
	uint64_t step = r->stats.steps;
	if (r->ngiven && !r->failed && !reducer_was_given(r, i))
		st = arg_error_not_given(index, r->tensors[i].name, r->step, err);
	double began = clock_now();
	while (!st && !r->failed && (in_flight(r, i, step) || i - r->callback_first < r->callback_count))
		pthread_cond_wait(&r->step_over, &r->lock);
	settle_failed(r);
	double end = clock_now();
	profile_waited(r, end - began, 1);
	timeline(r, TRACE_WAIT_FOR, r->step, index, began, end);
	if (!st)
		st = failure(r, err);
	pthread_mutex_unlock(&r->lock);
	return st;
}

void reducer_get_stats(gradcomp_reducer *r, gradcomp_reducer_stats *stats)
{
	uint32_t size = stats->struct_size;
	pthread_mutex_lock(&r->lock);
	gradcomp_reducer_stats full = r->stats;
	pthread_mutex_unlock(&r->lock);
	full.struct_size = size;
	full.wire_bytes = (double)channel_sent(r->coll_ctx.channel);
	memcpy(stats, &full, size < sizeof full ? size : sizeof full);
}
