/* Vectors that ranks have coded, at random: what codes_sum() is given, and what it is to make of them, by its definition.
 * Who includes this has test_random(), test_normal() and test_bits(). */
#ifndef TESTS_SUPPORT_CODED_INPUT_H
#define TESTS_SUPPORT_CODED_INPUT_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gradcomp/operators.h"

enum { CODED_PARTS = 85, CODED_RANKS = 131, CODED_KINDS = 9 };

static const char *const coded_kinds[CODED_KINDS] = {"quantised", "levels", "signs",  "magnitudes", "ternary",
                                                     "largest",   "float8", "powers", "float16"};

typedef struct coded_input {
	gradcomp_coding coding;
	gradcomp_quantiser q;
	gradcomp_levels l;
	gradcomp_coded part[CODED_PARTS];
	size_t parts, ranks, bytes; /* of a payload */
	uint8_t *payload[CODED_RANKS];
	float given, scale[CODED_PARTS], *x, *y; /* all parts' numbers, one after another */
	size_t n;
	float a;
} coded_input;

static inline uint32_t coded_word(float f)
{
	uint32_t word;
	memcpy(&word, &f, sizeof word);
	return word;
}

static inline size_t coded_blocks(size_t n, size_t block)
{
	return (n + block - 1) / block;
}

/* Returns true where scales are of two levels, whose values are counted in bytes. */
static inline int coded_shared(const coded_input *c)
{
	return c->coding.kind == GRADCOMP_CODING_FLOAT8 && c->coding.powers == GRADCOMP_SCALES_E4M3;
}

/* Bytes of a value. */
static inline size_t coded_width(const coded_input *c)
{
	return c->coding.kind == GRADCOMP_CODING_POWERS ||
	                       (c->coding.kind == GRADCOMP_CODING_FLOAT8 && c->coding.powers)
	               ? 1
	               : sizeof(float);
}

static inline int coded_has_runs(const coded_input *c)
{
	return c->coding.kind == GRADCOMP_CODING_SIGNS || c->coding.kind == GRADCOMP_CODING_MAGNITUDES;
}

/* How many values, and bytes of codes, a part of n numbers has in a payload. */
static inline void coded_sizes(const coded_input *c, const gradcomp_coded *p, size_t *values, size_t *codes)
{
	const size_t n = p->n, runs = coded_has_runs(c) ? coded_blocks(n, p->segment) : 0;
	size_t words = 0;
	for (size_t r = 0; r < runs; r++)
		words += coded_blocks(r + 1 < runs ? p->segment : n - r * p->segment, 32);
	switch (c->coding.kind) {
	case GRADCOMP_CODING_QUANTISED:
		*values = c->q.norm == GRADCOMP_NORM_GIVEN ? 0 : coded_blocks(n, c->q.block);
		*codes = coded_blocks(n * c->q.bits, 8);
		break;
	case GRADCOMP_CODING_LEVELS:
		*values = coded_blocks(n, c->l.block);
		*codes = coded_blocks(n * c->l.bits, 8);
		break;
	case GRADCOMP_CODING_TERNARY:
		*values = 0;
		*codes = coded_blocks(n, 5);
		break;
	case GRADCOMP_CODING_LARGEST:
		*values = n;
		*codes = 0;
		break;
	case GRADCOMP_CODING_FLOAT8:
		*values = coded_blocks(n, c->coding.block);
		if (coded_shared(c))
			*values = 4 * *values + coded_blocks(n, 16);
		*codes = c->coding.type == GRADCOMP_F4E2M1 ? coded_blocks(n, 2) : n;
		break;
	case GRADCOMP_CODING_POWERS:
		*values = n;
		*codes = coded_blocks(n, 8);
		break;
	case GRADCOMP_CODING_FLOAT16:
		*values = 0;
		*codes = n * sizeof(uint16_t);
		break;
	default:
		*values = c->coding.kind == GRADCOMP_CODING_SIGNS ? 2 * runs : runs;
		*codes = 4 * words;
	}
}

