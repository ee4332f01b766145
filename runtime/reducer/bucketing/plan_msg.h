/* Carries what the first rank of a group makes of what all have measured, as words for the others, which believe
 * nothing of it that cannot be. */
#ifndef REDUCER_BUCKETING_PLAN_MSG_H
#define REDUCER_BUCKETING_PLAN_MSG_H

#include "base/fit.h"
#include "schedule/step_plan.h"

typedef enum plan_msg_kind {
	PLAN_MSG_KEEP,    /* the plan in force, and what is known of it */
	PLAN_MSG_TIMES,   /* likewise, but times are others than when it was made */
	PLAN_MSG_MEASURE, /* exchanges take another time, and what there is cannot tell a from b */
	PLAN_MSG_PLAN,
	PLAN_MSG_TRY,  /* another plan of the same measurements, to be compared by running it */
	PLAN_MSG_FIXED /* fixed buckets, since nothing can be made of what was measured */
} plan_msg_kind;

typedef struct plan_msg {
	plan_msg_kind kind;
	uint64_t step;   /* steps that have ended */
	step_plan plan;  /* PLAN, TRY; predicted is of the plan in force otherwise */
	int trial;       /* the ranks look again after REPLAN_TRIAL_STEPS */
	double fixed;    /* predicted seconds of a step with fixed buckets */
	double exposed;  /* predicted: from the last gradient to the end of the step */
	double passes;   /* from the start of a step to its last gradient */
	linear exchange; /* a round's, over its payload bytes */
	double rounds;   /* a bucket's */
	linear encode, decode;
	double *backward; /* by tensor of the layout; owned */
} plan_msg;

/* Returns the words of a message about n tensors. */
size_t plan_msg_words(uint32_t n);
void plan_msg_put(const plan_msg *v, uint32_t n, int64_t *words);
/* MISMATCH when these are no words of a message about n tensors after `step` steps. */
gradcomp_status plan_msg_take(const int64_t *words, uint32_t n, uint64_t step, plan_msg *out, gradcomp_error *err);
void plan_msg_clear(plan_msg *v);

#endif
