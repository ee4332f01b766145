/* What the first rank of a group makes of what all have measured, as words for the others,
 * which believe nothing of it that cannot be. */
#ifndef REDUCER_VERDICT_H
#define REDUCER_VERDICT_H

#include "gradcomp/model.h"
#include "model/step_plan.h"

typedef enum verdict_kind {
	VERDICT_KEEP,  /* the plan in force, and what is known of it */
	VERDICT_TIMES, /* likewise, but times are others than when it was made */
	VERDICT_MEASURE, /* exchanges take another time, and what there is cannot tell a from b */
	VERDICT_PLAN,
	VERDICT_TRY,   /* another plan of the same measurements, to be compared by running it */
	VERDICT_FIXED  /* fixed buckets, since nothing can be made of what was measured */
} verdict_kind;

typedef struct verdict {
	verdict_kind kind;
	uint64_t step;    /* steps that have ended */
	step_plan plan;   /* PLAN, TRY; predicted is of the plan in force otherwise */
	int trial;        /* the ranks look again after schedule.trial_steps */
	double fixed;     /* predicted seconds of a step with fixed buckets */
	double exposed;   /* predicted: from the last gradient to the end of the step */
	double passes;    /* from the start of a step to its last gradient */
	gradcomp_line exchange; /* of a round, over its payload bytes */
	double rounds;    /* of a bucket */
	gradcomp_line encode, decode;
	double *backward; /* by tensor of the layout; owned */
} verdict;

/* Words of a verdict on n tensors. */
size_t verdict_words(uint32_t n);
void verdict_put(const verdict *v, uint32_t n, int64_t *words);
/* MISMATCH when these are no words of a verdict on n tensors after `step` steps. */
gradcomp_status verdict_take(const int64_t *words, uint32_t n, uint64_t step, verdict *out, gradcomp_error *err);
void verdict_clear(verdict *v);

#endif
