/* Hybrid parallel plans: costs as the formulas say, plans against every plan there is, what
 * does not fit and what makes no sense. */
#include "gradcomp/model.h"
#include "model/hybrid.h"

#include "../tap.h"
#include "draw.h"
#include "every_plan.h"

#include <stdlib.h>

#define LAYERS 6
#define CASES 250

static uint64_t dims[LAYERS][2];
static gradcomp_model_tensor tensors[LAYERS];
static gradcomp_model_layer layers[LAYERS];
static gradcomp_model model = {
	.struct_size = sizeof model, .name = "made up", .tensors = tensors, .layers = layers};
static gradcomp_curve curve = {.compressor = (char *)"none"};
static gradcomp_machine machine;

static void make_machine(void)
{
	machine = (gradcomp_machine){.struct_size = sizeof machine,
	                             .nodes = 1,
	                             .ranks_per_node = 1,
	                             .ncurves = 1,
	                             .name = "made up",
	                             .curves = &curve,
	                             .memory = 1e-10,
	                             .reduce = 1e-10,
	                             .beside_application = 1,
	                             .beside_exchange = 1};
	machine.level[0] = (gradcomp_line){1e-6 * draw(), 1e-9 * draw()};
	machine.level[1] = (gradcomp_line){1e-4 * draw(), 1e-8 * draw()};
}

static void make_model(uint32_t n)
{
	model.ntensors = model.nlayers = n;
	model.batch = 1;
	for (uint32_t i = 0; i < n; i++) {
		dims[i][0] = 64 * draw_up_to(16);
		dims[i][1] = 64 * draw_up_to(16);
		tensors[i] = (gradcomp_model_tensor){.name = (char *)"w",
		                                     .dims = dims[i],
		                                     .ndim = 2,
		                                     .forward = 1e-3 * draw(),
		                                     .backward = 2e-3 * draw()};
		layers[i] = (gradcomp_model_layer){.name = (char *)"layer",
		                                   .first = i,
		                                   .ntensors = 1,
		                                   .output = 1e5 * draw(),
		                                   .kept = {1e5 * draw(), 1e6 * draw()},
		                                   .reduces = draw_up_to(3) - 1};
	}
}

static gradcomp_hybrid_question question_of(uint32_t nodes, uint32_t ranks, uint32_t microbatches)
{
	return (gradcomp_hybrid_question){.struct_size = sizeof(gradcomp_hybrid_question),
	                                  .nodes = nodes,
	                                  .ranks_per_node = ranks,
	                                  .microbatches = microbatches,
	                                  .batch = 16 * microbatches,
	                                  .memory = 1e12,
	                                  .state = 8};
}

/* All layers in order, all ranks, degrees that multiply to them, memory, the sum. */
static int sound(const gradcomp_hybrid_question *q, const gradcomp_hybrid_plan *plan)
{
	uint32_t layer = 0, ranks = 0;
	double sum = 0, pace = 0;

	for (uint32_t i = 0; i < plan->nstages; i++) {
		const gradcomp_hybrid_stage *s = &plan->stages[i];

		if (s->first != layer || !s->nlayers || s->data * s->tensor != s->nodes * s->ranks_per_node ||
		    s->tensor > q->ranks_per_node || s->ranks_per_node > q->ranks_per_node ||
		    s->memory > q->memory || plan->batch / q->microbatches % s->data)
			return 0;
		layer += s->nlayers;
		ranks += s->data * s->tensor;
		sum += s->seconds;
		pace = fmax(pace, (q->microbatches - 1.0) * s->seconds + s->gradient_s);
	}
	return layer == model.nlayers && ranks == q->nodes * q->ranks_per_node &&
	       fabs(sum + pace - plan->step_s) <= 1e-12 * plan->step_s;
}

/* The problem that gradcomp_parallelize() solves, solved by looking at everything. */
static void every(const gradcomp_hybrid_question *q, every_plan *e)
{
	static layer_group groups[LAYERS];
	static rank_choice choices[HYBRID_CHOICES_MAX];
	static uint32_t takes[HYBRID_CHOICES_MAX];
	uint64_t samples = q->batch / q->microbatches;
	pipeline_problem p = {.units = q->nodes * q->ranks_per_node,
	                      .takes = takes,
	                      .microbatches = q->microbatches,
	                      .memory = q->memory,
	                      .only = -1};
	pipeline_cost *costs;
	gradcomp_error err;

	p.nlayers = hybrid_group(&model, LAYERS, groups);
	if (hybrid_choices(&model, &machine, q, samples, choices, &p.nchoices, &err)) {
		printf("# %s\n", err.text);
		exit(1);
	}
	p.costs = costs = malloc((size_t)p.nlayers * p.nlayers * p.nchoices * sizeof *costs);
	for (uint32_t c = 0; c < p.nchoices; c++) {
		takes[c] = choices[c].nodes * choices[c].ranks_per_node;
		for (uint32_t i = 0; i < p.nlayers; i++)
			for (uint32_t j = i; j < p.nlayers; j++)
				costs[(i * p.nlayers + j) * p.nchoices + c] =
					hybrid_cost(&machine, q, groups, i, j, j + 1 == p.nlayers, samples,
				                    &choices[c]);
	}
	every_plan_of(e, &p);
	free(costs);
}

