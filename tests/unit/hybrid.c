/* Hybrid parallel plans: costs as the formulas say, groups of layers, and what makes no sense. */
#include "tests/support/hybrid_fixture.h"

/* One layer, two ranks of a node that divide its matrix. */
static void formulas(void)
{
	rank_choice pair = {.nodes = 1, .ranks_per_node = 2, .tensor = 2, .data = 1},
		    alone = {.nodes = 1, .ranks_per_node = 1, .tensor = 1, .data = 1};
	hybrid_question q = question_of(2, 2, 1);
	layer_group g[LAYERS];
	pipeline_cost c;
	double work, ring;
	make_machine();
	make_model(1);
	layers[0].reduces = 2;
	hybrid_group(&model, LAYERS, g);
	work = tensors[0].forward + tensors[0].backward;
	c = hybrid_cost(&machine, &q, g, 1, 4, &alone);
	ok(fabs(c.seconds - 4 * work) < 1e-12 && c.once == 0, "one rank does all samples");
	ok(c.fixed == (double)(dims[0][0] * dims[0][1]) * 16 &&
	           fabs(c.kept - 4 * (layers[0].kept[0] + layers[0].kept[1])) < 1e-6,
	   "and has weights, gradients, two moments and what the backward pass needs");
	c = hybrid_cost(&machine, &q, g, 1, 4, &pair);
	ring = 2 * machine.level[0].a + layers[0].output * 4 / 2 * (2 * machine.level[0].b + machine.reduce);
	ok(fabs(c.seconds - (2 * work + 2 * 2 * ring)) < 1e-12,
	   "two halve it and add up the output twice in each pass");
	ok(fabs(c.kept - 4 * (layers[0].kept[0] + layers[0].kept[1] / 2)) < 1e-6,
	   "and keep half of what can be divided");
	c = hybrid_cost(&machine, &q, g, 0, 4, &alone);
	ok(fabs(c.seconds - 4 * work - 2 * (machine.level[1].a + 4 * layers[0].output * machine.level[1].b)) < 1e-12,
	   "a stage that is not the last sends its output on, and gets its gradient");
	layers[0].reduces = 0;
	hybrid_group(&model, LAYERS, g);
	c = hybrid_cost(&machine, &q, g, 1, 4, &pair);
	ok(fabs(c.seconds - 4 * work) < 1e-12, "what cannot be divided is not");
}

/* Data parallelism alone costs what cost_predict() says of the gradients. */
static void reductions(void)
{
	hybrid_question q = question_of(4, 2, 1);
	static rank_choice choices[HYBRID_CHOICES_MAX];
	cost_question ask = {.nodes = 4, .ranks_per_node = 2};
	cost_prediction out = {0};
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
	    !ok(!cost_predict(&model, &machine, &ask, &out, &err), "a prediction of all ranks"))
		return;
	for (uint32_t c = 0; c < n; c++) {
		if (choices[c].nodes != 4 || choices[c].tensor > 2 || choices[c].held)
			continue;
		if (choices[c].tensor == 1)
			ok(fabs(choices[c].a + choices[c].b * numel - out.step_s) < 1e-9 * out.step_s,
			   "all gradients over all ranks take as long as predicted");
		*(choices[c].tensor == 1 ? &slow : &quick) = choices[c].a + choices[c].b * numel / choices[c].tensor;
	}
	ok(quick > 0 && quick < 4 * slow, "halves of them, two at a time, are of that order");
}

static void refusals(void)
{
	hybrid_question q = question_of(2, 2, 4);
	hybrid_plan *plan = NULL;
	gradcomp_error err;
	make_machine();
	make_model(3);
	q.memory = 1;
	is_int(hybrid_plan_make(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_RANGE, "one byte a rank");
	like(err.text, "the least that would do is", "how much would do is said");
	ok(!plan, "and there is no plan");
	q = question_of(2, 2, 4);
	q.batch = 6;
	is_int(hybrid_plan_make(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID,
	       "micro-batches that are not equal");
	like(err.text, "6 samples a step do not make 4 equal micro-batches", "are named");
	q = question_of(0, 2, 4);
	is_int(hybrid_plan_make(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID, "no nodes");
	q = question_of(2, 2, 4);
	q.memory = NAN;
	is_int(hybrid_plan_make(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID, "memory that is no number");
	q = question_of(2, 2, 4);
	q.groups = 65;
	is_int(hybrid_plan_make(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID, "too many groups");
	q = question_of(2, 2, 4);
	machine.level[0] = (linear){0, 0};
	is_int(hybrid_plan_make(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_UNSUPPORTED,
	       "a machine without [node]");
	like(err.text, "says nothing of [node]", "is named");
	make_machine();
	q = question_of(1, 3, 1);
	q.batch = 1;
	model.nlayers = model.ntensors = 1;
	is_int(hybrid_plan_make(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_INVALID,
	       "one layer and sample for three ranks");
	model.nlayers = 0;
	is_int(hybrid_plan_make(&model, &machine, &q, &plan, &err), GRADCOMP_ERR_UNSUPPORTED, "a model without layers");
	like(err.text, "[layers]", "what is missing is named");
	hybrid_plan_free(NULL);
}

/* Layers in fewer groups than there are: all of them once, and no better than ungrouped. */
static void grouped(void)
{
	hybrid_question q = question_of(2, 2, 4);
	layer_group g[LAYERS];
	hybrid_plan *fine, *coarse;
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
	if (!ok(!hybrid_plan_make(&model, &machine, &q, &fine, &err), "a plan of layers"))
		return;
	q.groups = 3;
	if (!ok(!hybrid_plan_make(&model, &machine, &q, &coarse, &err), "a plan of groups"))
		return;
	ok(sound(&q, coarse) && coarse->step_s >= fine->step_s * 0.999, "is no quicker");
	hybrid_plan_free(fine);
	hybrid_plan_free(coarse);
}

int main(void)
{
	built_plugins();
	draw_state = 20221109;
	formulas();
	reductions();
	grouped();
	refusals();
	return done_testing();
}
