/* Which layers make a stage of a pipeline, and on how many ranks: the inter-operator pass of
 * Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep
 * Learning, OSDI 2022, over a table of what each run of layers costs on each choice of ranks.
 *
 * With t the seconds that a stage takes of a micro-batch, g what it takes once a step, B
 * micro-batches, a step takes
 *
 *     sum over stages t + max over stages ((B - 1) t + g)
 *
 * For a bound on the maximum the least sum follows by dynamic programming over layers, ranks
 * and the number of stages behind, which says how many micro-batches a stage keeps in memory
 * (1F1B: at most as many as there are stages from it to the end). The least sum S only
 * falls as the bound rises, so that between two bounds lo < hi nothing is below lo + S(hi):
 * bounds are halved until none is left that could win. A plan stays the answer down to the bound that its
 * own maximum is. */
#ifndef COST_PIPELINE_H
#define COST_PIPELINE_H

#include "gradcomp/abi.h"

#define PIPELINE_LAYERS_MAX 64
#define PIPELINE_UNITS_MAX 4096

/* A run of layers on one choice of ranks. */
typedef struct pipeline_cost {
	double seconds;     /* a micro-batch's; negative: impossible */
	double once;        /* a step */
	double fixed, kept; /* memory of a rank: whatever is in flight, and of each micro-batch in flight, at least 0 */
} pipeline_cost;

typedef struct pipeline_problem {
	uint32_t nlayers, nchoices;
	uint32_t units;        /* the ranks, in units, all of which the stages take together */
	const uint32_t *takes; /* units that a choice takes */
	/* layers i to j (inclusive) on choice c are at [(i * nlayers + j) * nchoices + c] */
	const pipeline_cost *costs;
	uint32_t microbatches;
	double memory;
	double gap;   /* the plan found is at most this share above the best one; 0: it is the best */
	double below; /* where no plan can be quicker than that, what is found does not matter; 0: it does */
	double once;  /* all stages of a plan take this once a step, together, or more; counts for `below` alone */
} pipeline_problem;

typedef struct pipeline_stage {
	uint32_t first, nlayers, choice;
} pipeline_stage;

typedef struct pipeline_plan {
	uint32_t nstages;
	pipeline_stage stages[PIPELINE_LAYERS_MAX];
	double seconds; /* a step's; negative: there is none */
	/* memory of the stage that needs most. Without a plan: the least that would do; negative: nothing would */
	double memory;
} pipeline_plan;

/* Fails for want of memory only. No plan is not a failure. Where a plan is quicker than `below`, it is the one that is
 * found without. */
gradcomp_status pipeline_solve(const pipeline_problem *p, pipeline_plan *out, gradcomp_error *err);

/* Seconds and memory of a plan's stages are set from the costs. */
void pipeline_value(const pipeline_problem *p, pipeline_plan *plan);

#endif
