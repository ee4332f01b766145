/* Delayed averages of gradients in GPU memory. Slots and the copy of the model are device memory,
 * and what is done to them is put on three streams, so that no host thread waits:
 *
 *     front    after the caller's stream has made a gradient, and after the average of D steps ago
 *              has arrived: slot = own gradient, gradient += correction
 *     submit   the caller's stream of the reducer behind
 *     arrive   after an average of the reducer behind: slot = average - own gradient
 *
 * Each has events for what the next one needs, of every tensor and slot, so that a step comes
 * after the average of D steps ago and after no later one.
 *
 * All calls do nothing where delay.gpu is NULL: gradients in host memory. */
#ifndef KINDS_DELAY_DELAY_GPU_H
#define KINDS_DELAY_DELAY_GPU_H

#include "kinds/delay/delay_internal.h"

/* Called before the reducer behind is made; it gets the stream `submit` as options->queue. */
gradcomp_status delay_gpu_open(delay *d, const gradcomp_reducer_options *o, void **submit, gradcomp_error *err);
/* Called when the tensors are known: makes events, and memory for casts. */
gradcomp_status delay_gpu_arrays(delay *d, gradcomp_error *err);
/* Memory for slots and the model, zeroed, of the host or the device; NULL: there is none. */
void *delay_alloc(delay *d, size_t bytes);
void delay_release(delay *d, void *p);
/* Where floats are cast, n at a time: `local` of DELAY_RUN, or memory of the device, with a stream.
 * The completer's, or when nothing is in flight; the reducer behind's. */
typedef struct delay_run {
	float *x;
	uint64_t n;
	void *queue;
} delay_run;
delay_run delay_front_run(const delay *d, float *local);
delay_run delay_arrive_run(const delay *d, float *local);
/* Returns the submitter's stream; NULL without a GPU. */
void *delay_submit_queue(const delay *d);
/* When the reducer behind has been freed. */
void delay_gpu_close(delay *d);
/* The calling thread is one of the delay's from now on. */
void delay_gpu_bind(const delay *d);

/* Called with the lock held: tensor i is what the caller's stream has made so far. */
gradcomp_status delay_gpu_given(delay *d, uint32_t i, const void *gradient, gradcomp_error *err);
/* Around what the three do to tensor i: the completer in step d->step, the submitter in step
 * d->n_averaged, and the reducer behind in step d->model.tensors[i].n_arrived, one tensor at a time. */
gradcomp_status delay_gpu_front(delay *d, uint32_t i, gradcomp_error *err);
gradcomp_status delay_gpu_fronted(delay *d, uint32_t i, gradcomp_error *err);
gradcomp_status delay_gpu_submit(delay *d, uint32_t i, gradcomp_error *err);
gradcomp_status delay_gpu_arrive(delay *d, uint32_t i, gradcomp_error *err);
gradcomp_status delay_gpu_arrived(delay *d, uint32_t i, gradcomp_status st, gradcomp_error *err);
/* The submitter's, when the reducer behind has done a step: the next one comes after it has been
 * taken over. */
gradcomp_status delay_gpu_averaged(delay *d, gradcomp_error *err);
/* Called with the lock held: step d->step is over. */
gradcomp_status delay_gpu_end_step(delay *d, gradcomp_error *err);
/* Called with the lock held: learns of the seconds that were waited, as far as the device has come. */
void delay_gpu_learn(delay *d);
/* With the lock held: the caller's stream, or `queue`, comes after what tensor i, or DELAY_ALL of
 * them, have been given back with. */
#define DELAY_ALL UINT32_MAX
gradcomp_status delay_gpu_follow(delay *d, uint32_t i, void *queue, gradcomp_error *err);
/* Called with the lock held, between steps: `front` comes after all averages and after the caller's stream. */
gradcomp_status delay_gpu_join(delay *d, gradcomp_error *err);
/* Either side is memory of the device; done when the call returns. Without a GPU a memcpy(). */
gradcomp_status delay_gpu_copy(delay *d, void *to, const void *from, size_t bytes, gradcomp_error *err);
/* Fails unless what the calling thread put on a stream got there. */
gradcomp_status delay_gpu_failed(const delay *d, gradcomp_error *err);
/* Nothing touches the program's memory any more, or the device is lost. */
void delay_gpu_drain(const delay *d);

#endif
