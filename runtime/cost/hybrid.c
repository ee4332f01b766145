#include "cost/hybrid.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "cost/machine.h"

#define NODES_MAX (1u << 20)
#define RANKS_MAX 1024
#define SAMPLES_MAX (1ull << 53) /* in a step: doubles count that far */
#define GAP 0.001                /* a share of the best plan's seconds, when layers are many */

/* Everything that one question needs. */
typedef struct asking {
	const model_file *model;
	const machine_file *machine;
	const hybrid_question *q;
	uint64_t batch, samples; /* samples of a step, and of a micro-batch */
	layer_group *groups;
	rank_choice *choices;
	uint32_t *takes;
	pipeline_cost *costs;
	pipeline_problem problem;
	pipeline_plan plan;
} asking;

/* Checks that levels that something crosses have a price. */
static gradcomp_status check_levels(const machine_file *machine, const hybrid_question *q, gradcomp_error *err)
{
	int missing = q->ranks_per_node > 1 && !(machine->level[0].b > 0) ? 0
	              : q->nodes > 1 && !(machine->level[1].b > 0)        ? 1
	                                                                  : -1;
	if (missing < 0)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "machine '%s' says nothing of [%s], which %u nodes of %u ranks need", machine->name,
	                 missing ? "network" : "node", q->nodes, q->ranks_per_node);
}

static gradcomp_status check_question(const model_file *m, const hybrid_question *q, gradcomp_error *err)
{
	if (!m->nlayers)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "model %s has no section [layers], which says where a pipeline can be cut", m->name);
	if (!q->nodes || q->nodes > NODES_MAX || !q->ranks_per_node || q->ranks_per_node > RANKS_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "%u nodes of %u ranks; there can be 1 to %u of 1 to %d",
		                 q->nodes, q->ranks_per_node, NODES_MAX, RANKS_MAX);
	if (!(q->memory > 0 && q->memory < 1e18) || !(q->state >= 0 && q->state <= 1024))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "memory of %g bytes a rank, %g of the optimizer a parameter; give the bytes a "
		                 "rank has, and 0 to 1024",
		                 q->memory, q->state);
	if (q->groups > PIPELINE_LAYERS_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "%u groups of layers; there can be %d", q->groups,
		                 PIPELINE_LAYERS_MAX);
	if (!m->batch)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "model %s does not say of how many samples its seconds are (batch)", m->name);
	return GRADCOMP_OK;
}

static gradcomp_status take_batch(asking *k, gradcomp_error *err)
{
	const hybrid_question *q = k->q;
	if (!q->batch && k->model->batch > SAMPLES_MAX / q->nodes / q->ranks_per_node)
		return error_set(err, GRADCOMP_ERR_RANGE,
		                 "%llu samples of model %s on each of %u nodes of %u ranks; a step can have %llu",
		                 (unsigned long long)k->model->batch, k->model->name, q->nodes, q->ranks_per_node,
		                 SAMPLES_MAX);
	k->batch = q->batch ? q->batch : k->model->batch * q->nodes * q->ranks_per_node;
	if (!q->microbatches || k->batch % q->microbatches)
		return error_set(err, GRADCOMP_ERR_INVALID, "%llu samples a step do not make %u equal micro-batches",
		                 (unsigned long long)k->batch, q->microbatches);
	k->samples = k->batch / q->microbatches;
	return GRADCOMP_OK;
}

static void fill_costs(asking *k)
{
	pipeline_problem *p = &k->problem;
	for (uint32_t i = 0; i < p->nlayers; i++) {
		layer_group g = k->groups[i];

		for (uint32_t j = i; j < p->nlayers; j++) {
			pipeline_cost *of = &k->costs[((size_t)i * p->nlayers + j) * p->nchoices];

			if (j > i)
				hybrid_join(&g, &k->groups[j]);
			for (uint32_t c = 0; c < p->nchoices; c++)
				of[c] = hybrid_cost(k->machine, k->q, &g, j + 1 == p->nlayers, k->samples,
				                    &k->choices[c]);
		}
	}
}

