/* Runs on the threads of progress.h what a reducer has them do: pieces of its steps, one at a time of each kind.
 * "The compute thread" and "the exchange thread" are whoever has such a turn. */
#include "reducer/reducer.h"

#include "step/bucket.h"
#include "reducer/bucketing/profile.h"
#include "reducer/bucketing/replan.h"
#include "reducer/phases.h"
#include "step/layout.h"
#include "step/residual_norm.h"
#include "step/step_observer.h"
#include "reducer/timeline.h"
#include "step/verify.h"

#include "base/error.h"
#include "base/thread.h"
#include "job/rank_times.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* How long a dead peer may hold up a device before this rank looks. */
#define WATCH_S 0.005
/* How long a step that keeps things back waits for its next gradient. */
#define HELD_MOST_S 2

/* The tasks of a bucket's step, when its rounds are known. */
static void set_tasks(bucket *b)
{
	b->ntasks = task_list_make(bucket_plan(b), b->part != NULL, b->tasks);
}

/* The rest of the rounds is given up: goes on with the task of this kind, unless the bucket is
 * there or past it. */
static void skip_to(bucket *b, task_kind kind)
{
	int at = task_list_find(b->tasks, b->ntasks, kind);
	if (at > b->next)
		b->next = at;
}

static uint32_t stages_left(const bucket *b)
{
	return task_list_stages(b->tasks, b->ntasks, b->next);
}

/* Called with the lock held: begins the buckets that are complete and whose turn it is. Returns whether there is
 * one: then there is something to compute. */
static bool admit(reducer *r)
{
	uint32_t i;
	bool any = false;
	while (!r->turns.replan_due && !r->turns.verify_due && (i = schedule_admit(&r->schedule)) != SCHEDULE_NONE) {
		bucket *b = &r->eng.list.buckets[i];
		/* Always the same of a position: then its workspace has grown when every bucket has
		 * been through once. */
		b->workspace = &r->workspaces[r->schedule.bucket[i].position % REDUCER_WORKSPACES];
		b->tasks[0] = (task){TASK_BEGIN, 0};
		b->ntasks = 1;
		b->next = 0;
		any = true;
	}
	return any;
}

/* The functions below learn of a step. */

static gradcomp_phase phase_of(task_kind kind)
{
	if (kind == TASK_BEGIN || kind == TASK_LOCAL_BEGIN || kind == TASK_ENCODE)
		return GRADCOMP_ENCODE;
	return task_exchanges(kind) ? GRADCOMP_EXCHANGE : GRADCOMP_DECODE;
}

static void count_time(reducer *r, task_kind kind, double seconds)
{
	gradcomp_reducer_stats *s = &r->eng.stats;
	double *const times[] = {&s->encode_s, &s->exchange_s, &s->decode_s};
	*times[phase_of(kind)] += seconds;
}

static uint64_t observe_row(void *ctx)
{
	return profile_row_now(ctx);
}

static void observe_ready(void *ctx, uint64_t row, uint32_t tensor, double at)
{
	profile_ready_of(ctx, row, tensor, at);
}

static void observe_task(void *ctx, const observed_task *t)
{
	reducer *r = ctx;
	count_time(r, t->t.kind, t->end - t->start);
	profile_task_of(r, t->row, &(profile_timed){t->nbuckets, t->bucket, t->numel, t->bytes, t->bad}, &t->t,
	                t->end - t->start);
	timeline_task_of(r, t->step, t->bucket, &t->t, t->start, t->end, (uint64_t)t->bytes);
}

static void observe_over(void *ctx, const observed_step *s)
{
	reducer *r = ctx;
	r->eng.stats.exposed_s += s->over > s->last ? s->over - s->last : 0;
	profile_step_of(r, s->row, s->first, s->last, s->over);
	timeline(r, TRACE_STEP, s->step, 0, s->first, s->over);
	residual_norm_step(&r->eng);
}

static step_observer observer(reducer *r)
{
	return (step_observer){observe_row, observe_ready, observe_task, observe_over, r};
}

gradcomp_status run_step_learn(reducer *r, gradcomp_error *err)
{
	const step_observer to = observer(r);
	return r->eng.ways.device->calls->learn(&r->eng, &to, err);
}

