/* Compresses and exchanges the buckets of one layout over one collective. The tasks of a bucket
 * (schedule/task_list.h) work on it:
 *
 *     BEGIN                          u = gradient + error memory, finite or not
 *     ENCODE 0  EXCHANGE 0  DECODE 0
 *     ENCODE 1  EXCHANGE 1  DECODE 1     as many rounds as the compressor plans
 *     FINISH                         copy out
 *
 * It has no threads, no order and no lock of its own: a reducer (reducer.h) has one engine and
 * says when which task runs; a hierarchical reduction has another one within, among the ranks
 * that hold the same shard. A bucket in flight belongs to the thread that runs its task. */
#ifndef STEP_ENGINE_H
#define STEP_ENGINE_H

#include "device/device_arena.h"
#include "job/job.h"
#include "step/error_memory.h"
#include "step/workspace.h"
#include "schedule/task_list.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct engine engine;
typedef struct bucket bucket;

/* Does a bucket's task t, or puts it where it is done. */
typedef gradcomp_status engine_task(engine *eng, bucket *b, const task *t, gradcomp_error *err);

/* The tasks are a table each for numbers that the host works on (host.c), that a GPU works on (gpu/), and for two
 * levels (levels/). Nobody calls another's by name. A task that leaves work on a device for which the next one has
 * to wait sets b->later: it is called again when engine_device_calls.passed() says so. Where steps are enqueued
 * none does: the next task's work comes after it on the device, and the host learns of it later. */
typedef struct engine_ops {
	engine_task *begin;    /* u = gradient + error memory */
	engine_task *encode;   /* encodes a round; the next two take one, too */
	engine_task *exchange; /* carries payloads, or the sums of a level */
	engine_task *decode;
	engine_task *finish; /* the averages are where gradients were */
	/* Tells all ranks of the engine whether a gradient is not finite, before it is summed. */
	gradcomp_status (*announce)(engine *eng, bucket *b, gradcomp_error *err);
} engine_ops;

struct step_observer; /* step_observer.h */

/* An engine's work is on the host (host_device), or on a GPU, whose struct begins with this one. */
typedef struct engine_device {
	const struct engine_device_calls *calls;
	device_arena *arena; /* has work that has to be waited for; NULL: there is none */
	bool enqueues;       /* nothing of a step makes the host wait: it learns of the step later */
	bool busy;           /* the collective has work there that watch() looks after: the exchange thread's */
	double sent;         /* bytes that this rank has sent from there, at least */
	/* Seconds of a sum of 16-bit floats among all ranks, and more for each byte of it; 0: it was not timed. */
	double sum_s, sum_byte_s;
} engine_device;
typedef struct engine_device_calls {
	/* Runs engine_do(), with what the device needs around it. */
	engine_task *run;
	/* When layout and arrays are there, `given` are the caller's gradients; and when the collective is, by which some
	 * sums of zeroes are timed with `time_sums`. */
	gradcomp_status (*arrays)(engine *eng, void **given, gradcomp_error *err);
	gradcomp_status (*port)(engine *eng, bool time_sums, gradcomp_error *err);
	/* Places a bucket's work: on the host or the device. */
	void (*place)(const engine *eng, bucket *b);
	/* The engine of shards, `in`, works there too: called before anything of it is allocated; when so many
	 * buckets of it are there; and to make the compressor on them. */
	gradcomp_status (*share)(engine *in, const engine *eng, gradcomp_error *err);
	gradcomp_status (*share_arrays)(engine *in, uint32_t nbuckets, gradcomp_error *err);
	gradcomp_status (*create)(engine *in, const engine *eng, gradcomp_error *err);
	void (*close)(engine *eng);
	/* The tensor's gradient, at p, is what the caller's stream has made so far; before the step's list of gradients has
	 * it. INVALID where p is memory that this device does not work in. */
	gradcomp_status (*ready)(engine *eng, uint32_t tensor, const void *p, gradcomp_error *err);
	/* Makes all that is put on `queue`, NULL: on the caller's stream, from now on come after the averages of
	 * the buckets that are done; after those of one, b, if it is not NULL. */
	gradcomp_status (*follow)(const engine *eng, void *queue, const bucket *b, gradcomp_error *err);
	/* After a wait(), where steps are enqueued: returns when all that was before it has been done. */
	gradcomp_status (*join)(engine *eng, gradcomp_error *err);
	/* Gives the event that a bucket's next task waits for where b->later; NULL: it has come, or failed. */
	void *(*passed)(const engine *eng, const bucket *b);
	/* Called with the lock held, before the step's first BEGIN: gives the event that must have come before there
	 * is room for what is to be learned of the step; NULL: none. */
	void *(*full)(const engine *eng);
	/* Makes that room, when the event has come. */
	gradcomp_status (*room)(engine *eng, const struct step_observer *to, gradcomp_error *err);
	/* Called with the lock held: counts and tells what has been done of steps that are over. Fails when a
	 * payload was found to be damaged. */
	gradcomp_status (*learn)(engine *eng, const struct step_observer *to, gradcomp_error *err);
	/* Looks after what the collective has there: the exchange thread's, or when that runs nothing any more. */
	gradcomp_status (*watch)(engine *eng, gradcomp_error *err);
	/* Returns when nothing is there any more, or the collective has failed: the exchange thread's. */
	gradcomp_status (*drain)(engine *eng, gradcomp_error *err);
} engine_device_calls;

