/* Random numbers by counter, Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC11),
 * many blocks at a time. A product of two words needs 64 bits, so a lane holds
 * one word of one block. */
#ifndef OPERATORS_CPU_PHILOX_H
#define OPERATORS_CPU_PHILOX_H

#include <string.h>

#include "base/philox_block.h"
#include "operators/cpu/kernels.h"

/* Numbers 4 * block .. 4 * block + 3 of a stream. */
INLINE void random_draw(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t block)
{
	uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
	uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	philox_block(counter, key, out);
}

/* Numbers are drawn in groups of this many. */
enum { PHILOX_GROUP = 32 };

#ifdef __AVX2__
#ifdef __AVX512F__
#define PHILOX_BYTES 64
/* Block of each lane: so that two unpackings put the words in order. */
#define PHILOX_LANES \
	{ \
		0, 4, 1, 5, 2, 6, 3, 7 \
	}
#define PHILOX_MULTIPLY(a, b) ((philox_lanes)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define PHILOX_LOW(a, b) ((philox_words)_mm512_unpacklo_epi64((__m512i)(a), (__m512i)(b)))
#define PHILOX_HIGH(a, b) ((philox_words)_mm512_unpackhi_epi64((__m512i)(a), (__m512i)(b)))
#else
#define PHILOX_BYTES 32
#define PHILOX_LANES \
	{ \
		0, 2, 1, 3 \
	}
#define PHILOX_MULTIPLY(a, b) ((philox_lanes)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define PHILOX_LOW(a, b) ((philox_words)_mm256_unpacklo_epi64((__m256i)(a), (__m256i)(b)))
#define PHILOX_HIGH(a, b) ((philox_words)_mm256_unpackhi_epi64((__m256i)(a), (__m256i)(b)))
#endif
typedef uint64_t philox_lanes __attribute__((vector_size(PHILOX_BYTES)));
typedef uint32_t philox_words __attribute__((vector_size(PHILOX_BYTES)));
typedef int32_t philox_ints __attribute__((vector_size(PHILOX_BYTES)));
typedef float philox_floats __attribute__((vector_size(PHILOX_BYTES)));
typedef float philox_any __attribute__((vector_size(PHILOX_BYTES), aligned(4), may_alias));

#define PHILOX_STORE(out, w) \
	(*(philox_any *)(out) = __builtin_convertvector((philox_ints)((w) >> 8), philox_floats) * 0x1p-24f)
#endif

/* Uniform numbers 4 * block .. of a stream; count is a multiple of the group. */
INLINE void philox_uniform(float *out, size_t count, uint64_t seed, uint64_t stream, uint64_t block)
{
#ifdef __AVX2__
	const philox_lanes lanes = PHILOX_LANES, zero = {0};
	const philox_lanes m0 = zero + 0xD2511F53, m1 = zero + 0xCD9E8D57;
	philox_lanes key[10][2];
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int round = 0; round < 10; round++, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
		key[round][0] = zero + k0;
		key[round][1] = zero + k1;
	}
	for (size_t i = 0; i < count; i += PHILOX_BYTES / 2) {
		/* The upper halves of lanes are left over from products, and ignored. */
		philox_lanes c0 = (block + i / 4 + lanes) & UINT64_MAX >> 2, c1 = c0 >> 32;
		philox_lanes c2 = zero + (uint32_t)stream, c3 = zero + (stream >> 32);
		UNROLL
		for (int round = 0; round < 10; round++) {
			philox_lanes a = PHILOX_MULTIPLY(c0, m0), b = PHILOX_MULTIPLY(c2, m1);
			c0 = b >> 32 ^ c1 ^ key[round][0];
			c1 = b;
			c2 = a >> 32 ^ c3 ^ key[round][1];
			c3 = a;
		}
		c0 = (c0 & UINT32_MAX) | c1 << 32;
		c2 = (c2 & UINT32_MAX) | c3 << 32;
		PHILOX_STORE(out + i, PHILOX_LOW(c0, c2));
		PHILOX_STORE(out + i + PHILOX_BYTES / 4, PHILOX_HIGH(c0, c2));
	}
#else
	for (size_t i = 0; i < count; i += 4) {
		uint32_t w[4];
		random_draw(w, seed, stream, (block + i / 4) & UINT64_MAX >> 2);
		for (size_t j = 0; j < 4; j++)
			out[i + j] = (float)(w[j] >> 8) * 0x1p-24f;
	}
#endif
}

/* The same for any start: `count` numbers from number `first`, in a tile with room
 * for PHILOX_ROOM(count); returns where they begin. */
#define PHILOX_ROOM(count) (((count) + 3 + PHILOX_GROUP - 1) / PHILOX_GROUP * PHILOX_GROUP)

INLINE const float *philox_tile(float *tile, size_t count, uint64_t seed, uint64_t stream, uint64_t first)
{
	philox_uniform(tile, PHILOX_ROOM(count), seed, stream, first / 4);
	return tile + first % 4;
}

#endif
