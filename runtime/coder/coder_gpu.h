/* A coder whose numbers are in GPU memory. Its thread puts a call on a stream of the coder's, after
 * what the caller's stream had when the call was started, and goes on: nothing here waits for the
 * device, but for memory that grows and for calls that would be more than AHEAD of it. What the
 * device found (a NaN, damage, times) the host learns some calls later; until then what came
 * of damage is NaN.
 *
 * Ranks still tell each other over the job's links which call they mean, so that one that means
 * another is named, and NCCL is given calls only that match. */
#ifndef CODER_CODER_GPU_H
#define CODER_CODER_GPU_H

#include "coder/coder_internal.h"

/* Device, stream and words, before the coder's instance is made; and what takes all ranks. */
gradcomp_status coder_gpu_open(gradcomp_coder *c, const gradcomp_coder_options *o, gradcomp_error *err);
gradcomp_status coder_gpu_begin(gradcomp_coder *c, gradcomp_error *err);
/* The thread calls the first when it begins, and the second when it has no call. With the lock held: *busy while
 * there is something to look after. */
void coder_gpu_bind(gradcomp_coder *c);
gradcomp_status coder_gpu_watch(gradcomp_coder *c, bool *busy, gradcomp_error *err);
/* Returns when the device has done all of it. Where no call is under way, as what follows. */
gradcomp_status coder_gpu_settle(gradcomp_coder *c, gradcomp_error *err);
/* When the collective is closed, whose streams that wait for a peer have come to an end. */
void coder_gpu_drain(const gradcomp_coder *c);
void coder_gpu_close(gradcomp_coder *c);
const device_memory *coder_gpu_memory(const gradcomp_coder *c);

/* INVALID where that argument of a call is no memory of the coder's device. */
gradcomp_status coder_gpu_check(const gradcomp_coder *c, const void *p, const char *argument, coder_kind kind,
                                gradcomp_error *err);
/* The call comes after what the caller's stream has now; with the lock held. */
gradcomp_status coder_gpu_given(gradcomp_coder *c, gradcomp_coder_request *q, gradcomp_error *err);
/* Makes what is put on the caller's stream come after the call, whose event is free again. */
gradcomp_status coder_gpu_taken(gradcomp_coder *c, gradcomp_coder_request *q, gradcomp_error *err);

/* Makes an instance on the device, for so many numbers. */
gradcomp_status coder_gpu_instance(gradcomp_coder *c, gradcomp_error *err);
/* Puts the call on the stream, after ranks have told each other which it is. */
gradcomp_status coder_gpu_call(gradcomp_coder *c, const gradcomp_coder_request *q, uint64_t call, gradcomp_error *err);

/* A slot's numbers, of which there are none before its first call, to and from host memory. */
gradcomp_status coder_gpu_read_slot(gradcomp_coder *c, const coder_slot *s, float *to, gradcomp_error *err);
gradcomp_status coder_gpu_move_slot(gradcomp_coder *c, coder_slot *s, gradcomp_error *err);

#endif
