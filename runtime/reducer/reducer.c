/* reducer: making one, feeding it, waiting for it. */
#include "reducer/reducer.h"

#include "step/gpu/gpu.h"
#include "reducer/arg_errors.h"
#include "reducer/bucketing/bucketing.h"
#include "reducer/bucketing/profile.h"
#include "reducer/bucketing/replan.h"
#include "step/levels/hierarchical.h"
#include "step/layout.h"
#include "step/server_error.h"
#include "reducer/reducer_consensus.h"
#include "reducer/timeline.h"
#include "step/verify.h"

#include "base/error.h"
#include "base/thread.h"
#include "plugin/compat.h"

#include <stdlib.h>
#include <string.h>

/* Chooses for gradients on a GPU, where nobody named a collective. */
static gradcomp_status choose_on_device(reducer *r, const gradcomp_reducer_options *o, const plugin *plugins[2],
                                        const spec *specs[2], gradcomp_error *err)
{
	gradcomp_job *job = r->eng.job;
	gradcomp_status st = gpu_pair(&job->specs, o->compressor, group_has_levels(r->eng.group), plugins, specs,
	                              &r->specs.aside, err);
	if (!st && r->specs.aside && !r->eng.group->me && !job->aside_told++)
		log_line(&job->log, GRADCOMP_LOG_WARN,
		         "gradients on the GPU are sent by '%s', through host memory, since '%s' cannot be used (%s); "
		         "--gradcomp-collective names another",
		         plugins[1]->info->name, config_str(job->config, SET_GRADCOMP_DEVICE_COLLECTIVE),
		         r->specs.aside);
	else if (!st && plugins[1]->collective->serves & GRADCOMP_CAN_SHARD &&
	         config_is_default(job->config, SET_GRADCOMP_DEVICE_COLLECTIVE))
		log_line(&job->log, GRADCOMP_LOG_INFO,
		         "'%s' goes over collective '%s', by which nodes send less: they have several ranks",
		         plugins[0]->info->name, plugins[1]->info->name);
	return st;
}

/* A collective that serves host memory where it cannot serve a GPU's: this says so. Returns 0 when there is no
 * memory. */
static int stay_on_host(reducer *r, const plugin *p)
{
	const char *why = p->collective->unusable();
	if (!why)
		return 1;
	r->specs.aside = strdup(why);
	if (r->specs.aside && !r->eng.group->me)
		log_line(&r->eng.job->log, GRADCOMP_LOG_WARN,
		         "gradients on the GPU go through host memory over '%s', whose way on GPUs cannot be used (%s)",
		         p->info->name, why);
	return r->specs.aside != NULL;
}

/* Takes from the job's settings what the options leave out. */
static gradcomp_status choose(reducer *r, const gradcomp_reducer_options *o, const plugin *plugins[2],
                              const spec *specs[2], gradcomp_error *err)
{
	const config *c = r->eng.job->config;
	const char *usual = config_str(c, SET_GRADCOMP_COLLECTIVE);
	int open = !o->collective && config_is_default(c, SET_GRADCOMP_COLLECTIVE);
	gradcomp_status st = open && o->device == GRADCOMP_CUDA ? choose_on_device(r, o, plugins, specs, err)
	                                                        : spec_table_both(&r->eng.job->specs, o->compressor,
	                                                                          o->collective, plugins, specs, err);
	if (st)
		return st;
	if (!o->collective && o->device == GRADCOMP_HOST && strncmp(usual, plugins[1]->info->name, strcspn(usual, ":")))
		log_line(&r->eng.job->log, GRADCOMP_LOG_INFO,
		         "'%s' goes over collective '%s', since '%s' cannot carry it", plugins[0]->info->name,
		         plugins[1]->info->name, usual);
	if (o->device == GRADCOMP_CUDA && plugins[1]->collective->traits & GRADCOMP_TRAIT_ELSE_HOST &&
	    !stay_on_host(r, plugins[1]))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	r->eng.compressor = plugins[0]->compressor;
	r->specs.asked = strdup(o->compressor ? o->compressor : config_str(c, SET_GRADCOMP_COMPRESSOR));
	r->eng.compressor_spec = strdup(specs[0]->text);
	r->eng.values = specs[0]->values;
	r->specs.collective = strdup(specs[1]->text);
	r->calls.done = o->done;
	r->calls.done_run = o->done_run;
	r->calls.ctx = o->ctx;
	if (!r->specs.asked || !r->eng.compressor_spec || !r->specs.collective)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	if (o->device != GRADCOMP_HOST && o->device != GRADCOMP_CUDA)
		return error_set(err, GRADCOMP_ERR_INVALID, "gradients on device %d: must be 0 (host) or 1 (CUDA)",
		                 (int)o->device);
	if (o->device == GRADCOMP_CUDA && memory_rows_special(plugins[0]->info, specs[0]->values))
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "'%s': " ENGINE_NO_GPU_MEMORY, specs[0]->text);
	return replan_open(r, o->schedule, o->bucket_bytes, err);
}