/* Called with the lock held, which is dropped meanwhile: waits until the event has come on the device. */
static void await_device(reducer *r, void *event)
{
	r->turns.running++;
	pthread_mutex_unlock(&r->lock);
	r->eng.ways.device->arena->memory.d->wait(event);
	pthread_mutex_lock(&r->lock);
	r->turns.running--;
	if (r->failed)
		pthread_cond_broadcast(&r->step_over);
}

/* Called with the lock held, which is dropped meanwhile: makes a place for what a device will tell of this step. */
static gradcomp_status learn_place(reducer *r, gradcomp_error *err)
{
	const step_observer to = observer(r);
	const engine_device_calls *on = r->eng.ways.device->calls;
	void *event = on->full(&r->eng);
	if (event)
		await_device(r, event);
	return on->room(&r->eng, &to, err);
}

static void wake_both(reducer *r)
{
	progress_wake(&r->progress, PROGRESS_COMPUTE);
	progress_wake(&r->progress, PROGRESS_EXCHANGE);
}

void run_step_given(reducer *r, uint32_t bucket)
{
	schedule_given(&r->schedule, bucket);
	if (r->step.ngiven == 1)
		progress_at(&r->progress, r->step.last_given + r->turns.patience);
	if (r->step.ngiven == 1 && profile_holds(r, PROFILE_EXCHANGING))
		progress_at(&r->progress, r->step.last_given + HELD_MOST_S);
	if (admit(r))
		progress_wake(&r->progress, PROGRESS_COMPUTE);
	if (profile_held(r))
		wake_both(r);
}

void run_step_let_go(reducer *r)
{
	if (profile_let_go(r))
		wake_both(r);
}

/* Called with the lock held: returns whether exchanges are kept back. Gradients of a step may wait for others of
 * it, in done(): then none comes, and nothing is kept back any more by this reducer. */
static bool held(reducer *r)
{
	if (!profile_holds(r, PROFILE_EXCHANGING))
		return false;
	if (clock_now() - r->step.last_given < HELD_MOST_S) {
		progress_at(&r->progress, r->step.last_given + HELD_MOST_S);
		return true;
	}
	profile_try_no_more(r);
	progress_wake(&r->progress, PROGRESS_COMPUTE);
	return false;
}

/* Called with the lock held: returns true when nothing is on the device, and the exchange thread looks after
 * nothing there, so that the collective is another thread's to call. */
static bool device_at_rest(const reducer *r)
{
	const engine_device *on = r->eng.ways.device;
	return device_arena_idle(on->arena) && !(on->enqueues && (r->turns.running || on->busy));
}

static bool settled(void *ctx)
{
	reducer *r = ctx;
	pthread_mutex_lock(&r->lock);
	bool is = r->failed || device_at_rest(r);
	pthread_mutex_unlock(&r->lock);
	return is;
}

void run_step_replan_settle(reducer *r)
{
	gradcomp_error err;
	while ((r->turns.replan_due || r->turns.verify_due) && !r->failed)
		pthread_cond_wait(&r->step_over, &r->lock);
	/* The exchange thread looks after what is on the device meanwhile, and takes the lock for it. */
	while (!r->failed && !device_at_rest(r)) {
		pthread_mutex_unlock(&r->lock);
		device_until(settled, r, DEVICE_FOR_EVER);
		pthread_mutex_lock(&r->lock);
	}
	gradcomp_status st = r->failed ? GRADCOMP_OK : run_step_learn(r, &err);
	if (st)
		run_step_fail(r, st, &err);
}

gradcomp_status run_step_between_steps(const reducer *r, const char *what, gradcomp_error *err)
{
	if (r->failed)
		return error_set(err, r->failed, "%s", r->failure.text);
	if (r->step.ngiven)
		return error_set(err, GRADCOMP_ERR_STATE, "%s in the middle of a step: wait for it first", what);
	return GRADCOMP_OK;
}