enum {
	/* in bucket.bad: gradients are finite on all ranks, what is made of them is not */
	BAD_SUM = 2,
	LOCAL_OVERFLOW = INT32_MAX /* in bucket.local_bad: the same on this rank */
};

struct bucket {
	engine *of; /* that works on it */
	gradcomp_bucket pub;
	workspace *workspace; /* while it is in flight */
	gradcomp_plan plan;
	task tasks[MAX_TASKS];
	int ntasks, next;
	int local_bad;         /* this rank's gradient is not finite; index of the tensor + 1, or LOCAL_OVERFLOW */
	int bad;               /* some rank's is: known after round 0; or BAD_SUM */
	int fault[2];          /* peers have sent what they should not: set by operators; what has overflowed */
	int copy_out;          /* x is workspace, not the caller's memory */
	struct gpu_slot *slot; /* its step's, where its tasks are all enqueued; else NULL */
	uint64_t later;        /* its next task waits for what it has put on the device, as the so-many-th */
	gradcomp_work work;
	gradcomp_payload own;
	gradcomp_payload *parts; /* GATHERED: nranks of them */
	float **x, **error;      /* one for each tensor */
	float **state;           /* one for each of the compressor's arrays */
	float *server_error;     /* the collective's error memory, or NULL */
	uint64_t nserver_error;
	struct bucket *part;   /* this rank's shard of it, or NULL: see hierarchical.h ... */
	struct bucket *beside; /* ... and of such a one the rank's next shard of the same bucket, or NULL */
	struct bucket *whole;  /* a shard's: the bucket that it is part of, */
	uint64_t begin;        /* and where in its numbers the shard begins */
};

/* Sums up a tensor's norms, see residual_norm.h. */
typedef struct residual_norm {
	double u, shares; /* sampled |u|^2 of this step; sum of |e| / |u| over steps */
	uint64_t steps;
} residual_norm;

struct bucket_list;

/* Here it matters whether an engine works on whole tensors (engine_one_level), or on this rank's shards of them
 * (levels/). */
typedef struct engine_levels {
	/* to->shards: the parts of all of to's buckets, and the compressor on them. */
	gradcomp_status (*divide)(engine *eng, struct bucket_list *to, gradcomp_error *err);
	/* Sends what ranks hold for one another to those that hold it in `to`. `room` is for the largest bucket.
	 * Every rank calls it; what has arrived is the same to the bit. */
	gradcomp_status (*move)(engine *eng, const struct bucket_list *to, float *room, gradcomp_error *err);
	/* Goes on counting in `to`. */
	void (*carry)(engine *eng, const struct bucket_list *to);
	/* measured() of the compressor: m is of eng's layout. */
	gradcomp_status (*measured)(engine *eng, const gradcomp_measured *m, gradcomp_error *err);
	/* For the report, of a tensor as this rank knows it: what is done with it, and its norms. */
	const char *(*choice)(const engine *eng, uint32_t tensor);
	const residual_norm *(*norm)(engine *eng, uint32_t tensor);
} engine_levels;

/* How an engine's tasks are done, and where its work is. */
typedef struct engine_ways {
	const engine_ops *ops;   /* run the tasks */
	const engine_ops *whole; /* run tasks on whole buckets, also where `ops` goes shard by shard (two levels) */
	const engine_device *device;
	const engine_levels *levels;
} engine_ways;

/* The arrays of the layout's length. */
typedef struct engine_arrays {
	device_arena *arena;      /* they are there; NULL: in memory of the host */
	float *error;             /* numel, or NULL */
	error_memory *packed;     /* in place of `error`, where a SPEC asks for another form; else NULL */
	float **state;            /* compressor->state_arrays of numel */
	float *memory;            /* the one of them that holds back what was not sent; NULL: none, or packed */
	struct engine_undo *undo; /* a reducer's that outlives ranks; else NULL */
} engine_arrays;

