/* A reducer that outlives ranks (gradcomp.on_failure=shrink). It stands before one that reduces,
 * which is made anew among those that are left.
 *
 * wait() ends with a barrier: when a rank leaves it, all ranks have all of the step's averages. So
 * of a step that fails, either a rank has left the barrier, and then the step is done
 * on all, or none has, and it is void on all: what it has overwritten of error memory is put back.
 *
 * While gradcomp_job_shrink() is at work every call on another thread is refused; calls that are under way end first. */
#ifndef REDUCER_ENDURING_H
#define REDUCER_ENDURING_H

#include "reducer/reducer.h"

typedef struct enduring enduring;

/* Whether such a reducer may be one that outlives ranks: before anything is made, and when it has been made. */
gradcomp_status enduring_check(const gradcomp_group *group, const gradcomp_reducer_options *o, gradcomp_error *err);
gradcomp_status enduring_fits(reducer *r, const char *collective, gradcomp_error *err);
gradcomp_status enduring_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                              const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err);

/* How many of the job's reducers do. */
int enduring_count(const gradcomp_job *job);
/* After a failure: what they keep is set aside, and nothing of them uses the transport any more. */
void enduring_detach(gradcomp_job *job);
/* Collective over the job's world, which is new: they go on in it. *step_done: see
 * gradcomp_survivors. On failure they are detached. */
gradcomp_status enduring_attach(gradcomp_job *job, int *step_done, gradcomp_error *err);

#endif