/* Allocates what the compressor works on, and makes the compressor. */
static gradcomp_status equip(reducer *r, gradcomp_error *err)
{
	step_plan plan = {0};
	bucketing d = {0};
	gradcomp_status st = engine_allocate(&r->eng, err);
	if (!st)
		st = r->eng.ways.device->calls->arrays(&r->eng, r->step.given, err);
	if (!st)
		st = replan_first(r, &plan, err);
	if (!st)
		st = bucketing_make(r, &plan, &d, err);
	if (!st)
		bucketing_swap(r, &d);
	bucketing_free(&d);
	step_plan_clear(&plan);
	if (!st && !r->eng.instance && !r->eng.list.shards)
		st = engine_create_instance(&r->eng, &r->eng.job->host, r->eng.values, err);
	return st;
}

static void destroy(reducer *r)
{
	bucketing d = bucketing_current(r);
	bucketing_free(&d);
	group_coll_close(&r->eng.coll_ctx);
	verify_close(r->eng.checks.verify);
	for (int s = 0; s < REDUCER_WORKSPACES; s++)
		workspace_free(&r->workspaces[s]);
	engine_free(&r->eng);
	r->eng.ways.device->calls->close(&r->eng);
	replan_close(r);
	profile_close(r);
	layout_free(&r->eng.layout);
	free(r->step.given);
	free(r->specs.asked);
	free(r->eng.compressor_spec);
	free(r->specs.collective);
	free(r->specs.aside);
	pthread_cond_destroy(&r->step_over);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

static void reducer_get_stats(gradcomp_reducer *base, gradcomp_reducer_stats *stats)
{
	reducer *r = reducer_of(base);
	uint32_t size = stats->struct_size;
	pthread_mutex_lock(&r->lock);
	gradcomp_error err;
	gradcomp_status st = r->failed ? GRADCOMP_OK : run_step_learn(r, &err);
	if (st)
		run_step_fail(r, st, &err);
	gradcomp_reducer_stats full = r->eng.stats;
	full.wire_bytes = (double)channel_sent(r->eng.coll_ctx.channel) + r->eng.ways.device->sent;
	pthread_mutex_unlock(&r->lock);
	full.struct_size = size;
	memcpy(stats, &full, size < sizeof full ? size : sizeof full);
}

/* Lists what was done with each tensor, for the report. When nobody is inside of the compressor; NULL: no memory. */
static report_tensor *report_tensors(reducer *r)
{
	uint32_t n = r->eng.layout.ntensors;
	report_tensor *t = calloc(n, sizeof *t);
	for (uint32_t i = 0; t && i < n; i++) {
		const gradcomp_tensor *from = &r->eng.layout.tensors[n - 1 - i];
		const char *choice = r->eng.ways.levels->choice(&r->eng, n - 1 - i);
		const residual_norm *norm = r->eng.ways.levels->norm(&r->eng, n - 1 - i);
		t[i] = (report_tensor){.name = strdup(from->name),
		                       .numel = from->numel,
		                       .choice = strdup(choice ? choice : ""),
		                       .error = norm->steps ? norm->shares / (double)norm->steps : -1};
	}
	return t;
}

/* Says how long a step's exchanges would take if gradients were summed as 16-bit floats, in the buckets of now; 0: that
 * was not timed. */
static double sums_of(const reducer *r)
{
	const engine_device *d = r->eng.ways.device;
	double s = 0;
	for (uint32_t b = 0; b < r->eng.list.nbuckets; b++)
		s += d->sum_s + 2.0 * (double)r->eng.list.buckets[b].pub.numel * d->sum_byte_s;
	return s;
}

/* Leaves the report what it keeps of a reducer that goes. */
static void keep_report(reducer *r)
{
	report_reducer kept = {
		.nranks = r->eng.layout.nranks, .tensors = report_tensors(r), .ntensors = r->eng.layout.ntensors};
	if (!kept.tensors)
		return;
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	reducer_get_stats(&r->base, &stats);
	kept.stats = stats;
	kept.sums_s = sums_of(r);
	kept.asked = r->specs.asked;
	kept.compressor = r->eng.compressor_spec;
	kept.collective = r->specs.collective;
	kept.schedule = replan_report(r);
	r->specs.asked = r->eng.compressor_spec = r->specs.collective = NULL;
	if (r->base.report)
		r->base.report(r->base.report_ctx, &kept);
	else
		job_keep_reducer(r->eng.job, &kept);
}

/* A round of replanning, which waits for other ranks, is not waited for for ever: then without tensors. */
#define ROW_SECONDS 1.0

static void reducer_row(gradcomp_reducer *base, report_reducer *row)
{
	reducer *r = reducer_of(base);
	pthread_mutex_lock(&r->lock);
	if (run_step_hold(r, ROW_SECONDS)) {
		row->tensors = report_tensors(r);
		row->ntensors = row->tensors ? r->eng.layout.ntensors : 0;
		row->schedule = replan_report(r);
	}
	run_step_release(r);
	pthread_mutex_unlock(&r->lock);
	row->asked = strdup(r->specs.asked);
	row->compressor = strdup(r->eng.compressor_spec);
	row->collective = strdup(r->specs.collective);
	row->nranks = r->eng.layout.nranks;
}

static void reducer_free(gradcomp_reducer *base)
{
	reducer *r = reducer_of(base);
	pthread_mutex_lock(&r->lock);
	while (((r->step.ngiven == r->eng.layout.ntensors || r->turns.verify_due) && !r->failed) || r->calls.running)
		pthread_cond_wait(&r->step_over, &r->lock);
	run_step_replan_settle(r);
	if (r->step.ngiven && !r->failed) {
		uint32_t i = reducer_missing(r);
		gradcomp_error err;
		error_set(&err, GRADCOMP_ERR_STATE,
		          "rank %d gave up its reducer in the middle of a step, without tensor %u '%s' of step "
		          "%llu",
		          r->eng.job->rank, r->eng.layout.ntensors - 1 - i, r->eng.layout.tensors[i].name,
		          (unsigned long long)r->eng.step);
		run_step_fail(r, GRADCOMP_ERR_STATE, &err);
	}
	pthread_mutex_unlock(&r->lock);
	run_step_stop(r);
	if (r->eng.job->on_reducer_free)
		r->eng.job->on_reducer_free(r->eng.job->model_capture, r);
	keep_report(r);
	job_count(r->eng.job, -1);
	destroy(r);
}

/* Called with the lock held: a failure of the job shows even when nothing is in flight. */
static gradcomp_status failure(reducer *r, gradcomp_error *err)
{
	gradcomp_error known;
	gradcomp_status st = r->failed ? GRADCOMP_OK : transport_failure(r->eng.job->transport, &known);
	if (!st && !r->failed)
		st = run_step_learn(r, &known);
	if (st)
		run_step_fail(r, st, &known);
	return r->failed ? error_set(err, r->failed, "%s", r->failure.text) : GRADCOMP_OK;
}

void reducer_look(reducer *r)
{
	gradcomp_error err;
	pthread_mutex_lock(&r->lock);
	failure(r, &err);
	pthread_mutex_unlock(&r->lock);
}

static gradcomp_status reducer_ready(gradcomp_reducer *base, uint32_t index, void *gradient, gradcomp_error *err)
{
	reducer *r = reducer_of(base);
	uint32_t n = r->eng.layout.ntensors, i = n - 1 - index;
	static char nothing[8];
	gradcomp_status st;
	if (index >= n)
		return arg_error_index(index, n, err);
	if (!gradient && r->eng.layout.tensors[i].numel)
		return arg_error_null(index, r->eng.layout.tensors[i].name, err);
	pthread_mutex_lock(&r->lock);
	st = failure(r, err);
	if (!st && reducer_was_given(r, i)) {
		arg_fail_twice(r->eng.job, index, r->eng.layout.tensors[i].name, r->eng.step);
		st = failure(r, err);
	}
	if (!st)
		st = r->eng.ways.device->calls->ready(&r->eng, i, gradient, err);
	if (!st) {
		r->step.given[i] = gradient ? gradient : nothing;
		r->step.last_given = clock_now();
		if (!r->step.ngiven++)
			r->step.began = r->step.last_given;
		profile_ready(r, i, r->step.last_given);
		timeline(r, TRACE_READY, r->eng.step, index, r->step.last_given, r->step.last_given);
		run_step_given(r, r->eng.list.bucket_of[i]);
	}
	pthread_mutex_unlock(&r->lock);
	return st;
}

/* Called with the lock held: returns when nothing touches the program's gradients any more, which it may free as
 * soon as it knows of the failure. */
static void settle_failed(reducer *r)
{
	while (r->failed && (r->turns.running || r->calls.running))
		pthread_cond_wait(&r->step_over, &r->lock);
}

static gradcomp_status reducer_wait(gradcomp_reducer *base, gradcomp_error *err)
{
	reducer *r = reducer_of(base);
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&r->lock);
	if (r->step.ngiven && r->step.ngiven < r->eng.layout.ntensors && !r->failed) {
		uint32_t i = reducer_missing(r), n = r->eng.layout.ntensors;
		st = arg_error_missing(r->step.ngiven, n, r->eng.step, n - 1 - i, r->eng.layout.tensors[i].name, err);
	}
	uint64_t step = r->eng.step;
	double began = clock_now();
	while (!st && !r->failed &&
	       ((r->step.ngiven && r->eng.step == step) || r->calls.running || r->turns.verify_due))
		pthread_cond_wait(&r->step_over, &r->lock);
	settle_failed(r);
	double end = clock_now();
	profile_waited(r, end - began, 0);
	timeline(r, TRACE_WAIT, step, 0, began, end);
	if (!st)
		st = failure(r, err);
	if (!st)
		st = r->eng.ways.device->calls->follow(&r->eng, NULL, NULL, err);
	pthread_mutex_unlock(&r->lock);
	return st;
}

