/* Numbers as powers of two with a sign, and as floats of 8 or 4 bits whose blocks share a scale. */
#include "operators/cpu/fp8.h"
#include "operators/cpu/half.h"
#include "operators/cpu/lanes.h"
#include "operators/cpu/philox.h"
#include "operators/cpu/quantise.h"

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

/* Bytes from the scales of one block to those of the next. */
INLINE size_t float8_scales_of(size_t block, uint32_t powers)
{
	return gradcomp_float8_scales(block, (uint32_t)block, powers);
}

static uint32_t float8_largest(const float *x, size_t n)
{
	uint32_t most = 0;
	for (size_t i = 0; i < n; i++) {
		const uint32_t magnitude = float_bits(x[i]) & 0x7fffffff;
		most = magnitude > most ? magnitude : most;
	}
	return most;
}

/* The codes of n numbers of E2M1 that share a scale. */
static void float4_codes(uint8_t *codes, const float *x, size_t n, float scale)
{
	float tile[FLOAT8_TILE];
	for (size_t i = 0; i < n; i += FLOAT8_TILE) {
		const size_t some = n - i < FLOAT8_TILE ? n - i : FLOAT8_TILE;
		memcpy(tile, x + i, some * sizeof *tile);
		KERNEL(scale)(NULL, tile, 1 / scale, some);
		fp8_encode(codes + i / 2, tile, some, 1, FLOAT8_E2M1);
	}
}

/* A block whose scales are of two levels. */
static void float4_pack_shared(uint8_t *scales, uint8_t *codes, const float *x, size_t n)
{
	const float above = float8_above_of(float8_largest(x, n));
	memcpy(scales, &above, sizeof above);
	scales += sizeof above;
	for (size_t i = 0; i < n; i += 2 * FLOAT8_SHARE) {
		const size_t some = n - i < 2 * FLOAT8_SHARE ? n - i : 2 * FLOAT8_SHARE;
		float pair[2 * FLOAT8_SHARE] = {0};
		uint8_t to[FLOAT8_SHARE];
		for (size_t at = 0; at < some; at += FLOAT8_SHARE) {
			const size_t count = some - at < FLOAT8_SHARE ? some - at : FLOAT8_SHARE;
			const uint32_t byte = float8_share_of(float8_largest(x + i + at, count), above);
			const float scale = float8_share(byte, above), a = scale > 0 ? 1 / scale : 0;
			scales[(i + at) / FLOAT8_SHARE] = (uint8_t)byte;
			for (size_t j = at; scale > 0 && j < at + count; j++)
				pair[j] = x[i + j] * a;
		}
		fp8_encode32(to, pair, 1, FLOAT8_E2M1);
		memcpy(codes + i / 2, to, (some + 1) / 2);
	}
}

void KERNEL(float8_pack)(void *queue, uint8_t *out, const float *x, size_t n, uint32_t block, gradcomp_dtype type,
                         int powers)
{
	const int kind = FLOAT8_KIND(type);
	const size_t width = float8_scales_of(block, (uint32_t)powers);
	uint8_t *scales = out, *codes = out + gradcomp_float8_scales(n, block, (uint32_t)powers);
	for (size_t at = 0; at < n; at += block, scales += width) {
		const size_t some = n - at < block ? n - at : block;
		uint8_t *to = codes + gradcomp_float8_codes(at, type);
		if (powers == GRADCOMP_SCALES_E4M3) {
			float4_pack_shared(scales, to, x + at, some);
			continue;
		}
		const uint32_t most = float8_largest(x + at, some);
		float scale = float8_scale_of(most, kind);
		if (powers) {
			*scales = (uint8_t)float8_power_of(most, kind);
			scale = float8_power(*scales);
		} else {
			memcpy(scales, &scale, sizeof scale);
		}
		if (!(scale > 0))
			memset(to, 0, gradcomp_float8_codes(some, type));
		else if (kind == FLOAT8_E2M1)
			float4_codes(to, x + at, some, scale);
		else
			KERNEL(cast_scaled)(queue, to, x + at, some, type, 1 / scale, FLOAT8_LARGEST(kind));
	}
}

INLINE float float8_scale_at(const uint8_t *scales, size_t b, size_t block, uint32_t powers)
{
	return powers == GRADCOMP_SCALES_E8M0 ? float8_power(scales[b])
	                                      : load_float(scales + b * float8_scales_of(block, powers));
}

