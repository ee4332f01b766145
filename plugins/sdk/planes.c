#include "gradcomp/sdk/planes.h"

#include <string.h>

static uint32_t bits_of(const float *x)
{
	uint32_t u;
	memcpy(&u, x, sizeof u);
	return u;
}

uint8_t sdk_planes_split(uint8_t *planes, uint64_t stride, const float *x, uint64_t n)
{
	uint8_t *sign = planes + 2 * stride, *exponent = planes + 3 * stride;
	uint32_t largest = 0;
	for (uint64_t i = 0; i < n; i++) {
		uint32_t e = bits_of(&x[i]) >> 23 & 255;
		largest = e > largest ? e : largest;
	}
	for (uint64_t i = 0; i < n; i++) {
		uint32_t u = bits_of(&x[i]);
		exponent[i] = (uint8_t)(largest - (u >> 23 & 255));
		sign[i] = (uint8_t)(u >> 31 << 7 | (u >> 16 & 127));
		planes[stride + i] = (uint8_t)(u >> 8);
		planes[i] = (uint8_t)u;
	}
	return (uint8_t)largest;
}

void sdk_planes_join(float *x, const uint8_t *planes, uint64_t stride, uint8_t largest, uint64_t n)
{
	const uint8_t *sign = planes + 2 * stride, *exponent = planes + 3 * stride;
	for (uint64_t i = 0; i < n; i++) {
		uint32_t e = (uint8_t)(largest - exponent[i]), top = sign[i];
		uint32_t u =
			top >> 7 << 31 | e << 23 | (top & 127) << 16 | (uint32_t)planes[stride + i] << 8 | planes[i];
		memcpy(&x[i], &u, sizeof u);
	}
}

/* Computes the transpose of 8 rows of 8 bits, a row a byte, row 0 and bit 0 lowest: swaps blocks of 1, 2 and 4
 * across the diagonal (Warren, Hacker's Delight, 7-3). */
static uint64_t transpose(uint64_t x)
{
	uint64_t t = (x ^ x >> 7) & 0x00aa00aa00aa00aaull;
	x ^= t ^ t << 7;
	t = (x ^ x >> 14) & 0x0000cccc0000ccccull;
	x ^= t ^ t << 14;
	t = (x ^ x >> 28) & 0x00000000f0f0f0f0ull;
	return x ^ t ^ t << 28;
}

void sdk_planes_turn(uint8_t *out, const uint8_t *in, uint64_t n)
{
	uint64_t groups = n / 8;
	for (uint64_t g = 0; g < groups; g++) {
		uint64_t x = 0;
		for (int b = 0; b < 8; b++)
			x |= (uint64_t)in[8 * g + (uint64_t)b] << 8 * b;
		x = transpose(x);
		for (uint64_t b = 0; b < 8; b++)
			out[b * groups + g] = (uint8_t)(x >> 8 * b);
	}
	memcpy(out + 8 * groups, in + 8 * groups, n % 8);
}

void sdk_planes_turn_back(uint8_t *out, const uint8_t *in, uint64_t n)
{
	uint64_t groups = n / 8;
	for (uint64_t g = 0; g < groups; g++) {
		uint64_t x = 0;
		for (uint64_t b = 0; b < 8; b++)
			x |= (uint64_t)in[b * groups + g] << 8 * b;
		x = transpose(x);
		for (int b = 0; b < 8; b++)
			out[8 * g + (uint64_t)b] = (uint8_t)(x >> 8 * b);
	}
	memcpy(out + 8 * groups, in + 8 * groups, n % 8);
}
