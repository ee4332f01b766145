#include "schedule/plan_search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fit.h"
#include "schedule/merge.h"
#include "schedule/plan_file.h"
#include "schedule/bucket_order.h"

/* Buckets through whose times the lines go: half of them single tensors, half of them runs. */
#define SAMPLES 32
/* Plans this close take equally long; of them the first one is taken. */
#define EQUAL 1e-9

/* The simplest rules come first. */
typedef enum rule {
	FIXED,
	SINGLE,
	WFBP,
	FIXED_1M,
	FIXED_4M,
	FIXED_16M,
	FIXED_64M,
	MGWFBP_GREEDY,
	OMGS_GREEDY,
	MGWFBP, /* the best plan of the model of MG-WFBP, and of OMGS */
	OMGS,
	RULES,
	REFINED = RULES /* no rule: what a search in plans of several rounds comes to */
} rule;
static const char *const rule_names[RULES + 1] = {[FIXED] = "fixed",
                                                  [SINGLE] = "single",
                                                  [WFBP] = "wfbp",
                                                  [FIXED_1M] = "fixed:bytes=1M",
                                                  [FIXED_4M] = "fixed:bytes=4M",
                                                  [FIXED_16M] = "fixed:bytes=16M",
                                                  [FIXED_64M] = "fixed:bytes=64M",
                                                  [MGWFBP_GREEDY] = "mgwfbp:greedy",
                                                  [OMGS_GREEDY] = "omgs:greedy",
                                                  [MGWFBP] = "mgwfbp",
                                                  [OMGS] = "omgs",
                                                  [REFINED] = "refined"};

/* Exchanges in backward order; of those that are there the one that the next forward pass
 * needs first; the one that it needs first before all others. */
typedef enum order { BACKWARD, BY_NEED, FIRST_LAYER_FIRST, ORDERS } order;
static const char *const order_names[ORDERS] = {
	[BACKWARD] = "", [BY_NEED] = ", by need", [FIRST_LAYER_FIRST] = ", first layer first"};

typedef struct search {
	const plan_search *of;
	/* The rules are told this. A number is one of the gradients, or where nothing limits a bucket's numbers, a
	 * byte of its payload, which need not be in proportion. */
	merge_problem problem;
	uint64_t *weight;
	uint8_t *cut;
	sim_bucket *buckets; /* the plan's that is judged */
	int rounds;          /* a bucket has several exchanges, between which it is computed */
} search;

static gradcomp_status no_memory(uint32_t n, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to plan %u tensors", n);
}

static merge_problem untimed(const plan_search *s)
{
	return (merge_problem){
		.n = s->sim.n, .backward = s->sim.backward, .numel = s->numel, .max_numel = s->max_numel};
}

static void cut_fixed(const plan_search *s, uint8_t *cut)
{
	const merge_problem p = untimed(s);
	merge_fixed(&p, s->first_bytes / sizeof(float), s->bytes / sizeof(float), cut);
}

static void cut_size(const plan_search *s, uint64_t most_numel, uint64_t bytes, uint8_t *cut)
{
	merge_problem p = untimed(s);
	p.max_numel = most_numel;
	merge_fixed(&p, bytes / sizeof(float), bytes / sizeof(float), cut);
}

gradcomp_status plan_search_simple(const plan_search *s, schedule_method method, step_plan *out, gradcomp_error *err)
{
	const merge_problem p = untimed(s);
	uint8_t *cut = calloc(p.n, 1);
	gradcomp_status st;
	if (!cut)
		return no_memory(p.n, err);
	if (method == SCHEDULE_WFBP)
		merge_wfbp(&p, cut);
	else if (method == SCHEDULE_SINGLE)
		merge_single(&p, cut);
	else
		cut_fixed(s, cut);
	st = step_plan_from_cut(out, cut, p.n, err);
	free(cut);
	return st;
}

/* The functions below make what the rules are told. */

static double exchange_seconds(const sim_bucket *b)
{
	double s = 0;
	for (uint32_t k = 0; k < b->ntasks; k++)
		s += task_exchanges(b->tasks[k].kind) ? b->seconds[k] : 0;
	return s;
}