typedef struct tally {
	int found, short_of_memory, wrong, unsound, worse;
} tally;

/* How much the text says would do, in GB. */
static double asked_for(const gradcomp_error *err)
{
	const char *at = strstr(err->text, "would do is ");

	return at ? atof(at + strlen("would do is ")) : 0;
}

static void one_case(tally *t)
{
	static const uint32_t ranks_of[] = {1, 2, 4, 8, 6};
	uint32_t pick = draw_up_to(5) - 1, ranks = ranks_of[pick];
	gradcomp_hybrid_question q = question_of(ranks > 4 ? 1 : draw_up_to(8 / ranks), ranks, draw_up_to(6));
	gradcomp_hybrid_plan *plan, *same;
	gradcomp_error err;
	gradcomp_status st;
	every_plan e;

	make_machine();
	make_model(draw_up_to(ranks > 4 ? 5 : LAYERS));
	q.memory = draw() < 0.4 ? 1e12 : 4e7 * draw();
	every(&q, &e);
	st = gradcomp_parallelize(&model, &machine, &q, &plan, &err);
	if (e.best.seconds < 0) {
		/* What the text says would do is the least of all plans, in three digits. */
		t->short_of_memory++;
		t->wrong += st != (isfinite(e.least_memory) ? GRADCOMP_ERR_RANGE : GRADCOMP_ERR_INVALID);
		if (st == GRADCOMP_ERR_RANGE)
			t->wrong += fabs(asked_for(&err) * 1e9 - e.least_memory) > 0.0051 * e.least_memory;
		return;
	}
	t->found++;
	if (st) {
		printf("# %s\n", err.text);
		t->wrong++;
		return;
	}
	t->unsound += !sound(&q, plan);
	/* The solver may stop within a thousandth of the best. */
	t->wrong += plan->step_s < e.best.seconds * (1 - 1e-9) || plan->step_s > e.best.seconds * 1.0011;
	q.uniform = 1;
	if (!gradcomp_parallelize(&model, &machine, &q, &same, &err)) {
		t->unsound += !sound(&q, same);
		t->worse += plan->step_s > same->step_s * 1.0011;
		for (uint32_t i = 1; i < same->nstages; i++)
			t->unsound += same->stages[i].data != same->stages[0].data ||
			              same->stages[i].tensor != same->stages[0].tensor;
		gradcomp_hybrid_plan_free(same);
	}
	gradcomp_hybrid_plan_free(plan);
}

/* One layer, two ranks of a node that divide its matrix. */
static void formulas(void)
{
	rank_choice pair = {.nodes = 1, .ranks_per_node = 2, .tensor = 2, .data = 1},
		    alone = {1, 1, 1, 1, NULL, 0, 0, 0};
	gradcomp_hybrid_question q = question_of(2, 2, 1);
	layer_group g[LAYERS];
	pipeline_cost c;
	double work, ring;

	make_machine();
	make_model(1);
	layers[0].reduces = 2;
	hybrid_group(&model, LAYERS, g);
	work = tensors[0].forward + tensors[0].backward;
	c = hybrid_cost(&machine, &q, g, 0, 0, 1, 4, &alone);
	ok(fabs(c.seconds - 4 * work) < 1e-12 && c.once == 0, "one rank does all samples");
	ok(c.fixed == (double)(dims[0][0] * dims[0][1]) * 16 &&
	           fabs(c.kept - 4 * (layers[0].kept[0] + layers[0].kept[1])) < 1e-6,
	   "and has weights, gradients, two moments and what the backward pass needs");
	c = hybrid_cost(&machine, &q, g, 0, 0, 1, 4, &pair);
	ring = 2 * machine.level[0].a + layers[0].output * 4 / 2 * (2 * machine.level[0].b + machine.reduce);
	ok(fabs(c.seconds - (2 * work + 2 * 2 * ring)) < 1e-12,
	   "two halve it and add up the output twice in each pass");
	ok(fabs(c.kept - 4 * (layers[0].kept[0] + layers[0].kept[1] / 2)) < 1e-6,
	   "and keep half of what can be divided");
	c = hybrid_cost(&machine, &q, g, 0, 0, 0, 4, &alone);
	ok(fabs(c.seconds - 4 * work - 2 * (machine.level[1].a + 4 * layers[0].output * machine.level[1].b)) <
	           1e-12,
	   "a stage that is not the last sends its output on, and gets its gradient");
	layers[0].reduces = 0;
	hybrid_group(&model, LAYERS, g);
	c = hybrid_cost(&machine, &q, g, 0, 0, 1, 4, &pair);
	ok(fabs(c.seconds - 4 * work) < 1e-12, "what cannot be divided is not");
}