/* Called with the lock held: returns true when the so-many-th step has begun and not ended, and tensor i of the
 * layout is not done. */
static int in_flight(const reducer *r, uint32_t i, uint64_t step)
{
	return r->step.ngiven && r->eng.stats.steps == step &&
	       r->schedule.bucket[r->eng.list.bucket_of[i]].state != SCHEDULE_ENDED;
}

static gradcomp_status reducer_wait_for(gradcomp_reducer *base, uint32_t index, gradcomp_error *err)
{
	reducer *r = reducer_of(base);
	uint32_t n = r->eng.layout.ntensors, i = n - 1 - index;
	gradcomp_status st = GRADCOMP_OK;
	if (index >= n)
		return arg_error_index(index, n, err);
	pthread_mutex_lock(&r->lock);
	uint64_t step = r->eng.stats.steps;
	if (r->step.ngiven && !r->failed && !reducer_was_given(r, i))
		st = arg_error_not_given(index, r->eng.layout.tensors[i].name, r->eng.step, err);
	run_step_let_go(r);
	double began = clock_now();
	while (!st && !r->failed && (in_flight(r, i, step) || i - r->calls.first < r->calls.count))
		pthread_cond_wait(&r->step_over, &r->lock);
	settle_failed(r);
	double end = clock_now();
	profile_waited(r, end - began, 1);
	timeline(r, TRACE_WAIT_FOR, r->eng.step, index, began, end);
	if (!st)
		st = failure(r, err);
	if (!st)
		st = r->eng.ways.device->calls->follow(&r->eng, NULL, &r->eng.list.buckets[r->eng.list.bucket_of[i]],
		                                       err);
	pthread_mutex_unlock(&r->lock);
	return st;
}