/* Tells the application about tensors [first, first + n), without the lock. */
static void notify(reducer *r, uint32_t first, uint32_t n, gradcomp_status status, const gradcomp_error *err)
{
	if (r->calls.done_run)
		r->calls.done_run(r->calls.ctx, r->eng.layout.ntensors - (first + n), n, status, err);
	for (uint32_t i = 0; r->calls.done && !r->calls.done_run && i < n; i++)
		r->calls.done(r->calls.ctx, r->eng.layout.ntensors - 1 - (first + i), status, err);
}

void run_step_fail(reducer *r, gradcomp_status status, const gradcomp_error *err)
{
	gradcomp_error known;
	/* Who looks after the device may be about to say why: what it has aborted there looks damaged. */
	r->turns.failing++;
	while (r->turns.watching && !r->failed)
		pthread_cond_wait(&r->step_over, &r->lock);
	r->turns.failing--;
	if (r->failed)
		return;
	/* A failure of another rank may be why this one failed: then it is the news. */
	r->failed = transport_failure(r->eng.job->transport, &known);
	/* The text also says what this rank was at, where the exchange has failed with the news. */
	r->failure = r->failed && !strncmp(err->text, known.text, strlen(known.text)) ? *err : known;
	if (!r->failed) {
		r->failed = status;
		error_set(&r->failure, status, "%s", err->text);
		job_fail(r->eng.job, status, err->text);
	}
	r->calls.running++;
	while (r->turns.running)
		pthread_cond_wait(&r->step_over, &r->lock);
	pthread_mutex_unlock(&r->lock);
	/* Work on the device that waits for peers ends now. */
	r->eng.ways.device->calls->watch(&r->eng, &known);
	device_arena_flush(r->eng.ways.device->arena);
	for (uint32_t i = 0; i < r->eng.layout.ntensors; i++)
		if (r->step.given[i])
			notify(r, i, 1, r->failed, &r->failure);
	pthread_mutex_lock(&r->lock);
	r->calls.running--;
	pthread_cond_broadcast(&r->step_over);
}

/* Called with the lock held, after the last bucket. */
static void step_done(reducer *r)
{
	double now = clock_now();
	const bool later = r->eng.ways.device->enqueues; /* run_step_learn() */
	if (!later)
		r->eng.stats.exposed_s += now - r->step.last_given;
	r->eng.stats.steps++;
	r->eng.stats.dense_bytes +=
		2.0 * (r->eng.layout.nranks - 1) / r->eng.layout.nranks * layout_bytes(&r->eng.layout);
	r->eng.step++;
	engine_next_step(&r->eng);
	if (!later)
		residual_norm_step(&r->eng);
	r->step.ngiven = 0;
	r->eng.step_bad = 0;
	profile_step(r, now);
	if (!later)
		timeline(r, TRACE_STEP, r->eng.step - 1, 0, r->step.began, now);
	replan_step_over(r);
	r->turns.verify_due = r->eng.checks.verify != NULL;
	if (r->turns.replan_due || r->turns.verify_due)
		progress_wake(&r->progress, PROGRESS_EXCHANGE);
}

/* Called with the lock held: the bucket's step is over. */
static void bucket_done(reducer *r, bucket *b)
{
	uint32_t first = b->pub.first, n = b->pub.ntensors;
	b->workspace = NULL;
	memset(r->step.given + first, 0, n * sizeof *r->step.given);
	if (schedule_ended(&r->schedule, b->pub.index))
		step_done(r);
	admit(r);
	r->calls.running++;
	r->calls.first = first;
	r->calls.count = n;
	pthread_mutex_unlock(&r->lock);
	/* From here on the bucket may be gone: another plan may be in force. */
	notify(r, first, n, GRADCOMP_OK, NULL);
	pthread_mutex_lock(&r->lock);
	r->calls.running--;
	r->calls.count = 0;
	pthread_cond_broadcast(&r->step_over);
}

/* schedule_compute(), but of buckets on a device the first that has nothing more there. With
 * the lock held, dropped while it waits until one has. */
