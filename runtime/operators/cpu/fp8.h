/* Float to and from 8 bits: E4M3 (3 bits of mantissa, no Inf, one NaN) and E5M2
 * (2 bits), as in the OCP specification of 8-bit floating point (2023); and 4 bits: E2M1 (1 bit, neither Inf nor
 * NaN), as in that of microscaling formats, two to a byte. 32 at a time, in integers but where a float is exact. */
#ifndef OPERATORS_CPU_FP8_H
#define OPERATORS_CPU_FP8_H

#include "operators/cpu/half.h"
#include "operators/cpu/lanes.h"
#include "operators/cpu/small_float.h"

/* By kind (small_float.h): bits of a code; those of a float's mantissa that go; what an exponent of 0 is in a float,
 * less one; the unit of denormals; the largest finite code. */
#define FP8_BITS(kind) ((kind) == FLOAT8_E2M1 ? 4 : 8)
#define FP8_SHIFT(kind) ((kind) == FLOAT8_E4M3 ? 20 : (kind) == FLOAT8_E2M1 ? 22 : 21)
#define FP8_BASE(kind) (((kind) == FLOAT8_E4M3 ? 120 : (kind) == FLOAT8_E2M1 ? 126 : 112) << 23)
#define FP8_UNIT(kind) ((kind) == FLOAT8_E4M3 ? 0x1p-9f : (kind) == FLOAT8_E2M1 ? 0x1p-1f : 0x1p-16f)
#define FP8_MOST(kind) ((kind) == FLOAT8_E4M3 ? 0x7e : (kind) == FLOAT8_E2M1 ? 7 : 0x7b)

INLINE void fp8_encode32(uint8_t *out, const float *in, const int saturate, const int kind)
{
	const int shift = FP8_SHIFT(kind), most = FP8_MOST(kind), inf = 0x7f800000;
	/* A sum with this has its last bit at the unit of denormals. */
	const v8f rounder = SPLAT8(FP8_UNIT(kind) * 0x1p23f);
	v8i c[4];
	UNROLL
	for (int j = 0; j < 4; j++) {
		v8i x = (v8i)LOAD8(in + 8 * j), mag = x & 0x7fffffff;
		v8i normal = (mag - FP8_BASE(kind) + (1 << (shift - 1)) - 1 + (mag >> shift & 1)) >> shift;
		v8i small = (v8i)((v8f)mag + rounder) - (v8i)rounder;
		v8i r = (v8i)PICK8((v8i)(mag < FP8_BASE(kind) + (1 << 23)), small, normal);
		v8i over = (v8i)(r > most), nan = (v8i)(mag > inf);
		if (kind == FLOAT8_E2M1) {
			r = (r & ~over) | (over & most);
		} else if (kind == FLOAT8_E4M3) {
			r = (r & ~over) | (over & (saturate ? most : 0x7f));
			r |= nan & 0x7f;
		} else {
			r = (r & ~over) | (over & (saturate ? most : 0x7c));
			r = (v8i)PICK8((v8i)(mag >= inf), (mag >> shift & 3) | 0x7c | (nan & 2), r);
		}
		/* The narrowing is of signed bytes. */
		c[j] = kind == FLOAT8_E2M1 ? r | (x >> 28 & 8) : r | (x >> 24 & -128);
	}
	narrow32(out, c, FP8_BITS(kind));
}

INLINE void fp8_decode32(float *out, const uint8_t *in, const int kind)
{
	const int shift = FP8_SHIFT(kind);
	v8i c[4];
	widen32(c, in, FP8_BITS(kind));
	UNROLL
	for (int j = 0; j < 4; j++) {
		v8i m = c[j] & (kind == FLOAT8_E2M1 ? 7 : 0x7f), normal = (m << shift) + FP8_BASE(kind);
		v8f small = __builtin_convertvector(m, v8f) * FP8_UNIT(kind);
		v8i r = (v8i)PICK8((v8i)(m < (1 << (23 - shift))), small, normal);
		v8i special = (v8i)(m > FP8_MOST(kind));
		/* The largest exponent becomes a float's; NaN becomes quiet. */
		if (kind != FLOAT8_E5M2)
			r = (r & ~special) | (special & 0x7fc00000);
		else
			r |= special & (0x7f800000 | ((v8i)(m > 0x7c) & 0x400000));
		STORE8(out + 8 * j, (v8f)(r | (c[j] & INT32_MIN)));
	}
}

INLINE void fp8_encode(uint8_t *out, const float *in, size_t n, const int saturate, const int kind)
{
	float from[32] = {0};
	uint8_t to[32];
	size_t i = 0;
	for (; i + 32 <= n; i += 32)
		fp8_encode32(out + i * FP8_BITS(kind) / 8, in + i, saturate, kind);
	if (i == n)
		return;
	memcpy(from, in + i, (n - i) * sizeof *in);
	fp8_encode32(to, from, saturate, kind);
	memcpy(out + i * FP8_BITS(kind) / 8, to, ((n - i) * FP8_BITS(kind) + 7) / 8);
}

INLINE void fp8_decode(float *out, const uint8_t *in, size_t n, const int kind)
{
	uint8_t from[32] = {0};
	float to[32];
	size_t i = 0;
	for (; i + 32 <= n; i += 32)
		fp8_decode32(out + i, in + i * FP8_BITS(kind) / 8, kind);
	if (i == n)
		return;
	memcpy(from, in + i * FP8_BITS(kind) / 8, ((n - i) * FP8_BITS(kind) + 7) / 8);
	fp8_decode32(to, from, kind);
	memcpy(out + i, to, (n - i) * sizeof *out);
}

#endif
