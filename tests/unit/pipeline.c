/* Stage cuts by dynamic programming against every cut there is: random costs, memory that
 * some plans lack and none has. */
#include "tests/support/tap.h"
#include "tests/support/test_random.h"
#include "tests/support/every_pipeline.h"

#include <stdlib.h>
#include <string.h>

#define LAYERS 6
#define UNITS 8
#define CHOICES 5
#define CASES 600

typedef struct instance {
	pipeline_problem p;
	uint32_t takes[CHOICES];
	pipeline_cost costs[LAYERS * LAYERS * CHOICES];
} instance;

/* Costs need not grow with layers or fall with ranks for the plan to be the best one. */
static void make(instance *in)
{
	double layer[LAYERS];
	in->p = (pipeline_problem){.nlayers = draw_up_to(LAYERS),
	                           .nchoices = draw_up_to(CHOICES),
	                           .units = draw_up_to(UNITS),
	                           .takes = in->takes,
	                           .costs = in->costs,
	                           .microbatches = draw_up_to(8)};
	in->p.memory = draw() < 0.3 ? 1e9 : 1 + 6 * draw();
	for (uint32_t c = 0; c < CHOICES; c++)
		in->takes[c] = c ? 1u << (uint32_t)(4 * draw()) : 1;
	for (uint32_t i = 0; i < in->p.nlayers; i++)
		layer[i] = 0.1 + draw();
	for (uint32_t i = 0; i < in->p.nlayers; i++) {
		double sum = 0;

		for (uint32_t j = i; j < in->p.nlayers; j++) {
			sum += layer[j];
			for (uint32_t c = 0; c < in->p.nchoices; c++) {
				pipeline_cost *cost = &in->costs[(i * in->p.nlayers + j) * in->p.nchoices + c];

				*cost = (pipeline_cost){sum / in->takes[c] * (1 + draw()), draw() * sum,
				                        sum / in->takes[c] + draw(), sum * draw()};
				if (draw() < 0.05)
					cost->seconds = -1;
			}
		}
	}
}

/* The problem whose stages all take one choice; its costs are in `room`, which has as much as an instance. */
static pipeline_problem alone(const pipeline_problem *p, uint32_t choice, uint32_t *takes, pipeline_cost *room)
{
	pipeline_problem one = *p;
	*takes = p->takes[choice];
	for (uint32_t i = 0; i < p->nlayers * p->nlayers; i++)
		room[i] = p->costs[i * p->nchoices + choice];
	one.nchoices = 1;
	one.takes = takes;
	one.costs = room;
	return one;
}

/* Checks what the solver says: all layers in order, all ranks, its own sum. */
static int sound(const pipeline_problem *p, const pipeline_plan *plan)
{
	pipeline_plan again = *plan;
	uint32_t layer = 0, units = 0;
	for (uint32_t i = 0; i < plan->nstages; i++) {
		if (plan->stages[i].first != layer || !plan->stages[i].nlayers)
			return 0;
		layer += plan->stages[i].nlayers;
		units += p->takes[plan->stages[i].choice];
	}
	pipeline_value(p, &again);
	return layer == p->nlayers && units == p->units && again.seconds == plan->seconds && again.memory <= p->memory;
}

typedef struct tally {
	int solved, none, memory, wrong, unsound;
} tally;

static void one_case(const pipeline_problem *p, tally *t)
{
	pipeline_plan plan;
	gradcomp_error err;
	every_plan e;
	every_plan_of(&e, p);
	if (pipeline_solve(p, &plan, &err)) {
		t->wrong++;
		return;
	}
	if (e.best.seconds < 0) {
		t->none++;
		t->memory += isfinite(e.least_memory);
		t->wrong += plan.seconds >= 0 ||
		            (isfinite(e.least_memory) ? fabs(plan.memory - e.least_memory) > 1e-12 * e.least_memory
		                                      : plan.memory >= 0);
		return;
	}
	t->solved++;
	t->unsound += plan.seconds < 0 || !sound(p, &plan);
	/* Sums in another order differ in the last bits. */
	t->wrong += fabs(plan.seconds - e.best.seconds) > 1e-12 * e.best.seconds;
}

