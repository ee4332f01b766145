#include "io/dataset/node/permutation.h"

#include "base/philox_block.h"

/* Fewer bits than this leave the network too few permutations to choose from. */
#define HALF_LEAST 4

#define PERMUTATION_STREAM 0x6f726465u /* keeps clear of other uses of the seed */

void permutation_init(permutation *o, uint64_t seed, uint64_t epoch, uint64_t count, int shuffle)
{
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	*o = (permutation){.count = count};
	if (!shuffle || count < 2)
		return;
	o->half = HALF_LEAST;
	while (count > (uint64_t)1 << 2 * o->half)
		o->half++;
	for (uint32_t i = 0; i < PERMUTATION_ROUNDS; i += 2) {
		const uint32_t counter[4] = {(uint32_t)epoch, (uint32_t)(epoch >> 32), i, PERMUTATION_STREAM};
		uint32_t w[4];

		philox_block(counter, key, w);
		o->key[i] = (uint64_t)w[1] << 32 | w[0];
		o->key[i + 1] = (uint64_t)w[3] << 32 | w[2];
	}
}

static inline uint64_t round_of(uint64_t x, uint64_t key)
{
	x = (x ^ key) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 32) * 0x94d049bb133111ebu;
	return x >> 32;
}

uint64_t permutation_at(const permutation *o, uint64_t i)
{
	uint64_t mask = ((uint64_t)1 << o->half) - 1;
	if (!o->half)
		return i;
	do {
		uint64_t l = i >> o->half, r = i & mask;

		for (int k = 0; k < PERMUTATION_ROUNDS; k++) {
			uint64_t t = l ^ (round_of(r, o->key[k]) & mask);

			l = r;
			r = t;
		}
		i = l << o->half | r;
	} while (i >= o->count);
	return i;
}

uint64_t permutation_find(const permutation *o, uint64_t sample)
{
	uint64_t mask = ((uint64_t)1 << o->half) - 1;
	if (!o->half)
		return sample;
	do {
		uint64_t l = sample >> o->half, r = sample & mask;

		for (int k = PERMUTATION_ROUNDS; k-- > 0;) {
			uint64_t t = r ^ (round_of(l, o->key[k]) & mask);

			r = l;
			l = t;
		}
		sample = l << o->half | r;
	} while (sample >= o->count);
	return sample;
}
