/* Between two steps: gather, decide, apply. */
#include "reducer/bucketing/replan_internal.h"

#include "reducer/bucketing/bucketing.h"
#include "reducer/bucketing/measure.h"
#include "reducer/bucketing/rebucket.h"
#include "reducer/bucketing/plan_solve.h"
#include "reducer/word_sync.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void replan_step_over(reducer *r)
{
	struct replan *q = r->replan;
	if (!q->next || r->eng.stats.steps < q->next)
		return;
	if (word_sync_supported(r)) {
		r->turns.replan_due = 1;
		return;
	}
	q->next = 0;
	if (!q->measures)
		return;
	snprintf(q->reason, sizeof q->reason,
	         "collective '%s' serves neither all-reduce nor all-gather, by which ranks compare",
	         r->eng.coll_ctx.collective->info.name);
	replan_log_fixed(r);
}

/* Makes buckets of another plan, whose first step does not count. A rank that cannot have them, for want of memory
 * most often, leaves all with those they have: *taken is 0 and *err says why. */
static gradcomp_status change(reducer *r, const step_plan *p, int *taken, gradcomp_error *err)
{
	gradcomp_status st = reducer_rebucket(r, p, err);
	gradcomp_error known;
	*taken = !st;
	if (st && transport_failure(r->eng.job->transport, &known))
		return st;
	if (st) {
		log_line(&r->eng.job->log, GRADCOMP_LOG_WARN, "schedule: %s: the plan is not used: %s",
		         r->replan->asked.spec.text, err->text);
		return GRADCOMP_OK;
	}
	pthread_mutex_lock(&r->lock);
	profile_drop(r);
	pthread_mutex_unlock(&r->lock);
	r->replan->loaded = 0;
	return GRADCOMP_OK;
}

/* The next of the plans that are there to be measured: after fixed buckets small ones, but not
 * so many that latency alone would make such a step far longer than others, then large ones,
 * but not so large that there might be no room for them. */
static gradcomp_status next_phase(reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	uint64_t fixed = r->bucket_bytes / sizeof(float),
		 size[REPLAN_PHASES] = {0, r->eng.layout.numel / 48, r->eng.layout.numel / 3};
	step_plan p = {0};
	gradcomp_status st;
	int taken;
	q->phase++;
	size[1] = size[1] < fixed / 4 ? size[1] : fixed / 4;
	size[2] = size[2] < 4 * fixed ? size[2] : 4 * fixed;
	st = plan_solve_size(r, size[q->phase], &p, err);
	if (!st)
		st = change(r, &p, &taken, err);
	step_plan_clear(&p);
	q->next = q->start + (uint64_t)q->asked.profile_steps * (q->phase + 1) / q->phases;
	return st;
}

/* Sends what the first rank makes of what all have measured to all ranks. */
static gradcomp_status agree_on(reducer *r, fit *f, plan_msg *v, gradcomp_error *err)
{
	uint32_t n = r->eng.layout.ntensors;
	int64_t *words = calloc(plan_msg_words(n), sizeof *words);
	plan_msg mine = {0};
	gradcomp_status st = GRADCOMP_OK;
	if (!words)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u tensors", n);
	if (r->eng.layout.rank == 0) {
		st = replan_decide(r, f, &mine, err);
		if (!st)
			plan_msg_put(&mine, n, words);
		plan_msg_clear(&mine);
	}
	if (!st)
		st = word_sync_bcast(r, words, plan_msg_words(n), err);
	if (!st)
		st = plan_msg_take(words, n, r->eng.stats.steps, v, err);
	free(words);
	return st;
}

/* After a second measuring that has brought no better plan. */
static gradcomp_status restore(reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	int taken;
	gradcomp_status st = q->before.end ? change(r, &q->before, &taken, err) : GRADCOMP_OK;
	step_plan_clear(&q->before);
	return st;
}

/* Takes up the plan of a message. Where not all can have it, what was measured stands nevertheless, and the
 * compressor knows it on all ranks. */
static gradcomp_status take(reducer *r, plan_msg *v, gradcomp_error *err)
{
	struct replan *q = r->replan;
	int taken;
	gradcomp_status st = change(r, &v->plan, &taken, err);
	if (st)
		return st;
	ab_test_clear(&q->ab_test);
	if (taken) {
		memcpy(q->name, q->then_name, sizeof q->name);
		q->ab_test = q->then;
		q->then = (ab_test){0};
		step_plan_clear(&q->before);
		return GRADCOMP_OK;
	}
	ab_test_clear(&q->then);
	step_plan_clear(&v->plan);
	v->exposed = 0;
	v->trial = 0;
	if (v->kind == PLAN_MSG_TRY) {
		v->kind = PLAN_MSG_KEEP;
		return GRADCOMP_OK;
	}
	v->kind = q->settled ? PLAN_MSG_TIMES : PLAN_MSG_FIXED;
	if (q->settled)
		return GRADCOMP_OK;
	if (r->eng.layout.rank)
		return replan_notify_compressor(r, v, err);
	snprintf(q->reason, sizeof q->reason, "%.190s", err->text);
	return GRADCOMP_OK;
}