static uint32_t next_to_compute(reducer *r)
{
	uint32_t aside[REDUCER_WORKSPACES], n = 0, i, first = SCHEDULE_NONE;
	void *event, *awaited = NULL;
	while ((i = schedule_compute(&r->schedule)) != SCHEDULE_NONE) {
		const bucket *b = &r->eng.list.buckets[i];
		if (!b->later || !(event = r->eng.ways.device->calls->passed(&r->eng, b)))
			break;
		/* The stream comes first to what was put there first. */
		if (first == SCHEDULE_NONE || b->later < r->eng.list.buckets[first].later) {
			first = i;
			awaited = event;
		}
		aside[n++] = i;
	}
	for (uint32_t k = 0; k < n; k++)
		if (i != SCHEDULE_NONE || aside[k] != first)
			schedule_later(&r->schedule, aside[k]);
	if (i != SCHEDULE_NONE || first == SCHEDULE_NONE)
		return i;
	await_device(r, awaited);
	return first;
}

/* Called with the lock held, dropped while it waits. Tasks that compute, and replanning rounds, are inside of the
 * compressor. Not when the reducer has failed meanwhile: whoever has heard of it counts on nothing running. */
static bool enter_compressor(reducer *r)
{
	while (r->turns.holders && !r->failed)
		pthread_cond_wait(&r->step_over, &r->lock);
	r->turns.inside += !r->failed;
	return !r->failed;
}

static void leave_compressor(reducer *r)
{
	r->turns.inside--;
	if (r->turns.holders)
		pthread_cond_broadcast(&r->step_over);
}

int run_step_hold(reducer *r, double seconds)
{
	double limit = clock_now() + seconds;
	r->turns.holders++;
	while (r->turns.inside && clock_now() < limit)
		thread_wait(&r->step_over, &r->lock, 100);
	return !r->turns.inside;
}

void run_step_release(reducer *r)
{
	r->turns.holders--;
	pthread_cond_broadcast(&r->step_over);
}

/* Called with the lock held, dropped while the task runs. Returns 0 when it failed. */
static int run_next(reducer *r, bucket *b)
{
	const task *t = &b->tasks[b->next++];
	int computes = !task_exchanges(t->kind);
	const bool told = !r->eng.ways.device->enqueues;
	const gradcomp_phase phase = phase_of(t->kind);
	gradcomp_error err = {0};
	if (computes && !enter_compressor(r))
		return 0;
	gradcomp_status st = t->kind == TASK_BEGIN ? learn_place(r, &err) : GRADCOMP_OK;
	double start = clock_now(), end;
	uint64_t sent = timeline_sent(r);
	r->turns.running++;
	pthread_mutex_unlock(&r->lock);
	if (told)
		phases_tell(phase, b->pub.index, true);
	if (!st)
		st = engine_run(&r->eng, b, t, &err);
	if (told)
		phases_tell(phase, b->pub.index, false);
	pthread_mutex_lock(&r->lock);
	r->turns.running--;
	if (computes)
		leave_compressor(r);
	if (r->failed)
		pthread_cond_broadcast(&r->step_over);
	end = clock_now();
	if (!b->slot) {
		count_time(r, t->kind, end - start);
		profile_task(r, b, t, start, end);
		timeline_task(r, b, t, start, end, sent);
	}
	if (st) {
		run_step_fail(r, st, &err);
		return 0;
	}
	if (b->later)
		b->next--;
	else if (t->kind == TASK_BEGIN || t->kind == TASK_LOCAL_BEGIN)
		set_tasks(b);
	if (t->kind == TASK_BEGIN && !b->later)
		schedule_begun(&r->schedule, b->pub.index, stages_left(b));
	return !r->failed;
}

static void count_bad(reducer *r, const bucket *b)
{
	if (b->bad) {
		r->eng.stats.nonfinite_steps += !r->eng.step_bad;
		r->eng.step_bad = 1;
	}
}

/* Does, with the lock held but dropped meanwhile, the tasks of a bucket up to its next exchange. Returns whether it
 * has come to one. */
static bool compute(reducer *r, uint32_t i)
{
	bucket *b = &r->eng.list.buckets[i];
	while (b->next < b->ntasks && !task_exchanges(b->tasks[b->next].kind))
		if (!run_next(r, b) || b->later)
			break;
	if (r->failed)
		return false;
	if (b->later) {
		schedule_later(&r->schedule, i);
	} else if (b->next == b->ntasks) {
		count_bad(r, b);
		bucket_done(r, b);
	} else {
		schedule_reached(&r->schedule, i, stages_left(b));
		return true;
	}
	return false;
}

