/* A reducer's questions to the plan search (schedule/plan_search.h): its tensors, its
 * compressor's rounds, and the times that were measured (measure.h). */
#ifndef REDUCER_BUCKETING_PLAN_SOLVE_H
#define REDUCER_BUCKETING_PLAN_SOLVE_H

#include "reducer/bucketing/measure.h"
#include "schedule/plan_search.h"

/* The plan of a method that measures; *candidate as plan_search_run() has it. This and
 * plan_solve_predict() ask the compressor for its rounds: for a thread that may, between
 * steps. */
gradcomp_status plan_solve(reducer *r, const fit *f, schedule_method method, plan_found *out, plan_found *candidate,
                           gradcomp_error *err);
/* Predicts the seconds of a step with such a plan. */
gradcomp_status plan_solve_predict(reducer *r, const fit *f, const step_plan *p, double *step, double *exposed,
                                   gradcomp_error *err);
/* The plan of WFBP, SINGLE, or FIXED as the options have it. */
gradcomp_status plan_solve_simple(const reducer *r, schedule_method method, step_plan *out, gradcomp_error *err);
/* Plans buckets of about `size` numbers. */
gradcomp_status plan_solve_size(const reducer *r, uint64_t size, step_plan *out, gradcomp_error *err);

#endif