static uint32_t exchanges(const sim_bucket *b)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < b->ntasks; k++)
		n += (uint32_t)task_exchanges(b->tasks[k].kind);
	return n;
}

/* Adds up what is computed before the first exchange. */
static double selection_seconds(const sim_bucket *b)
{
	double s = 0;
	for (uint32_t k = 0; k < b->ntasks && !task_exchanges(b->tasks[k].kind); k++)
		s += b->seconds[k];
	return s;
}

/* In numbers; 0: the whole model is less. */
static uint64_t most_numel(const plan_search *s)
{
	uint64_t bytes = 4 * s->bytes > PLAN_SEARCH_MOST_BYTES ? 4 * s->bytes : PLAN_SEARCH_MOST_BYTES;
	uint64_t most = bytes / sizeof(float), all = 0;
	if (s->max_numel && s->max_numel < most)
		most = s->max_numel;
	for (uint32_t i = 0; i < s->sim.n; i++)
		all += s->numel[i];
	return most < all ? most : 0;
}

static gradcomp_status weigh(search *q, gradcomp_error *err)
{
	const plan_search *s = q->of;
	double all = 0;
	q->problem.max_numel = most_numel(s);
	for (uint32_t i = 0; i < s->sim.n; i++) {
		sim_bucket b;
		double payload = 0;
		gradcomp_status st = s->bucket(s->ctx, 0, i, i + 1, &b, &payload, err);

		if (st)
			return st;
		q->weight[i] = (uint64_t)payload;
		all += payload;
	}
	if (q->problem.max_numel || !(all > 0))
		memcpy(q->weight, s->numel, s->sim.n * sizeof *q->weight);
	return GRADCOMP_OK;
}

/* Fits lines through the seconds of exchanging and of encoding, over what a bucket weighs. */
static gradcomp_status find_lines(search *q, gradcomp_error *err)
{
	fit_point exchange[SAMPLES], select[SAMPLES];
	merge_problem *p = &q->problem;
	uint32_t n = p->n, points = 0;
	for (uint32_t k = 0; k < SAMPLES; k++) {
		uint32_t last = n - 1 - (uint32_t)((uint64_t)(k / 2) * n / (SAMPLES / 2)), first = k % 2 ? 0 : last;
		double weight = 0, numel = 0, payload;
		sim_bucket b;
		gradcomp_status st;

		for (uint32_t t = first; t <= last; t++) {
			weight += (double)q->weight[t];
			numel += (double)q->of->numel[t];
		}
		if (weight <= 0 || (k % 2 && p->max_numel && numel > (double)p->max_numel))
			continue;
		st = q->of->bucket(q->of->ctx, 0, first, last + 1, &b, &payload, err);
		if (st)
			return st;
		q->rounds |= exchanges(&b) > 1;
		exchange[points] = (fit_point){1, weight, exchange_seconds(&b)};
		select[points++] = (fit_point){1, weight, selection_seconds(&b)};
	}
	fit_line(exchange, points, &p->a, &p->b);
	fit_line(select, points, &p->select_a, &p->select_b);
	return GRADCOMP_OK;
}

static void search_close(search *q)
{
	free(q->weight);
	free(q->cut);
	free(q->buckets);
}

static gradcomp_status search_open(search *q, const plan_search *s, gradcomp_error *err)
{
	uint32_t n = s->sim.n;
	gradcomp_status st = GRADCOMP_OK;
	*q = (search){.of = s,
	              .weight = calloc(n, sizeof *q->weight),
	              .cut = calloc(n, 1),
	              .buckets = calloc(n, sizeof *q->buckets)};
	if (!q->weight || !q->cut || !q->buckets)
		st = no_memory(n, err);
	q->problem = (merge_problem){.n = n, .backward = s->sim.backward, .numel = q->weight};
	if (!st)
		st = weigh(q, err);
	if (!st)
		st = find_lines(q, err);
	if (st)
		search_close(q);
	return st;
}

static gradcomp_status fill_buckets(const plan_search *s, const step_plan *p, sim_bucket *buckets, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	double payload;
	for (uint32_t b = 0, first = 0; !st && b < p->nbuckets; first = p->end[b++])
		st = s->bucket(s->ctx, b, first, p->end[b], &buckets[b], &payload, err);
	return st;
}

