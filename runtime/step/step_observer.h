/* The observer hears of the tasks of a step that were all enqueued, when the device has done them. It is called
 * with the reducer's lock held. */
#ifndef STEP_STEP_OBSERVER_H
#define STEP_STEP_OBSERVER_H

#include "schedule/task_list.h"

/* Times are seconds of clock_now(). `row` is what row() has said of the step. */
typedef struct observed_task {
	uint64_t step, row;
	uint32_t nbuckets, bucket;
	double numel, bytes; /* bytes: that it worked on; of an exchange a rank's payload */
	int bad;             /* the bucket's result is void */
	task t;
	double start, end;
} observed_task;

/* The first gradient and the last were there, and all was over. */
typedef struct observed_step {
	uint64_t step, row;
	double first, last, over;
} observed_step;

typedef struct step_observer {
	uint64_t (*row)(void *ctx); /* gives the row of the step that begins */
	void (*ready)(void *ctx, uint64_t row, uint32_t tensor, double at);
	void (*task)(void *ctx, const observed_task *t);
	void (*over)(void *ctx, const observed_step *s); /* after all tasks */
	void *ctx;
} step_observer;

#endif
