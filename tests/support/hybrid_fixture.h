/* Machines, models and questions of the tests of hybrid parallel plans. */
#ifndef TESTS_SUPPORT_HYBRID_FIXTURE_H
#define TESTS_SUPPORT_HYBRID_FIXTURE_H

#include "cost/planning.h"
#include "cost/hybrid.h"

#include "tests/support/tap.h"
#include "tests/support/test_random.h"

#include <math.h>
#include <stdlib.h>

#define LAYERS 6

static uint64_t dims[LAYERS][2];
static model_tensor tensors[LAYERS];
static model_layer layers[LAYERS];
static model_file model = {.name = "made up", .tensors = tensors, .layers = layers};
static compressor_curve curve = {.compressor = (char *)"none"};
static machine_file machine;

static void make_machine(void)
{
	machine = (machine_file){.nodes = 1,
	                         .ranks_per_node = 1,
	                         .ncurves = 1,
	                         .name = "made up",
	                         .curves = &curve,
	                         .memory = 1e-10,
	                         .reduce = 1e-10,
	                         .beside_application = 1,
	                         .beside_exchange = 1};
	machine.level[0] = (linear){1e-6 * draw(), 1e-9 * draw()};
	machine.level[1] = (linear){1e-4 * draw(), 1e-8 * draw()};
}

static void make_model(uint32_t n)
{
	model.ntensors = model.nlayers = n;
	model.batch = 1;
	for (uint32_t i = 0; i < n; i++) {
		dims[i][0] = 64 * draw_up_to(16);
		dims[i][1] = 64 * draw_up_to(16);
		tensors[i] = (model_tensor){.name = (char *)"w",
		                            .dims = dims[i],
		                            .ndim = 2,
		                            .forward = 1e-3 * draw(),
		                            .backward = 2e-3 * draw()};
		layers[i] = (model_layer){.name = (char *)"layer",
		                          .first = i,
		                          .ntensors = 1,
		                          .output = 1e5 * draw(),
		                          .kept = {1e5 * draw(), 1e6 * draw()},
		                          .reduces = draw_up_to(3) - 1};
	}
}

static hybrid_question question_of(uint32_t nodes, uint32_t ranks, uint32_t microbatches)
{
	return (hybrid_question){.nodes = nodes,
	                         .ranks_per_node = ranks,
	                         .microbatches = microbatches,
	                         .batch = 16 * microbatches,
	                         .memory = 1e12,
	                         .state = 8};
}

/* All layers in order, all ranks, degrees that multiply to them, memory, the sum. */
static int sound(const hybrid_question *q, const hybrid_plan *plan)
{
	uint32_t layer = 0, ranks = 0;
	double sum = 0, pace = 0;
	for (uint32_t i = 0; i < plan->nstages; i++) {
		const hybrid_stage *s = &plan->stages[i];

		if (s->first != layer || !s->nlayers || s->data * s->tensor != s->nodes * s->ranks_per_node ||
		    (s->tensor > s->ranks_per_node && s->tensor % s->ranks_per_node) ||
		    s->ranks_per_node > q->ranks_per_node || s->memory > q->memory ||
		    plan->batch / q->microbatches % s->data)
			return 0;
		layer += s->nlayers;
		ranks += s->data * s->tensor;
		sum += s->seconds;
		pace = fmax(pace, (q->microbatches - 1.0) * s->seconds + s->gradient_s);
	}
	return layer == model.nlayers && ranks == q->nodes * q->ranks_per_node &&
	       fabs(sum + pace - plan->step_s) <= 1e-12 * plan->step_s;
}

/* Predictions want the plugins of this build. */
static void built_plugins(void)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4000];
	snprintf(path, sizeof path, "%s/lib/gradcomp", build ? build : ".");
	setenv("GRADCOMP_PLUGIN_PATH", path, 1);
}

#endif
