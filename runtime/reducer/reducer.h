/* Inside of gradcomp_reducer: what happens to a gradient between ready and done.
 *
 * A reducer has an engine (engine.h), which knows how a bucket is compressed and exchanged,
 * a schedule (schedule/bucket_order.h), which says which bucket is next, and turns on the job's
 * threads (progress.h), which run the buckets' tasks: one that computes at a time, the compute
 * thread, and one that exchanges, the exchange thread. Exchanges have one
 * order, the same on all ranks whatever order gradients become ready in. Workspace comes from
 * a few workspaces, given to buckets in the order of their positions, so that a late bucket never holds
 * what an earlier one waits for.
 *
 * Ownership. A bucket in flight belongs to the thread that runs its task and is handed on
 * under `lock`; everything else that changes is under `lock`. */
#ifndef REDUCER_H
#define REDUCER_H

#include "step/engine.h"
#include "reducer/progress.h"
#include "reducer/reducer_ops.h"
#include "schedule/bucket_order.h"

#include <pthread.h>

/* Buckets in flight. One computes, one exchanges, one waits for each of them; more are of no
 * use to one thread of each kind (doc/dev/schedule.md). */
#define REDUCER_WORKSPACES 4

/* These were asked for. */
typedef struct reducer_specs {
	char *asked; /* the compressor's SPEC as it was typed */
	char *collective;
	char *aside; /* why the device's own collective is not used, or NULL */
} reducer_specs;

/* The program's callbacks. */
typedef struct reducer_calls {
	void (*done)(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err);
	void (*done_run)(void *ctx, uint32_t first, uint32_t n, gradcomp_status status, const gradcomp_error *err);
	void *ctx;
	int running;
	uint32_t first, count; /* tensors that one of them is about */
} reducer_calls;

/* The threads are at this: see run_step.c. */
typedef struct reducer_turns {
	int stop;
	int replan_due;      /* nothing is admitted until replan_run() has been, */
	int verify_due;      /* or verify_step(), for which wait() waits */
	int running;         /* tasks: they may touch the caller's gradients */
	bool watching;       /* the exchange thread looks after what the collective has on a device, */
	int failing;         /* and so many threads wait for what it finds, to say why they have failed */
	int inside, holders; /* threads inside of the compressor; those that wait until nobody is */
	double patience;     /* seconds without a gradient in the middle of a step */
	double watch_at;     /* when what is on the device is looked after again */
} reducer_turns;

/* The gradients of this step. */
typedef struct reducer_step {
	void **given; /* by tensor of the layout, or NULL */
	uint32_t ngiven;
	double began, last_given;
} reducer_step;

typedef struct reducer {
	gradcomp_reducer base;
	engine eng;
	reducer_specs specs;
	schedule schedule; /* the order of its buckets */
	uint64_t bucket_bytes, first_bucket_bytes;
	struct profile *profile; /* bucketing/profile.h */
	struct replan *replan;   /* bucketing/replan.h */
	reducer_calls calls;
	pthread_mutex_t lock;
	pthread_cond_t step_over;
	progress_client progress;
	reducer_turns turns;
	reducer_step step;
	workspace workspaces[REDUCER_WORKSPACES];
	gradcomp_status failed;
	gradcomp_error failure;
	struct trace *trace; /* the job's timeline, or NULL */
	uint16_t trace_id;
} reducer;

/* The reducer behind a public handle, when it is one that reduces. */
static inline reducer *reducer_of(gradcomp_reducer *r)
{
	return (reducer *)r;
}

/* Called with the lock held: returns true when tensor i of the layout was given in this step. */
static inline bool reducer_was_given(const reducer *r, uint32_t i)
{
	return r->step.given[i] || r->schedule.bucket[r->eng.list.bucket_of[i]].state == SCHEDULE_ENDED;
}

/* Called with the lock held: returns the first that was not; there is one. */
static inline uint32_t reducer_missing(const reducer *r)
{
	uint32_t i = 0;
	while (reducer_was_given(r, i))
		i++;
	return i;
}

/* Creates a reducer like gradcomp_reducer_create(); `options` are whole, whatever headers the caller had, and their
 * delay, which others see to, is compared with that of other ranks. `by_hand`: somebody named its SPEC, and the report is to
 * say what it costs. */
gradcomp_status reducer_create(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                               const gradcomp_reducer_options *options, bool by_hand, reducer **out,
                               gradcomp_error *err);
/* reducer_state.c: for its reducer_ops. */
gradcomp_status reducer_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                             gradcomp_error *err);
gradcomp_status reducer_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                    gradcomp_error *err);
gradcomp_status reducer_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err);

/* When the job has failed, all tensors that were given are done now, with its error. Without the lock. */
void reducer_look(reducer *r);

/* run_step.c */
gradcomp_status run_step_start(reducer *r, gradcomp_error *err);
void run_step_stop(reducer *r);
/* Called with the lock held: a gradient has been given. */
void run_step_given(reducer *r, uint32_t bucket);
/* Called with the lock held: lets go what a step keeps back until its last gradient (profile_try()). */
void run_step_let_go(reducer *r);
/* Called with the lock held: counts, measures and tells what a device has done of steps that are over. Fails when
 * it found that a payload was damaged. */
gradcomp_status run_step_learn(reducer *r, gradcomp_error *err);
/* Called with the lock held, which is dropped meanwhile: waits until the ranks' replanning round is over, and
 * nothing of the reducer's is on a device. */
void run_step_replan_settle(reducer *r);
/* Called with the lock held: fails when something of a step is there; `what` is asked for. */
gradcomp_status run_step_between_steps(const reducer *r, const char *what, gradcomp_error *err);
/* Called with the lock held, which is dropped meanwhile: waits until nobody is inside of the compressor, for so
 * long at most. Returns whether that is so; it stays so while the lock is held. After it the release, in any case. */
int run_step_hold(reducer *r, double seconds);
void run_step_release(reducer *r);
/* Called with the lock held: keeps the first failure, sends it to all ranks, and ends every tensor in the reducer's
 * hands with it. Drops and takes the lock. */
void run_step_fail(reducer *r, gradcomp_status status, const gradcomp_error *err);

#endif