/* Within the gap that was asked for, and never better than the best. */
static void near_enough(const pipeline_problem *p, int *wrong)
{
	pipeline_problem loose = *p;
	pipeline_plan best, plan;
	gradcomp_error err;
	loose.gap = 0.1;
	if (pipeline_solve(p, &best, &err) || pipeline_solve(&loose, &plan, &err))
		++*wrong;
	else if (best.seconds >= 0)
		*wrong += plan.seconds < best.seconds * (1 - 1e-12) || best.seconds < 0.9 * plan.seconds * (1 - 1e-12);
}

/* More memory, one more choice: never slower. */
static void never_worse(instance *in, int *wrong)
{
	static pipeline_cost costs[LAYERS * LAYERS];
	pipeline_problem one;
	pipeline_plan with, without;
	gradcomp_error err;
	uint32_t takes;
	if (pipeline_solve(&in->p, &without, &err) || without.seconds < 0)
		return;
	in->p.memory *= 1.5;
	if (pipeline_solve(&in->p, &with, &err) || with.seconds < 0 || with.seconds > without.seconds * (1 + 1e-12))
		++*wrong;
	one = alone(&in->p, without.stages[0].choice, &takes, costs);
	if (pipeline_solve(&one, &without, &err) ||
	    (without.seconds >= 0 && with.seconds > without.seconds * (1 + 1e-12)))
		++*wrong;
}

/* The least that a stage takes once a step. */
static double least_once(const pipeline_problem *p)
{
	double least = INFINITY;
	for (uint32_t i = 0; i < p->nlayers; i++)
		for (uint32_t j = i; j < p->nlayers; j++)
			for (uint32_t c = 0; c < p->nchoices; c++)
				least = fmin(least, p->costs[(i * p->nlayers + j) * p->nchoices + c].once);
	return least;
}

/* Asked for less than some seconds: the plan is the same where it takes less, and else none that takes less is made up. */
static void quicker_than(const pipeline_problem *p, int *wrong, int *none)
{
	pipeline_problem asked = *p;
	pipeline_plan best, plan;
	gradcomp_error err;
	if (pipeline_solve(p, &best, &err)) {
		++*wrong;
		return;
	}
	asked.below = best.seconds >= 0 ? best.seconds * (0.5 + draw()) : 1;
	asked.once = least_once(p);
	if (pipeline_solve(&asked, &plan, &err))
		++*wrong;
	else if (best.seconds >= 0 && best.seconds < asked.below)
		*wrong += plan.seconds != best.seconds || plan.memory != best.memory || plan.nstages != best.nstages ||
		          memcmp(plan.stages, best.stages, best.nstages * sizeof *best.stages);
	else
		*wrong += plan.seconds >= 0 && (best.seconds < 0 || plan.seconds < best.seconds);
	*none += best.seconds >= asked.below;
}

int main(void)
{
	tally any = {0}, only = {0};
	int loose = 0, worse = 0, below = 0, none = 0;
	static instance in;
	static pipeline_cost costs[LAYERS * LAYERS];
	draw_state = 20220711;
	for (int i = 0; i < CASES; i++) {
		uint32_t takes;

		make(&in);
		one_case(&in.p, &any);
		pipeline_problem one = alone(&in.p, (uint32_t)i % in.p.nchoices, &takes, costs);

		one_case(&one, &only);
		near_enough(&in.p, &loose);
		quicker_than(&in.p, &below, &none);
		quicker_than(&one, &below, &none);
		never_worse(&in, &worse);
	}
	printf("# %d plans, %d without one, %d of them for want of memory\n", any.solved, any.none, any.memory);
	ok(any.solved > CASES / 4 && any.memory > CASES / 20, "instances are of both kinds");
	is_int(any.wrong, 0, "plans are the best there are, or there is none, and so much memory would do");
	is_int(any.unsound, 0, "their stages have all layers in order and all ranks");
	is_int(only.wrong + only.unsound, 0, "with one choice for all stages too");
	is_int(loose, 0, "a gap is kept");
	is_int(below, 0, "plans that are quicker than what is known are the same, %d are not", none);
	is_int(worse, 0, "more memory or more choices make nothing slower");
	return done_testing();
}