static inline void coded_settings(coded_input *c, unsigned kind)
{
	const uint32_t bits = kind == GRADCOMP_CODING_LEVELS ? 4u << test_random() % 2 : 2u << test_random() % 3,
		       most = (1u << (bits - 1)) - 1, levels = 1 + (uint32_t)test_random() % most,
		       block = 32 * (1 + (uint32_t)test_random() % 9);
	c->given = (float)fabs(test_normal());
	c->q = (gradcomp_quantiser){.struct_size = sizeof c->q,
	                            .bits = bits,
	                            .levels = levels,
	                            .block = block,
	                            .norm = (uint32_t)test_random() % 4,
	                            .given = &c->given};
	c->l = (gradcomp_levels){.struct_size = sizeof c->l, .bits = bits, .levels = levels, .block = block};
	for (uint32_t v = 1; v <= levels; v++)
		c->l.value[v] = (float)v * (float)v / (float)(levels * levels);
	c->coding = (gradcomp_coding){.struct_size = sizeof c->coding,
	                              .kind = kind,
	                              .quantiser = &c->q,
	                              .levels = &c->l,
	                              .block = block,
	                              .type = test_random() % 2 ? GRADCOMP_F8E4M3 : GRADCOMP_F8E5M2,
	                              .powers = (uint32_t)test_random() % 2};
	if (kind == GRADCOMP_CODING_FLOAT16)
		c->coding.type = test_random() % 2 ? GRADCOMP_F16 : GRADCOMP_BF16;
	if (kind == GRADCOMP_CODING_FLOAT8 && test_random() % 2) {
		c->coding.type = GRADCOMP_F4E2M1;
		c->coding.powers = (uint32_t)test_random() % 3;
	}
}

static inline void coded_put_code(uint8_t *codes, size_t i, unsigned bits, int code)
{
	const unsigned shift = (unsigned)(i * bits % 8);
	codes[i * bits / 8] |= (uint8_t)(((unsigned)code & ((1u << bits) - 1)) << shift);
}

/* A rank's part that could have been written. */
static inline void coded_write(const coded_input *c, const gradcomp_coded *p, uint8_t *payload)
{
	size_t values, bytes;
	uint8_t *codes = payload + p->codes;
	const int levels = (int)(c->coding.kind == GRADCOMP_CODING_LEVELS ? c->l.levels : c->q.levels);
	coded_sizes(c, p, &values, &bytes);
	for (size_t v = 0; v < values && coded_width(c) == 1; v++)
		payload[p->values + v] = (uint8_t)(coded_shared(c) ? test_random() % 127 : 100 + test_random() % 40);
	for (size_t v = 0; coded_shared(c) && v < values; v += 4 + c->coding.block / 16) {
		const float f = test_random() % 64 == 0 ? NAN : test_random() % 16 ? fabsf(test_normal()) : 0;
		memcpy(payload + p->values + v, &f, sizeof f);
	}
	for (size_t v = 0; v < values && coded_width(c) > 1; v++) {
		float f = test_normal();
		if (c->coding.kind < GRADCOMP_CODING_SIGNS || c->coding.kind >= GRADCOMP_CODING_LARGEST)
			f = test_random() % 16 ? fabsf(f) : 0;
		if (c->coding.kind == GRADCOMP_CODING_QUANTISED && c->q.norm == GRADCOMP_NORM_ABSMAX_OR_NAN &&
		    test_random() % 64 == 0)
			f = NAN;
		memcpy(payload + p->values + 4 * v, &f, sizeof f);
	}
	memset(codes, 0, bytes);
	for (size_t i = 0; i < bytes; i++)
		if (c->coding.kind > GRADCOMP_CODING_LEVELS)
			codes[i] = (uint8_t)(test_random() % (c->coding.kind == GRADCOMP_CODING_TERNARY  ? 243
			                                      : c->coding.kind == GRADCOMP_CODING_FLOAT8 ? 0x7b
			                                                                                 : 256));
	/* Few are NaN or Inf, else all sums would be NaN. */
	for (size_t i = 1; c->coding.kind == GRADCOMP_CODING_FLOAT16 && i < bytes; i += 2)
		codes[i] &= test_random() % 4096 ? 0xbf : 0xff;
	for (size_t i = 0; c->coding.kind <= GRADCOMP_CODING_LEVELS && i < p->n; i++)
		coded_put_code(codes, i, c->q.bits, (int)(test_random() % (2 * (unsigned)levels + 1)) - levels);
}

