/* What compresses and exchanges the buckets of one layout over one collective. The tasks of a
 * bucket (schedule/task_list.h) work on it:
 *
 *     BEGIN                          u = gradient + error memory, finite or not
 *     ENCODE 0  EXCHANGE 0  DECODE 0
 *     ENCODE 1  EXCHANGE 1  DECODE 1     as many rounds as the compressor plans
 *     FINISH                         copy out
 *
 * It has no threads, no order and no lock of its own: a reducer (reducer.h) has one engine and
 * says when which task runs; a hierarchical reduction has another one within, among the ranks
 * that hold the same shard. A bucket in flight belongs to the thread that runs its task. */
#ifndef REDUCER_ENGINE_H
#define REDUCER_ENGINE_H

#include "device/device_arena.h"
#include "job/job.h"
#include "reducer/workspace.h"
#include "schedule/task_list.h"

#include <stdatomic.h>

typedef struct gpu gpu; /* gpu/gpu.h */

enum {
	BAD_SUM = 2,               /* of bucket.bad: gradients are finite on all ranks, what is made of them is not */
	LOCAL_OVERFLOW = INT32_MAX /* of bucket.local_bad: the same on this rank */
};

typedef struct bucket {
	gradcomp_bucket pub;
	workspace *workspace; /* while it is in flight */
	gradcomp_plan plan;
	task tasks[MAX_TASKS];
	int ntasks, next;
	int local_bad;         /* this rank's gradient is not finite; index of the tensor + 1, or LOCAL_OVERFLOW */
	int bad;               /* some rank's is: known after round 0; or BAD_SUM */
	int fault[2];          /* what peers sent is not what it should be: set by operators; what has overflowed */
	int copy_out;          /* x is workspace, not the caller's memory */
	struct gpu_slot *slot; /* of its step, where its tasks are all enqueued; else NULL */
	uint64_t later;        /* its next task waits for what it has put on the device, as the so-many-th: see gpu.h */
	gradcomp_work work;
	gradcomp_payload own;
	gradcomp_payload *parts; /* GATHERED: nranks of them */
	float **x, **error;      /* of each tensor */
	float **state;           /* of each of the compressor's arrays */
	float *server_error;     /* the collective's error memory, or NULL */
	uint64_t nserver_error;
	struct bucket *part;   /* this rank's shard of it, or NULL: see hierarchical.h ... */
	struct bucket *beside; /* ... and of such a one the rank's next shard of the same bucket, or NULL */
} bucket;

/* Of a tensor, see residual_norm.h. */
typedef struct residual_norm {
	double u, shares; /* sampled |u|^2 of this step; sum of |e| / |u| over steps */
	uint64_t steps;
} residual_norm;

typedef struct engine {
	gradcomp_job *job;
	gradcomp_group *group;
	const struct gradcomp_compressor_v1 *compressor;
	void *instance;
	char *compressor_spec;
	const gradcomp_value *values; /* of it; the job's */
	coll_ctx coll_ctx;
	gradcomp_layout layout;
	gpu *gpu;                          /* gradients are in GPU memory; else NULL */
	struct hierarchical *hierarchical; /* two levels; else NULL */
	device_arena *arena;               /* its arrays are there; NULL: in memory of the host */
	const struct memops *wire; /* where exchanges find payloads, see memops.h; NULL: in memory of the host */

	bucket *buckets;
	uint32_t nbuckets;
	void **grads;        /* by tensor of the layout: the gradient that tasks work on */
	float *error;        /* numel, or NULL */
	float **state;       /* compressor->state_arrays of numel */
	float *memory;       /* the one of them that holds back what was not sent, or NULL */
	float *server_error; /* of all buckets, one after another, or NULL: see server_error.h */
	uint64_t nserver_error;
	uint64_t *lengths;        /* 2 nranks words of the exchange thread's: lengths, and what comes with them */
	residual_norm *norms;     /* by tensor of the layout */
	struct engine_undo *undo; /* of a reducer that outlives ranks; else NULL */
	struct verify *verify; /* with gradcomp.verify, see verify.h; else NULL. With two levels the outer one's ... */
	const uint32_t *verify_row; /* ... and by tensor of the layout whose row is meant; NULL: its own */

	uint64_t step;
	double step_e, step_u; /* |e|^2 and |u|^2 of this step: the compute thread's */
	int step_bad;          /* this step has been counted as non-finite */
	atomic_int warned;     /* log lines about non-finite gradients; of both threads */
	gradcomp_reducer_stats stats;
} engine;

/* What a step has overwritten, until it is known to be done on all ranks. */
typedef struct engine_undo {
	float **array; /* of each array of the engine's, error memory first: as before the step */
	uint32_t arrays;
	uint64_t *step; /* by tensor: the last step that it was kept for, + 1 */
	void *own;      /* the compressor's own state before the last load; NULL: it has not changed */
	uint64_t nown;
} engine_undo;

/* Keeps what the bucket's step is about to overwrite; on a device with work on its compute stream. */
gradcomp_status engine_keep(engine *eng, const bucket *b, gradcomp_error *err);
gradcomp_status engine_undo_open(engine *eng, gradcomp_error *err);
/* Keeps what a load is about to overwrite, as if a step were. `own`, of `nown` bytes or NULL, is taken over. */
gradcomp_status engine_keep_all(engine *eng, void *own, uint64_t nown, gradcomp_error *err);
/* Nothing is kept any more. */
void engine_undo_forget(engine_undo *u, uint32_t ntensors);
/* Takes it, and the arrays themselves, out of the engine, into memory of the host: array[s] is an array of the engine's,
 * undo->array[s] what a step has overwritten of it. When nothing of the engine's runs. */
gradcomp_status engine_take(engine *eng, float **array, engine_undo **undo, gradcomp_error *err);
/* That has been taken. */
void engine_undo_close(engine_undo *u);
/* Array s of those that have the layout's length: error memory, when there is one, comes first. */
float *engine_array(const engine *eng, uint32_t s);

/* The compressor's instance for the layout. */
gradcomp_status engine_create_instance(engine *eng, const gradcomp_host *host, const gradcomp_value *values,
                                       gradcomp_error *err);
/* The compressor's merge(), and what it said. */
gradcomp_status engine_merge(const engine *eng, const gradcomp_work *work, uint32_t round, const gradcomp_payload *a,
                             const gradcomp_payload *b, gradcomp_payload *out, gradcomp_error *err);
/* The arrays of the layout, zeroed; none of the compressor's with two levels. When the GPU, if
 * there is one, has been opened. `grads` is the caller's. */
gradcomp_status engine_allocate(engine *eng, gradcomp_error *err);
/* All but the buckets and what is on a GPU. NULL members are fine. */
void engine_free(engine *eng);

/* tasks.c */
gradcomp_status task_run(engine *eng, bucket *b, const task *t, gradcomp_error *err);
/* The same in the memory of the host. */
gradcomp_status task_host(engine *eng, bucket *b, const task *t, gradcomp_error *err);

#endif
