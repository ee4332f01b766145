/* Hybrid parallel plans against every plan there is, and what memory has no room for. */
#include "tests/support/every_pipeline.h"
#include "tests/support/hybrid_fixture.h"

#define CASES 250

/* Layers are of up to so many kinds: i is of kind i % nkinds, with dimensions that no other kind has. */
#define KINDS 3
static uint32_t nkinds;

static void make_kinds(void)
{
	nkinds = draw_up_to(KINDS);
	for (uint32_t i = 0; i < model.nlayers; i++) {
		if (i < nkinds)
			dims[i][0] = 64 * (5 * i + draw_up_to(5));
		else
			memcpy(dims[i], dims[i - nkinds], sizeof dims[i]);
		/* Some take less than what they send. */
		if (draw() < 0.4) {
			tensors[i].forward *= 0.02;
			tensors[i].backward *= 0.02;
		}
	}
}

/* The model in which layers of these kinds cannot be divided. */
static void hold(uint32_t held, const model_layer *whole)
{
	for (uint32_t i = 0; i < model.nlayers; i++) {
		layers[i] = whole[i];
		if (!(held >> i % nkinds & 1) || !layers[i].reduces)
			continue;
		layers[i].reduces = 0;
		layers[i].kept[0] += layers[i].kept[1];
		layers[i].kept[1] = 0;
	}
}

/* Returns 1 when a stage would rather have the other cost, or as soon. */
static int no_better(const pipeline_cost *a, const pipeline_cost *b)
{
	return a->seconds >= b->seconds && a->once >= b->once && a->fixed >= b->fixed && a->kept >= b->kept;
}

/* The problem that hybrid_plan_make() solves, solved by looking at everything: stages, ranks, and which kinds of layers
 * a stage divides. The latter as models of which they cannot be divided, choice by choice of the first. */
static void every(const hybrid_question *q, every_plan *e)
{
	static layer_group groups[LAYERS];
	static rank_choice choices[HYBRID_CHOICES_MAX];
	static uint32_t takes[HYBRID_CHOICES_MAX];
	model_layer whole[LAYERS];
	uint64_t samples = q->batch / q->microbatches;
	uint32_t sets = 1u << nkinds, ndegrees = 0;
	pipeline_problem p = {.units = q->nodes * q->ranks_per_node,
	                      .takes = takes,
	                      .nlayers = model.nlayers,
	                      .microbatches = q->microbatches,
	                      .memory = q->memory};
	pipeline_cost *costs = NULL;
	gradcomp_error err;
	memcpy(whole, layers, sizeof whole);
	for (uint32_t held = 0; held < sets; held++) {
		uint32_t n, degree = 0;

		hold(held, whole);
		(void)hybrid_group(&model, LAYERS, groups);
		if (hybrid_choices(&model, &machine, q, samples, choices, &n, &err)) {
			printf("# %s\n", err.text);
			exit(1);
		}
		for (uint32_t c = 0; !held && c < n; c++)
			ndegrees += !choices[c].held;
		p.nchoices = sets * ndegrees;
		if (!held)
			costs = malloc((size_t)p.nlayers * p.nlayers * (p.nchoices + 1) * sizeof *costs);
		for (uint32_t c = 0; costs && c < n; c++) {
			if (choices[c].held)
				continue; /* this is what the test does itself */
			uint32_t at = held * ndegrees + degree++;
			takes[at] = choices[c].nodes * choices[c].ranks_per_node;
			for (uint32_t i = 0; i < p.nlayers; i++) {
				layer_group g = groups[i];

				for (uint32_t j = i; j < p.nlayers; j++) {
					pipeline_cost *of = &costs[(size_t)(i * p.nlayers + j) * p.nchoices];

					if (j > i)
						hybrid_join(&g, &groups[j]);
					of[at] = hybrid_cost(&machine, q, &g, j + 1 == p.nlayers, samples, &choices[c]);
					/* No plan needs it: there is one that is as good. */
					for (uint32_t set = 0; set < held; set++)
						if (of[set * ndegrees + degree - 1].seconds >= 0 &&
						    no_better(&of[at], &of[set * ndegrees + degree - 1])) {
							of[at].seconds = -1;
							break;
						}
				}
			}
		}
	}
	memcpy(layers, whole, sizeof whole);
	p.costs = costs;
	every_plan_of(e, &p);
	free(costs);
}

/* The quickest plan whose stages all take one choice, with nothing left out: each choice by itself, the first one of the
 * quickest. seconds negative: there is none. */
