/* Codes of 1 to 32 bits, one after another, the first in the lowest bits of the first byte:
 * the same bytes on every machine. Unused bits of the last byte are 0. Host memory.
 *
 * Where a table of operators will do (gradcomp_quantiser: 2, 4 or 8 bits; sign_pack(): 1 bit)
 * it is faster, and works on devices. */
#ifndef GRADCOMP_SDK_BITS_H
#define GRADCOMP_SDK_BITS_H

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the bytes of n codes; n < 2^59. */
static inline uint64_t sdk_bits_bytes(uint64_t n, uint32_t bits)
{
	return n / 8 * bits + (n % 8 * bits + 7) / 8;
}

/* Writes sdk_bits_bytes(n, bits) bytes: the lower `bits` bits of in[0..n). */
void sdk_bits_pack(void *out, const uint32_t *in, uint64_t n, uint32_t bits);
/* Unpacks codes. Reads as many bytes, whatever is in them; every code is below 2^bits. */
void sdk_bits_unpack(uint32_t *out, const void *in, uint64_t n, uint32_t bits);

/* Returns code number i of packed ones, for who needs a few of them. */
uint32_t sdk_bits_at(const void *in, uint64_t i, uint32_t bits);

/* Returns a code as a number in two's complement of `bits` bits. The way there is (uint32_t)value. */
static inline int32_t sdk_bits_signed(uint32_t code, uint32_t bits)
{
	uint32_t sign = 1u << (bits - 1);
	return (int32_t)(((code & (sign | (sign - 1))) ^ sign) - sign);
}

#ifdef __cplusplus
}
#endif
#endif
