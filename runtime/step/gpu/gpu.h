/* A reducer whose gradients are in GPU memory.
 *
 * Two modes. ON_DEVICE: the arenas are GPU memory and the compressor's operators run on a stream, when it can
 * (GRADCOMP_TRAIT_CUDA). Payloads go straight to a collective that takes device memory, else through pinned host
 * memory: there two that are to be merged come to the device and go back as one, and codes are made on the host,
 * where the collective has the floats. WHOLE: the bucket's gradients go through pinned host memory, and all the
 * rest is as on the host.
 *
 * Where the collective puts its work on a stream and returns, so does everything else: a
 * bucket's tasks are all enqueued, and it is done when the last one is, with an event.
 * Nothing on the host waits. What a bucket does up to its first exchange is on one stream and the rest on another, so
 * that buckets that are given later are encoded while earlier ones are under way. Whether a gradient is not finite stays on the device, as words
 * that the work there goes by; the host learns of it, of faults, times and norms when a later
 * step needs their place (gpu_learn.c).
 *
 * Otherwise a task of the compute thread that leaves work on the device is run twice: it
 * puts the work on the stream and sets `later`; when that is done it is run again. Until
 * then the thread has other buckets. The exchange thread waits for events. Nothing
 * else waits, and nothing is allocated once every bucket has been through a step. */
#ifndef STEP_GPU_GPU_H
#define STEP_GPU_GPU_H

#include "base/error.h"
#include "device/device_arena.h"
#include "step/engine.h"
#include "step/gpu/gpu_acts.h"
#include "step/memops.h"
#include "step/step_observer.h"

#include <stdatomic.h>

typedef enum gpu_mode { GPU_ON_DEVICE, GPU_WHOLE } gpu_mode;

/* A bucket's words. NCCL adds up the first. */
enum {
	WORD_BAD, /* the gradient of some rank is not finite, or a sum in place */
	/* The two of gradcomp_work.fault. */
	WORD_FAULT, /* peers sent something that is not what it should be */
	WORD_SUM,   /* the sum of finite gradients is not, or what the compressor makes of them */
	WORD_LOCAL, /* this rank's gradient is not finite; of codes WORD_BAD says so until ranks have exchanged it */
	WORD_VOID,  /* any of the first three: the result is NaN */
	/* These say, of a shard, why WORD_LOCAL is set. */
	WORD_OWN,   /* the node's sum is not finite */
	WORD_ABOVE, /* the gradient of some rank is not */
	WORD_HOLD,  /* the exchange so far is void: gradcomp_work.hold */
	BUCKET_WORDS = 8,
	VOID_WORDS = WORD_SUM + 1
};

/* Times what is on the device of one bucket in one step. */
typedef struct gpu_timed {
	task t;
	void *start, *end;  /* timers; made when first needed */
	void *before;       /* likewise, another's: the end of the exchange before it, which it waits for; or NULL */
	double bytes, sent; /* worked on; of an exchange a rank's payload, and what a rank sends of it */
} gpu_timed;
typedef struct gpu_slot {
	uint32_t bucket, first, ntensors;
	uint64_t numel;
	int ntasks;
	gpu_timed tasks[MAX_TASKS];
} gpu_slot;

/* Keeps what is read of one step; steps take turns with two, so what is read of one lies still for two steps. */
typedef struct gpu_step {
	int pending;        /* the host has not learned of it */
	uint64_t step, row; /* the reducer's; the profile's */
	uint32_t nbuckets, nslots;
	void *sent;      /* timer: the end of the latest exchange; NULL: none has been put on the device */
	gpu_slot *slots; /* room for one a tensor */
	void *over;      /* event: what is to be read is there */
	void **ready;    /* timers, by tensor: the gradient has been made */
	int *words;      /* pinned, as gpu.words */
} gpu_step;

