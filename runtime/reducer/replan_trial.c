/* Plans that are predicted to be about as good, compared by running them: the one that was
 * solved for, and the best simple one. A line of seconds over bytes does not know of all that
 * a network does; a shaper lets a burst pass after a pause. */
#include "replan_parts.h"

#include "division.h"
#include "solve.h"

#include <stdio.h>
#include <string.h>

void trial_begin(struct replan *q, solution *rival, verdict *v)
{
	trial_clear(&q->trial);
	if (!rival->plan.end || !q->trial_steps)
		return;
	q->trial = (trial){.runs = TRIAL_SOLVED, .other = rival->plan, .exposed = rival->exposed};
	snprintf(q->trial.name, sizeof q->trial.name, "%s", rival->name);
	rival->plan = (step_plan){0};
	v->trial = 1;
}

/* The plan that did not run is to run next, and the other way round. */
static gradcomp_status change_places(gradcomp_reducer *r, double took, verdict *v, gradcomp_error *err)
{
	struct replan *q = r->replan;
	trial next = {.runs = TRIAL_RIVAL, .exposed = q->last.exposed, .took = took};
	gradcomp_status st = division_plan(r, &next.other, err);
	if (st)
		return st;
	next.other.predicted = q->last.plan.predicted;
	memcpy(next.name, q->name, sizeof next.name);
	memcpy(q->name, q->trial.name, sizeof q->name);
	v->kind = VERDICT_TRY;
	v->plan = q->trial.other;
	v->exposed = q->trial.exposed;
	q->trial = next;
	return GRADCOMP_OK;
}

static void say(const gradcomp_reducer *r, double rival, int taken)
{
	const struct replan *q = r->replan;
	const char *solved = taken ? q->trial.name : q->name, *simple = taken ? q->name : q->trial.name;
	log_line(&r->job->log, GRADCOMP_LOG_INFO, "schedule: %s: both were run: %s %.1f ms a step, %s %.1f; %s stays",
	         q->spec.text, solved, q->trial.took * 1e3, simple, rival * 1e3, q->name);
}

gradcomp_status trial_decide(gradcomp_reducer *r, const fit *f, int good, verdict *v, gradcomp_error *err)
{
	struct replan *q = r->replan;
	gradcomp_status st = GRADCOMP_OK;
	if (q->trial.runs == TRIAL_SOLVED) {
		if (good)
			st = change_places(r, f->step, v, err);
		else
			trial_clear(&q->trial);
		v->trial = q->trial.runs == TRIAL_RIVAL;
		return st;
	}
	double solved = q->trial.took;
	int taken = good && f->step < (1 - REPLAN_CLEARLY) * solved;
	if (!taken)
		st = change_places(r, f->step, v, err);
	q->trial.took = solved;
	if (!st && good)
		say(r, f->step, taken);
	trial_clear(&q->trial);
	return st;
}

void trial_clear(trial *t)
{
	step_plan_clear(&t->other);
	*t = (trial){0};
}
