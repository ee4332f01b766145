/* Random numbers of a step: every rank has its own, and a number of the layout
 * meets the same ones whatever bucket it is in and however often a run is resumed. */
#ifndef PLUGINS_COMMON_RANDOM_STREAM_H
#define PLUGINS_COMMON_RANDOM_STREAM_H

#include "gradcomp/compressor.h"

/* The stream of random_uniform() for this rank and step; number i of it belongs to
 * element i of the layout. */
static inline uint64_t random_stream(const gradcomp_layout *layout, uint64_t step)
{
	return (uint64_t)layout->rank << 40 ^ step;
}

#endif