static void uniform(const hybrid_question *q, pipeline_plan *best, rank_choice *its)
{
	static layer_group groups[LAYERS];
	static rank_choice choices[HYBRID_CHOICES_MAX];
	static pipeline_cost costs[LAYERS * LAYERS];
	uint64_t samples = q->batch / q->microbatches;
	uint32_t n = 0, takes;
	pipeline_problem p = {.units = q->nodes * q->ranks_per_node,
	                      .takes = &takes,
	                      .costs = costs,
	                      .nlayers = hybrid_group(&model, LAYERS, groups),
	                      .nchoices = 1,
	                      .microbatches = q->microbatches,
	                      .memory = q->memory,
	                      .gap = 0.001};
	gradcomp_error err;
	*best = (pipeline_plan){.seconds = -1};
	*its = (rank_choice){.nodes = 0};
	if (hybrid_choices(&model, &machine, q, samples, choices, &n, &err))
		return;
	for (uint32_t c = 0; c < n; c++) {
		pipeline_plan plan;

		takes = choices[c].nodes * choices[c].ranks_per_node;
		for (uint32_t i = 0; i < p.nlayers; i++) {
			layer_group g = groups[i];

			for (uint32_t j = i; j < p.nlayers; j++) {
				if (j > i)
					hybrid_join(&g, &groups[j]);
				costs[i * p.nlayers + j] =
					hybrid_cost(&machine, q, &g, j + 1 == p.nlayers, samples, &choices[c]);
			}
		}
		if (p.units % takes || pipeline_solve(&p, &plan, &err) || plan.seconds < 0 ||
		    (best->seconds >= 0 && plan.seconds >= best->seconds))
			continue;
		*best = plan;
		*its = choices[c];
	}
}

/* Returns 1 when the plan is that one to the bit. */
static int same_plan(const hybrid_plan *plan, const pipeline_plan *best, const rank_choice *its)
{
	if (plan->step_s != best->seconds || plan->nstages != best->nstages)
		return 0;
	for (uint32_t i = 0; i < plan->nstages; i++) {
		const hybrid_stage *s = &plan->stages[i];

		if (s->first != best->stages[i].first || s->nlayers != best->stages[i].nlayers ||
		    s->tensor != its->tensor || s->data != its->data || s->held != its->held || s->nodes != its->nodes)
			return 0;
	}
	return 1;
}

static int same_stage(const hybrid_stage *s, const hybrid_stage *t)
{
	return s->first == t->first && s->nlayers == t->nlayers && s->nodes == t->nodes && s->data == t->data &&
	       s->tensor == t->tensor && s->held == t->held && s->compressor == t->compressor &&
	       s->seconds == t->seconds && s->gradient_s == t->gradient_s && s->memory == t->memory;
}

/* Plans of all shapes at once are those of one shape after another. */
static int shapes_agree(const hybrid_question *q)
{
	hybrid_plan *all[HYBRID_SHAPES], *one;
	gradcomp_error why[HYBRID_SHAPES], err;
	hybrid_question ask = *q;
	int agree = 1;
	hybrid_plan_shapes(&model, &machine, q, all, why);
	for (hybrid_shape shape = HYBRID_ANY; shape < HYBRID_SHAPES; shape++) {
		ask.shape = shape;
		if (hybrid_plan_make(&model, &machine, &ask, &one, &err)) {
			agree &= !all[shape] && why[shape].status == err.status && !strcmp(why[shape].text, err.text);
		} else {
			agree &= all[shape] && all[shape]->step_s == one->step_s && all[shape]->nstages == one->nstages;
			for (uint32_t i = 0; agree && i < one->nstages; i++)
				agree = same_stage(&all[shape]->stages[i], &one->stages[i]);
			hybrid_plan_free(one);
		}
		hybrid_plan_free(all[shape]);
	}
	return agree;
}