static gradcomp_status simulate(const plan_search *s, const step_plan *p, const sim_bucket *buckets, int with_events,
                                sim_output *out, gradcomp_error *err)
{
	sim_input in = s->sim;
	in.plan = p;
	in.buckets = buckets;
	/* A program that waits for its whole step begins each one anew: the second is like all others. */
	if (!in.each_layer && in.steps > 2)
		in.steps = 2;
	return sim_run(&in, with_events, out, err);
}

gradcomp_status plan_search_predict(const plan_search *s, const step_plan *p, int with_events, sim_output *out,
                                    gradcomp_error *err)
{
	sim_bucket *buckets = calloc(p->nbuckets, sizeof *buckets);
	gradcomp_status st;
	if (!buckets)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to simulate %u buckets", p->nbuckets);
	st = fill_buckets(s, p, buckets, err);
	if (!st)
		st = simulate(s, p, buckets, with_events, out, err);
	free(buckets);
	return st;
}

/* The last bucket's tensors are needed first: of those that have come when the link is free,
 * the last one goes. */
static gradcomp_status order_by_need(const search *q, step_plan *p, gradcomp_error *err)
{
	const merge_problem *m = &q->problem;
	double *arrival = calloc(m->n, sizeof *arrival), link = 0;
	char *gone = calloc(p->nbuckets, 1);
	if (!arrival || !gone) {
		free(arrival);
		free(gone);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to order %u buckets", p->nbuckets);
	}
	for (uint32_t i = 0; i < m->n; i++)
		arrival[i] = (i ? arrival[i - 1] : 0) + m->backward[i];
	for (uint32_t position = 0; position < p->nbuckets; position++) {
		uint32_t next = SCHEDULE_NONE;

		for (uint32_t b = 0; b < p->nbuckets; b++)
			if (!gone[b] && (next == SCHEDULE_NONE || arrival[p->end[b] - 1] <= link))
				next = b;
		gone[next] = 1;
		p->position[next] = position;
		link = fmax(link, arrival[p->end[next] - 1]) + m->a;
		for (uint32_t i = next ? p->end[next - 1] : 0; i < p->end[next]; i++)
			link += m->b * (double)m->numel[i];
	}
	free(arrival);
	free(gone);
	return GRADCOMP_OK;
}

static gradcomp_status set_order(const search *q, order by, step_plan *p, gradcomp_error *err)
{
	if (by == BACKWARD)
		return GRADCOMP_OK;
	p->position = calloc(p->nbuckets, sizeof *p->position);
	if (!p->position)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to order %u buckets", p->nbuckets);
	if (by == BY_NEED)
		return order_by_need(q, p, err);
	for (uint32_t b = 0; b < p->nbuckets; b++)
		p->position[b] = p->nbuckets - 1 - b;
	return GRADCOMP_OK;
}

static gradcomp_status cut_by(search *q, rule by, gradcomp_error *err)
{
	merge_problem with = q->problem, without = q->problem;
	int rc = 0;
	without.select_a = without.select_b = 0;
	switch (by) {
	case FIXED:
		cut_fixed(q->of, q->cut);
		break;
	case SINGLE:
		merge_single(&without, q->cut);
		break;
	case WFBP:
		merge_wfbp(&without, q->cut);
		break;
	case FIXED_1M:
	case FIXED_4M:
	case FIXED_16M:
	case FIXED_64M:
		cut_size(q->of, with.max_numel, (uint64_t)1 << (20 + 2 * (by - FIXED_1M)), q->cut);
		break;
	case MGWFBP_GREEDY:
		rc = merge_mgwfbp(&without, q->cut);
		break;
	case OMGS_GREEDY:
		rc = merge_omgs(&with, q->cut);
		break;
	default:
		rc = merge_dp(by == MGWFBP ? &without : &with, q->cut);
	}
	return rc ? no_memory(with.n, err) : GRADCOMP_OK;
}