/* Parts of at most `most` numbers; x is set, y poison. */
static inline void coded_make(coded_input *c, unsigned kind, size_t parts, size_t ranks, size_t most)
{
	static const size_t segments[] = {1, 5, 8, 32, 33, 100, 1000, 100000};
	memset(c, 0, sizeof *c);
	coded_settings(c, kind);
	c->parts = parts;
	c->ranks = ranks;
	c->a = ranks % 2 ? -0.7f : 1.0f / (float)(ranks + 1);
	for (size_t i = 0; i < parts; i++) {
		gradcomp_coded *p = &c->part[i];
		size_t values, codes;
		p->n = test_random() % 5 ? test_random() % (most + 1) : test_random() % 40;
		if (coded_has_runs(c))
			p->segment = segments[test_random() % (sizeof segments / sizeof *segments)];
		else if (test_random() % 2)
			p->times = test_normal();
		coded_sizes(c, p, &values, &codes);
		c->bytes += 4 * (test_random() % 3);
		p->values = c->bytes;
		c->bytes += coded_width(c) * values;
		const int words = coded_has_runs(c) || kind == GRADCOMP_CODING_FLOAT16;
		c->bytes = words ? (c->bytes + 3) / 4 * 4 : c->bytes;
		c->bytes += words ? 4 * (test_random() % 2) : test_random() % 4;
		p->codes = c->bytes;
		c->bytes = (c->bytes + codes + 3) / 4 * 4;
		c->scale[i] = (float)fabs(test_normal());
		c->n += p->n;
	}
	c->x = malloc((c->n + 1) * sizeof *c->x);
	c->y = malloc((c->n + 1) * sizeof *c->y);
	for (size_t i = 0; i <= c->n; i++) {
		c->x[i] = test_random() % 8 ? test_normal() : test_random() % 2 ? -0.0f : 0;
		c->y[i] = NAN;
	}
	for (size_t r = 0; r < ranks; r++) {
		c->payload[r] = malloc(c->bytes + 1);
		for (size_t i = 0; i < c->bytes; i++)
			c->payload[r][i] = (uint8_t)test_random();
		for (size_t i = 0; i < parts; i++)
			coded_write(c, &c->part[i], c->payload[r]);
	}
}

static inline void coded_free(coded_input *c)
{
	for (size_t r = 0; r < c->ranks; r++)
		free(c->payload[r]);
	free(c->x);
	free(c->y);
}

static inline float coded_value(const uint8_t *payload, const gradcomp_coded *p, size_t v)
{
	float f;
	memcpy(&f, payload + p->values + 4 * v, sizeof f);
	return f;
}

static inline int coded_code(const uint8_t *codes, size_t i, unsigned bits)
{
	const int field = codes[i * bits / 8] >> i * bits % 8 & ((1 << bits) - 1);
	return field >= 1 << (bits - 1) ? field - (1 << bits) : field;
}

/* The magnitude of an E4M3 or E5M2 by its bits. */
static inline float coded_small(int code, int mantissa, int bias)
{
	const int exponent = code >> mantissa, rest = code & ((1 << mantissa) - 1);
	return (float)ldexp(exponent ? (1 << mantissa) + rest : rest, (exponent ? exponent : 1) - bias - mantissa);
}

