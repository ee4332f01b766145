/* Between two steps: gather, decide, apply. */
#include "replan_parts.h"

#include "division.h"
#include "measure.h"
#include "rebucket.h"
#include "shards.h"
#include "solve.h"
#include "words.h"

#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say_fixed(const gradcomp_reducer *r)
{
	const struct replan *q = r->replan;
	log_line(&r->job->log, GRADCOMP_LOG_INFO, "schedule: %s: %s; fixed buckets instead, %u message%s a step",
	         q->spec.text, q->reason, r->nbuckets, r->nbuckets == 1 ? "" : "s");
}

void replan_step_over(gradcomp_reducer *r)
{
	struct replan *q = r->replan;
	if (!q->next || r->stats.steps < q->next)
		return;
	if (words_carried(r)) {
		r->replan_due = 1;
		return;
	}
	q->next = 0;
	if (!q->measures)
		return;
	snprintf(q->reason, sizeof q->reason, "collective '%s' serves neither all-reduce nor all-gather, by which ranks compare",
	         r->port.collective->info.name);
	say_fixed(r);
}

/* Buckets of another plan: their first step does not count. */
static gradcomp_status apply(gradcomp_reducer *r, const step_plan *p, gradcomp_error *err)
{
	gradcomp_status st = reducer_rebucket(r, p, err);
	if (!st) {
		pthread_mutex_lock(&r->lock);
		profile_drop(r);
		pthread_mutex_unlock(&r->lock);
	}
	return st;
}

/* The next of the plans that are there to be measured: after fixed buckets small ones, but not
 * so many that latency alone would make such a step far longer than others, then large ones,
 * but not so large that there might be no room for them. */
static gradcomp_status next_phase(gradcomp_reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	uint64_t fixed = r->bucket_bytes / sizeof(float), size[REPLAN_PHASES] = {0, r->layout.numel / 48, r->layout.numel / 3};
	step_plan p = {0};
	gradcomp_status st;
	q->phase++;
	size[1] = size[1] < fixed / 4 ? size[1] : fixed / 4;
	size[2] = size[2] < 4 * fixed ? size[2] : 4 * fixed;
	st = solve_size(r, size[q->phase], &p, err);
	if (!st)
		st = apply(r, &p, err);
	step_plan_clear(&p);
	q->next = q->start + (uint64_t)q->profile_steps * (q->phase + 1) / q->phases;
	return st;
}

gradcomp_status replan_tell(gradcomp_reducer *r, const verdict *v, gradcomp_error *err)
{
	gradcomp_measured m = {.struct_size = sizeof m, .ntensors = r->layout.ntensors, .backward = v->backward,
	                       .exchange_a = v->exchange.a * v->rounds, .exchange_b = v->exchange.b,
	                       .encode_a = v->encode.a + v->decode.a, .encode_b = v->encode.b + v->decode.b};
	if (!r->compressor->measured || (r->replan->settled && !r->replan->known))
		return GRADCOMP_OK;
	return r->shards ? shards_measured(r, &m, err) : r->compressor->measured(r->instance, &m, r->step, err);
}

/* What the first rank makes of what all have measured, on all ranks. */
static gradcomp_status agree_on(gradcomp_reducer *r, fit *f, verdict *v, gradcomp_error *err)
{
	uint32_t n = r->layout.ntensors;
	int64_t *words = calloc(verdict_words(n), sizeof *words);
	verdict mine = {0};
	gradcomp_status st = GRADCOMP_OK;
	if (!words)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u tensors", n);
	if (r->layout.rank == 0) {
		st = replan_decide(r, f, &mine, err);
		if (!st)
			verdict_put(&mine, n, words);
		verdict_clear(&mine);
	}
	if (!st)
		st = words_from_first(r, words, verdict_words(n), err);
	if (!st)
		st = verdict_take(words, n, r->stats.steps, v, err);
	free(words);
	return st;
}

/* "; rank 3 on n2 takes 2.4 times as long as rank 0 for a step's passes", or nothing. */
static const char *uneven(const gradcomp_reducer *r, const fit *f, char *out, size_t capacity)
{
	const int *ranks = r->group->ranks;
	*out = 0;
	if (f->slowest_s > 2 * f->fastest_s && f->fastest_s > 0 && f->slowest < r->layout.nranks &&
	    f->fastest < r->layout.nranks)
		snprintf(out, capacity, "; rank %d on %s takes %.1f times as long as rank %d for a step's passes",
		         ranks[f->slowest], transport_host(r->job->transport, ranks[f->slowest]),
		         f->slowest_s / f->fastest_s, ranks[f->fastest]);
	return out;
}

