/* Inside of gradcomp_reducer: what happens to a gradient between ready and done.
 *
 * Tensors get offsets in backward order (the reverse of declaration), buckets are
 * runs of neighbours, and a bucket's way through a step is a short list of tasks:
 *
 *     BEGIN                          u = gradient + error memory, finite or not
 *     ENCODE 0  EXCHANGE 0  DECODE 0
 *     ENCODE 1  EXCHANGE 1  DECODE 1     as many rounds as the compressor plans
 *     FINISH                         copy out, tell the application
 *
 * Two threads run them, the compute thread and the exchange thread. Which bucket is
 * next is the schedule's to say (schedule.h): exchanges have one order, the same on all
 * ranks whatever order gradients become ready in. Workspace comes from a few slots,
 * given to buckets in their places' order, so that a late bucket never holds what an
 * earlier one waits for.
 *
 * Ownership. A bucket in flight belongs to the thread that runs its task and is
 * handed on under `lock`; everything else that changes is under `lock`. */
#ifndef REDUCER_REDUCER_H
#define REDUCER_REDUCER_H

#include "schedule/task_list.h"
#include "job/job.h"
#include "schedule/schedule.h"

/* Buckets in flight. One computes, one exchanges, one waits for each of them; more are of no
 * use to one thread of each kind (doc/schedule.md). */
#define REDUCER_WORKSPACES 4

typedef struct gpu gpu; /* gpu.h */

/* Memory of a bucket in flight; grows to what was needed most. */
typedef struct workspace {
	struct scratch_buf {
		void *p;
		size_t bytes;
		const struct device_calls *on; /* of a device, or its pinned host memory; NULL: plain */
		int pinned;
	} flat, own, gathered, scratch;
} workspace;

typedef struct bucket {
	gradcomp_bucket pub;
	workspace *workspace; /* of its place in the schedule, while it is in flight */
	gradcomp_plan plan;
	task tasks[MAX_TASKS];
	int ntasks, next;
	int local_bad;   /* this rank's gradient is not finite; index of the tensor + 1 */
	int bad;         /* some rank's is: known after round 0 */
	int fault;       /* what peers sent is not what it should be: set by operators */
	int copy_out;    /* x is workspace, not the caller's memory */
	uint64_t later;  /* its next task waits for what it has put on the device, as the so-many-th: see gpu.h */
	gradcomp_work work;
	gradcomp_payload own;
	gradcomp_payload *parts; /* GATHERED: nranks of them */
	float **x, **error;      /* of each tensor */
	float **state;           /* of each resident array */
	float *server_error;         /* the collective's memory, or NULL */
	uint64_t nserver_error;
	struct bucket *part;     /* this rank's shard of it, or NULL: see shards.h */
} bucket;

struct gradcomp_reducer {
	const struct reducer_ops *calls; /* see front.h; NULL: it is this reducer itself */
	void *front;
	/* Of a reducer behind a front: takes over its row of the report. NULL: the job does. */
	void (*keep)(void *ctx, report_reducer *row);
	void *keep_ctx;
	gradcomp_job *job;
	gradcomp_group *group;
	const struct gradcomp_compressor_v1 *compressor;
	void *instance;
	char *asked; /* the compressor's SPEC as it was typed */
	char *compressor_spec, *collective_spec;
	coll_ctx coll_ctx;
	gpu *gpu; /* gradients are in GPU memory; else NULL */
	gradcomp_layout layout;
	gradcomp_tensor *tensors; /* of the layout; names and dims are owned */
	bucket *buckets;
	uint32_t nbuckets;
	uint32_t *bucket_of; /* by tensor of the layout */
	schedule schedule;   /* of the buckets */
	uint64_t bucket_bytes, first_bucket_bytes;
	float *error;  /* numel, or NULL */
	float **state; /* compressor->state_arrays of numel */
	float *server_error; /* of all buckets, one after another, or NULL: see resident.c */
	uint64_t nserver_error;
	struct shards *shards; /* two levels; else NULL */
	float *memory; /* the one of them that holds back what was not sent, or NULL */
	struct held {        /* of each tensor of the layout: see held.c */
		double u, shares; /* sampled |u|^2 of this step; sum of |e| / |u| over steps */
		uint64_t steps;
	} *held;
	struct profile *profile; /* profile.h */
	struct replan *replan;   /* replan.h */
	uint64_t *lengths; /* 2 nranks words of the exchange thread's: lengths, and what comes with them */
	void (*done)(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err);
	void *ctx;

	pthread_mutex_t lock;
	pthread_cond_t compute_wake, exchange_wake, step_over;
	pthread_t compute, exchange;
	int threads; /* started */
	int stop;
	uint64_t step;
	int replan_due; /* nothing is admitted until replan_run() has been */
	void **given;        /* by tensor of the layout: the gradient of this step, or NULL */
	void **grads;        /* what tasks work on: `given`, or where it has been copied to */
	uint32_t ngiven;
	int callbacks;     /* running */
	uint32_t callback_first, callback_count; /* tensors that one of them is about: the first, how many */
	int running;       /* tasks: they may touch the caller's gradients */
	workspace workspaces[REDUCER_WORKSPACES];
	double patience;   /* seconds without a gradient in the middle of a step */
	gradcomp_status failed;
	gradcomp_error failure;
	double step_began, last_given;
	struct trace *trace; /* the job's timeline, or NULL */
	uint16_t trace_id;
	double step_e, step_u; /* |e|^2 and |u|^2 of this step: the compute thread's */
	int step_bad; /* this step has been counted as non-finite */
	int warned;   /* non-finite gradients told of */
	gradcomp_reducer_stats stats;
};