typedef struct gpu {
	engine_device device; /* its arena is that of `of`, if there is one */
	const struct gpu *of; /* a shards' engine's: the reducer's, whose streams these are; else NULL */
	uint32_t room;        /* buckets there is room for in what is found */
	const device_calls *d;
	const gradcomp_operators *ops; /* ON_DEVICE */
	gpu_mode mode;
	int direct;              /* ON_DEVICE: the collective takes device memory */
	launcher launches;       /* direct: of the collective, on the exchange stream */
	bucket *_Atomic turn_of; /* it has its turn there; NULL: none has */
	gradcomp_host host;      /* ON_DEVICE: the compressor's, whose memory streams can use */
	/* The arena's streams: for a bucket's tasks up to its first exchange; for those behind it, which may be the
	 * same one; for exchanges. Where the collective lets them, buckets take two of these by turns, so that what is
	 * computed on one does not keep the other's from being sent; this is the one in turn. */
	void *compute, *behind, *exchange;
	bool by_turns;
	void *caught_up;    /* event: the stream behind has come to here ... */
	uint64_t step;      /* ... before this step, as a count from 1 */
	void *exchanged;    /* event of the exchange thread's */
	device_watch watch; /* for a thread that waits for what the collective has enqueued; else all 0 */
	memops wire;        /* direct: engine.room.wire */
	void *producer;     /* the caller's stream */
	void **passed;      /* events: the bucket's work on the compute stream is over; one a tensor is enough */
	void **arrived;     /* events: what the bucket has exchanged is there; likewise */
	void **averaged;    /* events: the bucket's averages are in place; likewise */
	void *joined;       /* event of wait() */
	gpu_step steps[2];  /* by the parity of the step */
	double clock;       /* the host's, at the latest `over` that was learned of ... */
	void *clock_event;  /* ... which is this timer */
	/* The exchange thread's, of a round that merges in the collective's host memory: room for two
	 * payloads and what becomes of them, `merge_stride` apart, on the device and pinned. */
	char *merge_there, *merge_here;
	size_t merge_stride;
	workspace *mirrors; /* pinned, one for each workspace: payloads on their way, or whole buckets */
	uint32_t nmirrors;
	void **given;        /* WHOLE: the caller's gradients, by tensor */
	const void **placed; /* by tensor: the gradient whose memory was looked at last */
	/* What operators find, on the device: of every bucket (gpu_found), one fault of the code, one word of the
	 * exchange thread's; and the last two, or what the host asks for, pinned. It comes down into the step's. */
	int *words, *seen;
	gradcomp_segment *segments; /* those of the bucket that a task works on, and one: the compute thread's */
	void *chunks[2];            /* scratch of operators that get them: before the exchange and behind it */
	void *zeroes;               /* sums of them have been timed; kept, since to free it waits for the device */
	uint64_t put;               /* pieces of work so far that tasks wait for */
} gpu;

static inline gpu *gpu_of(const engine *eng)
{
	return (gpu *)eng->ways.device;
}

/* What the compressor may plan here. */
static inline uint32_t gpu_patterns(const engine *eng)
{
	return eng->layout.patterns ? eng->layout.patterns : eng->compressor->patterns;
}
static inline bool gpu_is_coded(const engine *eng)
{
	return gpu_patterns(eng) & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED);
}

/* gpu.c: compressor and collective where nobody named the latter: the one that is set for devices. Where none is set,
 * it is one of two levels for a compressor that sends less between nodes by it, in a group that has `levels`
 * (group_has_levels()). One that takes none of the compressor's payloads from there gains nothing, and then, as
 * where it cannot be used, it is the one for all others; *aside (freed by the caller): why it cannot be used. */
gradcomp_status gpu_pair(spec_table *t, const char *compressor, bool levels, const plugin *p[2], const spec *s[2],
                         char **aside, gradcomp_error *err);
/* Where a compressor that may plan these patterns works. levels: it would go by shards, if there are nodes. */
gpu_mode gpu_mode_of(const config *cf, const struct gradcomp_compressor_v1 *c, uint32_t patterns,
                     const struct gradcomp_collective_v1 *collective, bool levels);
/* Opened when the layout is known and before anything of the model's size is
 * allocated. The caller's stream and allocator are taken from `o`; the reducer's n
 * workspaces are placed. A compressor that works on the device is
 * created here, since its parameters decide whether it does. */
gradcomp_status gpu_open(engine *eng, const struct gradcomp_collective_v1 *collective, bool levels,
                         const gradcomp_reducer_options *o, workspace *workspaces, uint32_t n, gradcomp_error *err);
