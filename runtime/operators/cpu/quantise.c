/* Numbers in few bits, block by block: QSGD (Alistarh et al. 2017) with the
 * Euclidean norm, block absmax otherwise. A block is read from memory once; its
 * codes are made while it is in the first cache. */
#include "operators/cpu/philox.h"
#include "operators/cpu/quantise.h"
#include "operators/cpu/select.h"

/* Random numbers drawn at a time. */
enum { QUANTISE_PIECE = 512 };

/* Quotients are rounded by adding this: the last bit of the sum is worth 1. */
static const float ROUNDER = 0x1.8p23f;

/* The key of the largest magnitude: as integers NaNs are above Inf, and that above all numbers. */
static uint32_t largest_key(const float *x, size_t n)
{
	v8i m[4] = {{0}};
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		UNROLL
		for (size_t j = 0; j < 4; j++)
			m[j] = LARGER8((v8i)ABS8(LOAD8(x + i + 8 * j)), m[j]);
	}
	m[0] = LARGER8(LARGER8(m[0], m[1]), LARGER8(m[2], m[3]));
	uint32_t most = 0;
	for (int j = 0; j < 8; j++)
		most = (uint32_t)m[0][j] > most ? (uint32_t)m[0][j] : most;
	for (; i < n; i++)
		most = key_of(x[i]) > most ? key_of(x[i]) : most;
	return most;
}

static double norm_of(const float *x, size_t n)
{
	v4d s[4] = {{0}};
	size_t i = 0;
	for (; i + 16 <= n; i += 16) {
		UNROLL
		for (size_t j = 0; j < 4; j++) {
			v4d v = WIDEN(*(const v4f_any *)(x + i + 4 * j));
			s[j] += v * v;
		}
	}
	s[0] = (s[0] + s[1]) + (s[2] + s[3]);
	double sum = (s[0][0] + s[0][2]) + (s[0][1] + s[0][3]);
	for (; i < n; i++)
		sum += (double)x[i] * x[i];
	return __builtin_sqrt(sum);
}

/* The largest step whose product with the levels is finite. */
static float largest_step(float levels)
{
	float s = 0x1.fffffep127f / levels;
	return s * levels <= 0x1.fffffep127f ? s : bits_float(float_bits(s) - 1);
}

static float step_of(const float *x, size_t n, const gradcomp_quantiser *q)
{
	float levels = (float)q->levels, step;
	if (q->norm == GRADCOMP_NORM_GIVEN)
		step = *q->given;
	else {
		float most = largest_step(levels);
		if (q->norm == GRADCOMP_NORM_L2) {
			double s = norm_of(x, n) / levels;
			step = s < most ? (float)s : most;
		} else {
			uint32_t key = largest_key(x, n);
			if (q->norm == GRADCOMP_NORM_ABSMAX_OR_NAN && key >= KEY_INF)
				return bits_float(NAN_SCALE);
			step = bits_float(key) / levels;
		}
		step = step < most ? step : most;
	}
	return step >= 0x1p-126f ? step : 0;
}

/* Codes of one group; u are its random numbers. */
INLINE void code32(uint8_t *out, const float *x, const float *u, float step, float levels, const unsigned bits,
                   const unsigned rounding)
{
	v8i c[4];
	UNROLL
	for (int j = 0; j < 4; j++) {
		v8f v = LOAD8(x + 8 * j) / step;
		v = MAX8(MIN8(v, SPLAT8(levels)), SPLAT8(-levels));
		if (rounding == GRADCOMP_TO_NEAREST) {
			c[j] = (v8i)(v + ROUNDER) - (v8i)SPLAT8(ROUNDER);
			continue;
		}
		c[j] = __builtin_convertvector(v, v8i);
		if (rounding == GRADCOMP_TO_EITHER) {
			c[j] += (v8i)(__builtin_convertvector(c[j], v8f) > v);
			v8f fraction = v - __builtin_convertvector(c[j], v8f);
			c[j] -= (v8i)(LOAD8(u + 8 * j) < fraction);
		}
	}
	narrow32(out, c, bits);
}