/* Takes the plan, which is cleared, when it is the first or better by more than `gain`. */
static gradcomp_status judge(const search *q, step_plan *p, rule by, order in, double gain, plan_found *best,
                             gradcomp_error *err)
{
	sim_output out;
	gradcomp_status st = simulate(q->of, p, q->buckets, 0, &out, err);
	if (st || (best->plan.nbuckets && out.step >= (1 - gain) * best->plan.predicted)) {
		step_plan_clear(p);
		return st;
	}
	step_plan_clear(&best->plan);
	p->predicted = out.step;
	*best = (plan_found){.plan = *p, .exposed = out.exposed};
	snprintf(best->name, sizeof best->name, "%s%s%s", rule_names[by], order_names[in],
	         p->lag == STEP_PLAN_LAG ? "" : ", lag 0");
	return GRADCOMP_OK;
}

/* Tries q->cut, with so many lags in so many orders. */
static gradcomp_status try_cut(search *q, rule by, uint32_t lags, order orders, double gain, plan_found *best,
                               gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t variant = 0; !st && variant < lags * orders; variant++) {
		order in = variant / lags;
		step_plan p = {0};

		st = step_plan_from_cut(&p, q->cut, q->problem.n, err);
		if (!st && !variant)
			st = fill_buckets(q->of, &p, q->buckets, err);
		if (!st)
			st = set_order(q, in, &p, err);
		p.lag = STEP_PLAN_LAG ^ (variant % lags);
		if (st)
			step_plan_clear(&p);
		else
			st = judge(q, &p, by, in, gain, best, err);
	}
	return st;
}

/* Tries whatever the rule cuts. */
static gradcomp_status try(search *q, rule by, uint32_t lags, order orders, double gain, plan_found *best,
                           gradcomp_error *err)
{
	gradcomp_status st = cut_by(q, by, err);
	return st ? st : try_cut(q, by, lags, orders, gain, best, err);
}

/* Plans for several rounds a bucket.
 *
 * The rules know one exchange a bucket, and nothing of what is computed between two. Of a few
 * tensors all plans are judged. Of more, every rule's plan is changed as long as that helps: a boundary is
 * added, taken away or moved; of some tensors any two are. */

/* Up to so many tensors. */
#define ALL_PLANS 11
/* Tensors that are simulated in changed plans, and the least number of these. */
#define CHANGES (1u << 18)
#define FEWEST_CHANGES 512u
/* Up to so many tensors any two boundaries are changed together. */
#define PAIRS 24

static int fits(const search *q)
{
	uint64_t numel = 0;
	for (uint32_t i = 0, tensors = 0; q->problem.max_numel && i < q->problem.n; i++) {
		numel += q->of->numel[i];
		if (++tensors > 1 && numel > q->problem.max_numel)
			return 0;
		if (q->cut[i])
			tensors = 0, numel = 0;
	}
	return 1;
}

static gradcomp_status try_all(search *q, order orders, plan_found *best, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	uint32_t n = q->problem.n, plans = n ? 1u << (n - 1) : 0;
	for (uint32_t mask = 0; !st && mask < plans; mask++) {
		q->cut[n - 1] = 1;
		for (uint32_t i = 0; i + 1 < n; i++)
			q->cut[i] = mask >> i & 1;
		if (fits(q))
			st = try_cut(q, REFINED, 2, orders, EQUAL, best, err);
	}
	return st;
}

typedef struct climb {
	search *q;
	plan_found at;     /* its buckets are q->buckets, where q->cut ends them but for a change */
	sim_bucket *other; /* the changed plan's */
	uint32_t left;     /* plans that may still be judged */
} climb;

/* Buckets that both plans have cost the same. */
static gradcomp_status fill_changed(const climb *c, const step_plan *p, gradcomp_error *err)
{
	const plan_search *s = c->q->of;
	const step_plan *old = &c->at.plan;
	gradcomp_status st = GRADCOMP_OK;
	double payload;
	for (uint32_t b = 0, k = 0, first = 0; !st && b < p->nbuckets; first = p->end[b++]) {
		while (old->end[k] < p->end[b])
			k++;
		if (old->end[k] == p->end[b] && (k ? old->end[k - 1] : 0) == first)
			c->other[b] = c->q->buckets[k];
		else
			st = s->bucket(s->ctx, b, first, p->end[b], &c->other[b], &payload, err);
	}
	return st;
}

