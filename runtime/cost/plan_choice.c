#include "cost/plan_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fit.h"
#include "schedule/merge.h"
#include "schedule/plan_file.h"
#include "reducer/reducer.h"
#include "config/schedule_spec.h"

/* Steps that are simulated: by then they are alike. */
#define STEPS 4
/* Buckets by which the line of exchanges is found. */
#define SAMPLES 32

typedef struct choosing {
	cost_model *c;
	int each_layer;
	double *forward, *backward; /* in backward order, like the others */
	uint8_t *cut;
	merge_problem problem;      /* of whole tensors */
} choosing;

/* ---- one plan ----------------------------------------------------------- */

static gradcomp_status run(const choosing *q, const step_plan *p, int with_events, sim_output *sim, bucket_cost *cost,
                           gradcomp_error *err)
{
	const gradcomp_model *m = q->c->model;
	const gradcomp_machine *on = q->c->machine;
	sim_bucket *buckets = calloc(p->nbuckets, sizeof *buckets);
	gradcomp_status st = GRADCOMP_OK;

	*cost = (bucket_cost){0};
	if (!buckets)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u buckets", p->nbuckets);
	for (uint32_t b = 0, first = 0; !st && b < p->nbuckets; first = p->end[b++])
		st = cost_bucket(q->c, b, first, p->end[b], &buckets[b], cost, err);
	if (!st) {
		const sim_input in = {.n = m->ntensors, .forward = q->forward, .backward = q->backward, .io = m->io,
		                      .copy = m->copy, .update = m->update, .plan = p, .window = REDUCER_WORKSPACES,
		                      .buckets = buckets, .beside_application = on->beside_application,
		                      .beside_exchange = on->beside_exchange, .each_layer = q->each_layer, .steps = STEPS};

		st = sim_run(&in, with_events, sim, err);
	}
	free(buckets);
	return st;
}

/* Takes the plan, which is cleared, when it is better than *best. */
static gradcomp_status try(const choosing *q, step_plan *p, plan_choice *best, gradcomp_error *err)
{
	bucket_cost cost;
	sim_output sim;
	gradcomp_status st = run(q, p, 0, &sim, &cost, err);

	if (st || (best->plan.nbuckets && sim.step >= best->sim.step)) {
		step_plan_clear(p);
		return st;
	}
	step_plan_clear(&best->plan);
	p->predicted = sim.step;
	*best = (plan_choice){*p, sim, cost};
	return GRADCOMP_OK;
}

static gradcomp_status from_cut(const choosing *q, uint32_t lag, int reversed, step_plan *out, gradcomp_error *err)
{
	gradcomp_status st = step_plan_from_cut(out, q->cut, q->problem.n, err);

	if (st)
		return st;
	out->lag = lag;
	if (!reversed)
		return GRADCOMP_OK;
	out->place = calloc(out->nbuckets, sizeof *out->place);
	if (!out->place) {
		step_plan_clear(out);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan");
	}
	for (uint32_t b = 0; b < out->nbuckets; b++)
		out->place[b] = out->nbuckets - 1 - b;
	return GRADCOMP_OK;
}

/* The cuts with both lags, and where layers are waited for the first layer first too. */
static gradcomp_status try_cut(const choosing *q, int all, plan_choice *best, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;

	for (uint32_t way = 0; !st && way < (all ? q->each_layer ? 4u : 2u : 1u); way++) {
		step_plan p;

		st = from_cut(q, STEP_PLAN_LAG ^ (way & 1), way >> 1, &p, err);
		if (!st)
			st = try(q, &p, best, err);
	}
	return st;
}

/* ---- what the solvers are asked ----------------------------------------- */

/* Seconds of exchanging and of encoding over the numbers of a bucket, from buckets of single
 * tensors and of many. */
static gradcomp_status measure(choosing *q, gradcomp_error *err)
{
	fit_point link[SAMPLES], code[SAMPLES];
	merge_problem *p = &q->problem;
	uint32_t n = p->n, points = 0;

	for (uint32_t k = 0; k < SAMPLES; k++) {
		/* Half of them single tensors, the other half all up to one. */
		uint32_t i = n - 1 - (uint32_t)((uint64_t)(k / 2) * n / (SAMPLES / 2)), first = k % 2 ? 0 : i;
		double x = 0;
		sim_bucket bucket;
		bucket_cost cost = {0};
		gradcomp_status st;

		for (uint32_t t = first; t <= i; t++)
			x += (double)p->numel[t];
		if (x <= 0 || (p->max_numel && x > (double)p->max_numel && k % 2))
			continue;
		st = cost_bucket(q->c, 0, first, i + 1, &bucket, &cost, err);
		if (st)
			return st;
		link[points] = (fit_point){1, x, cost.exchange};
		code[points++] = (fit_point){1, x, cost.encode};
	}
	p->a = p->b = p->select_a = p->select_b = 0;
	fit_line(link, points, &p->a, &p->b);
	fit_line(code, points, &p->select_a, &p->select_b);
	return GRADCOMP_OK;
}

static gradcomp_status solve(choosing *q, int method(const merge_problem *, uint8_t *), int select, int all,
                             plan_choice *best, gradcomp_error *err)
{
	merge_problem p = q->problem;

	if (!select)
		p.select_a = p.select_b = 0;
	if (method(&p, q->cut))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to plan %u tensors", p.n);
	return try_cut(q, all, best, err);
}

