/* Back from few bits, and the check of what a peer sent. */
#include "quantise.h"

enum { SET, ADD, ERROR };

/* One group of values; SET: y = v, ADD: y += a v, ERROR: y = x - v. */
INLINE void value32(float *y, const float *x, float a, const uint8_t *in, float step, const unsigned bits,
                    const int what)
{
	v8i c[4];
	widen32(c, in, bits);
	UNROLL
	for (int j = 0; j < 4; j++) {
		v8f v = __builtin_convertvector(c[j], v8f) * step;
		if (what == ADD)
			v = LOAD8(y + 8 * j) + a * v;
		else if (what == ERROR)
			v = LOAD8(x + 8 * j) - v;
		STORE8(y + 8 * j, v);
	}
}

INLINE void dequantise_as(float *y, const float *x, float a, const void *in, size_t n,
                          const gradcomp_quantiser *q, const unsigned bits, const int what)
{
	const uint8_t *steps = in, *codes = steps + quantised_steps(q, n);
	for (size_t i = 0; i < n; i += q->block) {
		size_t end = n - i < q->block ? n : i + q->block, j = i;
		float step = q->norm == GRADCOMP_NORM_GIVEN ? *q->given : load_float(steps + i / q->block * sizeof step);
		for (; j + QUANTISE_GROUP <= end; j += QUANTISE_GROUP)
			value32(y + j, what == ERROR ? x + j : NULL, a, codes + j / 8 * bits, step, bits, what);
		if (j == end)
			continue;
		float from[QUANTISE_GROUP] = {0}, to[QUANTISE_GROUP] = {0};
		uint8_t last[QUANTISE_GROUP] = {0};
		memcpy(last, codes + j / 8 * bits, quantised_codes(end - j, bits));
		if (what == ERROR)
			memcpy(from, x + j, (end - j) * sizeof *x);
		else if (what == ADD)
			memcpy(to, y + j, (end - j) * sizeof *y);
		value32(to, from, a, last, step, bits, what);
		memcpy(y + j, to, (end - j) * sizeof *y);
	}
}

#define WITH_BITS(what, y, x, a) \
	do { \
		(void)queue; \
		if (!quantised_bytes(q, n)) \
			return; \
		if (q->bits == 8) \
			dequantise_as(y, x, a, in, n, q, 8, what); \
		else if (q->bits == 4) \
			dequantise_as(y, x, a, in, n, q, 4, what); \
		else \
			dequantise_as(y, x, a, in, n, q, 2, what); \
	} while (0)

void KERNEL(dequantise)(void *queue, float *y, const void *in, size_t n, const gradcomp_quantiser *q)
{
	WITH_BITS(SET, y, NULL, 0);
}

void KERNEL(dequantise_add)(void *queue, float *y, float a, const void *in, size_t n, const gradcomp_quantiser *q)
{
	WITH_BITS(ADD, y, NULL, a);
}

void KERNEL(dequantise_error)(void *queue, float *e, const float *x, const void *in, size_t n,
                              const gradcomp_quantiser *q)
{
	WITH_BITS(ERROR, e, x, 0);
}

/* Whether one of 32 codes is beyond the levels. */
INLINE int beyond32(const uint8_t *in, int levels, const unsigned bits)
{
	v8i c[4];
	widen32(c, in, bits);
	v8i out = {0};
	for (int j = 0; j < 4; j++)
		out |= (levels - c[j]) | (levels + c[j]); /* negative: beyond */
	return mask8(&out) != 0;
}

INLINE int codes_beyond(const uint8_t *codes, size_t n, int levels, const unsigned bits)
{
	uint8_t last[QUANTISE_GROUP] = {0};
	size_t i = 0;
	for (; i + QUANTISE_GROUP <= n; i += QUANTISE_GROUP)
		if (beyond32(codes + i / 8 * bits, levels, bits))
			return 1;
	if (i == n)
		return 0;
	memcpy(last, codes + i / 8 * bits, quantised_codes(n - i, bits));
	/* The unused bits of the last byte are not looked at. */
	if ((n - i) * bits % 8)
		last[(n - i) * bits / 8] &= (uint8_t)((1u << (n - i) * bits % 8) - 1);
	return beyond32(last, levels, bits);
}

void KERNEL(quantised_check)(void *queue, int *fault, const void *in, size_t n, const gradcomp_quantiser *q)
{
	(void)queue;
	if (!quantised_bytes(q, n))
		return;
	const uint8_t *steps = in, *codes = steps + quantised_steps(q, n);
	int bad = 0, levels = (int)q->levels;
	for (; steps < codes; steps += sizeof(float)) {
		float step = load_float(steps);
		bad |= !(step >= 0 && step <= 0x1.fffffep127f);
	}
	if (q->bits == 8)
		bad |= codes_beyond(codes, n, levels, 8);
	else if (q->bits == 4)
		bad |= codes_beyond(codes, n, levels, 4);
	else
		bad |= codes_beyond(codes, n, levels, 2);
	if (bad)
		*fault = 1;
}