/* Judges q->cut; 1: it is better, and is the best from now on. */
static gradcomp_status change(climb *c, uint32_t lag, int *better, gradcomp_error *err)
{
	search *q = c->q;
	step_plan p = {0};
	gradcomp_status st = GRADCOMP_OK;
	*better = 0;
	if (!c->left || !fits(q))
		return st;
	c->left--;
	st = step_plan_from_cut(&p, q->cut, q->problem.n, err);
	if (!st)
		st = fill_changed(c, &p, err);
	if (st) {
		step_plan_clear(&p);
		return st;
	}
	sim_bucket *before = q->buckets;
	const uint32_t *end = p.end;
	p.lag = lag;
	q->buckets = c->other;
	st = judge(q, &p, REFINED, BACKWARD, EQUAL, &c->at, err);
	*better = !st && c->at.plan.end == end;
	if (*better)
		c->other = before;
	else
		q->buckets = before;
	return st;
}

/* A boundary behind tensor i more, or less, and another one behind `j` unless that is i. */
static gradcomp_status change_at(climb *c, uint32_t i, uint32_t j, int *any, gradcomp_error *err)
{
	uint8_t *cut = c->q->cut;
	int better;
	cut[i] ^= 1;
	cut[j] ^= j != i;
	gradcomp_status st = change(c, c->at.plan.lag, &better, err);
	if (!better) {
		cut[i] ^= 1;
		cut[j] ^= j != i;
	}
	*any |= better;
	return st;
}

/* Moves the boundary behind tensor i elsewhere: twice as far each time. */
static gradcomp_status move(climb *c, uint32_t i, int *any, gradcomp_error *err)
{
	const uint8_t *cut = c->q->cut;
	uint32_t last = c->q->problem.n - 1;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t far = 1; !st && cut[i] && far <= last; far *= 2) {
		if (far <= i && !cut[i - far])
			st = change_at(c, i - far, i, any, err);
		if (!st && cut[i] && i + far < last && !cut[i + far])
			st = change_at(c, i + far, i, any, err);
	}
	return st;
}

/* Every change once; *any: some helped. */
static gradcomp_status change_all(climb *c, int *any, gradcomp_error *err)
{
	uint32_t n = c->q->problem.n, apart = n > 64 ? n / 64 : 1;
	gradcomp_status st = GRADCOMP_OK;
	int better = 0;
	*any = 0;
	for (uint32_t i = 0; !st && i + 1 < n; i++) {
		if (c->q->cut[i] || i % apart == 0)
			st = change_at(c, i, i, any, err);
		if (!st && n > PAIRS)
			st = move(c, i, any, err);
		for (uint32_t j = i + 1; !st && n <= PAIRS && j + 1 < n; j++)
			st = change_at(c, i, j, any, err);
	}
	if (!st)
		st = change(c, c->at.plan.lag ^ 1, &better, err);
	*any |= !st && better;
	return st;
}

/* Climbs from a rule's plan on. */
static gradcomp_status climb_from(climb *c, rule by, uint32_t lag, plan_found *best, gradcomp_error *err)
{
	search *q = c->q;
	gradcomp_status st = cut_by(q, by, err);
	int any = 1;
	c->at = (plan_found){.exposed = 0};
	step_plan p = {0};
	if (!st)
		st = step_plan_from_cut(&p, q->cut, q->problem.n, err);
	if (!st)
		st = fill_buckets(q->of, &p, q->buckets, err);
	p.lag = lag;
	if (st)
		step_plan_clear(&p);
	else
		st = judge(q, &p, REFINED, BACKWARD, 0, &c->at, err);
	while (!st && any && c->left)
		st = change_all(c, &any, err);
	if (!st && c->at.plan.predicted < (1 - EQUAL) * best->plan.predicted) {
		step_plan_clear(&best->plan);
		*best = c->at;
	} else {
		step_plan_clear(&c->at.plan);
	}
	return st;
}

static gradcomp_status refine(search *q, plan_found *best, gradcomp_error *err)
{
	uint32_t n = q->problem.n, changes = CHANGES / n;
	climb c = {.q = q, .other = calloc(n, sizeof *c.other)};
	gradcomp_status st = c.other ? GRADCOMP_OK : no_memory(n, err);
	changes = changes > FEWEST_CHANGES ? changes : FEWEST_CHANGES;
	for (uint32_t k = 0; !st && k < 2 * RULES; k++) {
		c.left = changes / (2 * RULES);
		st = climb_from(&c, k / 2, k % 2, best, err);
	}
	free(c.other);
	return st;
}

