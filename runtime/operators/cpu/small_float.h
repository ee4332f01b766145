/* Scales of 8-bit floats, for the host's kernels and the device's; half.h comes before. E4M3 when
 * `e4m3`, else E5M2. */
#ifndef OPERATORS_CPU_SMALL_FLOAT_H
#define OPERATORS_CPU_SMALL_FLOAT_H

#define FLOAT8_LARGEST(e4m3) ((e4m3) ? 448.0f : 57344.0f)
#define FLOAT8_EXPONENT(e4m3) ((e4m3) ? 8 : 15)          /* that of the largest */
#define FLOAT8_LARGEST_CODE(e4m3) ((e4m3) ? 0x7e : 0x7b) /* those above it are NaN and Inf */
#define FLOAT8_NAN_POWER 255u                            /* scale byte of a NaN; NAN_SCALE is that of a float */

/* The largest scale of which the largest code is a finite number. */
INLINE float float8_most_scale(int e4m3)
{
	const float most = 0x1.fffffep127f, s = most / FLOAT8_LARGEST(e4m3);
	return s * FLOAT8_LARGEST(e4m3) <= most ? s : bits_float(float_bits(s) - 1);
}

/* 2^(byte - 127), or NaN */
INLINE float float8_power(uint32_t byte)
{
	return bits_float(byte == FLOAT8_NAN_POWER ? NAN_SCALE : byte ? byte << 23 : 0x400000);
}

/* The power of two of a block whose largest magnitude has this key, as a byte. */
INLINE uint32_t float8_power_of(uint32_t largest, int e4m3)
{
	const uint32_t least = (uint32_t)FLOAT8_EXPONENT(e4m3), e = largest >> 23;
	return e == 255 ? FLOAT8_NAN_POWER : e > least ? e - least : 0;
}

/* Likewise its scale as a float. The least has an inverse that is finite. */
INLINE float float8_scale_of(uint32_t largest, int e4m3)
{
	const float s = bits_float(largest) / FLOAT8_LARGEST(e4m3), most = float8_most_scale(e4m3), least = 0x1p-126f;
	return largest >> 23 == 255 ? bits_float(NAN_SCALE) : !largest ? 0 : s < least ? least : s > most ? most : s;
}

/* Returns true when a block can have such a scale. */
INLINE int float8_scale_right(float scale, int e4m3)
{
	return (scale >= 0 && scale <= float8_most_scale(e4m3)) || float_bits(scale) == NAN_SCALE;
}

#endif