/* Buckets that have something to compute, until another reducer has, too. An exchange that has become due
 * is this thread's when there is nothing more to compute, another's when there is. */
static void compute_turn(void *arg)
{
	reducer *r = arg;
	bool due = false;
	pthread_mutex_lock(&r->lock);
	while (!r->turns.stop && !r->failed) {
		if (due && r->progress.bind) {
			progress_wake(&r->progress, PROGRESS_EXCHANGE);
			due = false;
		}
		if (profile_holds(r, PROFILE_COMPRESSING))
			break;
		uint32_t i = next_to_compute(r);
		if (i == SCHEDULE_NONE || r->failed)
			break;
		if (due)
			progress_wake(&r->progress, PROGRESS_EXCHANGE);
		due = compute(r, i);
		if (progress_contended(&r->progress, PROGRESS_COMPUTE)) {
			progress_next(&r->progress, PROGRESS_COMPUTE);
			break;
		}
	}
	if (due)
		progress_next(&r->progress, PROGRESS_EXCHANGE);
	pthread_mutex_unlock(&r->lock);
}

/* Called with the lock held, which is dropped meanwhile: the step is over on all ranks, and none begins. */
static void replan_sync(reducer *r)
{
	gradcomp_error err = {0};
	double start = clock_now();
	if (!enter_compressor(r))
		return;
	r->turns.running++;
	pthread_mutex_unlock(&r->lock);
	gradcomp_status st = r->eng.ways.device->calls->drain(&r->eng, &err);
	pthread_mutex_lock(&r->lock);
	if (!st)
		st = run_step_learn(r, &err);
	pthread_mutex_unlock(&r->lock);
	if (!st)
		st = replan_run(r, &err);
	pthread_mutex_lock(&r->lock);
	timeline(r, TRACE_REPLAN, r->eng.step, 0, start, clock_now());
	r->turns.running--;
	leave_compressor(r);
	r->turns.replan_due = 0;
	pthread_cond_broadcast(&r->step_over);
	if (st)
		run_step_fail(r, st, &err);
	else if (admit(r))
		progress_wake(&r->progress, PROGRESS_COMPUTE);
}

/* Called with the lock held, which is dropped meanwhile: checks on all ranks that what the step has made is as it
 * should be. */
static void verify_sync(reducer *r)
{
	gradcomp_error err = {0};
	r->turns.running++;
	pthread_mutex_unlock(&r->lock);
	gradcomp_status st = verify_step(&r->eng, &err);
	pthread_mutex_lock(&r->lock);
	r->turns.running--;
	r->turns.verify_due = 0;
	pthread_cond_broadcast(&r->step_over);
	if (st)
		run_step_fail(r, st, &err);
	else if (admit(r))
		progress_wake(&r->progress, PROGRESS_COMPUTE);
}

/* Called with the lock held: gradients of the step were given and others were not, for longer than peers wait. It
 * is said here, where it is known which. */
static void fail_missing(reducer *r)
{
	uint32_t i = reducer_missing(r);
	gradcomp_error err;
	error_set(&err, GRADCOMP_ERR_STATE,
	          "tensor %u '%s' of step %llu was never given: no gradient came for %.3g s "
	          "(transport.wait_timeout=%g)",
	          r->eng.layout.ntensors - 1 - i, r->eng.layout.tensors[i].name, (unsigned long long)r->eng.step,
	          r->turns.patience, config_float(r->eng.job->config, SET_TRANSPORT_WAIT_TIMEOUT));
	job_fail(r->eng.job, GRADCOMP_ERR_STATE, err.text);
	run_step_fail(r, GRADCOMP_ERR_STATE, &err);
}

/* Called with the lock held, which is dropped meanwhile: looks after what is on the device. */
static void watch(reducer *r)
{
	gradcomp_error err = {0};
	r->turns.running++;
	r->turns.watching = true;
	pthread_mutex_unlock(&r->lock);
	gradcomp_status st = r->eng.ways.device->calls->watch(&r->eng, &err);
	pthread_mutex_lock(&r->lock);
	r->turns.running--;
	r->turns.watching = false;
	if (r->failed || r->turns.failing)
		pthread_cond_broadcast(&r->step_over);
	if (st)
		run_step_fail(r, st, &err);
}