/* Buckets that a plan makes of a layout. */
typedef struct bucket_list {
	bucket *buckets;
	uint32_t nbuckets;
	uint32_t *bucket_of; /* by tensor of the layout; NULL: of shards */
	float *server_error; /* that of all buckets, one after another, or NULL: see server_error.h */
	uint64_t nserver_error;
	engine *shards; /* with two levels: the engine of what this rank holds; it has the arrays. Else NULL */
} bucket_list;

/* The compute thread measures what is held back: see residual_norm.h. */
typedef struct residual_meter {
	residual_norm *norms; /* by tensor of the layout */
	double e, u;          /* |e|^2 and |u|^2 of this step */
} residual_meter;

/* Exchanges go by these. */
typedef struct exchange_room {
	const struct memops *wire; /* where they find payloads, see memops.h; NULL: in memory of the host */
	uint64_t *lengths;         /* 2 nranks words of the exchange thread's: lengths, and what comes with them */
} exchange_room;

/* With gradcomp.verify, see verify.h. */
typedef struct verify_use {
	struct verify *verify; /* NULL without; with two levels the outer one's, */
	const uint32_t *row;   /* and by tensor of the layout whose row is meant; NULL: its own */
} verify_use;

struct engine {
	engine_ways ways;
	gradcomp_job *job;
	gradcomp_group *group;
	const struct gradcomp_compressor_v1 *compressor;
	void *instance;
	char *compressor_spec;
	const gradcomp_value *values; /* its parameters; the job's */
	coll_ctx coll_ctx;
	gradcomp_layout layout;
	engine *next; /* a shards' engine's: that of the rank's next shard of each bucket, or NULL */
	engine_arrays arrays;
	bucket_list list;
	exchange_room room;
	residual_meter meter;
	verify_use checks;
	void **grads; /* by tensor of the layout: the gradient that tasks work on */
	uint64_t step;
	int step_bad;      /* this step has been counted as non-finite */
	atomic_int warned; /* log lines about non-finite gradients; of both threads */
	gradcomp_reducer_stats stats;
};

/* Keeps what a step has overwritten, until it is known to be done on all ranks. */
typedef struct engine_undo {
	float **array; /* the engine's arrays before the step, error memory first */
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
/* Takes it, and the arrays themselves, out of the engine, into memory of the host: array[s] is an array of the
 * engine's, undo->array[s] what a step has overwritten of it. When nothing of the engine's runs. */
gradcomp_status engine_take(engine *eng, float **array, engine_undo **undo, gradcomp_error *err);
/* That has been taken. */
void engine_undo_close(engine_undo *u);
/* Says why a GPU's reducer refuses such parameters. */
#define ENGINE_NO_GPU_MEMORY \
	"memory= and average= are for gradients in host memory; a GPU keeps error memory as floats: leave them out"
/* Counts the arrays that have the layout's length: error memory, when there is one, comes first. */
uint32_t engine_arrays_count(const engine *eng);
/* Returns whether there is an error memory, as floats or packed. */
bool engine_has_error(const engine *eng);
/* Returns the one of them that holds back what was not sent; engine_arrays_count(): none does. */
uint32_t engine_held_back(const engine *eng);
/* Reads and overwrites numbers [at, at + n) of array s, wherever it is and in whatever form. */
gradcomp_status engine_read(const engine *eng, uint32_t s, uint64_t at, uint64_t n, void *to, gradcomp_error *err);
gradcomp_status engine_write(const engine *eng, uint32_t s, uint64_t at, uint64_t n, const void *from,
                             gradcomp_error *err);

/* Makes the compressor's instance for the layout. */
gradcomp_status engine_create_instance(engine *eng, const gradcomp_host *host, const gradcomp_value *values,
                                       gradcomp_error *err);
/* Calls the compressor's merge(), and returns what it said. */
gradcomp_status engine_merge(const engine *eng, const gradcomp_work *work, uint32_t round, const gradcomp_payload *a,
                             const gradcomp_payload *b, gradcomp_payload *out, gradcomp_error *err);
/* Allocates the arrays of the layout, zeroed; none of the compressor's with two levels. When the GPU, if there is
 * one, has been opened. `grads` is the caller's. */
gradcomp_status engine_allocate(engine *eng, gradcomp_error *err);
/* All but the buckets and what is on a GPU. NULL members are fine. */
void engine_free(engine *eng);

/* engine.c */
extern const engine_levels engine_one_level;
/* The step that comes next is eng->step, also of its shards. */
void engine_next_step(engine *eng);
/* host.c */
extern const engine_ops host_ops;
extern const engine_device host_device;
/* Any of eng->ways.ops, whichever the task's kind asks for. */
engine_task engine_do;
/* The same, on the engine's device if it has one; a failure of a plugin that gives no reason is said in words. */
engine_task engine_run;

#endif
