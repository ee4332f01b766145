/* A reducer that outlives ranks (gradcomp.on_failure=shrink). It stands before one that reduces,
 * which is made anew among those that are left.
 *
 * wait() ends with a barrier: when a rank leaves it, all ranks have all of the step's averages. So
 * of a step that fails, either a rank has left the barrier, and then the step is done
 * on all, or none has, and it is void on all: what it has overwritten of error memory is put back.
 *
 * While gradcomp_job_shrink() is at work every call on another thread is refused; calls that are under way end
 * first. */
#ifndef KINDS_ENDURING_H
#define KINDS_ENDURING_H

#include "reducer/reducer.h"

typedef struct enduring enduring;

/* Asks, before anything is made, whether such a reducer may be one that outlives ranks. */
gradcomp_status enduring_check(const gradcomp_group *group, const gradcomp_reducer_options *o, gradcomp_error *err);
gradcomp_status enduring_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                              const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err);

/* How many of the job's reducers do, and are not detached. */
int enduring_count(const gradcomp_job *job);
/* The call that made it has failed at its end: gradcomp_job_shrink() finds out what becomes of it. */
void enduring_pend(gradcomp_reducer *base);
/* Frees those that the program has not been told of. */
void enduring_sweep(gradcomp_job *job);
/* The numbers, as group.done counts, of the calls that made them; ids has room for enduring_all(). */
uint32_t enduring_all(const gradcomp_job *job);
void enduring_ids(const gradcomp_job *job, uint64_t *ids);
/* Is called after a failure: what they keep is set aside, and nothing of them uses the transport any more. */
void enduring_detach(gradcomp_job *job);
/* Settles calls that have failed at their end, when `done` calls are done on all ranks: a reducer that is not to be
 * is freed, one that the last call has made is job->made, and a state is loaded or is not. All are detached. */
void enduring_settle(gradcomp_job *job, uint64_t done);
/* Another rank has freed the one with this id: nothing is left to be done with it but that. */
void enduring_part(gradcomp_job *job, uint64_t id);
/* Collective over the job's world, which is new: they go on in it. *step_done: see
 * gradcomp_survivors. On failure they are detached. */
gradcomp_status enduring_attach(gradcomp_job *job, int *step_done, gradcomp_error *err);

#endif