/* Called with the lock held: there is nothing to exchange. Says when to look again. */
static void exchange_rest(reducer *r)
{
	double now = clock_now(), due = r->step.last_given + r->turns.patience;
	if (r->eng.ways.device->busy) {
		if (now >= r->turns.watch_at) {
			r->turns.watch_at = now + WATCH_S;
			watch(r);
		}
		if (!r->failed)
			progress_at(&r->progress, r->turns.watch_at);
	} else if (r->step.ngiven && r->step.ngiven < r->eng.layout.ntensors) {
		if (due <= now)
			fail_missing(r);
		else
			progress_at(&r->progress, due);
	}
}

/* Looks now and then at how busy the links are: on this thread, which uses them. */
static void look_at_links(const reducer *r)
{
	link_load busiest;
	if (profile_of_world(r) && rank_times_wants_link(r->eng.job) &&
	    channel_busiest(r->eng.coll_ctx.channel, &busiest))
		rank_times_link(r->eng.job, &busiest);
}

/* Does, with the lock held but dropped meanwhile, the bucket's exchange. Returns 0 when it failed. */
static int exchange(reducer *r, uint32_t i)
{
	bucket *b = &r->eng.list.buckets[i];
	if (!run_next(r, b))
		return 0;
	look_at_links(r);
	count_bad(r, b);
	if (b->bad) {
		skip_to(b, TASK_FINISH);
	} else if (bucket_given_up(b)) {
		/* Only the shards are given up: what was summed beside them is gathered. */
		skip_to(b, TASK_LOCAL_END);
	}
	schedule_exchanged(&r->schedule, i, stages_left(b));
	return 1;
}

/* Runs exchanges whose turn it is, and what ranks do together between two steps, until another reducer has an
 * exchange, too. This thread also computes what an exchange has made due, unless another one is there. */
static void exchange_turn(void *arg)
{
	reducer *r = arg;
	bool due = false;
	pthread_mutex_lock(&r->lock);
	while (!r->turns.stop && !r->failed) {
		if (r->turns.verify_due) {
			verify_sync(r);
			continue;
		}
		if (r->turns.replan_due) {
			replan_sync(r);
			continue;
		}
		if (due && progress_contended(&r->progress, PROGRESS_EXCHANGE)) {
			progress_next(&r->progress, PROGRESS_EXCHANGE);
			break;
		}
		uint32_t i = held(r) ? SCHEDULE_NONE : schedule_exchange(&r->schedule);
		if (i == SCHEDULE_NONE) {
			exchange_rest(r);
			break;
		}
		if (due)
			progress_wake(&r->progress, PROGRESS_COMPUTE);
		due = exchange(r, i);
	}
	if (due)
		progress_next(&r->progress, PROGRESS_COMPUTE);
	pthread_mutex_unlock(&r->lock);
}

static void bind_thread(void *arg)
{
	const reducer *r = arg;
	device_arena_bind(r->eng.ways.device->arena);
}

gradcomp_status run_step_start(reducer *r, gradcomp_error *err)
{
	double wait = config_float(r->eng.job->config, SET_TRANSPORT_WAIT_TIMEOUT);
	/* Before its peers give up waiting, who know only which rank they wait for. */
	r->turns.patience = wait - fmin(wait / 4, 30);
	r->progress.turn[PROGRESS_COMPUTE] = compute_turn;
	r->progress.turn[PROGRESS_EXCHANGE] = exchange_turn;
	r->progress.bind = r->eng.ways.device->arena ? bind_thread : NULL;
	r->progress.ctx = r;
	return progress_join(&r->progress, r->eng.job, err);
}

void run_step_stop(reducer *r)
{
	pthread_mutex_lock(&r->lock);
	r->turns.stop = 1;
	pthread_mutex_unlock(&r->lock);
	progress_leave(&r->progress, r->eng.job);
	/* Memory that is to be freed now is still in use on a device that a failure has not reached yet. */
	if (r->failed) {
		gradcomp_error known;
		r->eng.ways.device->calls->watch(&r->eng, &known);
	}
	device_arena_flush(r->eng.ways.device->arena);
}