static gradcomp_status make_problem(asking *k, gradcomp_error *err)
{
	const hybrid_question *q = k->q;
	pipeline_problem *p = &k->problem;
	uint32_t unit = q->nodes * q->ranks_per_node;
	gradcomp_status st;
	k->groups = malloc(k->model->nlayers * sizeof *k->groups);
	k->choices = malloc(HYBRID_CHOICES_MAX * sizeof *k->choices);
	k->takes = malloc(HYBRID_CHOICES_MAX * sizeof *k->takes);
	if (!k->groups || !k->choices || !k->takes)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u layers", k->model->nlayers);
	p->nlayers = hybrid_group(k->model, q->groups ? q->groups : HYBRID_GROUPS, k->groups);
	st = hybrid_choices(k->model, k->machine, q, k->samples, k->choices, &p->nchoices, err);
	if (st)
		return st;
	if (!p->nchoices)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "the %llu samples of a micro-batch cannot be divided among the ranks of any part "
		                 "of %u nodes of %u; "
		                 "give fewer micro-batches or a batch that is a multiple of theirs",
		                 (unsigned long long)k->samples, q->nodes, q->ranks_per_node);
	for (uint32_t c = 0; c < p->nchoices; c++) {
		k->takes[c] = k->choices[c].nodes * k->choices[c].ranks_per_node;
		unit = k->takes[c] < unit ? k->takes[c] : unit;
	}
	for (uint32_t c = 0; c < p->nchoices; c++)
		k->takes[c] /= unit;
	p->units = q->nodes * q->ranks_per_node / unit;
	p->takes = k->takes;
	p->microbatches = q->microbatches;
	p->memory = q->memory;
	p->gap = GAP;
	k->costs = malloc((size_t)p->nlayers * p->nlayers * p->nchoices * sizeof *k->costs);
	if (!k->costs)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u layers", p->nlayers);
	p->costs = k->costs;
	fill_costs(k);
	return GRADCOMP_OK;
}

static bool has_shape(const hybrid_question *q, hybrid_shape shape, const rank_choice *c)
{
	const uint64_t ranks = (uint64_t)c->nodes * c->ranks_per_node, all = (uint64_t)q->nodes * q->ranks_per_node;
	switch (shape) {
	case HYBRID_DATA:
		return c->data == all;
	case HYBRID_TENSOR:
		return c->tensor == all;
	case HYBRID_PIPELINE:
		return ranks == 1;
	default:
		return true;
	}
}

/* Finds the plan whose stages all take one choice, if it is quicker than `below`. `costs` has room for one choice's. */
static gradcomp_status solve_alone(const asking *k, uint32_t choice, double below, pipeline_cost *costs,
                                   pipeline_plan *plan, gradcomp_error *err)
{
	const uint32_t n = k->problem.nlayers, unit = 1;
	pipeline_problem p = k->problem;
	gradcomp_status st;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = i; j < n; j++)
			costs[(size_t)i * n + j] = k->costs[((size_t)i * n + j) * p.nchoices + choice];
	p.nchoices = 1;
	p.units /= k->takes[choice];
	p.takes = &unit;
	p.costs = costs;
	p.below = below;
	/* A line of the stage's parameters, so several stages take no less than one of all layers. */
	p.once = costs[n - 1].once;
	st = pipeline_solve(&p, plan, err);
	for (uint32_t i = 0; i < plan->nstages; i++)
		plan->stages[i].choice = choice;
	return st;
}

/* Tries each choice for all stages in turn. Those that cannot be as quick as what was found are left after a look. */
static gradcomp_status solve_uniform(asking *k, hybrid_shape shape, gradcomp_error *err)
{
	const pipeline_problem *p = &k->problem;
	pipeline_cost *costs = malloc((size_t)p->nlayers * p->nlayers * sizeof *costs);
	pipeline_plan plan;
	gradcomp_status st = GRADCOMP_OK;
	if (!costs)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u layers", p->nlayers);
	k->plan.seconds = k->plan.memory = -1;
	for (uint32_t c = 0; c < p->nchoices && !st; c++) {
		if (p->units % k->takes[c] || p->units / k->takes[c] > p->nlayers ||
		    !has_shape(k->q, shape, &k->choices[c]))
			continue;
		st = solve_alone(k, c, fmax(0, k->plan.seconds), costs, &plan, err);
		if (st)
			break;
		if (plan.seconds >= 0 ? k->plan.seconds < 0 || plan.seconds < k->plan.seconds
		                      : k->plan.seconds < 0 && plan.memory >= 0 &&
		                                (k->plan.memory < 0 || plan.memory < k->plan.memory))
			k->plan = plan;
	}
	free(costs);
	return st;
}

