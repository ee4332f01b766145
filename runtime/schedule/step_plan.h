/* How a reducer's steps go: where buckets end, in what order they are exchanged. Made by a
 * solver, from a profile or a model; applied between steps (reducer/rebucket.c). */
#ifndef SCHEDULE_STEP_PLAN_H
#define SCHEDULE_STEP_PLAN_H

#include "gradcomp/abi.h"

typedef struct step_plan {
	uint32_t nbuckets;
	uint32_t *end;      /* bucket i is tensors [end[i-1], end[i]) of the layout (backward order) */
	uint32_t *position; /* position in the order of exchanges: see bucket_order.h; NULL: 0, 1, 2, ... */
	uint32_t lag;       /* likewise */
	uint32_t reserved0;
	double predicted; /* seconds of a step; 0: nobody has said */
} step_plan;

/* Between a bucket's exchanges the next one's first goes, unless a solver finds otherwise: by
 * the simulator with two and three rounds up to 30 % of a step less, and at most 2 % more; of
 * one round it is the same (doc/dev/schedule.md). */
#define STEP_PLAN_LAG 1

/* Makes a plan from cut[n], as in merge.h, with that lag. */
gradcomp_status step_plan_from_cut(step_plan *p, const uint8_t *cut, uint32_t n, gradcomp_error *err);
/* Checks that every end is above the one before, the last one n, `position` a permutation, lag 0 or 1. */
gradcomp_status step_plan_check(const step_plan *p, uint32_t n, gradcomp_error *err);
void step_plan_clear(step_plan *p);

#endif
