/* Error memory: what decode() writes into it. u is what was to be sent, work->flat before the average
 * takes its place; in each of these error memory is complete afterwards but for what is said. */
#ifndef GRADCOMP_SDK_RESIDUAL_H
#define GRADCOMP_SDK_RESIDUAL_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* error = u, all of it: to begin with, before what was sent is taken off. Needs error memory. */
static inline void sdk_residual_all(const gradcomp_work *work)
{
	work->operators->copy(work->queue, work->error_flat, work->flat, work->bucket->numel * sizeof(float));
}

/* error = 0: all of u was sent. Without error memory it does nothing. */
static inline void sdk_residual_none(const gradcomp_work *work)
{
	if (work->error_flat)
		work->operators->fill(work->queue, work->error_flat, 0, work->bucket->numel);
}

/* error -= sent[0..bucket->numel), after sdk_residual_all(): the numbers that this rank's payload decodes
 * to. With what was *sent*, after rounding, nothing is lost for good. */
static inline void sdk_residual_take(const gradcomp_work *work, const float *sent)
{
	work->operators->axpy(work->queue, work->error_flat, -1, sent, work->bucket->numel);
}

/* error[idx[j]] = 0, after sdk_residual_all(): k numbers that were sent as they are. idx is this
 * rank's own, below bucket->numel. */
static inline void sdk_residual_sent(const gradcomp_work *work, const uint32_t *idx, uint64_t k)
{
	work->operators->scatter(work->queue, work->error_flat, idx, NULL, k);
}

#ifdef __cplusplus
}
#endif
#endif