/* Fails unless all that operators of the calling thread put on streams since it was last asked got there. Every
 * thread asks after each task, before anybody uses what the task has made. */
static inline gradcomp_status gpu_failed(const gpu *g, gradcomp_error *err)
{
	const char *why = g->ops ? g->ops->failed() : NULL;
	return why ? error_set(err, GRADCOMP_ERR_IO, "the CUDA device: a launch failed: %s", why) : GRADCOMP_OK;
}
/* What is found out about a bucket of n tensors. It has a cache line, and one for each of its tensors, so that what is
 * found stays where it is when buckets are made anew, and comes down in one copy. */
typedef struct gpu_found {
	int *words;    /* BUCKET_WORDS */
	int *tensors;  /* n: whether it is not finite */
	double *u, *e; /* n each: sampled |u|^2, then |e|^2; see residual_norm.h */
	size_t bytes;  /* without u and e */
} gpu_found;
enum { FOUND_LINE = 64 / sizeof(int) };
static inline size_t gpu_found_line(uint32_t index, uint32_t first)
{
	return ((size_t)index + first) * FOUND_LINE;
}
static inline gpu_found gpu_found_in(int *all, uint32_t index, uint32_t first, uint32_t n)
{
	int *words = all + gpu_found_line(index, first);
	const size_t ints = BUCKET_WORDS + (size_t)n + n % 2;
	double *u = (double *)(void *)(words + ints);
	return (gpu_found){words, words + BUCKET_WORDS, u, u + n, ints * sizeof *words};
}
static inline gpu_found gpu_found_of(int *all, const bucket *b)
{
	return gpu_found_in(all, b->pub.index, b->pub.first, b->pub.ntensors);
}
static inline size_t gpu_bucket_words(const bucket *b)
{
	return gpu_found_line(b->pub.index, b->pub.first);
}
static inline size_t gpu_code_word(const engine *eng)
{
	return gpu_found_line(gpu_of(eng)->room, eng->layout.ntensors);
}
static inline size_t gpu_exchange_word(const engine *eng)
{
	return gpu_code_word(eng) + FOUND_LINE;
}
static inline gpu_step *gpu_step_of(const engine *eng)
{
	return &gpu_of(eng)->steps[eng->step % 2];
}

/* gpu_tasks.c */
extern const engine_ops gpu_ops;
engine_task gpu_run;
/* gpu_exchange.c: collective and codes go on that one of the two streams for exchanges from now on. */
gradcomp_status gpu_exchange_on(engine *eng, uint32_t stream, gradcomp_error *err);
/* engine_ops.exchange and announce; engine_device_calls.drain and watch. */
engine_task gpu_exchange;
gradcomp_status gpu_announce(engine *eng, bucket *b, gradcomp_error *err);
gradcomp_status gpu_drain(engine *eng, gradcomp_error *err);
gradcomp_status gpu_watch(engine *eng, gradcomp_error *err);
/* Keeps beside, or puts back, what lasts of the bucket where a rank's gradient is not finite: as *by says, or, where that
 * is NULL, the first act of the list. */
void gpu_keep(const engine *eng, bucket *b, gpu_acts *a, const int *by, int restore);
/* device_watch.look of an engine whose work is enqueued: the collective has not failed. */
gradcomp_status gpu_look(void *eng, gradcomp_error *err);

/* gpu_learn.c: the bucket gets its slot in the step. */
void gpu_learn_begin(engine *eng, bucket *b);
/* A task's work begins, or ends, on its stream here. */
const char *gpu_learn_start(engine *eng, bucket *b, const task *t);
const char *gpu_learn_end(engine *eng, bucket *b, const task *t);
/* Norms of n tensors from `first` on, which have been found. */
void gpu_learn_norms(engine *eng, const gpu_found *found, uint32_t first, uint32_t n);
void gpu_learn_close(engine *eng);

/* engine_device_calls.learn, full, room. */
gradcomp_status gpu_learn(engine *eng, const step_observer *to, gradcomp_error *err);
void *gpu_learn_full(const engine *eng);
gradcomp_status gpu_learn_room(engine *eng, const step_observer *to, gradcomp_error *err);

#endif
