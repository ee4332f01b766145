/* A discrete-event simulator of training steps of synchronous SGD, on the reducer's own
 * schedule and tasks (bucket_order.h, task_list.h): work is replaced by seconds,
 * nothing else.
 *
 *     copy -> forward n-1..0 -> backward 0..n-1 -> update
 *                     buckets: BEGIN ENCODE EXCHANGE DECODE ... FINISH
 *
 * (tensors are numbered in backward order). Each rank has the application's thread and, as
 * in the reducer, a compute and an exchange thread. A step's batch is read and copied while
 * the step before runs: io + copy count where they are longer than the rest. An exchange
 * starts when all ranks have come to it, and then takes its seconds on all of them. Ranks
 * that are alike are one class; P classes of one rank are P ranks that each have their own
 * times.
 *
 * Where the application waits for layers and not for the step (`each_layer`), it updates
 * and computes a layer of the next forward pass when its bucket is over.
 *
 * Between two exchanges ranks have nothing to do with one another, and the order of
 * exchanges is the same on all of them. So each rank has a clock of its own that is put on
 * by its next event, from one exchange to the next; the latest rank says when that starts.
 * Events: O(P (n + tasks)); memory: about 28 bytes a bucket and class.
 *
 * The DAG model: Shi, Wang, Chu: A DAG Model of Synchronous Stochastic Gradient Descent in
 * Distributed Deep Learning, ICPADS 2018. */
#ifndef SCHEDULE_SIM_H
#define SCHEDULE_SIM_H

#include "schedule/task_list.h"
#include "schedule/step_plan.h"

typedef struct sim_bucket {
	task tasks[MAX_TASKS]; /* filled by task_list_make() */
	double seconds[MAX_TASKS];
	uint32_t ntasks;
} sim_bucket;

/* Ranks that are alike. */
typedef struct sim_class {
	uint32_t ranks;
	double speed; /* their forward and backward passes take 1 / speed of the seconds */
} sim_class;

typedef struct sim_input {
	uint32_t n;             /* tensors, in backward order */
	const double *forward;  /* seconds of each; the pass goes from n-1 down to 0 */
	const double *backward; /* from 0 up to n-1 */
	double io, copy, update;
	const step_plan *plan;
	uint32_t window;
	const sim_bucket *buckets; /* plan->nbuckets */
	const sim_class *classes;  /* NULL: one */
	uint32_t nclasses;
	/* Share of its speed that the compute thread keeps while the application's thread computes
	 * too, and while the exchange thread moves bytes: 1, each has a core of its own. */
	double beside_application, beside_exchange;
	/* The passes lose this much: they take 1 + so much times as long while the exchange thread moves bytes, and
	 * while the compute thread works. 0: nothing, each has a core or a device of its own. */
	double slowed_by_exchange, slowed_by_compute;
	int each_layer;
	uint32_t steps; /* simulated one after another; what is reported is the last */
} sim_input;

enum { SIM_APPLICATION, SIM_COMPUTE, SIM_EXCHANGE };

/* One task as it ran, on class 0, in seconds from the beginning of the last step. */
typedef struct sim_event {
	const char *what; /* "forward", "encode", ...: constants */
	int thread;
	uint32_t index; /* tensor or bucket */
	uint32_t round;
	double start, end;
} sim_event;

typedef struct sim_output {
	double step;    /* seconds from one step to the next, of the slowest class */
	double exposed; /* from the last gradient to the end of the last bucket, of class 0 */
	double compute; /* the compute thread's, of class 0 */
	double exchange;
	sim_event *events; /* set when asked for; to be freed */
	uint32_t nevents;
} sim_output;

gradcomp_status sim_run(const sim_input *in, int with_events, sim_output *out, gradcomp_error *err);

#endif