static gradcomp_status fixed(choosing *q, uint64_t first, uint64_t bytes, int all, plan_choice *best,
                             gradcomp_error *err)
{
	merge_fixed(&q->problem, first / sizeof(float), bytes / sizeof(float), q->cut);
	return try_cut(q, all, best, err);
}

static gradcomp_status usual(choosing *q, int all, plan_choice *best, gradcomp_error *err)
{
	return fixed(q, (uint64_t)config_int(q->c->config, "reducer.first_bucket_bytes"),
	             (uint64_t)config_int(q->c->config, "reducer.bucket_bytes"), all, best, err);
}

static gradcomp_status automatic(choosing *q, plan_choice *best, gradcomp_error *err)
{
	static const uint64_t sizes[] = {1u << 20, 4u << 20, 16u << 20, 64u << 20, 256u << 20};
	gradcomp_status st = measure(q, err);

	if (!st)
		st = usual(q, 1, best, err);
	if (!st) {
		merge_single(&q->problem, q->cut);
		st = try_cut(q, 1, best, err);
	}
	for (size_t i = 0; !st && i < sizeof sizes / sizeof sizes[0]; i++)
		st = fixed(q, sizes[i], sizes[i], 1, best, err);
	if (!st)
		st = solve(q, merge_mgwfbp, 0, 1, best, err);
	if (!st)
		st = solve(q, merge_omgs, 1, 1, best, err);
	if (!st)
		st = solve(q, merge_dp, 0, 1, best, err);
	if (!st)
		st = solve(q, merge_dp, 1, 1, best, err);
	if (!st) {
		merge_wfbp(&q->problem, q->cut);
		st = try_cut(q, 1, best, err);
	}
	return st;
}

uint64_t plan_model_hash(const gradcomp_model *m)
{
	uint64_t h = 0;

	for (uint32_t i = m->ntensors; i-- > 0;)
		h = plan_hash(h, m->tensors[i].ndim, m->tensors[i].dims);
	return h;
}

static gradcomp_status from_file(choosing *q, const char *path, plan_choice *best, gradcomp_error *err)
{
	const gradcomp_model *m = q->c->model;
	plan_file file;
	gradcomp_status st = plan_file_read(path, &file, err);

	if (st)
		return st;
	if (file.tensors != m->ntensors || file.hash != plan_model_hash(m)) {
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "%s is a plan of model '%s' with %u tensors, not of '%s' with %u", path,
		               file.model, file.tensors, m->name, m->ntensors);
	} else {
		st = try(q, &file.plan, best, err);
		file.plan = (step_plan){0};
	}
	plan_file_clear(&file);
	return st;
}

static gradcomp_status method(choosing *q, const schedule_spec *s, plan_choice *best, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;

	switch (s->method) {
	case SCHEDULE_WFBP:
		merge_wfbp(&q->problem, q->cut);
		return try_cut(q, 0, best, err);
	case SCHEDULE_SINGLE:
		merge_single(&q->problem, q->cut);
		return try_cut(q, 0, best, err);
	case SCHEDULE_FIXED:
		return s->bytes ? fixed(q, s->bytes, s->bytes, 0, best, err) : usual(q, 0, best, err);
	case SCHEDULE_PLAN:
		return from_file(q, s->file, best, err);
	case SCHEDULE_MGWFBP:
		st = measure(q, err);
		return st ? st : solve(q, merge_mgwfbp, 0, 0, best, err);
	case SCHEDULE_OMGS:
		st = measure(q, err);
		return st ? st : solve(q, merge_omgs, 1, 0, best, err);
	case SCHEDULE_AUTO:
		return automatic(q, best, err);
	}
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "schedule '%s' cannot be predicted", s->text);
}

gradcomp_status plan_choose(cost_model *c, const char *spec, int each_layer, int with_events, plan_choice *out,
                            gradcomp_error *err)
{
	uint32_t n = c->model->ntensors;
	choosing q = {.c = c, .each_layer = each_layer, .forward = calloc(n, sizeof *q.forward),
	              .backward = calloc(n, sizeof *q.backward), .cut = calloc(n, 1)};
	schedule_spec s = {0};
	gradcomp_status st;

	*out = (plan_choice){.plan = {0}};
	if (!q.forward || !q.backward || !q.cut) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to plan %u tensors", n);
		goto done;
	}
	for (uint32_t i = 0; i < n; i++) {
		q.forward[i] = c->model->tensors[n - 1 - i].forward;
		q.backward[i] = c->model->tensors[n - 1 - i].backward;
	}
	q.problem = (merge_problem){.n = n, .backward = q.backward, .numel = c->whole,
	                            .max_numel = c->plugins[0]->compressor->max_bucket};
	st = schedule_spec_parse(spec ? spec : config_str(c->config, "gradcomp.schedule"), &s, err);
	if (!st)
		st = method(&q, &s, out, err);
	if (!st && with_events)
		st = run(&q, &out->plan, 1, &out->sim, &out->cost, err);
done:
	schedule_spec_clear(&s);
	free(q.forward);
	free(q.backward);
	free(q.cut);
	if (st)
		plan_choice_clear(out);
	return st;
}

void plan_choice_clear(plan_choice *p)
{
	step_plan_clear(&p->plan);
	free(p->sim.events);
	*p = (plan_choice){.plan = {0}};
}
