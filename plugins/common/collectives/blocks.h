/* A buffer as one block a rank: where each begins, in nranks + 1 offsets of which the
 * first is 0. */
#ifndef PLUGINS_COMMON_COLLECTIVES_BLOCKS_H
#define PLUGINS_COMMON_COLLECTIVES_BLOCKS_H

#include <stdint.h>
#include <stddef.h>

/* Where block b begins of `count` numbers in blocks of about the same length. */
static inline uint64_t blocks_begin(uint64_t count, int nranks, int b)
{
	uint64_t P = (uint64_t)nranks, at = (uint64_t)b;
	return count / P * at + (at < count % P ? at : count % P);
}

/* How many are in it. */
static inline uint64_t blocks_count(uint64_t count, int nranks, int b)
{
	return blocks_begin(count, nranks, b + 1) - blocks_begin(count, nranks, b);
}

/* Makes such blocks, of numbers of `size`. */
static inline void blocks_split(uint64_t *offset, int nranks, uint64_t count, size_t size)
{
	for (int b = 0; b <= nranks; b++)
		offset[b] = blocks_begin(count, nranks, b) * size;
}

/* Blocks of counts[b] things of `size`. */
static inline void blocks_given(uint64_t *offset, int nranks, const uint64_t *counts, size_t size)
{
	offset[0] = 0;
	for (int b = 0; b < nranks; b++)
		offset[b + 1] = offset[b] + counts[b] * size;
}

#endif