typedef struct tally {
	int found, short_of_memory, wrong, unsound, worse, held, uniform, shapes;
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
	hybrid_question q = question_of(ranks > 4 ? 1 : draw_up_to(8 / ranks), ranks, draw_up_to(6));
	hybrid_plan *plan, *same;
	pipeline_plan best;
	rank_choice its;
	gradcomp_error err;
	gradcomp_status st;
	every_plan e;
	make_machine();
	make_model(draw_up_to(ranks > 4 ? 5 : LAYERS));
	make_kinds();
	q.memory = draw() < 0.4 ? 1e12 : 4e7 * draw();
	every(&q, &e);
	if (t->found % 8 == 0)
		t->shapes += !shapes_agree(&q);
	st = hybrid_plan_make(&model, &machine, &q, &plan, &err);
	if (e.best.seconds < 0) {
		/* The text says what would do: the least of all plans, in three digits. */
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
	for (uint32_t i = 0; i < plan->nstages; i++)
		t->held += plan->stages[i].held != 0;
	/* The solver may stop within a thousandth of the best. */
	t->wrong += plan->step_s < e.best.seconds * (1 - 1e-9) || plan->step_s > e.best.seconds * 1.0011;
	q.shape = HYBRID_UNIFORM;
	uniform(&q, &best, &its);
	st = hybrid_plan_make(&model, &machine, &q, &same, &err);
	t->uniform += st ? best.seconds >= 0 : !same_plan(same, &best, &its);
	if (!st) {
		t->unsound += !sound(&q, same);
		t->worse += plan->step_s > same->step_s * 1.0011;
		for (uint32_t i = 1; i < same->nstages; i++)
			t->unsound += same->stages[i].data != same->stages[0].data ||
			              same->stages[i].tensor != same->stages[0].tensor;
		hybrid_plan_free(same);
	}
	hybrid_plan_free(plan);
}

/* A layer that one rank has no room for, on two nodes of a rank: its matrix is divided over them. */
static void over_nodes(void)
{
	hybrid_question q = question_of(2, 1, 1);
	hybrid_plan *plan = NULL;
	gradcomp_error err = {0};
	make_machine();
	make_model(1);
	layers[0].reduces = 2;
	layers[0].kept[0] = layers[0].kept[1] = 0;
	q.memory = (double)(dims[0][0] * dims[0][1]) * 12; /* it takes 16 a parameter */
	ok(!hybrid_plan_make(&model, &machine, &q, &plan, &err) && plan->nstages == 1 && plan->stages[0].tensor == 2 &&
	           plan->stages[0].nodes == 2 && plan->stages[0].data == 1,
	   "a matrix without room on one rank is divided over two nodes %s", err.text);
	hybrid_plan_free(plan);
}

/* Where a network is as quick as a node, dividing over nodes is the better plan of a small batch. */
static void pays_over_nodes(void)
{
	hybrid_question q = question_of(4, 2, 1);
	hybrid_plan *plan = NULL;
	gradcomp_error err = {0};
	make_machine();
	make_model(1);
	machine.level[0] = machine.level[1] = (linear){1e-7, 1e-12};
	layers[0].reduces = 1;
	layers[0].output = 1e3;
	tensors[0].forward = tensors[0].backward = 1e-2;
	q.batch = 2; /* no more than two groups can have a sample each */
	ok(!hybrid_plan_make(&model, &machine, &q, &plan, &err) && plan->stages[0].tensor == 8 &&
	           plan->stages[0].data == 1,
	   "eight ranks of four nodes divide a matrix: tensor %u, data %u %s", plan ? plan->stages[0].tensor : 0,
	   plan ? plan->stages[0].data : 0, err.text);
	hybrid_plan_free(plan);
}

/* Tries what every rank of a tensor-parallel group holds whole. */
static void kinds(void)
{
	static const struct {
		const char *name;
		uint32_t ndim;
		int divides;
	} of[] = {{"h.0.ln_1.weight", 1, 0},
	          {"h.0.attn.c_attn.weight", 2, 1},
	          {"h.0.attn.c_attn.bias", 1, 1},
	          {"h.0.attn.c_proj.weight", 2, 1},
	          {"h.0.attn.c_proj.bias", 1, 0},
	          {"wpe.weight", 2, 0},
	          {"wte.weight", 2, 1},
	          {"layer.0.output.dense.bias", 1, 0},
	          {"layer.0.output.LayerNorm.weight", 1, 0},
	          {"layer.0.intermediate.dense.bias", 1, 1},
	          {"layers.0.mlp.down_proj.weight", 2, 1},
	          {"layers.0.input_layernorm.weight", 1, 0}};
	model_layer l = {.reduces = 2}, none = {.reduces = 0};
	int wrong = 0, any = 0;

	for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
		model_tensor t = {.name = (char *)of[i].name, .ndim = of[i].ndim};
		if (hybrid_divides(&l, &t) != of[i].divides) {
			printf("# %s\n", of[i].name);
			wrong++;
		}
		any |= hybrid_divides(&none, &t);
	}
	is_int(wrong, 0, "norms, positions and biases of rows are whole on every rank");
	ok(!any, "and all of a layer that cannot be divided");
}

int main(void)
{
	tally t = {0};
	built_plugins();
	kinds();
	draw_state = 7;
	over_nodes();
	pays_over_nodes();
	draw_state = 20221109;
	for (int i = 0; i < CASES; i++)
		one_case(&t);
	printf("# %d plans, %d that lack memory or cannot be\n", t.found, t.short_of_memory);
	ok(t.found > CASES / 3 && t.short_of_memory > CASES / 20, "instances are of both kinds");
	ok(t.held > CASES / 20, "%d stages are better off with layers whole that could be divided", t.held);
	is_int(t.wrong, 0, "plans are the best there are, or what is said to be needed is");
	is_int(t.unsound, 0, "they have all layers and all ranks, and keep to the memory");
	is_int(t.worse, 0, "the same degrees everywhere are never quicker");
	is_int(t.uniform, 0, "they are to the bit what trying each choice comes to");
	is_int(t.shapes, 0, "plans of all shapes at once are those of one after another");
	return done_testing();
}
