/* auto of gradients in GPU memory.
 *
 * Its reducers return when their work is on the device, so a clock of the host's tells nothing of steps. Timers on
 * streams do: when each gradient had been made, and when all averages of the step were in place. The host learns
 * of them some steps later, and at a check, for which it waits until the device has come so far; steps wait for
 * nothing. The network is timed with buffers on the device, over the base's collective, and candidates compute on
 * the device what they would compute there.
 *
 * What is carried over from a compressor that is given up is kept in host memory. In the step that carries it
 * the averages are copied there, for which that step's callbacks wait. */
#ifndef KINDS_AUTOTUNE_TUNER_GPU_H
#define KINDS_AUTOTUNE_TUNER_GPU_H

#include "kinds/autotune/tuner.h"

#include "cost/local_cost.h"
#include "job/device_coll.h"

/* Nothing where gradients are in host memory. All but open() and bench() may be called then and, but for accepts(), do
 * nothing. */
gradcomp_status tuner_gpu_open(tuner *c, const gradcomp_reducer_options *o, gradcomp_error *err);
/* Collective, when there is a group: a collective of the base's on a channel of its own. */
gradcomp_status tuner_gpu_network(tuner *c, gradcomp_error *err);
void tuner_gpu_close(tuner *c);
/* The calling thread is one of auto's from now on. */
void tuner_gpu_bind(const tuner *c);
/* Where candidates compute on their own. */
const local_device *tuner_gpu_bench_of(const tuner *c);
/* Seconds of an all-reduce of so many zeroes; at most TUNER_GPU_FLOATS. Collective. */
gradcomp_status tuner_gpu_timed(tuner *c, uint64_t count, double *seconds, gradcomp_error *err);
#define TUNER_GPU_FLOATS (TUNER_FIT_MAX / sizeof(float))
/* Measures the seconds of so many bytes to host memory and back, at most those of TUNER_GPU_FLOATS. */
gradcomp_status tuner_gpu_copies(const tuner *c, size_t bytes, double *down, double *up, gradcomp_error *err);

/* Refuses a gradient that is in other memory than reducers work on, or made in a capture; of those in host memory too. */
gradcomp_status tuner_gpu_accepts(const tuner *c, const gradcomp_tensor *t, const void *gradient, gradcomp_error *err);
/* Called with the lock held: tensor i has been given; the step's last tensor is done. */
gradcomp_status tuner_gpu_given(tuner *c, uint32_t i, gradcomp_error *err);
gradcomp_status tuner_gpu_step(tuner *c, gradcomp_error *err);
/* Called with the lock held, between steps: waits until all of them are learned of. */
gradcomp_status tuner_gpu_settle(tuner *c, gradcomp_error *err);
/* Makes steps go on from another number. */
void tuner_gpu_restart(tuner *c);
/* The caller's stream comes after all steps that are done. */
gradcomp_status tuner_gpu_follow(const tuner *c, gradcomp_error *err);

/* Adds what is carried over of tensor i to its gradient, on the caller's stream. */
gradcomp_status tuner_gpu_carry(tuner *c, uint32_t i, void *gradient, gradcomp_error *err);
/* The tensor's average, which its reducer has put on the device, in host memory: *out is the caller's until
 * tuner_gpu_averaged_end(). */
gradcomp_status tuner_gpu_averaged(tuner *c, uint32_t i, const void *average, void **out, gradcomp_error *err);
void tuner_gpu_averaged_end(tuner *c, uint32_t i);

#endif