static gradcomp_status reducer_follow(gradcomp_reducer *base, uint32_t index, void *queue, gradcomp_error *err)
{
	reducer *r = reducer_of(base);
	uint32_t n = r->eng.layout.ntensors;
	gradcomp_status st;
	if (index >= n)
		return arg_error_index(index, n, err);
	pthread_mutex_lock(&r->lock);
	st = r->eng.ways.device->calls->follow(&r->eng, queue,
	                                       &r->eng.list.buckets[r->eng.list.bucket_of[n - 1 - index]], err);
	pthread_mutex_unlock(&r->lock);
	return st;
}

/* Without a delay there is nothing to wait for but the step in flight. */
static gradcomp_status reducer_drain(gradcomp_reducer *base, void *const *corrections, void *const *weights,
                                     double rate, gradcomp_error *err)
{
	(void)corrections, (void)weights, (void)rate;
	return reducer_wait(base, err);
}

static const reducer_ops ops = {reducer_ready,     reducer_wait, reducer_wait_for,    reducer_follow,
                                reducer_drain,     reducer_save, reducer_save_shared, reducer_load,
                                reducer_get_stats, reducer_free, reducer_row};

/* Exchanges the first thing that ranks say to each other. */
static gradcomp_status declare(const reducer *r, uint32_t delay, const plugin *const plugins[2], gradcomp_status mine,
                               gradcomp_error *err)
{
	reducer_request q = {.layout = &r->eng.layout,
	                     .compressor = r->eng.compressor_spec,
	                     .aside = r->specs.aside,
	                     .collective = r->specs.collective,
	                     .bucket_bytes = r->bucket_bytes,
	                     .through_host = r->specs.aside && plugins[1] &&
	                                     plugins[1]->collective->traits & GRADCOMP_TRAIT_ELSE_HOST,
	                     .plugins = {plugins[0], plugins[1]},
	                     .first_bucket_bytes = r->first_bucket_bytes,
	                     .delay = delay,
	                     .verify = config_int(r->eng.job->config, SET_GRADCOMP_VERIFY)};
	if (!mine) {
		q.schedule = replan_asked(r);
		q.schedule_hash = replan_hash(r);
	}
	return reducer_consensus(r->eng.group, &q, mine, err);
}

