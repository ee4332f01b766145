/* Random numbers by counter, on the device. */
#ifndef OPERATORS_CUDA_CUDA_RANDOM_H
#define OPERATORS_CUDA_CUDA_RANDOM_H

#include "operators/cuda/cuda_device.h"

#include "operators/cpu/box_muller.h"

/* One stream of random numbers. */
struct drawing {
	uint64_t seed, stream, first;
};

/* The block that number `at` is in. */
INLINE void draw_block(uint32_t w[4], const drawing &d, uint64_t at)
{
	const uint64_t block = at / 4;
	const uint32_t counter[4] = {uint32_t(block), uint32_t(block >> 32), uint32_t(d.stream),
	                             uint32_t(d.stream >> 32)};
	const uint32_t key[2] = {uint32_t(d.seed), uint32_t(d.seed >> 32)};
	philox_block(counter, key, w);
}

INLINE float uniform_of(uint32_t word)
{
	return float(word >> 8) * 0x1p-24f;
}

/* Numbers i .. i + N - 1 of a drawing, N <= 5. */
template <int N> INLINE void draw_uniform(float u[N], const drawing &d, uint64_t i)
{
	const uint64_t at = d.first + i;
	const unsigned skip = unsigned(at % 4);
	uint32_t w[8];
	draw_block(w, d, at);
	if (skip + N > 4)
		draw_block(w + 4, d, at - skip + 4);
#pragma unroll
	for (int j = 0; j < N; j++) {
		uint32_t word = 0;
#pragma unroll
		for (int k = 0; k < 4; k++)
			word = skip == unsigned(k) ? w[k + j < 8 ? k + j : 7] : word;
		u[j] = uniform_of(word);
	}
}

#endif
