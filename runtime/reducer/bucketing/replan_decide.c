/* On the group's first rank: what to do about what was measured. */
#include "reducer/bucketing/replan_internal.h"

#include "reducer/bucketing/bucketing.h"
#include "reducer/bucketing/plan_solve.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns 1 when a plan can be made of it; else why not. */
static int usable(const struct replan *q, const fit *f, char *reason, size_t capacity)
{
	uint32_t steps = q->known ? q->asked.replan_steps : q->asked.profile_steps;
	*reason = 0;
	if (f->steps < REPLAN_LEAST_STEPS)
		snprintf(reason, capacity,
		         "of %u profiled steps %u can be used, %d are needed (schedule.profile_steps)", steps, f->steps,
		         REPLAN_LEAST_STEPS);
	else if (f->noise > REPLAN_MOST_NOISE)
		snprintf(reason, capacity, "the backward pass varies by %.0f %% of a step", f->noise * 100);
	else if (f->error < 0 || f->error > REPLAN_MOST_NOISE)
		snprintf(reason, capacity, "exchanges vary by %.0f %% of their length", fabs(f->error) * 100);
	return !*reason;
}

/* Returns what the exchanges of the plan in force take by a line, with their bytes as they were last measured. */
static double exchanged(const reducer *r, const linear *l, double *least, double *most)
{
	const profile *p = r->profile;
	const profile_row *row = profile_row_of(p, p->at - 1);
	double s = 0;
	*least = INFINITY;
	*most = 0;
	for (uint32_t b = 0; b < row->nbuckets; b++) {
		s += l->a * row->buckets[b].rounds + l->b * row->buckets[b].bytes;
		*least = fmin(*least, row->buckets[b].bytes);
		*most = fmax(*most, row->buckets[b].bytes);
	}
	return s;
}

static bool off(double ratio)
{
	return ratio > 1 + REPLAN_DRIFT || ratio < 1 / (1 + REPLAN_DRIFT);
}

/* Finds out if passes or exchanges take another time than when the plan was made. Buckets of about one size say
 * nothing of a and b apart: those are as they were, or to be measured. */
static plan_msg_kind drifted(const reducer *r, fit *f)
{
	const struct replan *q = r->replan;
	double least, most, was = exchanged(r, &q->last.exchange, &least, &most);
	double ratio = was > 0 ? exchanged(r, &f->exchange, &least, &most) / was : 1;
	double passes = q->last.passes > 0 ? f->arrival[f->ntensors - 1] / q->last.passes : 1;
	if (q->before.end)
		return PLAN_MSG_TIMES;
	if (r->eng.list.nbuckets < 2 || most < 2 * least) {
		f->exchange = q->last.exchange;
		if (q->measures && off(ratio))
			return PLAN_MSG_MEASURE;
	}
	return off(ratio) || off(passes) ? PLAN_MSG_TIMES : PLAN_MSG_KEEP;
}

static gradcomp_status predict_fixed(reducer *r, const fit *f, double *seconds, gradcomp_error *err)
{
	step_plan fixed = {0};
	double exposed;
	gradcomp_status st = plan_solve_simple(r, SCHEDULE_FIXED, &fixed, err);
	if (!st)
		st = plan_solve_predict(r, f, &fixed, seconds, &exposed, err);
	step_plan_clear(&fixed);
	return st;
}

/* Predicts the plan in force, without what measuring adds. */
static gradcomp_status predict_present(reducer *r, const fit *f, double *seconds, double *exposed, gradcomp_error *err)
{
	step_plan now = {0};
	gradcomp_status st;
	if (r->replan->before.end)
		return plan_solve_predict(r, f, &r->replan->before, seconds, exposed, err);
	st = bucketing_plan(r, &now, err);
	if (!st)
		st = plan_solve_predict(r, f, &now, seconds, exposed, err);
	step_plan_clear(&now);
	return st;
}

/* A plan, where it is worth it. */
static gradcomp_status plan(reducer *r, const fit *f, int first, plan_msg *v, gradcomp_error *err)
{
	struct replan *q = r->replan;
	double present = v->plan.predicted;
	plan_found found, candidate;
	gradcomp_status st = plan_solve(r, f, q->asked.spec.method, &found, &candidate, err);
	if (st)
		return st;
	if (first || found.plan.predicted < (1 - REPLAN_GAIN) * present) {
		v->kind = PLAN_MSG_PLAN;
		v->plan = found.plan;
		v->exposed = found.exposed;
		snprintf(q->then_name, sizeof q->then_name, "%s", found.name);
		ab_test_begin(q, &candidate, v);
	} else {
		step_plan_clear(&found.plan);
	}
	step_plan_clear(&candidate.plan);
	return GRADCOMP_OK;
}

gradcomp_status replan_decide(reducer *r, fit *f, plan_msg *v, gradcomp_error *err)
{
	struct replan *q = r->replan;
	char reason[sizeof q->reason];
	int good = usable(q, f, reason, sizeof reason), first = q->measures && !q->settled;
	gradcomp_status st;
	*v = (plan_msg){.kind = PLAN_MSG_KEEP,
	                .step = r->eng.stats.steps,
	                .backward = calloc(f->ntensors, sizeof *v->backward)};
	if (!v->backward)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u tensors", f->ntensors);
	if (q->ab_test.runs)
		return ab_test_decide(r, f, v, err);
	if (!good) {
		if (first) {
			v->kind = PLAN_MSG_FIXED;
			memcpy(q->reason, reason, sizeof q->reason);
		}
		return GRADCOMP_OK;
	}
	v->kind = q->known ? drifted(r, f) : PLAN_MSG_TIMES;
	v->passes = f->arrival[f->ntensors - 1];
	v->exchange = f->exchange;
	v->rounds = f->rounds;
	v->encode = f->encode;
	v->decode = f->decode;
	memcpy(v->backward, f->backward, f->ntensors * sizeof *v->backward);
	if (v->kind != PLAN_MSG_TIMES)
		return GRADCOMP_OK;
	q->reason[0] = 0;
	st = replan_notify_compressor(r, v, err);
	if (!st)
		st = predict_fixed(r, f, &v->fixed, err);
	if (!st)
		st = predict_present(r, f, &v->plan.predicted, &v->exposed, err);
	return !st && q->measures && (first || q->known) ? plan(r, f, first, v, err) : st;
}

gradcomp_status replan_notify_compressor(reducer *r, const plan_msg *v, gradcomp_error *err)
{
	gradcomp_measured m = {.struct_size = sizeof m,
	                       .ntensors = r->eng.layout.ntensors,
	                       .backward = v->backward,
	                       .exchange_a = v->exchange.a * v->rounds,
	                       .exchange_b = v->exchange.b,
	                       .encode_a = v->encode.a + v->decode.a,
	                       .encode_b = v->encode.b + v->decode.b};
	if (!r->eng.compressor->measured || (r->replan->settled && !r->replan->known))
		return GRADCOMP_OK;
	gradcomp_error inner = {0};
	gradcomp_status st = r->eng.ways.levels->measured(&r->eng, &m, &inner);
	if (st)
		error_set(err, st, "compressor '%s' cannot use what was measured: %s", r->eng.compressor->info.name,
		          *inner.text ? inner.text : gradcomp_strerror(st));
	return st;
}
