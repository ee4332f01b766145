/* Measures what a reducer's steps cost while they run: the profile that merge plans are made from.
 *
 * Of every step: when each gradient came, how long the tasks of each bucket took, when the
 * step was over. A step is a row of a table; of rows come medians when somebody asks, so that
 * a step that was disturbed counts for nothing. */
#ifndef REDUCER_BUCKETING_PROFILE_H
#define REDUCER_BUCKETING_PROFILE_H

#include "reducer/reducer.h"

#include "base/fit.h"

/* Seconds. What this rank has measured; or, `agreed`, what all ranks have (replan.h): the
 * slowest rank's passes, exchanges without the waiting for late ranks. */
typedef struct profile_summary {
	uint32_t ntensors;
	uint32_t steps;         /* that it rests on; 0: nothing is known yet */
	const double *backward; /* by tensor of the layout, in backward order; gradients that came
	                         * together share their time by their numbers */
	double forward;         /* from the end of a step to the first gradient of the next, less what
	                         * the program waited for averages: optimizer, forward pass */
	double step;            /* a whole step as it was measured, the median */
	linear exchange;        /* a round's of a bucket, over its payload bytes of a rank */
	linear encode;          /* a bucket's computing before its first exchange, over its numbers */
	linear decode;          /* and after that */
	/* half of what lies between the quartiles of the backward pass's length, as a share of the step */
	double noise;
	uint32_t each_layer; /* the program waits for single tensors */
	uint32_t agreed;     /* equal on all ranks */
} profile_summary;

typedef struct profile profile;

/* Steps of this reducer are those of all ranks (rank_times.h). */
static inline bool profile_of_world(const reducer *r)
{
	return r->eng.group->nranks == r->eng.job->nranks;
}

/* Opens the profile of a reducer, when its layout is there. `rows` steps are kept. */
gradcomp_status profile_open(reducer *r, uint32_t rows, gradcomp_error *err);
void profile_close(reducer *r);

/* These record into it; the lock is held, and each is a few stores. Tensor of the layout was given at `now`. */
void profile_ready(reducer *r, uint32_t tensor, double now);
/* Task t of bucket b ran from `start` to `end`. */
void profile_task(reducer *r, const bucket *b, const task *t, double start, double end);
/* The same of work on a device, which is known later: of row profile_row_now() of then. Until
 * profile_step_of() such a row is not looked at. */
typedef struct profile_timed {
	uint32_t nbuckets, bucket;
	double numel, bytes; /* bytes: of an exchange */
	int bad;
} profile_timed;
uint64_t profile_row_now(reducer *r);
void profile_task_of(reducer *r, uint64_t row, const profile_timed *b, const task *t, double took);
void profile_ready_of(reducer *r, uint64_t row, uint32_t tensor, double at);
/* The first and the last gradient were there, and the step was over. */
void profile_step_of(reducer *r, uint64_t row, double first, double last, double over);
/* The step ended at `now`; r->eng.step is the next one already. */
void profile_step(reducer *r, double now);
/* The step that comes does not count: memory grows in it, caches are cold. */
void profile_drop(reducer *r);
/* The program was held up so long in wait(), or in wait_for(): `layer`. */
void profile_waited(reducer *r, double seconds, int layer);

/* Shares of the time from a step's first gradient to its last in which an exchange ran, and a
 * task that computes: medians, 0 where nothing is known, as of a device. Takes the lock. */
enum { PROFILE_EXCHANGING, PROFILE_COMPRESSING, PROFILE_BESIDE };
void measure_beside(reducer *r, double share[PROFILE_BESIDE]);

/* Tries out what its own exchanges and its own compressing cost the backward pass, while the job runs: of every 16
 * steps one keeps its exchanges back until its last gradient is there, and another all of its tasks. For jobs that
 * are recorded; the lock is held. */
void profile_try(reducer *r);
/* Returns 1 when exchanges, or all tasks, are kept back just now. */
int profile_holds(const reducer *r, int which);
/* Returns 1 when this step has kept something back until its last gradient, which is there. */
int profile_held(const reducer *r);
/* Nothing is, in the rest of this step: the program waits for a tensor. Returns whether something was. */
int profile_let_go(reducer *r);
/* Nor later; what was found stays unknown. */
void profile_try_no_more(reducer *r);
/* Computes how many times as long as by itself the pass takes beside each; 0: not known, as too few steps were
 * tried, their lengths vary too much, or nothing was beside it for a twentieth of the pass. Takes the lock. */
void measure_slower(reducer *r, double times[PROFILE_BESIDE]);

/* Returns the latest summary; takes the lock. Valid until the next call, or replan_run(). Never NULL. */
const profile_summary *profile_get(reducer *r);

#endif
