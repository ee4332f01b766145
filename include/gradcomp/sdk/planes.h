/* Floats as planes of bytes, exponents apart, and bytes as planes of bits: what a general
 * packer (LZ4, zstd) finds more in than in floats as they are. To the bit, NaN and Inf too.
 * Host memory. */
#ifndef GRADCOMP_SDK_PLANES_H
#define GRADCOMP_SDK_PLANES_H

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SDK_PLANES = 4 };

/* Splits into four planes of n bytes, plane p at planes + p * stride (stride >= n). Plane 3 has the exponents, as
 * what the largest is more (so that bytes are small and often alike), plane 2 the sign and the upper seven bits of
 * the mantissa, planes 1 and 0 the rest of it. Returns the largest exponent, 0 for n = 0. */
uint8_t sdk_planes_split(uint8_t *planes, uint64_t stride, const float *x, uint64_t n);
/* Joins the planes again. Any bytes are some floats. */
void sdk_planes_join(float *x, const uint8_t *planes, uint64_t stride, uint8_t largest, uint64_t n);

/* Bit b of all bytes, for b = 0, 1, ... 7, then the n % 8 bytes that are left; and back.
 * What sees whole bytes only, as LZ4 does, finds in it what the numbers' upper bits have in
 * common. out and in do not overlap. */
void sdk_planes_turn(uint8_t *out, const uint8_t *in, uint64_t n);
void sdk_planes_turn_back(uint8_t *out, const uint8_t *in, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
