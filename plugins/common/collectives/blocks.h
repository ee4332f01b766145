/* A buffer as one block a rank: where each begins, in nranks + 1 offsets of which the
 * first is 0. */
#ifndef PLUGINS_COMMON_COLLECTIVES_BLOCKS_H
#define PLUGINS_COMMON_COLLECTIVES_BLOCKS_H

#include <stdint.h>
#include <stddef.h>

/* Blocks of about the same length, `count` numbers of `size` in all. */
static inline void blocks_split(uint64_t *offset, int nranks, uint64_t count, size_t size)
{
	uint64_t P = (uint64_t)nranks;
	for (uint64_t b = 0; b <= P; b++)
		offset[b] = (count / P * b + (b < count % P ? b : count % P)) * size;
}

/* Blocks of counts[b] things of `size`. */
static inline void blocks_given(uint64_t *offset, int nranks, const uint64_t *counts, size_t size)
{
	offset[0] = 0;
	for (int b = 0; b < nranks; b++)
		offset[b + 1] = offset[b] + counts[b] * size;
}

#endif
