/* Bucket boundaries that move while the job runs, and error memory that is given back.
 *
 * What is by parameter stays where it is: tensors, error memory, the compressor's arrays and
 * its own state. What is by bucket is made anew. What is by position in a bucket goes along:
 * what a collective holds back (server_error.h) into the error memory of the rank that held it,
 * what the ranks of a node hold of one another's tensors (hierarchical.h) to the ranks that hold
 * those numbers from now on. */
#ifndef REDUCER_BUCKETING_REBUCKET_H
#define REDUCER_BUCKETING_REBUCKET_H

#include "schedule/step_plan.h"
#include "reducer/reducer.h"

/* Called on the exchange thread, without the lock, when no task runs and no bucket has begun
 * the step; tensors may have been given. All ranks call it between the same two steps with
 * equal plans. It is for all of them or for none: on failure the plan before it stands, and
 * all ranks return an error when one does; the reducer goes on with the plan it had, unless
 * the job has failed. Afterwards nbuckets, buckets, bucket_of, schedule and stats.buckets are
 * those of the plan. With two levels the compressor's instance is then another one.
 *
 * One all-reduce of three words; with two levels also, on the links of each node, what its
 * ranks hold, once an array. Workspace that a larger bucket needed is kept. */
gradcomp_status reducer_rebucket(reducer *r, const step_plan *p, gradcomp_error *err);

/* Adds what this rank still owes of tensor `index` (the caller's numbering) to to[numel], in host memory, and no
 * longer owed: its error memory, or the last state array of a compressor with GRADCOMP_TRAIT_OWN_MOMENTUM; with two
 * levels, what it holds of the tensor in its shards. Between steps. */
gradcomp_status reducer_residual_export(reducer *r, uint32_t index, float *to, gradcomp_error *err);
/* The same, and it is owed as before. */
gradcomp_status reducer_residual_copy(reducer *r, uint32_t index, float *to, gradcomp_error *err);

#endif
