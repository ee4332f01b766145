/* Makes of a reducer's tensors and a plan all that is by bucket. It is made beside the one in use and then takes
 * its place, at once, so that there is always a whole one. */
#ifndef REDUCER_BUCKETING_BUCKETING_H
#define REDUCER_BUCKETING_BUCKETING_H

#include "schedule/step_plan.h"
#include "step/bucket.h"
#include "reducer/reducer.h"

typedef struct bucketing {
	bucket_list list;
	schedule schedule;
} bucketing;

/* Checks that the reducer can have this plan; what is wrong is said with the plan's numbers. */
gradcomp_status bucketing_check(const reducer *r, const step_plan *p, gradcomp_error *err);
/* Buckets of a plan that has been checked, with what belongs to each of the reducer's
 * arrays; with shards, those and the compressor on them, of zeroed arrays. Says nothing to
 * other ranks. *out is to be freed, or taken, either way. */
gradcomp_status bucketing_make(reducer *r, const step_plan *p, bucketing *out, gradcomp_error *err);
/* Makes the order alone, for buckets that stay as they are. */
gradcomp_status bucketing_order(const step_plan *p, bucketing *out, gradcomp_error *err);
/* Returns the one in use. */
bucketing bucketing_current(const reducer *r);
/* *d, which is whole or an order alone, is in use from now on, and what was is *d. With the lock held
 * once there are threads. Tensors given in this step count as given in it. */
void bucketing_swap(reducer *r, bucketing *d);
void bucketing_free(bucketing *d);
/* Gives the plan in force, to be cleared. */
gradcomp_status bucketing_plan(const reducer *r, step_plan *out, gradcomp_error *err);

#endif
