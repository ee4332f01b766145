/* Float to and from 8 bits: E4M3 (3 bits of mantissa, no Inf, one NaN) and E5M2
 * (2 bits), as in the OCP specification of 8-bit floating point (2023). 32 at a
 * time, in integers but where a float is exact. */
#ifndef OPERATORS_CPU_FP8_H
#define OPERATORS_CPU_FP8_H

#include "operators/cpu/lanes.h"

/* Each is E4M3's when `e4m3`, else E5M2's: the bits of the mantissa; what an exponent of 0 is in a float, less one;
 * the unit of denormals; the largest finite code. */
#define FP8_SHIFT(e4m3) ((e4m3) ? 20 : 21)
#define FP8_BASE(e4m3) (((e4m3) ? 120 : 112) << 23)
#define FP8_UNIT(e4m3) ((e4m3) ? 0x1p-9f : 0x1p-16f)
#define FP8_MOST(e4m3) ((e4m3) ? 0x7e : 0x7b)

INLINE void fp8_encode32(uint8_t *out, const float *in, const int saturate, const int e4m3)
{
	const int shift = FP8_SHIFT(e4m3), most = FP8_MOST(e4m3), inf = 0x7f800000;
	/* A sum with this has its last bit at the unit of denormals. */
	const v8f rounder = SPLAT8(FP8_UNIT(e4m3) * 0x1p23f);
	v8i c[4];
	UNROLL
	for (int j = 0; j < 4; j++) {
		v8i x = (v8i)LOAD8(in + 8 * j), mag = x & 0x7fffffff;
		v8i normal = (mag - FP8_BASE(e4m3) + (1 << (shift - 1)) - 1 + (mag >> shift & 1)) >> shift;
		v8i small = (v8i)((v8f)mag + rounder) - (v8i)rounder;
		v8i r = (v8i)PICK8((v8i)(mag < FP8_BASE(e4m3) + (1 << 23)), small, normal);
		v8i over = (v8i)(r > most), nan = (v8i)(mag > inf);
		if (e4m3) {
			r = (r & ~over) | (over & (saturate ? most : 0x7f));
			r |= nan & 0x7f;
		} else {
			r = (r & ~over) | (over & (saturate ? most : 0x7c));
			r = (v8i)PICK8((v8i)(mag >= inf), (mag >> shift & 3) | 0x7c | (nan & 2), r);
		}
		/* The narrowing is of signed bytes. */
		c[j] = r | (x >> 24 & -128);
	}
	narrow32(out, c, 8);
}

INLINE void fp8_decode32(float *out, const uint8_t *in, const int e4m3)
{
	const int shift = FP8_SHIFT(e4m3);
	v8i c[4];
	widen32(c, in, 8);
	UNROLL
	for (int j = 0; j < 4; j++) {
		v8i m = c[j] & 0x7f, normal = (m << shift) + FP8_BASE(e4m3);
		v8f small = __builtin_convertvector(m, v8f) * FP8_UNIT(e4m3);
		v8i r = (v8i)PICK8((v8i)(m < (1 << (23 - shift))), small, normal);
		v8i special = (v8i)(m > FP8_MOST(e4m3));
		/* The largest exponent becomes a float's; NaN becomes quiet. */
		if (e4m3)
			r = (r & ~special) | (special & 0x7fc00000);
		else
			r |= special & (0x7f800000 | ((v8i)(m > 0x7c) & 0x400000));
		STORE8(out + 8 * j, (v8f)(r | (c[j] & INT32_MIN)));
	}
}

INLINE void fp8_encode(uint8_t *out, const float *in, size_t n, const int saturate, const int e4m3)
{
	float from[32] = {0};
	uint8_t to[32];
	size_t i = 0;
	for (; i + 32 <= n; i += 32)
		fp8_encode32(out + i, in + i, saturate, e4m3);
	if (i == n)
		return;
	memcpy(from, in + i, (n - i) * sizeof *in);
	fp8_encode32(to, from, saturate, e4m3);
	memcpy(out + i, to, n - i);
}

INLINE void fp8_decode(float *out, const uint8_t *in, size_t n, const int e4m3)
{
	uint8_t from[32] = {0};
	float to[32];
	size_t i = 0;
	for (; i + 32 <= n; i += 32)
		fp8_decode32(out + i, in + i, e4m3);
	if (i == n)
		return;
	memcpy(from, in + i, n - i);
	fp8_decode32(to, from, e4m3);
	memcpy(out + i, to, (n - i) * sizeof *out);
}

#endif
