/* Plans from solvers, and the best of them. */
#include "reducer/bucketing/plan_solve.h"

#include "reducer/bucketing/bucketing.h"
#include "schedule/merge.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the solvers are told. A number is one of the gradients, or where a compressor has no
 * limit to a bucket's, a byte of what it makes of them, which need not be in proportion. */
typedef struct question {
	merge_problem p;
	double *backward;
	uint64_t *numel;
	uint8_t *cut;
} question;

static void question_clear(question *q)
{
	free(q->backward);
	free(q->numel);
	free(q->cut);
}

static gradcomp_status question_new(const gradcomp_reducer *r, question *q, gradcomp_error *err)
{
	uint32_t n = r->layout.ntensors;
	*q = (question){.backward = calloc(n, sizeof *q->backward), .numel = calloc(n, sizeof *q->numel),
	                .cut = calloc(n, 1)};
	if (!q->backward || !q->numel || !q->cut) {
		question_clear(q);
		*q = (question){0};
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to plan %u tensors", n);
	}
	for (uint32_t i = 0; i < n; i++)
		q->numel[i] = r->tensors[i].numel;
	q->p = (merge_problem){.n = n, .backward = q->backward, .numel = q->numel, .max_numel = r->compressor->max_bucket};
	return GRADCOMP_OK;
}

/* A bucket takes workspace of its size, and beyond some size nothing is won by merging. In
 * numbers; 0: no limit. */
static uint64_t most(const gradcomp_reducer *r)
{
	uint64_t bytes = 4 * r->bucket_bytes > PLAN_SOLVE_MOST_BYTES ? 4 * r->bucket_bytes : PLAN_SOLVE_MOST_BYTES;
	uint64_t numel = bytes / sizeof(float), max = r->compressor->max_bucket;
	if (max && max < numel)
		numel = max;
	return numel < r->layout.numel ? numel : 0;
}

static gradcomp_status ask(gradcomp_reducer *r, const fit *f, question *q, gradcomp_error *err)
{
	uint32_t n = r->layout.ntensors, rounds = 1;
	double all = 0, numel = (double)r->layout.numel;
	uint64_t *bytes = calloc(n, sizeof *bytes);
	*q = (question){0};
	gradcomp_status st = bytes ? question_new(r, q, err)
	                           : error_set(err, GRADCOMP_ERR_NOMEM, "no memory to plan %u tensors", n);
	for (uint32_t i = 0; !st && i < n; i++) {
		gradcomp_bucket b;
		gradcomp_plan plan;
		double own = 0;
		st = plan_solve_rounds(r, f, 0, i, i + 1, &b, &plan, err);
		for (uint32_t k = 0; !st && k < plan.nrounds; k++)
			own += (double)round_bytes(&plan.rounds[k]);
		rounds = plan.nrounds > rounds ? plan.nrounds : rounds;
		bytes[i] = (uint64_t)own;
		all += own;
		q->backward[i] = i ? f->arrival[i] - f->arrival[i - 1] : 0;
	}
	if (!st) {
		double per = numel > 0 ? all / numel : 0; /* bytes of a number */
		q->p.max_numel = most(r);
		q->p.a = f->exchange.a * rounds + f->reduce.a + f->spread.a;
		q->p.b = f->exchange.b * per + f->reduce.b + f->spread.b;
		q->p.select_a = f->encode.a;
		q->p.select_b = f->encode.b;
		if (per > 0 && !q->p.max_numel) {
			memcpy(q->numel, bytes, n * sizeof *bytes);
			q->p.b /= per;
			q->p.select_b /= per;
		}
	}
	free(bytes);
	if (st)
		question_clear(q);
	return st;
}

gradcomp_status plan_solve_unmeasured(const gradcomp_reducer *r, schedule_method method, step_plan *out, gradcomp_error *err)
{
	question q;
	gradcomp_status st;
	if (method == SCHEDULE_FIXED)
		return bucketing_fixed(r, out, err);
	st = question_new(r, &q, err);
	if (st)
		return st;
	if (method == SCHEDULE_WFBP)
		merge_wfbp(&q.p, q.cut);
	else
		merge_single(&q.p, q.cut);
	st = step_plan_from_cut(out, q.cut, q.p.n, err);
	question_clear(&q);
	return st;
}

gradcomp_status plan_solve_size(const gradcomp_reducer *r, uint64_t size, step_plan *out, gradcomp_error *err)
{
	question q;
	gradcomp_status st = question_new(r, &q, err);
	if (st)
		return st;
	merge_fixed(&q.p, size, size, q.cut);
	st = step_plan_from_cut(out, q.cut, q.p.n, err);
	question_clear(&q);
	return st;
}

/* The last bucket's tensors are needed first: of those that have come when the link is free,
 * the last one goes. */
static gradcomp_status by_need(const fit *f, const question *q, step_plan *p, gradcomp_error *err)
{
	double link = 0;
	char *gone = calloc(p->nbuckets, 1);
	p->place = calloc(p->nbuckets, sizeof *p->place);
	if (!gone || !p->place) {
		free(gone);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to order %u buckets", p->nbuckets);
	}
	for (uint32_t place = 0; place < p->nbuckets; place++) {
		uint32_t next = SCHEDULE_NONE, first;
		for (uint32_t b = 0; b < p->nbuckets; b++)
			if (!gone[b] && (next == SCHEDULE_NONE || f->arrival[p->end[b] - 1] <= link))
				next = b;
		gone[next] = 1;
		p->place[next] = place;
		first = next ? p->end[next - 1] : 0;
		link = link > f->arrival[p->end[next] - 1] ? link : f->arrival[p->end[next] - 1];
		link += q->p.a;
		for (uint32_t i = first; i < p->end[next]; i++)
			link += q->p.b * (double)q->numel[i];
	}
	free(gone);
	return GRADCOMP_OK;
}