static gradcomp_status no_plan(const asking *k, gradcomp_error *err)
{
	const hybrid_question *q = k->q;
	if (k->plan.memory < 0)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "no stages of %u layers and %llu samples a micro-batch take all of %u nodes of %u "
		                 "ranks",
		                 k->model->nlayers, (unsigned long long)k->samples, q->nodes, q->ranks_per_node);
	return error_set(err, GRADCOMP_ERR_RANGE,
	                 "no plan for %s on %u nodes of %u ranks fits into %.3g GB a rank; the least that would do "
	                 "is %.3g GB: "
	                 "more memory, more ranks, more micro-batches or a smaller batch",
	                 k->model->name, q->nodes, q->ranks_per_node, q->memory / 1e9, k->plan.memory / 1e9);
}

static gradcomp_status give(const asking *k, hybrid_plan **out, gradcomp_error *err)
{
	hybrid_plan *plan = calloc(1, sizeof *plan);
	const pipeline_plan *found = &k->plan;
	if (plan)
		plan->stages = calloc(found->nstages, sizeof *plan->stages);
	if (!plan || !plan->stages) {
		free(plan);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u stages", found->nstages);
	}
	plan->nstages = found->nstages;
	plan->step_s = found->seconds;
	plan->batch = k->batch;
	for (uint32_t i = 0; i < found->nstages; i++) {
		const pipeline_stage *s = &found->stages[i];
		const rank_choice *c = &k->choices[s->choice];
		const layer_group *first = &k->groups[s->first], *last = &k->groups[s->first + s->nlayers - 1];
		const pipeline_cost *cost = &k->costs[((size_t)s->first * k->problem.nlayers + s->first + s->nlayers -
		                                       1) * k->problem.nchoices +
		                                      s->choice];
		uint32_t behind = found->nstages - i;

		plan->stages[i] = (hybrid_stage){
			.first = first->first,
			.nlayers = last->first + last->nlayers - first->first,
			.nodes = c->nodes,
			.ranks_per_node = c->ranks_per_node,
			.data = c->data,
			.tensor = c->tensor,
			.held = c->held,
			.compressor = c->compressor,
			.seconds = cost->seconds,
			.gradient_s = cost->once,
			.memory =
				cost->fixed + (behind < k->q->microbatches ? behind : k->q->microbatches) * cost->kept};
	}
	*out = plan;
	return GRADCOMP_OK;
}

static gradcomp_status prepare(asking *k, gradcomp_error *err)
{
	gradcomp_status st = model_check(k->model, err);
	if (!st)
		st = machine_check(k->machine, err);
	if (!st)
		st = check_question(k->model, k->q, err);
	if (!st)
		st = check_levels(k->machine, k->q, err);
	if (!st)
		st = take_batch(k, err);
	return st ? st : make_problem(k, err);
}

static gradcomp_status solve(asking *k, hybrid_shape shape, hybrid_plan **out, gradcomp_error *err)
{
	gradcomp_status st =
		shape == HYBRID_ANY ? pipeline_solve(&k->problem, &k->plan, err) : solve_uniform(k, shape, err);
	if (!st && k->plan.seconds < 0)
		st = no_plan(k, err);
	return st ? st : give(k, out, err);
}

static void asking_clear(asking *k)
{
	free(k->groups);
	free(k->choices);
	free(k->takes);
	free(k->costs);
}

gradcomp_status hybrid_plan_make(const model_file *model, const machine_file *machine, const hybrid_question *question,
                                 hybrid_plan **out, gradcomp_error *err)
{
	asking k = {.model = model, .machine = machine, .q = question};
	gradcomp_status st = prepare(&k, err);
	*out = NULL;
	if (!st)
		st = solve(&k, question->shape, out, err);
	asking_clear(&k);
	return st;
}

void hybrid_plan_shapes(const model_file *model, const machine_file *machine, const hybrid_question *question,
                        hybrid_plan *out[HYBRID_SHAPES], gradcomp_error why[HYBRID_SHAPES])
{
	asking k = {.model = model, .machine = machine, .q = question};
	gradcomp_error err = {0};
	gradcomp_status st = prepare(&k, &err);
	for (hybrid_shape shape = HYBRID_ANY; shape < HYBRID_SHAPES; shape++) {
		out[shape] = NULL;
		why[shape] = err;
		if (!st)
			(void)solve(&k, shape, &out[shape], &why[shape]);
	}
	asking_clear(&k);
}

int hybrid_stage_holds(const model_file *model, const hybrid_stage *s, uint32_t layer)
{
	uint32_t first[HYBRID_KINDS], n = s->held ? hybrid_kinds(model, first) : 0,
				      kind = hybrid_kind_of(model, first, n, &model->layers[layer]);
	return kind < HYBRID_KINDS && s->held >> kind & 1;
}

void hybrid_plan_free(hybrid_plan *plan)
{
	if (!plan)
		return;
	free(plan->stages);
	free(plan);
}