/* Data parallelism alone costs what gradcomp_predict() says of the gradients. */
static void reductions(void)
{
	gradcomp_hybrid_question q = question_of(4, 2, 1);
	static rank_choice choices[HYBRID_CHOICES_MAX];
	gradcomp_question ask = {.struct_size = sizeof ask, .nodes = 4, .ranks_per_node = 2};
	gradcomp_prediction out = {.struct_size = sizeof out};
	double numel = 0, slow = 0, quick = 0;
	gradcomp_error err;
	uint32_t n;

	make_machine();
	make_model(4);
	for (int i = 0; i < 4; i++) {
		tensors[i].forward = tensors[i].backward = 0;
		numel += (double)(dims[i][0] * dims[i][1]);
	}
	if (!ok(!hybrid_choices(&model, &machine, &q, 16, choices, &n, &err), "choices of ranks") ||
	    !ok(!gradcomp_predict(&model, &machine, &ask, &out, &err), "a prediction of all ranks"))
		return;
	for (uint32_t c = 0; c < n; c++) {
		if (choices[c].nodes != 4)
			continue;
		if (choices[c].tensor == 1)
			ok(fabs(choices[c].a + choices[c].b * numel - out.step_s) < 1e-9 * out.step_s,
			   "all gradients over all ranks take as long as predicted");
		*(choices[c].tensor == 1 ? &slow : &quick) =
			choices[c].a + choices[c].b * numel / choices[c].tensor;
	}
	ok(quick > 0 && quick < 4 * slow, "halves of them, two at a time, are of that order");
}

static void refusals(void)
{
	gradcomp_hybrid_question q = question_of(2, 2, 4);
	gradcomp_hybrid_plan *plan = NULL;
	gradcomp_error err;

	make_machine();
	make_model(3);
	q.memory = 1;
	is_int(gradcomp_parallelize(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_RANGE, "one byte a rank");
	like(err.text, "the least that would do is", "how much would do is said");
	ok(!plan, "and there is no plan");
	q = question_of(2, 2, 4);
	q.batch = 6;
	is_int(gradcomp_parallelize(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID,
	       "micro-batches that are not equal");
	like(err.text, "6 samples a step do not make 4 equal micro-batches", "are named");
	q = question_of(0, 2, 4);
	is_int(gradcomp_parallelize(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID, "no nodes");
	q = question_of(2, 2, 4);
	q.memory = NAN;
	is_int(gradcomp_parallelize(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID,
	       "memory that is no number");
	q = question_of(2, 2, 4);
	q.groups = 65;
	is_int(gradcomp_parallelize(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID, "too many groups");
	q = question_of(2, 2, 4);
	machine.level[0] = (gradcomp_line){0, 0};
	is_int(gradcomp_parallelize(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_UNSUPPORTED,
	       "a machine without [node]");
	like(err.text, "says nothing of [node]", "is named");
	make_machine();
	q = question_of(1, 3, 1);
	q.batch = 1;
	model.nlayers = model.ntensors = 1;
	is_int(gradcomp_parallelize(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID,
	       "one layer and sample for three ranks");
	model.nlayers = 0;
	is_int(gradcomp_parallelize(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_UNSUPPORTED,
	       "a model without layers");
	like(err.text, "[layers]", "what is missing is named");
	gradcomp_hybrid_plan_free(NULL);
}

/* Layers in fewer groups than there are: all of them once, and no better than ungrouped. */
static void grouped(void)
{
	gradcomp_hybrid_question q = question_of(2, 2, 4);
	layer_group g[LAYERS];
	gradcomp_hybrid_plan *fine, *coarse;
	gradcomp_error err;
	uint32_t n, at = 0;

	make_machine();
	make_model(6);
	n = hybrid_group(&model, 3, g);
	is_int(n, 3, "six layers in three groups");
	for (uint32_t i = 0; i < n; i++) {
		at = g[i].first == at ? at + g[i].nlayers : 99;
	}
	is_int(at, 6, "have all of them in order");
	if (!ok(!gradcomp_parallelize(&model, &machine, &q, &fine, &err), "a plan of layers"))
		return;
	q.groups = 3;
	if (!ok(!gradcomp_parallelize(&model, &machine, &q, &coarse, &err), "a plan of groups"))
		return;
	ok(sound(&q, coarse) && coarse->step_s >= fine->step_s * 0.999, "is no quicker");
	gradcomp_hybrid_plan_free(fine);
	gradcomp_hybrid_plan_free(coarse);
}

int main(void)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4000];
	tally t = {0};

	snprintf(path, sizeof path, "%s/lib/gradcomp", build ? build : ".");
	setenv("GRADCOMP_PLUGIN_PATH", path, 1);
	draw_state = 20221109;
	formulas();
	reductions();
	for (int i = 0; i < CASES; i++)
		one_case(&t);
	printf("# %d plans, %d that lack memory or cannot be\n", t.found, t.short_of_memory);
	ok(t.found > CASES / 3 && t.short_of_memory > CASES / 20, "instances are of both kinds");
	is_int(t.wrong, 0, "plans are the best there are, or what is said to be needed is");
	is_int(t.unsound, 0, "they have all layers and all ranks, and keep to the memory");
	is_int(t.worse, 0, "the same degrees everywhere are never quicker");
	grouped();
	refusals();
	return done_testing();
}
