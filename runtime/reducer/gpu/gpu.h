/* A reducer whose gradients are in GPU memory.
 *
 * Two modes. ON_DEVICE: the arenas are GPU memory and the compressor's operators run on
 * a stream, when it can (GRADCOMP_TRAIT_CUDA, payloads that are summed or gathered, or
 * coded by code that runs there). Payloads go straight to a collective that takes
 * device memory, else through pinned host memory. WHOLE: the bucket's gradients go
 * through pinned host memory, and all the rest is as on the host.
 *
 * A task of the compute thread that leaves work on the device is run twice: it puts
 * the work on the stream and sets `later`; when that is done it is run again. Until
 * then the thread has other buckets. The exchange thread waits for events. Nothing
 * else waits, and nothing is allocated once every bucket has been through a step. */
#ifndef REDUCER_GPU_GPU_H
#define REDUCER_GPU_GPU_H

#include "device/device.h"
#include "reducer/engine.h"

typedef enum gpu_mode { GPU_ON_DEVICE, GPU_WHOLE } gpu_mode;

struct gpu {
	const device_calls *d;
	const gradcomp_operators *ops; /* ON_DEVICE */
	gpu_mode mode;
	int id;
	int direct;               /* ON_DEVICE: the collective takes device memory */
	void *compute, *exchange; /* streams of the two threads */
	void *exchanged;          /* event of the exchange thread's */
	void *producer;           /* the caller's stream */
	void **ready;             /* events: the tensor has been made */
	void **passed;      /* events: the bucket's work on the compute stream is over; one a tensor is enough */
	workspace *mirrors; /* pinned, one for each workspace: payloads on their way, or whole buckets */
	uint32_t nmirrors;
	void **given; /* WHOLE: the caller's gradients, by tensor */
	/* Words that operators write, on the device and as they come down: by tensor
	 * whether it is not finite, by bucket a fault, one fault of the code, one word
	 * of the exchange thread's. */
	int *words, *seen;
	/* By tensor: sampled |u|^2, then |e|^2; see residual_norm.h. */
	double *squares, *squares_seen;
	float *sample, *sample_more;
	void *sum_room;
	uint64_t put; /* pieces of work so far that tasks wait for */
};

/* gpu.c: opened when the layout is known and before anything of the model's size is
 * allocated. `queue` is the caller's stream; the reducer's n
 * workspaces are placed. A compressor that works on the device is
 * created here, since its parameters decide whether it does. */
gradcomp_status gpu_open(engine *eng, const struct gradcomp_collective_v1 *collective, const gradcomp_value *values,
                         void *queue, workspace *workspaces, uint32_t n, gradcomp_error *err);
/* When layout and arenas are there, and when there is a port. */
gradcomp_status gpu_arrays(engine *eng, void **given, gradcomp_error *err);
gradcomp_status gpu_port(engine *eng, gradcomp_error *err);
/* One of the reducer's arrays, or a part of it, to or from host memory; eng->gpu may be NULL.
 * It has been copied when the call returns. When no task runs. */
gradcomp_status gpu_copy(const engine *eng, void *to, const void *from, size_t bytes, gradcomp_error *err);
/* What a bucket's work is on. */
void gpu_work(const engine *eng, bucket *b);
/* Returns when nothing of the reducer's is on the device any more, or the device is lost.
 * NULL is fine, as below. */
void gpu_flush(const gpu *g);
void gpu_close(engine *eng);
/* The calling thread is one of the reducer's from now on. */
void gpu_bind_thread(const gpu *g);
/* The tensor's gradient is what the caller's stream has made so far. */
gradcomp_status gpu_ready(engine *eng, uint32_t tensor, gradcomp_error *err);
/* NULL: OK; else *err says what could not be done. */
gradcomp_status gpu_check(const char *why, const char *what, gradcomp_error *err);
/* Whether all that operators of the calling thread put on streams since it was last asked got
 * there. Every thread asks after each task, before anybody uses what the task has made. */
gradcomp_status gpu_failed(const gpu *g, gradcomp_error *err);
/* The words by bucket, and the two after them. There is room for as many buckets as
 * tensors, so that words stay where they are when buckets are made anew. */
static inline size_t gpu_fault_word(const engine *eng, const bucket *b)
{
	return eng->layout.ntensors + b->pub.index;
}
static inline size_t gpu_code_word(const engine *eng)
{
	return 2 * (size_t)eng->layout.ntensors;
}
static inline size_t gpu_exchange_word(const engine *eng)
{
	return (gpu_code_word(eng) + 4) & ~(size_t)3; /* NCCL gets it: on 16 bytes */
}

/* gpu_tasks.c: task_run() of such a reducer. */
gradcomp_status gpu_task(engine *eng, bucket *b, const task *t, gradcomp_error *err);
/* Whether the bucket's work on the compute stream is over. */
gradcomp_status gpu_passed(const gpu *g, const bucket *b, int *is, gradcomp_error *err);
/* gpu_exchange.c */
gradcomp_status gpu_exchange(engine *eng, bucket *b, uint32_t round, gradcomp_error *err);

#endif
