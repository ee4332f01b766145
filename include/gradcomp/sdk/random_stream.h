/* Which random numbers a rank, a step, a bucket meets. Draws are made by operators
 * (random_normal(), gradcomp_quantiser, ...), from a seed and a stream; number i of
 * a stream is the same however it is asked for.
 *
 * A number of the layout meets the same draw whatever bucket it is in and however often a run
 * is resumed, if number offset + i of a stream belongs to number i of a bucket. */
#ifndef GRADCOMP_SDK_RANDOM_STREAM_H
#define GRADCOMP_SDK_RANDOM_STREAM_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the stream of this rank and step, to be drawn from with the layout's seed, for what a rank rounds on its
 * own. Ranks' errors cancel only if they draw differently. step < 2^40. */
static inline uint64_t sdk_random_stream(const gradcomp_layout *layout, uint64_t step)
{
	return (uint64_t)layout->rank << 40 ^ step;
}

/* A seed of this rank alone, where a run's counter is the stream: code() of CODED. */
static inline uint64_t sdk_random_rank_seed(const gradcomp_layout *layout)
{
	return layout->seed + ((uint64_t)layout->rank + 1) * 0x9e3779b97f4a7c15u;
}

#ifdef __cplusplus
}
#endif
#endif