static int same(const step_plan *a, const step_plan *b)
{
	return a->nbuckets == b->nbuckets && a->lag == b->lag && !a->position && !b->position &&
	       !memcmp(a->end, b->end, a->nbuckets * sizeof *a->end);
}

/* Returns 1 when a's number of messages is further from the found plan's than b's. */
static int further(const step_plan *a, const step_plan *b, const step_plan *found)
{
	double from = log(found->nbuckets);
	return fabs(log(a->nbuckets) - from) > fabs(log(b->nbuckets) - from);
}

static gradcomp_status find_candidate(search *q, const plan_found *best, plan_found *out, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (rule by = FIXED; !st && by <= WFBP; by++) {
		plan_found one = {.exposed = 0};

		st = try(q, by, 1, 1, 0, &one, err);
		if (!st && !same(&one.plan, &best->plan) &&
		    one.plan.predicted <= (1 + PLAN_SEARCH_CANDIDATE) * best->plan.predicted &&
		    (!out->plan.nbuckets || further(&one.plan, &out->plan, &best->plan))) {
			step_plan_clear(&out->plan);
			*out = one;
		} else {
			step_plan_clear(&one.plan);
		}
	}
	return st;
}

static rule rule_of(schedule_method method)
{
	switch (method) {
	case SCHEDULE_MGWFBP:
		return MGWFBP;
	case SCHEDULE_OMGS:
		return OMGS;
	case SCHEDULE_MGWFBP_GREEDY:
		return MGWFBP_GREEDY;
	default:
		return OMGS_GREEDY;
	}
}

gradcomp_status plan_search_run(const plan_search *s, schedule_method method, plan_found *out, plan_found *candidate,
                                gradcomp_error *err)
{
	plan_found best = {.exposed = 0}, other = {.exposed = 0};
	order orders = s->sim.each_layer ? ORDERS : 1;
	search q;
	gradcomp_status st = search_open(&q, s, err);
	if (st)
		return st;
	if (method == SCHEDULE_AUTO) {
		for (rule by = FIXED; !st && by < RULES; by++)
			st = try(&q, by, 2, orders, EQUAL, &best, err);
		if (!st && q.rounds)
			st = q.problem.n <= ALL_PLANS ? try_all(&q, orders, &best, err) : refine(&q, &best, err);
	} else {
		st = try(&q, rule_of(method), 1, 1, 0, &best, err);
		for (rule by = FIXED; !st && by <= WFBP; by++)
			st = try(&q, by, 1, 1, PLAN_SEARCH_SIMPLE, &best, err);
	}
	if (!st && candidate)
		st = find_candidate(&q, &best, &other, err);
	search_close(&q);
	if (st) {
		step_plan_clear(&best.plan);
		step_plan_clear(&other.plan);
		return st;
	}
	*out = best;
	if (candidate)
		*candidate = other;
	return GRADCOMP_OK;
}

static gradcomp_status from_file(const char *path, uint32_t n, uint64_t hash, step_plan *out, gradcomp_error *err)
{
	plan_file file;
	gradcomp_status st = plan_file_read(path, &file, err);
	if (st)
		return st;
	if (file.tensors != n || file.hash != hash) {
		st = error_set(err, GRADCOMP_ERR_MISMATCH,
		               "%s is a plan of model '%s' with %u tensors, not of this one with %u", path, file.model,
		               file.tensors, n);
	} else {
		*out = file.plan;
		file.plan = (step_plan){0};
	}
	plan_file_clear(&file);
	return st;
}

gradcomp_status plan_search_plan(const plan_search *s, const schedule_spec *spec, uint64_t hash, step_plan *out,
                                 gradcomp_error *err)
{
	plan_found found;
	gradcomp_status st;
	if (spec->method == SCHEDULE_PLAN)
		return from_file(spec->file, s->sim.n, hash, out, err);
	if (!schedule_measures(spec->method))
		return plan_search_simple(s, spec->method, out, err);
	st = plan_search_run(s, spec->method, &found, NULL, err);
	if (!st)
		*out = found.plan;
	return st;
}