/* A code of E2M1, times its scale. */
static inline float coded_float4(const coded_input *c, const gradcomp_coded *p, const uint8_t *payload, size_t i,
                                 int *wrong)
{
	static const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
	const uint8_t code = payload[p->codes + i / 2] >> 4 * (i % 2) & 15, *scales = payload + p->values;
	const size_t b = i / c->coding.block;
	float scale;
	if (coded_shared(c)) {
		const uint8_t *const own = scales + b * (4 + c->coding.block / 16),
				     byte = own[4 + i % c->coding.block / 16];
		memcpy(&scale, own, sizeof scale);
		*wrong |= byte > 0x7e ||
		          (!(scale >= 0 && (double)scale * 2688 <= (double)FLT_MAX) && coded_word(scale) != 0x7fc00000);
		scale = coded_small(byte & 0x7f, 3, 7) * scale;
	} else {
		if (c->coding.powers)
			scale = scales[b] == 255 ? NAN : (float)ldexp(1, scales[b] - 127);
		else
			memcpy(&scale, scales + 4 * b, sizeof scale);
		*wrong |= !(scale >= 0 && isfinite(scale * 6)) && coded_word(scale) != 0x7fc00000;
	}
	return (code & 8 ? -magnitudes[code & 7] : magnitudes[code]) * scale;
}

/* A code of E4M3 or E5M2 by its bits, times its block's scale. */
static inline float coded_float8(const coded_input *c, const gradcomp_coded *p, const uint8_t *payload, size_t i,
                                 int *wrong)
{
	const int e4m3 = c->coding.type == GRADCOMP_F8E4M3, mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
	const uint8_t code = payload[p->codes + i], *scales = payload + p->values;
	const float largest = e4m3 ? 448 : 57344, v = coded_small(code & 0x7f, mantissa, bias);
	const size_t b = i / c->coding.block;
	float scale;
	if (c->coding.powers)
		scale = scales[b] == 255 ? NAN : (float)ldexp(1, scales[b] - 127);
	else
		memcpy(&scale, scales + 4 * b, sizeof scale);
	*wrong |= (code & 0x7f) > (e4m3 ? 0x7e : 0x7b);
	*wrong |= !(scale >= 0 && isfinite(scale * largest)) && coded_word(scale) != 0x7fc00000;
	return (code & 0x80 ? -v : v) * scale;
}

/* Number i of F16 or BF16. */
static inline float coded_float16(gradcomp_dtype type, const uint8_t *codes, size_t i)
{
	const unsigned bits = codes[2 * i] | (unsigned)codes[2 * i + 1] << 8, exponent = bits >> 10 & 31;
	if (type == GRADCOMP_BF16)
		return test_bits(bits << 16);
	if (exponent == 31)
		return bits & 1023 ? NAN : bits >> 15 ? -INFINITY : INFINITY;
	const float v = (float)ldexp((exponent ? 1024 : 0) + (bits & 1023), (int)(exponent ? exponent : 1) - 25);
	return bits >> 15 ? -v : v;
}

