/* Numbers as powers of two with a sign, and as 8-bit floats whose blocks share a scale. */
#include "operators/cpu/half.h"
#include "operators/cpu/lanes.h"
#include "operators/cpu/philox.h"
#include "operators/cpu/quantise.h"
#include "operators/cpu/small_float.h"

enum { POWER_TILE = 1024, POWER_LANES = 32, POWER_LARGEST = 254, FLOAT8_TILE = 1024 };

/* The exponents that stand for numbers of these bits. Both sides of the comparison are multiples
 * of 2^-24. */
INLINE void power_exponents(uint8_t *out, const uint32_t *bits, const float *draw)
{
	for (int i = 0; i < POWER_LANES; i++) {
		uint32_t magnitude = bits[i] & 0x7fffffff, e = magnitude >> 23;
		float fraction = (float)(int32_t)(magnitude & 0x7fffff) * 0x1p-23f;
		out[i] = (uint8_t)(e + ((draw[i] < fraction) & (e < POWER_LARGEST)));
	}
}

/* Uniform numbers first to first + n - 1 of a stream. */
static void power_draw(float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
	_Alignas(64) float tile[PHILOX_ROOM(PHILOX_GROUP)];
	size_t i = 0;
	while (i < n) {
		size_t whole = (n - i) / PHILOX_GROUP * PHILOX_GROUP;
		uint64_t at = first + i;
		if (at % 4 == 0 && whole) {
			philox_uniform(out + i, whole, seed, stream, at / 4);
			i += whole;
			continue;
		}
		/* Up to the next block, or what is left. */
		size_t part = at % 4 ? (size_t)(4 - at % 4) : n - i;
		if (part > n - i)
			part = n - i;
		memcpy(out + i, philox_tile(tile, part, seed, stream, at), part * sizeof *out);
		i += part;
	}
}

void KERNEL(power_pack)(void *queue, uint8_t *out, const float *x, size_t n, uint64_t seed, uint64_t stream,
                        uint64_t first)
{
	float draw[POWER_TILE] = {0};
	uint32_t bits[POWER_TILE] = {0}, words[POWER_TILE / 32];
	uint8_t exponents[POWER_TILE], *signs = out + n;
	for (size_t at = 0; at < n; at += POWER_TILE) {
		const size_t some = n - at < POWER_TILE ? n - at : POWER_TILE;
		power_draw(draw, some, seed, stream, first + at);
		memcpy(bits, x + at, some * sizeof *bits);
		for (size_t i = 0; i < some; i += POWER_LANES)
			power_exponents(exponents + i, bits + i, draw + i);
		memcpy(out + at, exponents, some);
		KERNEL(sign_pack)(queue, words, x + at, some, POWER_TILE);
		memcpy(signs + at / 8, words, (some + 7) / 8);
	}
}

INLINE void power_decode(float *y, const uint8_t *in, size_t n, const int add)
{
	const uint8_t *signs = in + n;
	for (size_t i = 0; i < n; i++) {
		const float v = bits_float((uint32_t)in[i] << 23 | (uint32_t)(signs[i / 8] >> i % 8 & 1) << 31);
		y[i] = add ? y[i] + v : v;
	}
}

void KERNEL(power_read)(void *queue, float *y, const uint8_t *in, size_t n, int *fault)
{
	(void)queue, (void)fault;
	power_decode(y, in, n, 0);
}

void KERNEL(power_add)(void *queue, float *y, const uint8_t *in, size_t n, int *fault)
{
	(void)queue, (void)fault;
	power_decode(y, in, n, 1);
}

void KERNEL(float8_pack)(void *queue, uint8_t *out, const float *x, size_t n, uint32_t block, gradcomp_dtype type,
                         int powers)
{
	const int e4m3 = type == GRADCOMP_F8E4M3;
	const size_t blocks = (n + block - 1) / block;
	uint8_t *codes = out + blocks * (powers ? 1 : sizeof(float));
	for (size_t b = 0; b < blocks; b++) {
		const size_t at = b * block, some = n - at < block ? n - at : block;
		uint32_t most = 0;
		for (size_t i = at; i < at + some; i++) {
			const uint32_t magnitude = float_bits(x[i]) & 0x7fffffff;
			most = magnitude > most ? magnitude : most;
		}
		float scale = float8_scale_of(most, e4m3);
		if (powers) {
			out[b] = (uint8_t)float8_power_of(most, e4m3);
			scale = float8_power(out[b]);
		} else {
			memcpy(out + b * sizeof scale, &scale, sizeof scale);
		}
		if (scale > 0)
			KERNEL(cast_scaled)(queue, codes + at, x + at, some, type, 1 / scale, FLOAT8_LARGEST(e4m3));
		else
			memset(codes + at, 0, some);
	}
}