/* Keeps, for a reducer that outlives ranks, what a void step overwrites, where that can be. */
static gradcomp_status keep_undo(reducer *r, const char *collective, gradcomp_error *err)
{
	if (r->eng.list.shards)
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"gradcomp.on_failure=shrink cannot be with collective '%s', which compresses between nodes alone",
			collective);
	if (r->eng.list.nserver_error)
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"gradcomp.on_failure=shrink cannot be with collective '%s', which keeps an error memory of its own",
			collective);
	return engine_undo_open(&r->eng, err);
}

gradcomp_status reducer_create(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                               const gradcomp_reducer_options *options, bool by_hand, reducer **out,
                               gradcomp_error *err)
{
	const gradcomp_reducer_options o = *options;
	const plugin *plugins[2] = {0};
	const spec *specs[2];
	gradcomp_error own = {0}, why = {0};
	reducer *r;
	gradcomp_status st;
	int agreed;
	r = calloc(1, sizeof *r);
	if (!r) {
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	}
	pthread_mutex_init(&r->lock, NULL);
	thread_condition(&r->step_over);
	r->eng.ways.ops = r->eng.ways.whole = &host_ops;
	r->eng.ways.device = &host_device;
	r->eng.ways.levels = &engine_one_level;
	r->eng.job = group->job;
	r->eng.group = group;
	if (o.device == GRADCOMP_HOST)
		device_find_driver();
	st = choose(r, &o, plugins, specs, &own);
	if (!st)
		st = layout_make(&r->eng.layout, group, tensors, ntensors, o.seed, &own);
	r->step.given = calloc((size_t)ntensors + 1, sizeof *r->step.given);
	r->eng.grads = r->step.given;
	if (!st && !r->step.given)
		st = error_set(&own, GRADCOMP_ERR_NOMEM, "no memory for %u tensors", ntensors);
	if (!st)
		st = profile_open(r, replan_rows(r), &own);
	if (!st && *config_str(group->job->config, SET_GRADCOMP_RECORD) && !o.delay && o.device != GRADCOMP_CUDA)
		profile_try(r);
	if (!st)
		st = replan_file(r, &own);
	if (!st)
		r->eng.layout.patterns = compat_patterns(plugins[0], plugins[1]);
	if (!st)
		st = layout_limits(&r->eng.layout, r->eng.compressor, &own);
	if (!st && o.device == GRADCOMP_CUDA)
		st = gpu_open(&r->eng, plugins[1]->collective, hierarchical_wanted(&r->eng, plugins[1]->collective), &o,
		              r->workspaces, REDUCER_WORKSPACES, &own);
	/* It is known from the collective, when the nodes are, what the compressor works on. */
	int late = !st && hierarchical_wanted(&r->eng, plugins[1]->collective);
	if (!st && !late)
		st = equip(r, &own);
	why = own;
	st = declare(r, o.delay, plugins, st, &why);
	agreed = !st;
	if (!st)
		st = group_coll_open(group, plugins[1], specs[1], &r->eng.coll_ctx, &why);
	if (!st)
		st = verify_open(&r->eng, &why);
	if (!st && late) {
		st = hierarchical_open(&r->eng, &own);
		if (!st)
			st = equip(r, &own);
		why = own;
		st = declare(r, o.delay, plugins, st, &why);
		agreed = !st;
	}
	if (!st)
		st = r->eng.ways.device->calls->port(&r->eng, by_hand && group->nranks > 1 && !compat_dense(plugins[0]),
		                                     &why);
	if (!st)
		st = server_error_make(&r->eng, &r->eng.list, &why);
	if (!st && r->eng.job->roster)
		st = keep_undo(r, plugins[1]->info->name, &why);
	if (!st)
		st = run_step_start(r, &why);
	if (st) {
		if (agreed)
			job_fail(r->eng.job, st, why.text);
		run_step_stop(r);
		destroy(r);
		return error_set(err, st, "%s", own.status ? own.text : why.text);
	}
	if (r->eng.job->trace && trace_keeps(r->eng.job->trace, r->eng.job->rank)) {
		r->trace = r->eng.job->trace;
		r->trace_id = trace_reducer(r->trace);
	}
	job_count(r->eng.job, 1);
	r->base.ops = &ops;
	*out = r;
	return GRADCOMP_OK;
}
