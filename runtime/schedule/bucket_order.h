/* Says who goes next: the order of things within a step, without threads, clock or bytes.
 *
 * The reducer's threads ask it under their lock; the simulator asks it with a clock of its
 * own (sim.h). So what is predicted is what runs.
 *
 * A bucket's step is a list of tasks, some of which exchange (task_list.h), in stages: most
 * often a stage is one exchange. Exchanges of all buckets are in one order, the same on all
 * ranks: bucket B is at position[B], its k-th stage (k = 0, 1, ...) has the key
 * position[B] + lag * k; smaller keys go first, and of equal ones that of the larger position.
 * With lag 0 a bucket's exchanges follow one another; with lag 1 the next bucket's first
 * goes between its first two, so that the link is busy while it decodes and encodes.
 *
 * Begun buckets hold workspace, of which there is for `window`: the one of position p takes
 * that of p - window, when it has ended. So in the order of exchanges too the buckets of
 * only `window` positions take part at a time: those from the first that has stages left.
 *
 * How many stages a bucket has is known when it has begun, which is before its first; which
 * it is at, and whether it skips some, before the next. Hence the order needs no messages
 * between ranks. What it takes from them is that they say the same of a stage's number;
 * within a stage and where stages are skipped they may differ, as ranks of a node do whose
 * shards have different numbers of rounds.
 *
 *     schedule_given()      a tensor's gradient is there
 *     schedule_admit()      -> a bucket that begins: it goes to compute
 *     schedule_compute()    -> the bucket the compute thread takes next
 *     schedule_begun()      how many stages it has
 *     schedule_reached()    its next task is an exchange
 *     schedule_exchange()   -> the bucket whose exchange comes next, if it is there
 *     schedule_exchanged()  and back to compute
 *     schedule_ended()      its last task is over
 *
 * Each call takes O(window); the last of a step O(n). One caller at a time. */
#ifndef SCHEDULE_BUCKET_ORDER_H
#define SCHEDULE_BUCKET_ORDER_H

#include <stdint.h>

typedef enum schedule_state {
	SCHEDULE_IDLE,    /* gradients are missing, or no room */
	SCHEDULE_WAITING, /* for the compute thread */
	SCHEDULE_COMPUTING,
	SCHEDULE_AT_EXCHANGE,
	SCHEDULE_EXCHANGING,
	SCHEDULE_ENDED
} schedule_state;

typedef struct schedule_bucket {
	uint32_t position;
	uint32_t tensors, given;
	uint32_t stages, left; /* stages of this step; 1 until it is known */
	schedule_state state;
} schedule_bucket;

#define SCHEDULE_NONE UINT32_MAX

typedef struct schedule {
	uint32_t n, window, lag;
	schedule_bucket *bucket; /* n, owned */
	uint32_t *at;            /* at[position]: the bucket; owned */
	/* Places: the first that has not begun, not ended, and has stages left in this step. */
	uint32_t admitted, tail, head;
	uint32_t ended; /* buckets */
} schedule;

/* Bucket B has tensors[B] tensors, at least one. position: a permutation of 0..n-1, or NULL:
 * buckets in their order. Both are copied; window is at least 1. 0, or -1 without memory;
 * *s is to be freed either way. */
int schedule_make(schedule *s, uint32_t n, const uint32_t *tensors, const uint32_t *position, uint32_t window,
                  uint32_t lag);
void schedule_free(schedule *s);
/* Makes all as it was before the first gradient of a step. */
void schedule_restart(schedule *s);

/* At most as often as it has tensors. */
void schedule_given(schedule *s, uint32_t bucket);
/* A bucket whose gradients are there and whose turn it is, now WAITING; else NONE. To be
 * asked until it says NONE, after schedule_given() and schedule_ended(). */
uint32_t schedule_admit(schedule *s);
/* Takes the bucket WAITING whose next exchange comes first, so that the link is fed; those that are past their last
 * one come after. Now COMPUTING; NONE when none waits. */
uint32_t schedule_compute(schedule *s);
/* COMPUTING -> WAITING: it has work under way elsewhere, and another may go first. Who asks
 * schedule_compute() next may be given it again, and looks further with it in hand. */
void schedule_later(schedule *s, uint32_t bucket);
void schedule_begun(schedule *s, uint32_t bucket, uint32_t stages);
/* COMPUTING -> AT_EXCHANGE, of the first of `left` stages: fewer than it had when some are
 * skipped. */
void schedule_reached(schedule *s, uint32_t bucket, uint32_t left);
/* The bucket whose exchange is the next of all, now EXCHANGING; NONE when it is not there
 * yet, or all is exchanged. */
uint32_t schedule_exchange(schedule *s);
/* EXCHANGING -> WAITING. `left` is how many stages it has left: as many as before when the
 * stage has more exchanges, fewer than planned where the rest is given up. */
void schedule_exchanged(schedule *s, uint32_t bucket, uint32_t left);
/* COMPUTING -> ENDED. Returns 1 when it was the step's last bucket; everything is then as
 * after restart. */
int schedule_ended(schedule *s, uint32_t bucket);

#endif
