#include "cost/plan_choice.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/schedule_spec.h"
#include "cost/machine.h"
#include "reducer/reducer.h"
#include "schedule/plan_file.h"

/* Steps that are simulated: by then they are alike. */
#define STEPS 4

typedef struct scaled {
	cost_model *cost;
	double by; /* 1: as it is */
} scaled;

static gradcomp_status bucket_costs(void *ctx, uint32_t index, uint32_t first, uint32_t end, sim_bucket *out,
                                    double *payload, gradcomp_error *err)
{
	const scaled *s = ctx;
	bucket_cost cost = {0};
	gradcomp_status st = cost_bucket(s->cost, index, first, end, out, &cost, err);

	for (uint32_t t = 0; !st && t < out->ntasks; t++)
		out->seconds[t] *= s->by;
	*payload = cost.payload;
	return st;
}

/* What the plan takes when all that was measured of the machine takes so much longer. */
static gradcomp_status predict_scaled(const plan_search *search, const step_plan *plan, double by, double *step,
                                      gradcomp_error *err)
{
	plan_search s = *search;
	scaled costs = {((const scaled *)search->ctx)->cost, by};
	sim_output out;
	gradcomp_status st;

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

gradcomp_status plan_choose(cost_model *c, const char *spec, int each_layer, int with_events, plan_choice *out,
                            gradcomp_error *err)
{
	const model_file *m = c->model;
	uint32_t n = m->ntensors;
	/* In backward order. */
	double *forward = calloc(n, sizeof *forward), *backward = calloc(n, sizeof *backward);
	double by_itself = model_backward_alone(m, c->machine);
	double spread = c->machine->spread > 0 ? c->machine->spread : COST_SPREAD;
	scaled costs = {c, 1};
	schedule_spec s = {0};
	gradcomp_status st;

	*out = (plan_choice){.plan = {0}};
	if (!forward || !backward) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to plan %u tensors", n);
		goto done;
	}
	for (uint32_t i = 0; i < n; i++) {
		forward[i] = m->tensors[n - 1 - i].forward;
		backward[i] = m->tensors[n - 1 - i].backward * by_itself;
	}
	st = schedule_spec_parse(spec ? spec : config_str(c->config, "gradcomp.schedule"), &s, err);
	if (st)
		goto done;
	const plan_search search = {
		.sim = {.n = n, .forward = forward, .backward = backward, .io = m->io, .copy = m->copy, .update = m->update,
	                .window = REDUCER_WORKSPACES, .beside_application = c->machine->beside_application,
	                .beside_exchange = c->machine->beside_exchange,
	                .slowed_by_exchange = model_slowed_by_exchange(m, c->machine),
	                .slowed_by_compute = model_slowed_by_compute(m, c->machine), .each_layer = each_layer,
	                .steps = STEPS},
		.numel = c->whole,
		.max_numel = c->plugins[0]->compressor->max_bucket,
		.first_bytes = s.bytes ? s.bytes : (uint64_t)config_int(c->config, "reducer.first_bucket_bytes"),
		.bytes = s.bytes ? s.bytes : (uint64_t)config_int(c->config, "reducer.bucket_bytes"),
		.bucket = bucket_costs,
		.ctx = &costs};

	st = plan_search_plan(&search, &s, plan_model_hash(m), &out->plan, err);
	if (!st)
		st = plan_search_predict(&search, &out->plan, with_events, &out->sim, err);
	if (!st)
		st = sum_costs(c, &out->plan, &out->cost, err);
	if (!st)
		st = predict_scaled(&search, &out->plan, 1 - spread, &out->least, err);
	if (!st)
		st = predict_scaled(&search, &out->plan, 1 + spread, &out->most, err);
	out->plan.predicted = out->sim.step;
done:
	schedule_spec_clear(&s);
	free(forward);
	free(backward);
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
