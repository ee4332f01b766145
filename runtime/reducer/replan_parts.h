/* Inside of replan.h. */
#ifndef REDUCER_REPLAN_PARTS_H
#define REDUCER_REPLAN_PARTS_H

#include "replan.h"
#include "schedule_spec.h"
#include "verdict.h"

/* Fewer steps that can be used than this make no profile, nor do passes or exchanges that
 * vary by more than this share of a step, and of their length. */
#define REPLAN_LEAST_STEPS 3
#define REPLAN_MOST_NOISE 0.5
/* By so much a new plan must be better. */
#define REPLAN_GAIN 0.02
/* Plans of steps that are there to be measured: fixed buckets, small ones, large ones. */
#define REPLAN_PHASES 3

struct replan {
	schedule_spec spec;
	step_plan file;                      /* PLAN */
	uint32_t profile_steps, replan_steps;
	double drift;
	int measures;                        /* plans are made from measurements */
	uint32_t phases;                     /* plans that are tried first; 1: that in force */
	uint32_t phase;                      /* phases: a plan has been made, or will not be */
	uint64_t start;                      /* steps that had ended when measuring began */
	uint64_t from;                       /* the first step that counts */
	uint64_t next;                       /* steps after which the ranks talk; 0: never */
	uint64_t interval;                   /* steps to the next look */
	step_plan before;                    /* the one that was in force when measuring began again, or none */
	int known;                           /* `last` has times to compare with */
	verdict last;
	int settled;                         /* a plan made from measurements is in force */
	uint32_t plans;                      /* made */
	char name[48];                       /* whose the plan is, on the first rank */
	char reason[200];                    /* why buckets are fixed, or empty; there too */
};

/* replan_decide.c, on the first rank: what follows from a fit. */
struct fit;
/* The compressor is told what was measured, for the step that comes; the first rank tells it
 * before it solves, since that may change the payloads. Not after a state was loaded, which
 * has been told. */
gradcomp_status replan_tell(gradcomp_reducer *r, const verdict *v, gradcomp_error *err);
gradcomp_status replan_decide(gradcomp_reducer *r, struct fit *f, verdict *v, gradcomp_error *err);

#endif
