/* Back from few bits, and the check of what a peer sent. */
#include "operators/cpu/quantise.h"

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

typedef struct dequantise_call {
	const uint8_t *steps, *codes;
	float *y;
	const float *x;
	float a;
	int what;
	size_t n, length;
	const gradcomp_quantiser *q;
} dequantise_call;

/* Numbers `from` to `to`, which are bounds of blocks. */
INLINE void dequantise_as(const dequantise_call *c, size_t from, size_t to, const unsigned bits, const int what)
{
	const gradcomp_quantiser *q = c->q;
	for (size_t i = from; i < to; i += q->block) {
		size_t end = to - i < q->block ? to : i + q->block, j = i;
		float step =
			q->norm == GRADCOMP_NORM_GIVEN ? *q->given : load_float(c->steps + i / q->block * sizeof step);
		for (; j + QUANTISE_GROUP <= end; j += QUANTISE_GROUP)
			value32(c->y + j, what == ERROR ? c->x + j : NULL, c->a, c->codes + j / 8 * bits, step, bits,
			        what);
		if (j == end)
			continue;
		float x[QUANTISE_GROUP] = {0}, y[QUANTISE_GROUP] = {0};
		uint8_t last[QUANTISE_GROUP] = {0};
		memcpy(last, c->codes + j / 8 * bits, quantised_codes(end - j, bits));
		if (what == ERROR)
			memcpy(x, c->x + j, (end - j) * sizeof *x);
		else if (what == ADD)
			memcpy(y, c->y + j, (end - j) * sizeof *y);
		value32(y, x, c->a, last, step, bits, what);
		memcpy(c->y + j, y, (end - j) * sizeof *y);
	}
}

#define WITH_WHAT(bits) \
	do { \
		if (c->what == SET) \
			dequantise_as(c, from, to, bits, SET); \
		else if (c->what == ADD) \
			dequantise_as(c, from, to, bits, ADD); \
		else \
			dequantise_as(c, from, to, bits, ERROR); \
	} while (0)

static void dequantise_part(void *arg, size_t i)
{
	const dequantise_call *c = arg;
	size_t from = i * c->length, to = c->n - from < c->length ? c->n : from + c->length;
	if (c->q->bits == 8)
		WITH_WHAT(8);
	else if (c->q->bits == 4)
		WITH_WHAT(4);
	else
		WITH_WHAT(2);
}

static void dequantise_all(float *y, const float *x, float a, const void *in, size_t n, const gradcomp_quantiser *q,
                           int what)
{
	if (!KERNEL(quantised_bytes)(q, n))
		return;
	dequantise_call c = {in, (const uint8_t *)in + quantised_steps(q, n), y, x, a, what, n, quantised_part(q), q};
	operator_threads_run(dequantise_part, &c, (n + c.length - 1) / c.length);
}

void KERNEL(quantised_add)(float *y, float a, const uint8_t *steps, const uint8_t *codes, size_t n,
                           const gradcomp_quantiser *q)
{
	dequantise_call c = {steps, codes, y, NULL, a, ADD, n, n, q};
	if (n)
		dequantise_part(&c, 0);
}

void KERNEL(dequantise)(void *queue, float *y, const void *in, size_t n, const gradcomp_quantiser *q)
{
	(void)queue;
	dequantise_all(y, NULL, 0, in, n, q, SET);
}

void KERNEL(dequantise_add)(void *queue, float *y, float a, const void *in, size_t n, const gradcomp_quantiser *q)
{
	(void)queue;
	dequantise_all(y, NULL, a, in, n, q, ADD);
}

void KERNEL(dequantise_error)(void *queue, float *e, const float *x, const void *in, size_t n,
                              const gradcomp_quantiser *q)
{
	(void)queue;
	dequantise_all(e, x, 0, in, n, q, ERROR);
}

/* Codes of 32 bytes beyond the levels leave bits. A code as a number from 0 on is its
 * field with the sign bit turned. */
typedef uint8_t v32b __attribute__((vector_size(32)));
INLINE v32b beyond(const uint8_t *in, unsigned levels, const unsigned bits)
{
	const uint8_t mask = (uint8_t)((1u << bits) - 1), half = (uint8_t)(1u << (bits - 1));
	const uint8_t least = (uint8_t)(levels < half ? half - levels : 0);
	const uint8_t most = (uint8_t)(levels < half ? half + levels : mask);
	v32b c, out = {0};
	memcpy(&c, in, sizeof c);
	UNROLL
	for (unsigned k = 0; k < 8; k += bits) {
		v32b v = (c >> k & mask) ^ half;
		out |= (v32b)(v < least) | (v32b)(v > most);
	}
	return out;
}

INLINE int codes_beyond(const uint8_t *codes, size_t n, unsigned levels, const unsigned bits)
{
	v32b out = {0};
	uint8_t last[sizeof out] = {0};
	size_t bytes = quantised_codes(n, bits), i = 0;
	uint64_t word[4];
	for (; i + sizeof last <= n * bits / 8; i += sizeof last)
		out |= beyond(codes + i, levels, bits);
	memcpy(last, codes + i, bytes - i);
	/* The unused bits of the last byte are not looked at. */
	if (n * bits % 8)
		last[bytes - i - 1] &= (uint8_t)((1u << n * bits % 8) - 1);
	out |= beyond(last, levels, bits);
	memcpy(word, &out, sizeof word);
	return (word[0] | word[1] | word[2] | word[3]) != 0;
}

int KERNEL(quantised_wrong)(const uint8_t *steps, size_t nsteps, const uint8_t *codes, size_t n,
                            const gradcomp_quantiser *q)
{
	const int nan_passes = q->norm == GRADCOMP_NORM_ABSMAX_OR_NAN;
	int bad = 0;
	for (size_t s = 0; s < nsteps; s++, steps += sizeof(float)) {
		float step = load_float(steps);
		bad |= !(step >= 0 && step <= 0x1.fffffep127f) && !(nan_passes && float_bits(step) == NAN_SCALE);
	}
	if (q->bits == 8)
		bad |= codes_beyond(codes, n, q->levels, 8);
	else if (q->bits == 4)
		bad |= codes_beyond(codes, n, q->levels, 4);
	else
		bad |= codes_beyond(codes, n, q->levels, 2);
	return bad;
}

void KERNEL(quantised_check)(void *queue, int *fault, const void *in, size_t n, const gradcomp_quantiser *q)
{
	const size_t bytes = quantised_steps(q, n);
	(void)queue;
	if (KERNEL(quantised_bytes)(q, n) &&
	    KERNEL(quantised_wrong)(in, bytes / sizeof(float), (const uint8_t *)in + bytes, n, q))
		*fault = 1;
}
