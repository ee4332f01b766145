/* Steps that a compressor leaves alone: warm-up before `start_step`, buckets that
 * are not worth it. One round, the mean of the bucket itself, nothing left over. */
#ifndef PLUGINS_COMMON_PASSTHROUGH_H
#define PLUGINS_COMMON_PASSTHROUGH_H

#include "gradcomp/compressor.h"

/* Every plugin that warms up has this row in its table. */
#define PASSTHROUGH_START_STEP \
	{ \
		.name = "start_step", .type = GRADCOMP_PARAM_INT, .def = "0", .min = 0, .max = 1e9, \
		.help = "steps at the start that are not compressed", \
	}

/* The mean of `count` floats that encode() gives. */
static inline gradcomp_round passthrough_round(uint64_t count)
{
	return (gradcomp_round){.pattern = GRADCOMP_SUMMED,
	                        .dtype = GRADCOMP_F32,
	                        .flags = GRADCOMP_ROUND_MEAN,
	                        .count = count};
}

static inline void passthrough_plan(const gradcomp_bucket *bucket, gradcomp_plan *plan)
{
	plan->nrounds = 1;
	plan->rounds[0] = passthrough_round(bucket->numel);
	plan->rounds[0].flags |= GRADCOMP_ROUND_IN_PLACE;
}

/* The mean is in x already. What u held of older errors has been sent with it. */
static inline void passthrough_decode(const gradcomp_work *work)
{
	if (work->error_flat)
		work->operators->fill(work->queue, work->error_flat, 0, work->bucket->numel);
}

#endif