/* reducer.c: the arrays of a layout, zeroed; none of the compressor's with two levels. */
gradcomp_status reducer_allocate(gradcomp_reducer *r, gradcomp_error *err);
/* With the lock held: tensor i of the layout was given in this step. */
int reducer_was_given(const gradcomp_reducer *r, uint32_t i);
/* The first that was not; there is one. */
uint32_t reducer_missing(const gradcomp_reducer *r);
/* layout.c: fills layout and tensors. */
gradcomp_status layout_make(gradcomp_reducer *r, const gradcomp_tensor_desc *tensors, uint32_t n, uint64_t seed,
                            gradcomp_error *err);
/* Before anything of the model's size is allocated: what the compressor can
 * count. */
gradcomp_status layout_limits(const gradcomp_reducer *r, gradcomp_error *err);
void layout_free(gradcomp_reducer *r);
/* Of everything all ranks must agree on about tensor t. */
uint64_t layout_hash_tensor(const gradcomp_tensor *t);

/* state.c: with the lock held, whether there is nothing of a step; `what` is asked for. */
gradcomp_status reducer_between_steps(const gradcomp_reducer *r, const char *what, gradcomp_error *err);

/* reducer_consensus.c: `mine` is this rank's status so far, with `err` when it is not OK.
 * Every rank calls it; all return an error when one does. */
gradcomp_status reducer_consensus(gradcomp_reducer *r, gradcomp_group *g, gradcomp_status mine, gradcomp_error *err);

/* tasks.c */
gradcomp_status task_run(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err);
/* The same in the memory of the host. */
gradcomp_status task_host(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err);
/* The parts of it that are as good for a device: what BEGIN settles before it touches a
 * gradient, a gradient passed on that is not finite, and a fault. */
gradcomp_status task_place(gradcomp_reducer *r, bucket *b, gradcomp_error *err);
void task_pass_on(gradcomp_reducer *r, bucket *b);
gradcomp_status task_damaged(const gradcomp_reducer *r, const bucket *b, gradcomp_error *err);
/* exchange.c, and a file for each pattern. */
gradcomp_status exchange_run(gradcomp_reducer *r, bucket *b, uint32_t round, gradcomp_error *err);
gradcomp_status exchange_allreduce(gradcomp_reducer *r, bucket *b, uint32_t round, gradcomp_error *err);
gradcomp_status exchange_allgather(gradcomp_reducer *r, bucket *b, uint32_t round, gradcomp_error *err);
gradcomp_status exchange_tree_merge(gradcomp_reducer *r, bucket *b, uint32_t round, gradcomp_error *err);
gradcomp_status exchange_codec(gradcomp_reducer *r, bucket *b, gradcomp_error *err);
/* Tells which rank's gradient, and which tensor's, is not finite: an exchange that only a
 * bad step pays. */
gradcomp_status exchange_nonfinite(gradcomp_reducer *r, bucket *b, gradcomp_error *err);
/* An all-gather of blocks of these lengths. */
gradcomp_status exchange_blocks(gradcomp_reducer *r, void *buf, const uint64_t *bytes, gradcomp_error *err);
/* A word in front of gathered and merged payloads; what a merged one takes with it. */
#define PAYLOAD_HEAD sizeof(uint64_t)
static inline uint64_t merged_bytes(uint64_t bound)
{
	return PAYLOAD_HEAD + ((bound + 7) & ~(uint64_t)7);
}
/* area.c: grows an area to `bytes`; its content is lost. */
gradcomp_status scratch_buf_grow(struct scratch_buf *a, size_t bytes, gradcomp_error *err);
void scratch_buf_free(struct scratch_buf *a);
/* All areas of a slot are in such memory from now on. */
void workspace_place(workspace *s, const struct device_calls *on, int pinned);
void reducer_workspace_free(workspace *s);

/* held.c: numbers read out of every so many. */
#define RESIDUAL_RUN 256
#define RESIDUAL_EVERY 8192
/* |x|^2, or |x + more|^2, of the run that begins at element `at` of n, if one does. */
double residual_norm_run(const float *x, const float *more, uint64_t at, uint64_t n);
/* The compute thread's, when the bucket's last decode is over. */
void residual_norm_bucket(gradcomp_reducer *r, const bucket *b);
/* The same of one tensor whose memory's sum is `e`. */
void residual_norm_tensor(gradcomp_reducer *r, uint32_t tensor, double e);
/* With the lock held, when the step is over. */
void residual_norm_step(gradcomp_reducer *r);

/* queue.c */
gradcomp_status workers_start(gradcomp_reducer *r, gradcomp_error *err);
void workers_stop(gradcomp_reducer *r);
/* With the lock held: a gradient has been given. */
void workers_given(gradcomp_reducer *r, uint32_t bucket);
/* With the lock held, dropped meanwhile: until ranks do not talk about a plan any more. */
void workers_replan_settle(gradcomp_reducer *r);
/* With the lock held: the first failure is kept, told to all ranks, and every
 * tensor in the reducer's hands is done with it. Drops and takes the lock. */
void workers_fail(gradcomp_reducer *r, gradcomp_status status, const gradcomp_error *err);

#endif
