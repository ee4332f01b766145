/* Float to and from the 16-bit types: round to nearest even, NaN kept and made
 * quiet, denormals honoured. One number at a time in integers, and eight at a
 * time where F16C and AVX2 are there, with the same bits. */
#ifndef OPERATORS_CPU_HALF_H
#define OPERATORS_CPU_HALF_H

#include <string.h>

#include "operators/cpu/kernels.h"

/* The scale of a block whose numbers are not all finite, where a format has one for it. */
#define NAN_SCALE 0x7fc00000u

INLINE uint32_t float_bits(float f)
{
	uint32_t b;
	memcpy(&b, &f, sizeof b);
	return b;
}

INLINE float bits_float(uint32_t b)
{
	float f;
	memcpy(&f, &b, sizeof f);
	return f;
}

INLINE float bf16_float(uint16_t h)
{
	return bits_float((uint32_t)h << 16);
}

INLINE uint16_t float_bf16(float f, int saturate)
{
	uint32_t b = float_bits(f), mag = b & 0x7fffffff;
	if (mag > 0x7f800000)
		return (uint16_t)(b >> 16 | 0x40);
	uint32_t r = (b + 0x7fff + (b >> 16 & 1)) >> 16;
	if (saturate && (r & 0x7fff) == 0x7f80 && mag != 0x7f800000)
		r--;
	return (uint16_t)r;
}

INLINE float f16_float(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
	if (e == 31)
		return bits_float(sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0));
	if (e)
		return bits_float(sign | (e + 112) << 23 | m << 13);
	/* m * 2^-24 is exact in float. */
	return bits_float(sign | float_bits((float)(int32_t)m * 0x1p-24f));
}

INLINE uint16_t float_f16(float f, int saturate)
{
	uint32_t b = float_bits(f), sign = b >> 16 & 0x8000, mag = b & 0x7fffffff, r;
	if (mag >= 0x7f800000)
		r = mag == 0x7f800000 ? 0x7c00 : 0x7e00 | (mag >> 13 & 0x3ff);
	else if (mag >= 0x477ff000) /* 65520: halfway to 2^16 */
		r = saturate ? 0x7bff : 0x7c00;
	else if (mag >= 0x38800000) /* 2^-14: normal in F16 */
		r = (mag - 0x38000000 + 0xfff + (mag >> 13 & 1)) >> 13;
	else if (mag <= 0x33000000) /* half of the smallest denormal */
		r = 0;
	else {
		uint32_t shift = 126 - (mag >> 23), m = (mag & 0x7fffff) | 0x800000;
		r = (m + (1u << (shift - 1)) - 1 + (m >> shift & 1)) >> shift;
	}
	return (uint16_t)(sign | r);
}

#ifdef __AVX2__
INLINE __m256 bf16_float8(const uint16_t *in)
{
	__m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)in));
	return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}

INLINE void float_bf168(uint16_t *out, __m256 f, int saturate)
{
	__m256i b = _mm256_castps_si256(f);
	__m256i inf = _mm256_set1_epi32(0x7f800000), mag = _mm256_and_si256(b, _mm256_set1_epi32(0x7fffffff));
	__m256i top = _mm256_srli_epi32(b, 16);
	__m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
	__m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(b, odd), _mm256_set1_epi32(0x7fff)), 16);
	if (saturate) {
		__m256i over =
			_mm256_cmpeq_epi32(_mm256_and_si256(r, _mm256_set1_epi32(0x7fff)), _mm256_set1_epi32(0x7f80));
		over = _mm256_andnot_si256(_mm256_cmpeq_epi32(mag, inf), over);
		r = _mm256_add_epi32(r, over);
	}
	__m256i nan = _mm256_cmpgt_epi32(mag, inf);
	r = _mm256_blendv_epi8(r, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
	r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
	_mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(r));
}

INLINE __m256 f16_float8(const uint16_t *in)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)in));
}

INLINE void float_f168(uint16_t *out, __m256 f, int saturate)
{
	if (saturate) {
		__m256 most = _mm256_set1_ps(65504.0f), least = _mm256_set1_ps(-65504.0f);
		__m256i mag = _mm256_and_si256(_mm256_castps_si256(f), _mm256_set1_epi32(0x7fffffff));
		__m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), mag);
		__m256 clipped = _mm256_max_ps(_mm256_min_ps(f, most), least);
		f = _mm256_blendv_ps(f, clipped, _mm256_castsi256_ps(finite));
	}
	_mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT));
}
#endif

#endif
