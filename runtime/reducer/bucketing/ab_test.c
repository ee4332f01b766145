/* Plans that are predicted to be about as good, compared by running them: the one that the
 * search found, and a simple one. A line of seconds over bytes does not know of all that
 * a network does; a shaper lets a burst pass after a pause. */
#include "reducer/bucketing/replan_internal.h"

#include "reducer/bucketing/bucketing.h"
#include "reducer/bucketing/plan_solve.h"

#include <stdio.h>
#include <string.h>

void ab_test_begin(struct replan *q, plan_found *candidate, plan_msg *v)
{
	if (!candidate->plan.end)
		return;
	q->then = (ab_test){.runs = AB_FOUND, .other = candidate->plan, .exposed = candidate->exposed};
	snprintf(q->then.name, sizeof q->then.name, "%s", candidate->name);
	candidate->plan = (step_plan){0};
	v->trial = 1;
}

/* The plan that did not run is to run next. */
static void turn_to_other(struct replan *q, plan_msg *v)
{
	v->kind = PLAN_MSG_TRY;
	v->plan = q->ab_test.other;
	v->exposed = q->ab_test.exposed;
	q->ab_test.other = (step_plan){0};
	memcpy(q->then_name, q->ab_test.name, sizeof q->then_name);
}

static gradcomp_status run_candidate(reducer *r, double took, plan_msg *v, gradcomp_error *err)
{
	struct replan *q = r->replan;
	ab_test next = {.runs = AB_CANDIDATE, .exposed = q->last.exposed, .took = took};
	gradcomp_status st = bucketing_plan(r, &next.other, err);
	if (st)
		return st;
	next.other.predicted = q->last.plan.predicted;
	memcpy(next.name, q->name, sizeof next.name);
	turn_to_other(q, v);
	q->then = next;
	v->trial = 1;
	return GRADCOMP_OK;
}

gradcomp_status ab_test_decide(reducer *r, const fit *f, plan_msg *v, gradcomp_error *err)
{
	struct replan *q = r->replan;
	/* Steps are compared, whatever line their exchanges are on. */
	int good = f->steps >= REPLAN_LEAST_STEPS && f->noise <= REPLAN_MOST_NOISE;
	if (q->ab_test.runs == AB_FOUND && good)
		return run_candidate(r, f->step, v, err);
	if (q->ab_test.runs == AB_CANDIDATE) {
		int taken = good && f->step < (1 - REPLAN_CLEARLY) * q->ab_test.took;
		if (good)
			log_line(&r->eng.job->log, GRADCOMP_LOG_INFO,
			         "schedule: %s: both were run: %s %.1f ms a step, %s %.1f; %s stays",
			         q->asked.spec.text, q->ab_test.name, q->ab_test.took * 1e3, q->name, f->step * 1e3,
			         taken ? q->name : q->ab_test.name);
		if (!taken)
			turn_to_other(q, v);
	}
	ab_test_clear(&q->ab_test);
	return GRADCOMP_OK;
}

void ab_test_clear(ab_test *t)
{
	step_plan_clear(&t->other);
	*t = (ab_test){0};
}