/* Takes it when it is better by more than `gain`, or the first. */
static gradcomp_status judge(gradcomp_reducer *r, const fit *f, step_plan *p, const char *name, double gain,
                             solution *best, gradcomp_error *err)
{
	double exposed;
	gradcomp_status st = plan_solve_predict(r, f, p, &p->predicted, &exposed, err);
	if (!st && (!best->plan.end || p->predicted < (1 - gain) * best->plan.predicted)) {
		step_plan_clear(&best->plan);
		*best = (solution){.plan = *p, .exposed = exposed};
		snprintf(best->name, sizeof best->name, "%s%s%s", name, p->place ? ", by need" : "",
		         p->lag == STEP_PLAN_LAG ? "" : ", lag 0");
		return GRADCOMP_OK;
	}
	step_plan_clear(p);
	return st;
}

enum { FIXED, SINGLE, WFBP, MGWFBP, OMGS, BEST, BEST_AFTER_SELECTION, KINDS };
static const char *const names[KINDS] = {"fixed", "single", "wfbp", "mgwfbp", "omgs", "best", "best"};

static gradcomp_status cut_of(gradcomp_reducer *r, question *q, int kind, step_plan *p, gradcomp_error *err)
{
	merge_problem with = q->p, without = q->p;
	int rc;
	without.select_a = without.select_b = 0;
	switch (kind) {
	case FIXED:
		return plan_solve_unmeasured(r, SCHEDULE_FIXED, p, err);
	case SINGLE:
		merge_single(&without, q->cut);
		return step_plan_from_cut(p, q->cut, q->p.n, err);
	case WFBP:
		return plan_solve_unmeasured(r, SCHEDULE_WFBP, p, err);
	case MGWFBP:
		rc = merge_mgwfbp(&without, q->cut);
		break;
	case OMGS:
		rc = merge_omgs(&with, q->cut);
		break;
	default:
		rc = merge_dp(kind == BEST ? &without : &with, q->cut);
	}
	if (rc)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to plan %u tensors", q->p.n);
	return step_plan_from_cut(p, q->cut, q->p.n, err);
}

/* The kind's plan in each of its ways: as it is, with the other lag, by need, and both. */
static gradcomp_status try(gradcomp_reducer *r, const fit *f, question *q, int kind, int ways, double gain,
                           solution *best, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int way = 0; !st && way < ways; way++) {
		step_plan p = {0};
		st = cut_of(r, q, kind, &p, err);
		if (!st && way & 2)
			st = by_need(f, q, &p, err);
		p.lag = STEP_PLAN_LAG ^ (way & 1);
		if (st)
			step_plan_clear(&p);
		else
			st = judge(r, f, &p, names[kind], gain, best, err);
	}
	return st;
}

static int same(const step_plan *a, const step_plan *b)
{
	return a->nbuckets == b->nbuckets && a->lag == b->lag && !a->place && !b->place &&
	       !memcmp(a->end, b->end, a->nbuckets * sizeof *a->end);
}

/* Whether a's number of messages is further from the solved plan's than b's. */
static int further(const step_plan *a, const step_plan *b, const step_plan *solved)
{
	double from = log(solved->nbuckets);
	return fabs(log(a->nbuckets) - from) > fabs(log(b->nbuckets) - from);
}

static gradcomp_status rival_of(gradcomp_reducer *r, const fit *f, question *q, const solution *best, solution *out,
                                gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int kind = FIXED; !st && kind <= WFBP; kind++) {
		solution one = {0};
		st = try(r, f, q, kind, 1, 0, &one, err);
		if (!st && !same(&one.plan, &best->plan) &&
		    one.plan.predicted <= (1 + PLAN_SOLVE_CANDIDATE) * best->plan.predicted &&
		    (!out->plan.end || further(&one.plan, &out->plan, &best->plan))) {
			step_plan_clear(&out->plan);
			*out = one;
		} else {
			step_plan_clear(&one.plan);
		}
	}
	if (st)
		step_plan_clear(&out->plan);
	return st;
}

gradcomp_status plan_solve(gradcomp_reducer *r, const fit *f, schedule_method method, solution *out, solution *rival,
                      gradcomp_error *err)
{
	question q;
	solution best = {0}, simple = {0};
	gradcomp_status st = ask(r, f, &q, err);
	if (st)
		return st;
	/* Of plans that are as good to the simulator the simplest. */
	if (method == SCHEDULE_AUTO) {
		for (int kind = 0; !st && kind < KINDS; kind++)
			st = try(r, f, &q, kind, f->each_layer ? 4 : 2, 0.001, &best, err);
	} else {
		st = try(r, f, &q, method == SCHEDULE_MGWFBP ? MGWFBP : OMGS, 1, 0, &best, err);
		for (int kind = FIXED; !st && kind <= WFBP; kind++)
			st = try(r, f, &q, kind, 1, PLAN_SOLVE_SIMPLE, &best, err);
	}
	if (!st)
		st = rival_of(r, f, &q, &best, &simple, err);
	question_clear(&q);
	if (st) {
		step_plan_clear(&best.plan);
		return st;
	}
	*out = best;
	*rival = simple;
	return GRADCOMP_OK;
}
