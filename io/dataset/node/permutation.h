/* The order of samples: a permutation of 0..count-1 for every epoch, the same on all
 * ranks without communication and without memory. Pure functions of their arguments; any
 * thread.
 *
 * A Feistel network (Luby and Rackoff, 1988) on the smallest even number of bits that
 * holds the count (at least eight), with keys from Philox by seed and epoch; what falls
 * outside of 0..count-1 goes through it again (cycle walking: Black and Rogaway, 2002),
 * from 65 samples on less than four times on average. */
#ifndef IO_DATASET_NODE_PERMUTATION_H
#define IO_DATASET_NODE_PERMUTATION_H

#include <stdint.h>

#define PERMUTATION_ROUNDS 6
#define PERMUTATION_COUNT_MAX ((uint64_t)1 << 62)

typedef struct permutation {
	uint64_t count;
	unsigned half; /* bits of a half; 0: the identity */
	uint64_t key[PERMUTATION_ROUNDS];
} permutation;

/* Without `shuffle` the identity. count is at most PERMUTATION_COUNT_MAX. */
void permutation_init(permutation *o, uint64_t seed, uint64_t epoch, uint64_t count, int shuffle);
/* Give the sample at position i < count, and the position of a sample < count. */
uint64_t permutation_at(const permutation *o, uint64_t i);
uint64_t permutation_find(const permutation *o, uint64_t sample);

/* Returns how many of the positions r, r + nranks, r + 2 nranks ... there are. */
static inline uint64_t permutation_length(uint64_t count, uint64_t nranks, uint64_t r)
{
	return count / nranks + (r < count % nranks);
}

#endif