static void say(const gradcomp_reducer *r, const fit *f)
{
	const struct replan *q = r->replan;
	const verdict *v = &q->last;
	char more[256];
	log_line(&r->job->log, GRADCOMP_LOG_INFO,
	         "schedule: %s%s%s%s: %u tensor%s in %u message%s; a message costs %.0f us + %.3g ns a byte, predicted %.1f ms "
	         "a step (fixed: %.1f ms)%s",
	         q->spec.text, strcmp(q->spec.text, q->name) ? " (" : "", strcmp(q->spec.text, q->name) ? q->name : "",
	         strcmp(q->spec.text, q->name) ? ")" : "", r->layout.ntensors, r->layout.ntensors == 1 ? "" : "s",
	         r->nbuckets, r->nbuckets == 1 ? "" : "s", v->exchange.a * 1e6, v->exchange.b * 1e9,
	         v->plan.predicted * 1e3, v->fixed * 1e3, uneven(r, f, more, sizeof more));
}

/* A rank without memory for a plan leaves all with the one they have. */
static gradcomp_status change(gradcomp_reducer *r, const step_plan *p, gradcomp_error *err)
{
	gradcomp_status st = apply(r, p, err);
	gradcomp_error known;
	if (!st || transport_failure(r->job->transport, &known))
		return st;
	log_line(&r->job->log, GRADCOMP_LOG_WARN, "schedule: %s: the plan is not used: %s", r->replan->spec.text, err->text);
	return GRADCOMP_OK;
}

/* After a second measuring that has brought no better plan. */
static gradcomp_status restore(gradcomp_reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	gradcomp_status st = q->before.end ? change(r, &q->before, err) : GRADCOMP_OK;
	step_plan_clear(&q->before);
	return st;
}

static gradcomp_status obey(gradcomp_reducer *r, const fit *f, verdict *v, gradcomp_error *err)
{
	struct replan *q = r->replan;
	uint64_t now = r->stats.steps;
	gradcomp_status st = GRADCOMP_OK;
	step_plan fixed = {0};
	q->phase = q->phases;
	switch (v->kind) {
	case VERDICT_KEEP:
		return restore(r, err);
	case VERDICT_MEASURE:
		st = division_plan(r, &q->before, err);
		q->start = now;
		q->phase = 0;
		break;
	case VERDICT_FIXED:
		st = division_fixed(r, &fixed, err);
		if (!st)
			st = change(r, &fixed, err);
		step_plan_clear(&fixed);
		if (st)
			return st;
		say_fixed(r);
		/* Measured anew after a while, then after a longer one. */
		q->start = now + q->interval;
		q->phase = 0;
		break;
	case VERDICT_TRY:
		q->last.plan.predicted = v->plan.predicted;
		q->last.exposed = v->exposed;
		return change(r, &v->plan, err);
	case VERDICT_PLAN:
		step_plan_clear(&q->before);
		st = change(r, &v->plan, err);
		if (st)
			return st;
		q->plans++;
		/* fall through */
	case VERDICT_TIMES:
		st = restore(r, err);
		if (st)
			return st;
		verdict_clear(&q->last);
		q->last = *v;
		*v = (verdict){0};
		if (q->last.kind == VERDICT_PLAN)
			say(r, f);
		measure_agreed(r, f);
		st = r->layout.rank ? replan_tell(r, &q->last, err) : GRADCOMP_OK;
		q->settled = q->known = 1;
		break;
	}
	return st;
}

static gradcomp_status look(gradcomp_reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	verdict v = {0};
	measure m = {0};
	fit f = {0};
	gradcomp_status st;
	pthread_mutex_lock(&r->lock);
	st = measure_take(r, q->from, &m, err);
	pthread_mutex_unlock(&r->lock);
	if (!st)
		st = words_max(r, m.words, m.n, err);
	if (!st)
		st = measure_fit(r, &m, &f, err);
	if (!st)
		st = agree_on(r, &f, &v, err);
	if (!st) {
		int kind = v.kind, trial = v.trial;
		st = obey(r, &f, &v, err);
		if (kind != VERDICT_KEEP)
			q->from = r->stats.steps;
		/* What changes again and again is looked at less often. */
		if (kind == VERDICT_FIXED || kind == VERDICT_MEASURE || (kind == VERDICT_TIMES && q->plans))
			q->interval = q->interval < 64 * (uint64_t)q->replan_steps ? 2 * q->interval : q->interval;
		if (kind == VERDICT_FIXED || kind == VERDICT_MEASURE)
			q->next = q->start + (uint64_t)q->profile_steps / q->phases;
		else
			q->next = r->stats.steps + (trial ? q->trial_steps : q->interval);
	}
	verdict_clear(&v);
	fit_clear(&f);
	measure_clear(&m);
	return st;
}

gradcomp_status replan_run(gradcomp_reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	if (q->phase + 1 >= q->phases)
		return look(r, err);
	if (q->phase == 0)
		q->from = q->start;
	return next_phase(r, err);
}

void replan_loaded(gradcomp_reducer *r, int settled)
{
	struct replan *q = r->replan;
	if (!q->next || !settled)
		return;
	q->phase = q->phases;
	q->settled = 1;
	q->known = 0;
	trial_clear(&q->trial);
	q->from = r->stats.steps;
	q->next = r->stats.steps + q->interval;
	profile_drop(r);
}

int replan_settled(const gradcomp_reducer *r)
{
	return r->replan->settled;
}
