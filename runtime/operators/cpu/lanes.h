/* Between vectors of 32-bit lanes and fewer bits. */
#ifndef OPERATORS_CPU_LANES_H
#define OPERATORS_CPU_LANES_H

#include <string.h>

#include "operators/cpu/kernels.h"

/* a where `which` has all bits set, b where it has none. */
#define PICK8(which, a, b) ((v8f)(((v8i)(a) & (which)) | ((v8i)(b) & ~(which))))
#define ABS8(x) ((v8f)((v8i)(x)&0x7fffffff))
/* The sign bit of lanes that are not finite: one more in an exponent of all ones runs over into it. */
#define NONFINITE8(x) ((v8u)((v8i)(x)&0x7f800000) + 0x00800000u)
#ifdef __AVX2__
#define MIN8(a, b) ((v8f)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define MAX8(a, b) ((v8f)_mm256_max_ps((__m256)(a), (__m256)(b)))
#else
#define MIN8(a, b) PICK8((v8i)((a) < (b)), a, b)
#define MAX8(a, b) PICK8((v8i)((a) > (b)), a, b)
#endif

/* Bit i: lane i is negative as an integer. */
INLINE unsigned mask8(const v8i *v)
{
#ifdef __AVX2__
	return (unsigned)_mm256_movemask_ps((__m256)*v);
#else
	unsigned mask = 0;
	UNROLL
	for (int i = 0; i < 8; i++)
		mask |= (uint32_t)(*v)[i] >> 31 << i;
	return mask;
#endif
}

/* The low `bits` (2, 4 or 8) bits of 32 lanes, the first lowest, in 4 * bits bytes.
 * The lanes are within -128..127. */
INLINE void narrow32(uint8_t *out, const v8i c[4], const unsigned bits)
{
#ifdef __AVX2__
	const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
	__m256i low = _mm256_packs_epi32((__m256i)c[0], (__m256i)c[1]);
	__m256i high = _mm256_packs_epi32((__m256i)c[2], (__m256i)c[3]);
	__m256i b = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
	if (bits == 8) {
		_mm256_storeu_si256((__m256i *)(void *)out, b);
		return;
	}
	b = _mm256_and_si256(b, _mm256_set1_epi8(bits == 4 ? 15 : 3));
	b = _mm256_maddubs_epi16(b, _mm256_set1_epi16(bits == 4 ? 1 | 16 << 8 : 1 | 4 << 8));
	if (bits == 2) {
		b = _mm256_madd_epi16(b, _mm256_set1_epi32(1 | 16 << 16));
		b = _mm256_packus_epi32(b, b);
	}
	b = _mm256_packus_epi16(b, b);
	if (bits == 4) {
		b = _mm256_permute4x64_epi64(b, 0x08);
		_mm_storeu_si128((__m128i *)(void *)out, _mm256_castsi256_si128(b));
	} else {
		b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
		_mm_storel_epi64((__m128i *)(void *)out, _mm256_castsi256_si128(b));
	}
#else
	const uint32_t keep = (1u << bits) - 1, to = 8 / bits;
	for (uint32_t i = 0; i < 4 * bits; i++) {
		uint32_t byte = 0;
		for (uint32_t j = 0; j < to; j++)
			byte |= ((uint32_t)c[(i * to + j) / 8][(i * to + j) % 8] & keep) << j * bits;
		out[i] = (uint8_t)byte;
	}
#endif
}

/* The inverse: 32 numbers in two's complement of `bits` bits. */
INLINE void widen32(v8i c[4], const uint8_t *in, const unsigned bits)
{
	const v8u places = {0, 1, 2, 3, 4, 5, 6, 7};
	UNROLL
	for (int j = 0; j < 4; j++) {
		if (bits == 8) {
#ifdef __AVX2__
			c[j] = (v8i)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(in + 8 * j)));
#else
			for (int i = 0; i < 8; i++)
				c[j][i] = (int8_t)in[8 * j + i];
#endif
		} else if (bits == 4) {
			uint32_t w;
			memcpy(&w, in + 4 * j, sizeof w);
			c[j] = (v8i)(((v8u){0} + w) << (28 - 4 * places)) >> 28;
		} else {
			uint16_t w;
			memcpy(&w, in + 2 * j, sizeof w);
			c[j] = (v8i)(((v8u){0} + w) << (30 - 2 * places)) >> 30;
		}
	}
}

#endif
