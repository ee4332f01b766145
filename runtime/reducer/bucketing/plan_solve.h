/* From what was measured to a plan: the solvers' (model/merge.h), judged by the simulator of
 * the reducer's own schedule (model/simulate.h). */
#ifndef REDUCER_BUCKETING_PLAN_SOLVE_H
#define REDUCER_BUCKETING_PLAN_SOLVE_H

#include "reducer/bucketing/measure.h"
#include "schedule/step_plan.h"
#include "config/schedule_spec.h"

typedef struct solution {
	step_plan plan; /* with what it is predicted to take; none of a rival that there is not */
	double exposed;
	char name[40]; /* whose it is: "mgwfbp", "best, lag 0" */
} solution;

/* The rounds of a bucket of tensors [first, end), and the bucket. */
gradcomp_status plan_solve_rounds(gradcomp_reducer *r, const fit *f, uint32_t index, uint32_t first, uint32_t end,
                             gradcomp_bucket *b, gradcomp_plan *plan, gradcomp_error *err);
/* The seconds of a step with such a plan. Asks the compressor for its rounds: for a thread
 * that may, between steps. */
gradcomp_status plan_solve_predict(gradcomp_reducer *r, const fit *f, const step_plan *p, double *step, double *exposed,
                              gradcomp_error *err);
/* The plan of a method; or the simple one of fixed buckets, one message, or one for each
 * tensor that is predicted to be better by PLAN_SOLVE_SIMPLE. AUTO takes the best of all of them,
 * of both lags, and in the order of need where the program waits for layers. *rival: of the
 * simple ones that are at most PLAN_SOLVE_CANDIDATE worse the one whose number of messages is the most
 * different: what the line of seconds over bytes does not know shows there. */
#define PLAN_SOLVE_SIMPLE 0.02
#define PLAN_SOLVE_CANDIDATE 0.1
/* The most bytes of a bucket of several tensors in any of these plans, or four times
 * reducer.bucket_bytes where that is more. */
#define PLAN_SOLVE_MOST_BYTES ((uint64_t)100 << 20)
gradcomp_status plan_solve(gradcomp_reducer *r, const fit *f, schedule_method method, solution *out, solution *rival,
                      gradcomp_error *err);
/* Of the methods that need no measuring; FIXED as the options have it. */
gradcomp_status plan_solve_unmeasured(const gradcomp_reducer *r, schedule_method method, step_plan *out,
                                 gradcomp_error *err);
/* Buckets of about `size` numbers. */
gradcomp_status plan_solve_size(const gradcomp_reducer *r, uint64_t size, step_plan *out, gradcomp_error *err);

#endif
