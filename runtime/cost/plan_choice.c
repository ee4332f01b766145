#include "cost/plan_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/schedule_spec.h"
#include "cost/machine.h"
#include "reducer/reducer.h"
#include "schedule/plan_file.h"

/* Steps that are simulated: by then they are alike. */
#define STEPS 4
/* Neighbours are planned as one where a model has more tensors, as a mixture of experts has. */
#define UNITS_MOST 1024

/* A plan's buckets are cut from these, in backward order. */
typedef struct units {
	uint32_t n, *start; /* n + 1 */
	double *forward, *backward;
	uint64_t *numel;
} units;

typedef struct scaled {
	cost_model *cost;
	const units *of;
	double by; /* 1: as it is */
} scaled;

static void units_free(units *u)
{
	free(u->start);
	free(u->forward);
	free(u->backward);
	free(u->numel);
}

/* At most `most` of them, or little more: runs of tensors that have together as many numbers as such a share of the
 * model; what a bucket cannot hold stays apart. Their passes are those of a rank of that speed. */
static gradcomp_status units_make(const cost_model *c, uint32_t most, double speed, units *out, gradcomp_error *err)
{
	const model_file *m = c->model;
	const uint64_t limit = c->plugins[0]->compressor->max_bucket;
	const double by_itself = model_backward_alone(m, c->machine);
	uint64_t all = 0, share;
	*out = (units){.start = calloc((size_t)m->ntensors + 1, sizeof *out->start),
	               .forward = calloc(m->ntensors, sizeof *out->forward),
	               .backward = calloc(m->ntensors, sizeof *out->backward),
	               .numel = calloc(m->ntensors, sizeof *out->numel)};
	if (!out->start || !out->forward || !out->backward || !out->numel)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to plan %u tensors", m->ntensors);
	for (uint32_t i = 0; i < m->ntensors; i++)
		all += c->whole[i];
	share = m->ntensors > most ? all / most : 0;
	for (uint32_t i = 0; i < m->ntensors; i++) {
		const model_tensor *t = &m->tensors[m->ntensors - 1 - i];
		uint32_t at = out->n;

		if (i == 0 || out->numel[at - 1] >= share || (limit && out->numel[at - 1] + c->whole[i] > limit))
			out->start[out->n++] = i;
		else
			at--;
		out->forward[at] += t->forward / speed;
		out->backward[at] += t->backward * by_itself / speed;
		out->numel[at] += c->whole[i];
	}
	out->start[out->n] = m->ntensors;
	return GRADCOMP_OK;
}

static gradcomp_status bucket_costs(void *ctx, uint32_t index, uint32_t first, uint32_t end, sim_bucket *out,
                                    double *payload, gradcomp_error *err)
{
	const scaled *s = ctx;
	bucket_cost cost = {0};
	gradcomp_status st = cost_bucket(s->cost, index, s->of->start[first], s->of->start[end], out, &cost, err);
	for (uint32_t t = 0; !st && t < out->ntasks; t++)
		out->seconds[t] *= s->by;
	*payload = cost.payload;
	return st;
}

/* Predicts what the plan takes when all that was measured of the machine takes so much longer. */
static gradcomp_status predict_scaled(const plan_search *search, const step_plan *plan, double by, double *step,
                                      gradcomp_error *err)
{
	plan_search s = *search;
	scaled costs = *(const scaled *)search->ctx;
	sim_output out;
	gradcomp_status st;
	costs.by = by;
	s.ctx = &costs;
	s.sim.slowed_by_exchange *= by;
	s.sim.slowed_by_compute *= by;
	st = plan_search_predict(&s, plan, 0, &out, err);
	if (!st)
		*step = out.step;
	return st;
}

static gradcomp_status sum_costs(cost_model *c, const step_plan *p, bucket_cost *sum, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	sim_bucket b;
	*sum = (bucket_cost){0};
	for (uint32_t k = 0, first = 0; !st && k < p->nbuckets; first = p->end[k++])
		st = cost_bucket(c, k, first, p->end[k], &b, sum, err);
	return st;
}

uint64_t plan_model_hash(const model_file *m)
{
	uint64_t h = 0;
	for (uint32_t i = m->ntensors; i-- > 0;)
		h = plan_hash(h, m->tensors[i].ndim, m->tensors[i].dims);
	return h;
}

