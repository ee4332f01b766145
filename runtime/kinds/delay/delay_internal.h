/* The files of delayed averaging share this: see delay.h. */
#ifndef KINDS_DELAY_DELAY_INTERNAL_H
#define KINDS_DELAY_DELAY_INTERNAL_H

#include "job/job.h"
#include "reducer/reducer_ops.h"

#include <pthread.h>

/* Casts and sums of the host go over memory in runs that stay in the first-level cache. */
#define DELAY_RUN 4096

typedef struct delay_gpu delay_gpu; /* delay_gpu.h */

typedef struct delay_tensor {
	char *name;
	gradcomp_dtype dtype;
	uint64_t numel, offset; /* number and place of its floats in a slot */
	char *work;             /* the reducer behind averages in it, in the tensor's type */
	void *given;            /* the application's memory, until it is done; else NULL */
	uint64_t n_arrived;     /* steps whose averages have come */
	uint64_t n_done;        /* steps it was done in */
} delay_tensor;

/* The program's callbacks. */
typedef struct delay_calls {
	void (*done)(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err);
	void (*done_run)(void *ctx, uint32_t first, uint32_t n, gradcomp_status status, const gradcomp_error *err);
	void *ctx;
	int running;
	int notified; /* 1: the application knows of a failure, and none of its memory is in use any more */
} delay_calls;

typedef struct delay_model {
	uint32_t n;
	uint64_t numel;
	delay_tensor *tensors;
	float **slots; /* `delay` of numel floats */
	char *work;    /* has all tensors */
} delay_model;

typedef struct delay_threads {
	pthread_cond_t completer_wake, submitter_wake;
	pthread_t completer, submitter;
	int started, stop;
} delay_threads;

/* Tensors that one of the threads has before it. */
typedef struct delay_queue {
	uint32_t *tensors;
	uint64_t first, end;
} delay_queue;

/* Tensors of the step in flight. */
typedef struct delay_given {
	uint32_t given, done;
} delay_given;

/* Adds up how long the application waited for averages. */
typedef struct delay_exposed {
	double last_given, seconds;
} delay_exposed;

typedef struct delay {
	gradcomp_reducer base;
	gradcomp_group *group;
	gradcomp_reducer *inner; /* the reducer behind */
	const gradcomp_operators *ops;
	delay_gpu *gpu; /* gradients are in GPU memory; else NULL */
	delay_calls calls;
	uint32_t delay;
	delay_model model;
	pthread_mutex_t lock;
	pthread_cond_t change;
	delay_threads threads;
	uint64_t step;       /* steps of the application that are over: all tensors were done */
	uint64_t n_averaged; /* steps of it whose averages have come */
	uint32_t n_pending;  /* steps just before `step` whose corrections have not been handed out */
	delay_given now;
	delay_queue complete; /* room for n: of this step */
	delay_queue submit;   /* a ring of n (delay + 1): step after step */
	gradcomp_status failed;
	gradcomp_error failure;
	delay_exposed exposed;
} delay;

/* Returns the slot of a step. */
static inline float *delay_slot(const delay *d, uint64_t step)
{
	return d->model.slots[step % d->delay];
}

/* The slot of the j-th step that is pending, the oldest first. */
static inline float *delay_correction(const delay *d, uint32_t j)
{
	return delay_slot(d, d->step + d->delay - d->n_pending + j);
}

/* delay_threads.c: starts both threads. */
gradcomp_status delay_begin(delay *d, gradcomp_error *err);
void delay_end(delay *d);
/* Is the reducer's done(). */
void delay_arrived(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err);
/* Called with the lock held: the tensor's gradient waits for nothing but the completer. */
void delay_push(delay *d, uint32_t tensor);
/* Called with the lock held: keeps the first failure, and notifies. */
void delay_fail(delay *d, gradcomp_status status, const gradcomp_error *err);
/* Called with the lock held: a failure of the job shows even when nothing is in flight. */
gradcomp_status delay_failure(delay *d, gradcomp_error *err);
/* Called with the lock held: waits until the average of every step has come. `what` is refused in the middle of a
 * step. */
gradcomp_status delay_settle(delay *d, const char *what, gradcomp_error *err);

/* delay_state.c, delay_drain.c: for its reducer_ops. */
gradcomp_status delay_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
gradcomp_status delay_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                  gradcomp_error *err);
gradcomp_status delay_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err);
gradcomp_status delay_drain(gradcomp_reducer *base, void *const *corrections, void *const *weights, double rate,
                            gradcomp_error *err);

#endif