/* Up to QUANTISE_PIECE numbers of a block. */
INLINE void code_piece(uint8_t *out, const float *x, size_t n, float step, const gradcomp_quantiser *q, uint64_t first,
                       const unsigned bits, const unsigned rounding)
{
	_Alignas(64) float tile[PHILOX_ROOM(QUANTISE_PIECE)], rest[QUANTISE_GROUP] = {0};
	uint8_t codes[QUANTISE_GROUP];
	const float *u = tile;
	float levels = (float)q->levels;
	size_t i = 0;
	if (rounding == GRADCOMP_TO_EITHER) {
		size_t groups = (n + QUANTISE_GROUP - 1) / QUANTISE_GROUP;
		u = philox_tile(tile, groups * QUANTISE_GROUP, q->seed, q->stream, first);
	}
	for (; i + QUANTISE_GROUP <= n; i += QUANTISE_GROUP)
		code32(out + i / 8 * bits, x + i, u + i, step, levels, bits, rounding);
	if (i == n)
		return;
	memcpy(rest, x + i, (n - i) * sizeof *x);
	code32(codes, rest, u + i, step, levels, bits, rounding);
	memcpy(out + i / 8 * bits, codes, quantised_codes(n - i, bits));
}

/* One call, and its numbers from `from` to `to`, which are bounds of blocks. */
typedef struct quantise_call {
	uint8_t *steps, *codes;
	const float *x;
	size_t n, length;
	const gradcomp_quantiser *q;
} quantise_call;

INLINE void quantise_as(const quantise_call *c, size_t from, size_t to, const unsigned bits, const unsigned rounding)
{
	const gradcomp_quantiser *q = c->q;
	for (size_t i = from; i < to; i += q->block) {
		size_t count = to - i < q->block ? to - i : q->block;
		float step = step_of(c->x + i, count, q);
		uint8_t *codes = c->codes + i / 8 * bits;
		if (q->norm != GRADCOMP_NORM_GIVEN)
			memcpy(c->steps + i / q->block * sizeof step, &step, sizeof step);
		if (!(step > 0)) {
			memset(codes, 0, quantised_codes(count, bits));
			continue;
		}
		for (size_t j = 0; j < count; j += QUANTISE_PIECE)
			code_piece(codes + j / 8 * bits, c->x + i + j,
			           count - j < QUANTISE_PIECE ? count - j : QUANTISE_PIECE, step, q, q->first + i + j,
			           bits, rounding);
	}
}

/* Own code for every width and rounding. */
#define WITH_ROUNDING(bits) \
	do { \
		if (c->q->rounding == GRADCOMP_TO_NEAREST) \
			quantise_as(c, from, to, bits, GRADCOMP_TO_NEAREST); \
		else if (c->q->rounding == GRADCOMP_TO_EITHER) \
			quantise_as(c, from, to, bits, GRADCOMP_TO_EITHER); \
		else \
			quantise_as(c, from, to, bits, GRADCOMP_TO_ZERO); \
	} while (0)

static void quantise_part(void *arg, size_t i)
{
	const quantise_call *c = arg;
	size_t from = i * c->length, to = c->n - from < c->length ? c->n : from + c->length;
	if (c->q->bits == 8)
		WITH_ROUNDING(8);
	else if (c->q->bits == 4)
		WITH_ROUNDING(4);
	else
		WITH_ROUNDING(2);
}

void KERNEL(quantise)(void *queue, void *out, const float *x, size_t n, const gradcomp_quantiser *q)
{
	(void)queue;
	if (!KERNEL(quantised_bytes)(q, n))
		return;
	quantise_call c = {out, (uint8_t *)out + quantised_steps(q, n), x, n, quantised_part(q), q};
	operator_threads_run(quantise_part, &c, (n + c.length - 1) / c.length);
}