double plan_slowest_speed(const cost_question *q)
{
	double speed = q->classes ? q->classes[0].speed : 1;
	for (uint32_t i = 1; i < q->nclasses; i++)
		speed = fmin(speed, q->classes[i].speed);
	return speed;
}

/* The question's classes, by how many times as fast as the slowest they are; NULL where it has none, or without memory. */
static sim_class *relative_classes(const cost_question *q)
{
	sim_class *classes = q->classes ? calloc(q->nclasses, sizeof *classes) : NULL;
	for (uint32_t i = 0; classes && i < q->nclasses; i++)
		classes[i] = (sim_class){q->classes[i].ranks, q->classes[i].speed / plan_slowest_speed(q)};
	return classes;
}

gradcomp_status plan_choose(cost_model *c, const cost_question *q, plan_choice *out, gradcomp_error *err)
{
	const model_file *m = c->model;
	/* Seconds between two steps that nothing is beside. */
	const double between = q->no_read_ahead ? m->io + m->copy : 0;
	double spread = c->machine->spread > 0 ? c->machine->spread : COST_SPREAD;
	units u = {.n = 0};
	scaled costs = {c, &u, 1};
	schedule_spec s = {0};
	sim_class *classes = relative_classes(q);
	gradcomp_status st = GRADCOMP_OK;
	*out = (plan_choice){.plan = {0}};
	if (q->classes && !classes)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u classes of ranks", q->nclasses);
	if (!st)
		st = schedule_spec_parse(q->schedule ? q->schedule : config_str(c->config, SET_GRADCOMP_SCHEDULE), &s,
		                         err);
	if (!st) /* a plan that is given has its own buckets; rules plan for the slowest rank */
		st = units_make(c, s.method == SCHEDULE_PLAN ? m->ntensors : UNITS_MOST, plan_slowest_speed(q), &u,
		                err);
	if (st)
		goto done;
	const uint64_t usual = (uint64_t)config_int(c->config, SET_REDUCER_BUCKET_BYTES);
	const plan_search search = {.sim = {.n = u.n,
	                                    .forward = u.forward,
	                                    .backward = u.backward,
	                                    .io = between > 0 ? 0 : m->io,
	                                    .copy = between > 0 ? 0 : m->copy,
	                                    .update = m->update,
	                                    .window = REDUCER_WORKSPACES,
	                                    .classes = classes,
	                                    .nclasses = q->nclasses,
	                                    .beside_application = c->machine->beside_application,
	                                    .beside_exchange = c->machine->beside_exchange,
	                                    .slowed_by_exchange = model_slowed_by_exchange(m, c->machine),
	                                    .slowed_by_compute = model_slowed_by_compute(m, c->machine),
	                                    .each_layer = q->each_layer != 0,
	                                    .steps = STEPS},
	                            .numel = u.numel,
	                            .max_numel = c->plugins[0]->compressor->max_bucket,
	                            .first_bytes = s.bytes ? s.bytes : schedule_first_bytes(usual),
	                            .bytes = s.bytes ? s.bytes : usual,
	                            .bucket = bucket_costs,
	                            .ctx = &costs};

	st = plan_search_plan(&search, &s, plan_model_hash(m), &out->plan, err);
	if (!st)
		st = plan_search_predict(&search, &out->plan, q->trace != NULL, &out->sim, err);
	out->least = out->most = out->sim.step;
	if (!st && !q->step_alone)
		st = predict_scaled(&search, &out->plan, 1 - spread, &out->least, err);
	if (!st && !q->step_alone)
		st = predict_scaled(&search, &out->plan, 1 + spread, &out->most, err);
	for (uint32_t k = 0; !st && k < out->plan.nbuckets; k++)
		out->plan.end[k] = u.start[out->plan.end[k]];
	if (!st && !q->step_alone)
		st = sum_costs(c, &out->plan, &out->cost, err);
	out->sim.step += between;
	out->least += between;
	out->most += between;
	out->plan.predicted = out->sim.step;
done:
	schedule_spec_clear(&s);
	units_free(&u);
	free(classes);
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