/* Measured anew after a while, then after a longer one. */
static gradcomp_status fall_back(reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	step_plan fixed = {0};
	int taken = 0;
	gradcomp_status st = plan_solve_simple(r, SCHEDULE_FIXED, &fixed, err);
	if (!st)
		st = change(r, &fixed, &taken, err);
	step_plan_clear(&fixed);
	if (taken)
		replan_log_fixed(r);
	q->start = r->eng.stats.steps + q->interval;
	q->phase = 0;
	return st;
}

/* Afterwards v->kind and v->trial are what came of it. */
static gradcomp_status follow(reducer *r, const fit *f, plan_msg *v, gradcomp_error *err)
{
	struct replan *q = r->replan;
	gradcomp_status st = GRADCOMP_OK;
	q->phase = q->phases;
	if (v->plan.end)
		st = take(r, v, err);
	if (st)
		return st;
	switch (v->kind) {
	case PLAN_MSG_KEEP:
		return restore(r, err);
	case PLAN_MSG_MEASURE:
		q->start = r->eng.stats.steps;
		q->phase = 0;
		return bucketing_plan(r, &q->before, err);
	case PLAN_MSG_FIXED:
		return fall_back(r, err);
	case PLAN_MSG_TRY:
		q->last.plan.predicted = v->plan.predicted;
		q->last.exposed = v->exposed;
		return GRADCOMP_OK;
	case PLAN_MSG_PLAN:
	case PLAN_MSG_TIMES:
		break;
	}
	q->plans += v->kind == PLAN_MSG_PLAN;
	st = restore(r, err);
	if (st)
		return st;
	plan_msg_clear(&q->last);
	q->last = *v;
	*v = (plan_msg){.kind = q->last.kind, .trial = q->last.trial};
	if (v->kind == PLAN_MSG_PLAN)
		replan_log(r, f);
	measure_agreed(r, f);
	st = r->eng.layout.rank ? replan_notify_compressor(r, &q->last, err) : GRADCOMP_OK;
	q->settled = q->known = 1;
	return st;
}

static gradcomp_status look(reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	plan_msg v = {0};
	measure m = {0};
	fit f = {0};
	/* A compressor that has just been told sends other sizes from now on: these are to be seen soon. */
	uint64_t soon = r->eng.compressor->measured && !q->known && !q->plans ? q->asked.profile_steps : 0;
	gradcomp_status st;
	pthread_mutex_lock(&r->lock);
	st = measure_take(r, q->from, &m, err);
	pthread_mutex_unlock(&r->lock);
	if (!st)
		st = word_sync_max(r, m.words, m.n, err);
	if (!st)
		st = measure_fit(r, &m, &f, err);
	if (!st)
		st = agree_on(r, &f, &v, err);
	if (!st)
		st = follow(r, &f, &v, err);
	if (!st) {
		plan_msg_kind kind = v.kind;
		if (kind != PLAN_MSG_KEEP)
			q->from = r->eng.stats.steps;
		/* A plan that changes again and again is looked at less often. */
		if (kind == PLAN_MSG_FIXED || kind == PLAN_MSG_MEASURE || (kind == PLAN_MSG_TIMES && q->plans))
			q->interval =
				q->interval < 64 * (uint64_t)q->asked.replan_steps ? 2 * q->interval : q->interval;
		if (kind == PLAN_MSG_FIXED || kind == PLAN_MSG_MEASURE)
			q->next = q->start + (uint64_t)q->asked.profile_steps / q->phases;
		else
			q->next = r->eng.stats.steps + (v.trial                      ? REPLAN_TRIAL_STEPS
			                                : soon && soon < q->interval ? soon
			                                                             : q->interval);
	}
	plan_msg_clear(&v);
	measure_fit_clear(&f);
	measure_clear(&m);
	return st;
}

gradcomp_status replan_run(reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	if (q->phase + 1 >= q->phases)
		return look(r, err);
	if (q->phase == 0)
		q->from = q->start;
	return next_phase(r, err);
}

void replan_loaded(reducer *r, int settled)
{
	struct replan *q = r->replan;
	uint64_t now = r->eng.stats.steps;
	ab_test_clear(&q->ab_test);
	step_plan_clear(&q->before);
	plan_msg_clear(&q->last);
	q->reason[0] = 0;
	q->loaded = 1;
	q->known = 0;
	q->from = now;
	profile_drop(r);
	if (!q->next)
		return;
	q->settled = settled;
	q->start = now;
	q->phase = settled ? q->phases : 0;
	q->next = now + (settled ? q->interval : q->asked.profile_steps / q->phases);
}

int replan_settled(const reducer *r)
{
	return r->replan->settled;
}
