/* What the files of delayed averaging share: see delay.h. */
#ifndef REDUCER_DELAYED_DELAYED_INTERNAL_H
#define REDUCER_DELAYED_DELAYED_INTERNAL_H

#include "job/job.h"
#include "reducer/dispatch.h"

#include <pthread.h>

/* Casts and sums of the host go over memory in runs that stay in the first-level cache. */
#define DELAY_RUN 4096

typedef struct delay_gpu delay_gpu; /* delayed_gpu.h */

typedef struct delay_tensor {
	char *name;
	gradcomp_dtype dtype;
	uint64_t numel, offset; /* of floats in a slot */
	char *work;             /* what the reducer behind averages in, of its type */
	void *given;            /* the application's memory, until it is done; else NULL */
	uint64_t n_arrived;     /* steps whose averages have come */
	uint64_t n_done;        /* steps it was done in */
} delay_tensor;

typedef struct delay {
	gradcomp_reducer base;
	gradcomp_group *group;
	gradcomp_reducer *inner; /* the reducer behind */
	const gradcomp_operators *ops;
	delay_gpu *gpu; /* gradients are in GPU memory; else NULL */
	void (*done)(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err);
	void (*done_run)(void *ctx, uint32_t first, uint32_t n, gradcomp_status status, const gradcomp_error *err);
	void *ctx;
	uint32_t n, delay;
	uint64_t numel;
	delay_tensor *tensors;
	float **slots; /* `delay` of numel floats */
	char *work;    /* of all tensors */

	pthread_mutex_t lock;
	pthread_cond_t completer_wake, submitter_wake, change;
	pthread_t completer, submitter;
	int threads; /* started */
	int stop;
	uint64_t step;       /* steps of the application that are over: all tensors were done */
	uint64_t n_averaged; /* steps of it whose averages have come */
	uint32_t n_pending;  /* steps just before `step` whose corrections have not been handed out */
	uint32_t n_given, n_done;
	uint32_t *to_complete; /* n: tensors of this step for the completer */
	uint32_t to_complete_first, to_complete_end;
	uint32_t *to_submit; /* a ring of n (delay + 1): tensors for the submitter, step after step */
	uint64_t to_submit_first, to_submit_end;
	int n_callbacks; /* running */
	int notified;    /* of a failure: no memory of the application's is in use any more */
	gradcomp_status failed;
	gradcomp_error failure;
	double last_given, exposed_s;
} delay;

/* The slot of a step. */
static inline float *delay_slot(const delay *d, uint64_t step)
{
	return d->slots[step % d->delay];
}

/* The slot of the j-th step that is pending, the oldest first. */
static inline float *delay_correction(const delay *d, uint32_t j)
{
	return delay_slot(d, d->step + d->delay - d->n_pending + j);
}

/* delayed_threads.c: starts both threads. */
gradcomp_status delay_begin(delay *d, gradcomp_error *err);
void delay_end(delay *d);
/* The reducer's done(). */
void delay_arrived(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err);
/* With the lock held: the tensor's gradient waits for nothing but the completer. */
void delay_push(delay *d, uint32_t tensor);
/* With the lock held: the first failure is kept and notified. */
void delay_fail(delay *d, gradcomp_status status, const gradcomp_error *err);
/* With the lock held: a failure of the job shows even when nothing is in flight. */
gradcomp_status delay_failure(delay *d, gradcomp_error *err);
/* With the lock held: waits until the average of every step has come. `what` is refused in
 * the middle of a step. */
gradcomp_status delay_settle(delay *d, const char *what, gradcomp_error *err);

/* delayed_state.c, delayed_drain.c: for its reducer_ops. */
gradcomp_status delay_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
gradcomp_status delay_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                  gradcomp_error *err);
gradcomp_status delay_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err);
gradcomp_status delay_drain(gradcomp_reducer *base, void *const *corrections, void *const *weights, double rate,
                            gradcomp_error *err);

#endif