INLINE float float8_scale_at(const uint8_t *in, size_t b, int powers)
{
	float scale;
	if (powers)
		return float8_power(in[b]);
	memcpy(&scale, in + b * sizeof scale, sizeof scale);
	return scale;
}

/* Returns true when float8_pack() can have written it. */
INLINE int float8_right(const uint8_t *scales, const uint8_t *codes, size_t n, size_t block, int e4m3, int powers)
{
	int bad = 0;
	for (size_t b = 0; b < (n + block - 1) / block; b++)
		bad |= !float8_scale_right(float8_scale_at(scales, b, powers), e4m3);
	for (size_t i = 0; i < n; i++)
		bad |= (codes[i] & 0x7f) > FLOAT8_LARGEST_CODE(e4m3);
	return !bad;
}

int KERNEL(float8_wrong)(const uint8_t *scales, const uint8_t *codes, size_t n, const gradcomp_coding *c)
{
	return !float8_right(scales, codes, n, c->block, c->type == GRADCOMP_F8E4M3, (int)c->powers);
}

void KERNEL(float8_values_add)(float *y, float a, const uint8_t *scales, const uint8_t *codes, size_t n,
                               const gradcomp_coding *c)
{
	float read[FLOAT8_TILE];
	for (size_t at = 0, end; at < n; at = end) {
		const size_t b = at / c->block;
		end = (b + 1) * c->block < n ? (b + 1) * c->block : n;
		end = end - at > FLOAT8_TILE ? at + FLOAT8_TILE : end;
		KERNEL(cast_to_f32)(NULL, read, codes + at, end - at, c->type);
		KERNEL(scale)(NULL, read, float8_scale_at(scales, b, (int)c->powers), end - at);
		KERNEL(axpy)(NULL, y + at, a, read, end - at);
	}
}

void KERNEL(power_values_add)(float *y, float a, const uint8_t *exponents, const uint8_t *signs, size_t n)
{
	for (size_t i = 0; i < n; i++)
		y[i] += a * bits_float((uint32_t)exponents[i] << 23 | (uint32_t)(signs[i / 8] >> i % 8 & 1) << 31);
}

INLINE void float8_decode(float *y, const uint8_t *in, size_t n, size_t block, gradcomp_dtype type, int powers,
                          const int add, int *fault)
{
	const int e4m3 = type == GRADCOMP_F8E4M3;
	const size_t blocks = (n + block - 1) / block;
	const uint8_t *codes = in + blocks * (powers ? 1 : sizeof(float));
	float read[FLOAT8_TILE];
	if (!float8_right(in, codes, n, block, e4m3, powers)) {
		*fault = 1;
		return;
	}
	for (size_t at = 0, end; at < n; at = end) {
		const size_t b = at / block;
		const float scale = float8_scale_at(in, b, powers);
		end = (b + 1) * block < n ? (b + 1) * block : n;
		end = end - at > FLOAT8_TILE ? at + FLOAT8_TILE : end;
		KERNEL(cast_to_f32)(NULL, add ? read : y + at, codes + at, end - at, type);
		if (add)
			KERNEL(axpy)(NULL, y + at, scale, read, end - at);
		else
			KERNEL(scale)(NULL, y + at, scale, end - at);
	}
}

void KERNEL(float8_read)(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type,
                         int powers, int *fault)
{
	(void)queue;
	float8_decode(y, in, n, block, type, powers, 0, fault);
}

void KERNEL(float8_add)(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type,
                        int powers, int *fault)
{
	(void)queue;
	float8_decode(y, in, n, block, type, powers, 1, fault);
}