/* Returns true when float8_pack() can have written it. */
INLINE int float8_right(const uint8_t *scales, const uint8_t *codes, size_t n, size_t block, gradcomp_dtype type,
                        uint32_t powers)
{
	const int kind = FLOAT8_KIND(type), shared = powers == GRADCOMP_SCALES_E4M3;
	int bad = 0;
	for (size_t at = 0; at < n; at += block) {
		const float scale = float8_scale_at(scales, at / block, block, powers);
		const uint8_t *bytes = scales + at / block * float8_scales_of(block, powers) + sizeof scale;
		bad |= shared ? !float8_above_right(scale) : !float8_scale_right(scale, kind);
		for (size_t i = at; shared && i < at + block && i < n; i += FLOAT8_SHARE)
			bad |= bytes[(i - at) / FLOAT8_SHARE] > FLOAT8_LARGEST_CODE(1);
	}
	for (size_t i = 0; kind != FLOAT8_E2M1 && i < n; i++)
		bad |= (codes[i] & 0x7f) > FLOAT8_LARGEST_CODE(kind);
	return !bad;
}

int KERNEL(float8_wrong)(const uint8_t *scales, const uint8_t *codes, size_t n, const gradcomp_coding *c)
{
	return !float8_right(scales, codes, n, c->block, c->type, c->powers);
}

/* Gives n numbers of one block, from number `at` on, and returns what they have to be multiplied with yet. */
static float float8_numbers(float *out, const uint8_t *scales, const uint8_t *codes, size_t at, size_t n, size_t block,
                            gradcomp_dtype type, uint32_t powers)
{
	const float scale = float8_scale_at(scales, at / block, block, powers);
	const uint8_t *bytes = scales + at / block * float8_scales_of(block, powers) + sizeof scale;
	if (type == GRADCOMP_F4E2M1)
		fp8_decode(out, codes + at / 2, n, FLOAT8_E2M1);
	else
		KERNEL(cast_to_f32)(NULL, out, codes + at, n, type);
	if (powers != GRADCOMP_SCALES_E4M3)
		return scale;
	for (size_t i = 0; i < n; i += FLOAT8_SHARE) {
		const float share = float8_share(bytes[(at % block + i) / FLOAT8_SHARE], scale);
		for (size_t j = i; j < n && j < i + FLOAT8_SHARE; j++)
			out[j] *= share;
	}
	return 1;
}

void KERNEL(float8_values_add)(float *y, float a, const uint8_t *scales, const uint8_t *codes, size_t n,
                               const gradcomp_coding *c)
{
	float read[FLOAT8_TILE];
	for (size_t at = 0, end; at < n; at = end) {
		const size_t b = at / c->block;
		end = (b + 1) * c->block < n ? (b + 1) * c->block : n;
		end = end - at > FLOAT8_TILE ? at + FLOAT8_TILE : end;
		const float left = float8_numbers(read, scales, codes, at, end - at, c->block, c->type, c->powers);
		KERNEL(scale)(NULL, read, left, end - at);
		KERNEL(axpy)(NULL, y + at, a, read, end - at);
	}
}

void KERNEL(power_values_add)(float *y, float a, const uint8_t *exponents, const uint8_t *signs, size_t n)
{
	for (size_t i = 0; i < n; i++)
		y[i] += a * bits_float((uint32_t)exponents[i] << 23 | (uint32_t)(signs[i / 8] >> i % 8 & 1) << 31);
}

INLINE void float8_decode(float *y, const uint8_t *in, size_t n, size_t block, gradcomp_dtype type, uint32_t powers,
                          const int add, int *fault)
{
	const uint8_t *codes = in + gradcomp_float8_scales(n, (uint32_t)block, powers);
	float read[FLOAT8_TILE];
	if (!float8_right(in, codes, n, block, type, powers)) {
		*fault = 1;
		return;
	}
	for (size_t at = 0, end; at < n; at = end) {
		const size_t b = at / block;
		end = (b + 1) * block < n ? (b + 1) * block : n;
		end = end - at > FLOAT8_TILE ? at + FLOAT8_TILE : end;
		const float left = float8_numbers(add ? read : y + at, in, codes, at, end - at, block, type, powers);
		if (add)
			KERNEL(axpy)(NULL, y + at, left, read, end - at);
		else
			KERNEL(scale)(NULL, y + at, left, end - at);
	}
}

void KERNEL(float8_read)(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type,
                         int powers, int *fault)
{
	(void)queue;
	float8_decode(y, in, n, block, type, (uint32_t)powers, 0, fault);
}

void KERNEL(float8_add)(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type,
                        int powers, int *fault)
{
	(void)queue;
	float8_decode(y, in, n, block, type, (uint32_t)powers, 1, fault);
}
