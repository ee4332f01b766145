/* Scales of small floats, for the host's kernels and the device's; half.h comes before. A type's kind is 0 for E5M2, 1
 * for E4M3, 2 for E2M1. */
#ifndef OPERATORS_CPU_SMALL_FLOAT_H
#define OPERATORS_CPU_SMALL_FLOAT_H

#define FLOAT8_E5M2 0
#define FLOAT8_E4M3 1
#define FLOAT8_E2M1 2
#define FLOAT8_KIND(type) \
	((type) == GRADCOMP_F8E4M3 ? FLOAT8_E4M3 : (type) == GRADCOMP_F4E2M1 ? FLOAT8_E2M1 : FLOAT8_E5M2)
#define FLOAT8_LARGEST(kind) ((kind) == FLOAT8_E4M3 ? 448.0f : (kind) == FLOAT8_E2M1 ? 6.0f : 57344.0f)
#define FLOAT8_EXPONENT(kind) ((kind) == FLOAT8_E4M3 ? 8 : (kind) == FLOAT8_E2M1 ? 2 : 15) /* that of the largest */
#define FLOAT8_LARGEST_CODE(e4m3) ((e4m3) ? 0x7e : 0x7b) /* of 8 bits: those above it are NaN and Inf */
#define FLOAT8_NAN_POWER 255u                            /* scale byte of a NaN; NAN_SCALE is that of a float */

/* Blocks with scales of two levels: so many numbers share a byte; the least scale of all has an inverse that is
 * finite, the largest times 448 and 6 is the largest float. */
#define FLOAT8_SHARE 16
#define FLOAT8_LEAST_ABOVE 0x1p-117f
#define FLOAT8_MOST_ABOVE (0x1.fffffep127f / 2688)

/* The largest scale of which the largest code is a finite number. */
INLINE float float8_most_scale(int kind)
{
	const float most = 0x1.fffffep127f, s = most / FLOAT8_LARGEST(kind);
	return s * FLOAT8_LARGEST(kind) <= most ? s : bits_float(float_bits(s) - 1);
}

/* 2^(byte - 127), or NaN */
INLINE float float8_power(uint32_t byte)
{
	return bits_float(byte == FLOAT8_NAN_POWER ? NAN_SCALE : byte ? byte << 23 : 0x400000);
}

/* The power of two of a block whose largest magnitude has this key, as a byte. */
INLINE uint32_t float8_power_of(uint32_t largest, int kind)
{
	const uint32_t least = (uint32_t)FLOAT8_EXPONENT(kind), e = largest >> 23;
	return e == 255 ? FLOAT8_NAN_POWER : e > least ? e - least : 0;
}

/* Likewise its scale as a float. The least has an inverse that is finite. */
INLINE float float8_scale_of(uint32_t largest, int kind)
{
	const float s = bits_float(largest) / FLOAT8_LARGEST(kind), most = float8_most_scale(kind), least = 0x1p-126f;
	return largest >> 23 == 255 ? bits_float(NAN_SCALE) : !largest ? 0 : s < least ? least : s > most ? most : s;
}

/* Returns true when a block can have such a scale. */
INLINE int float8_scale_right(float scale, int kind)
{
	return (scale >= 0 && scale <= float8_most_scale(kind)) || float_bits(scale) == NAN_SCALE;
}

/* The scale above the bytes, of a block whose largest magnitude has this key. */
INLINE float float8_above_of(uint32_t largest)
{
	const float s = bits_float(largest) / 2688;
	return largest >> 23 == 255     ? bits_float(NAN_SCALE)
	       : !largest               ? 0
	       : s < FLOAT8_LEAST_ABOVE ? FLOAT8_LEAST_ABOVE
	                                : s;
}

INLINE int float8_above_right(float above)
{
	return (above >= 0 && above <= FLOAT8_MOST_ABOVE) || float_bits(above) == NAN_SCALE;
}

/* The byte of numbers whose largest magnitude has this key: an E4M3, to nearest even, at most 448. */
INLINE uint32_t float8_share_of(uint32_t largest, float above)
{
	const float rounder = 0x1p14f; /* its last bit is the unit of denormals */
	uint32_t byte;
	if (!(above > 0))
		return 0;
	const float x = bits_float(largest) / (6 * above);
	const uint32_t bits = float_bits(x);
	if (bits < 121u << 23)
		byte = float_bits(x + rounder) - float_bits(rounder);
	else
		byte = (bits - (120u << 23) + (1u << 19) - 1 + (bits >> 20 & 1)) >> 20;
	return byte < 0x7e ? byte : 0x7e;
}

/* The scale that a byte stands for. */
INLINE float float8_share(uint32_t byte, float above)
{
	const uint32_t m = byte & 0x7f;
	return (m < 8 ? (float)(int32_t)m * 0x1p-9f : bits_float((m << 20) + (120u << 23))) * above;
}

#endif
