/* Uniform random numbers. */
#include "operators/cpu/philox.h"

void KERNEL(random_uniform)(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
	(void)queue;
	_Alignas(64) float tile[PHILOX_ROOM(PHILOX_GROUP)];
	size_t i = 0;
	while (i < n) {
		size_t whole = (n - i) / PHILOX_GROUP * PHILOX_GROUP;
		uint64_t at = first + i;
		if (at % 4 == 0 && whole) {
			philox_uniform(out + i, whole, seed, stream, at / 4);
			i += whole;
			continue;
		}
		/* Up to the next block, or what is left. */
		size_t part = at % 4 ? (size_t)(4 - at % 4) : n - i;
		if (part > n - i)
			part = n - i;
		memcpy(out + i, philox_tile(tile, part, seed, stream, at), part * sizeof *out);
		i += part;
	}
}
