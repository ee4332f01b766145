/* Steps of the simulator's tests: buckets of up to STEP_MOST tensors, and how long a step takes. */
#ifndef TESTS_SUPPORT_SIM_STEP_FIXTURE_H
#define TESTS_SUPPORT_SIM_STEP_FIXTURE_H

#include "schedule/sim.h"

#include "tests/support/tap.h"

#include <math.h>
#include <stdlib.h>

#define STEP_MOST 12

typedef struct step {
	double forward[STEP_MOST], backward[STEP_MOST];
	uint64_t numel[STEP_MOST];
	uint32_t end[STEP_MOST], position[STEP_MOST];
	step_plan plan;
	sim_bucket buckets[STEP_MOST];
	sim_input in;
} step;

/* Buckets of `rounds` rounds that end with the tensors in `cut`, three at a time; tasks take no time yet. */
static void make(step *s, uint32_t n, const uint8_t *cut, uint32_t rounds, int two_levels)
{
	const gradcomp_plan plan = {.nrounds = rounds};
	s->plan = (step_plan){.end = s->end};
	for (uint32_t i = 0; i < n; i++)
		if (cut[i])
			s->end[s->plan.nbuckets++] = i + 1;
	memset(s->buckets, 0, sizeof s->buckets);
	for (uint32_t b = 0; b < s->plan.nbuckets; b++)
		s->buckets[b].ntasks = (uint32_t)task_list_make(&plan, two_levels, s->buckets[b].tasks);
	s->in = (sim_input){.n = n,
	                    .forward = s->forward,
	                    .backward = s->backward,
	                    .plan = &s->plan,
	                    .window = 3,
	                    .buckets = s->buckets,
	                    .beside_application = 1,
	                    .beside_exchange = 1,
	                    .steps = 2};
}

static void set(step *s, uint32_t bucket, task_kind kind, double seconds)
{
	for (uint32_t t = 0; t < s->buckets[bucket].ntasks; t++)
		if (s->buckets[bucket].tasks[t].kind == kind)
			s->buckets[bucket].seconds[t] = seconds;
}

static double period(const step *s)
{
	gradcomp_error e;
	sim_output out;
	if (sim_run(&s->in, 0, &out, &e)) {
		printf("# %s\n", e.text);
		return -1;
	}
	return out.step;
}

static int about(double got, double want)
{
	if (fabs(got - want) <= 1e-9 * (1 + fabs(want)))
		return 1;
	printf("#  got: %.12g\n# want: %.12g\n", got, want);
	return 0;
}

/* Every tensor is a bucket. */
static const uint8_t all[STEP_MOST] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

#endif
