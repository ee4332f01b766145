/* Steps that a compressor leaves alone: warm-up before `start_step`, buckets that
 * are not worth it. One round, the mean of the bucket itself, nothing left over. */
#ifndef GRADCOMP_SDK_PASSTHROUGH_H
#define GRADCOMP_SDK_PASSTHROUGH_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every plugin that warms up has this row in its table. */
#define SDK_START_STEP_ROW \
	{ \
		.name = "start_step", .type = GRADCOMP_PARAM_INT, .def = "0", .min = 0, .max = 1e9, \
		.help = "steps at the start that are not compressed", \
	}

/* Returns a round for the mean of `count` floats that encode() gives: SUMMED. */
gradcomp_round sdk_passthrough_round(uint64_t count);
/* Plans, for plan(), one round, the bucket's mean, reduced where it lies; encode() is not called. */
void sdk_passthrough_plan(const gradcomp_bucket *bucket, gradcomp_plan *plan);
/* Does what decode() has to do in such a round. The mean is in x already; what u held of older errors has been sent
 * with it, so error memory, if there is any, becomes 0. */
void sdk_passthrough_decode(const gradcomp_work *work);

#ifdef __cplusplus
}
#endif
#endif