/* Number i of a part as a rank's payload says; *wrong = 1 when that could not have been written. */
static inline float coded_number(const coded_input *c, const gradcomp_coded *p, float scale, const uint8_t *payload,
                                 size_t i, int *wrong)
{
	static const int power[] = {1, 3, 9, 27, 81};
	const uint8_t *codes = payload + p->codes;
	float v;
	int code;
	if (c->coding.kind == GRADCOMP_CODING_TERNARY) {
		*wrong |= codes[i / 5] > 242;
		return codes[i / 5] > 242 ? 0 : scale * (float)(codes[i / 5] / power[i % 5] % 3 - 1);
	}
	if (c->coding.kind == GRADCOMP_CODING_POWERS)
		return test_bits((uint32_t)payload[p->values + i] << 23 | (uint32_t)(codes[i / 8] >> i % 8 & 1) << 31);
	if (c->coding.kind == GRADCOMP_CODING_FLOAT8 && c->coding.type == GRADCOMP_F4E2M1)
		return coded_float4(c, p, payload, i, wrong);
	if (c->coding.kind == GRADCOMP_CODING_FLOAT8)
		return coded_float8(c, p, payload, i, wrong);
	if (c->coding.kind == GRADCOMP_CODING_FLOAT16)
		return coded_float16(c->coding.type, codes, i);
	if (c->coding.kind == GRADCOMP_CODING_LARGEST) {
		v = coded_value(payload, p, i);
		*wrong |= !(v >= 0 && isfinite(v));
		return v;
	}
	if (c->coding.kind <= GRADCOMP_CODING_LEVELS) {
		const int given = c->coding.kind == GRADCOMP_CODING_QUANTISED && c->q.norm == GRADCOMP_NORM_GIVEN;
		code = coded_code(codes, i, c->q.bits);
		v = given ? c->given : coded_value(payload, p, i / c->q.block);
		*wrong |= abs(code) > (int)c->q.levels;
		*wrong |= !given && !(v >= 0 && isfinite(v)) &&
		          !(c->coding.kind == GRADCOMP_CODING_QUANTISED && c->q.norm == GRADCOMP_NORM_ABSMAX_OR_NAN &&
		            isnan(v));
		if (c->coding.kind == GRADCOMP_CODING_QUANTISED)
			return (float)code * v;
		v *= c->l.value[abs(code) < (int)c->l.levels ? abs(code) : (int)c->l.levels];
		return code < 0 ? -v : v;
	}
	const size_t run = i / p->segment, at = i % p->segment, words = coded_blocks(p->segment, 32);
	const int bit = codes[4 * (run * words) + at / 8] >> at % 8 & 1,
		  pairs = c->coding.kind == GRADCOMP_CODING_SIGNS;
	for (int k = 0; k <= pairs; k++)
		*wrong |= !isfinite(coded_value(payload, p, run * (pairs ? 2 : 1) + (size_t)k));
	v = coded_value(payload, p, pairs ? 2 * run + (size_t)bit : run);
	return !pairs && bit ? -v : v;
}

/* What y is to be, of all parts; returns what the fault is to be. */
static inline int coded_sum(const coded_input *c, float *y, int from_x)
{
	int wrong = 0;
	size_t at = 0;
	for (size_t k = 0; k < c->parts; k++)
		for (size_t i = 0; i < c->part[k].n; i++, at++) {
			float sum = from_x ? c->x[at] : 0;
			for (size_t r = 0; r < c->ranks; r++) {
				const float v = coded_number(c, &c->part[k], c->scale[k], c->payload[r], i, &wrong),
					    add = c->a * v;
				if (c->coding.kind != GRADCOMP_CODING_LARGEST)
					sum = sum + add;
				else
					sum = v > sum ? v : sum;
			}
			y[at] = coded_has_runs(c) || c->part[k].times == 0 ? sum : sum * c->part[k].times;
		}
	return wrong;
}

/* Damages a byte that counts, of some rank's; returns 0 when there is none. */
static inline int coded_damage(coded_input *c)
{
	for (int tries = 0; c->ranks && c->parts && tries < 100; tries++) {
		const gradcomp_coded *p = &c->part[test_random() % c->parts];
		uint8_t *payload = c->payload[test_random() % c->ranks];
		const float wild = test_random() % 2 ? INFINITY : NAN;
		size_t values, codes;
		coded_sizes(c, p, &values, &codes);
		if (values && coded_width(c) > 1 && test_random() % 2) {
			memcpy(payload + p->values + 4 * (test_random() % values), &wild, sizeof wild);
			return 1;
		}
		if (coded_shared(c) && values) {
			payload[p->values + test_random() % values] = (uint8_t)(128 + test_random() % 128);
			return 1;
		}
		if (codes) {
			payload[p->codes + test_random() % codes] = (uint8_t)(128 + test_random() % 128);
			return 1;
		}
	}
	return 0;
}

#endif
