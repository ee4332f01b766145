/* One bit a number, and the two values a run of numbers is rebuilt from (1-bit SGD,
 * Seide et al. 2014). */
#include "operators/cpu/lanes.h"

/* Numbers a word. */
enum { WORD = 32 };

/* Begins a loop over the runs: run s is `count` numbers from i on. */
#define RUNS(s, i, count) \
	for (size_t s = 0, i = 0, count; segment && i < n && (count = n - i < segment ? n - i : segment); \
	     s++, i += count)

INLINE uint32_t signs32(const float *x)
{
	uint32_t word = 0;
	UNROLL
	for (int j = 0; j < 4; j++) {
		const v8i below = (v8i)(LOAD8(x + 8 * j) < 0);
		word |= (uint32_t)mask8(&below) << 8 * j;
	}
	return word;
}

void KERNEL(sign_pack)(void *queue, uint32_t *bits, const float *x, size_t n, size_t segment)
{
	(void)queue;
	RUNS(s, i, count)
	{
		size_t j = 0;
		for (; j + WORD <= count; j += WORD)
			*bits++ = signs32(x + i + j);
		if (j == count)
			continue;
		float rest[WORD] = {0};
		memcpy(rest, x + i + j, (count - j) * sizeof *x);
		*bits++ = signs32(rest);
	}
}

/* Sums of what is above and below zero, and how many are below, lane by lane. */
typedef struct halves {
	v4d above[2], below[2];
	v8i negative;
} halves;

INLINE void halves_add(halves *h, const float *from)
{
	const v8f x = LOAD8(from);
	union {
		v8f all;
		v4f half[2];
	} above = {MAX8(x, (v8f){0})}, below = {MIN8(x, (v8f){0})};
	UNROLL
	for (int j = 0; j < 2; j++) {
		h->above[j] += WIDEN(above.half[j]);
		h->below[j] += WIDEN(below.half[j]);
	}
	h->negative += (v8i)(x < 0);
}

INLINE double sum4(const v4d *v)
{
	return ((*v)[0] + (*v)[2]) + ((*v)[1] + (*v)[3]);
}

static void means(float *pair, const float *x, size_t n)
{
	/* Lanes count to 2^31. */
	const size_t most = (size_t)1 << 30;
	double above = 0, below = 0;
	size_t negative = 0;
	for (size_t i = 0; i < n;) {
		size_t end = n - i < most ? n : i + most;
		halves h = {{{0}}, {{0}}, {0}};
		for (; i + 8 <= end; i += 8)
			halves_add(&h, x + i);
		if (i < end) {
			float rest[8] = {0};
			memcpy(rest, x + i, (end - i) * sizeof *x);
			halves_add(&h, rest);
			i = end;
		}
		h.above[0] += h.above[1];
		h.below[0] += h.below[1];
		above += sum4(&h.above[0]);
		below += sum4(&h.below[0]);
		for (int j = 0; j < 8; j++)
			negative += (size_t)-h.negative[j];
	}
	pair[0] = negative < n ? (float)(above / (double)(n - negative)) : 0;
	pair[1] = negative ? (float)(below / (double)negative) : 0;
}

void KERNEL(sign_means)(void *queue, float *pairs, const float *x, size_t n, size_t segment)
{
	(void)queue;
	RUNS(s, i, count)
	means(pairs + 2 * s, x + i, count);
}

/* Where bits 8 j .. 8 j + 7 of a word are set, all bits of a lane. */
INLINE v8i lanes_set(uint32_t word, int j)
{
	const v8i one = {1, 2, 4, 8, 16, 32, 64, 128};
	return (v8i)((((v8i){0} + (int32_t)(word >> 8 * j & 255)) & one) == one);
}

void KERNEL(sign_add)(void *queue, float *y, float a, const uint32_t *bits, const float *pairs, size_t n,
                      size_t segment)
{
	(void)queue;
	RUNS(s, i, count)
	{
		/* a v is rounded before it is added, so it can be made ahead. */
		const float zero = a * pairs[2 * s], one = a * pairs[2 * s + 1];
		const v8f zeros = SPLAT8(zero), ones = SPLAT8(one);
		float *to = y + i;
		size_t j = 0;
		for (; j + WORD <= count; j += WORD, bits++) {
			UNROLL
			for (int k = 0; k < 4; k++)
				STORE8(to + j + 8 * k, LOAD8(to + j + 8 * k) + PICK8(lanes_set(*bits, k), ones, zeros));
		}
		for (uint32_t left = j < count ? *bits++ : 0; j < count; j++, left >>= 1)
			to[j] += left & 1 ? one : zero;
	}
}

void KERNEL(sign_error)(void *queue, float *e, const float *x, const uint32_t *bits, const float *pairs, size_t n,
                        size_t segment)
{
	(void)queue;
	RUNS(s, i, count)
	{
		const float zero = pairs[2 * s], one = pairs[2 * s + 1];
		const v8f zeros = SPLAT8(zero), ones = SPLAT8(one);
		size_t j = 0;
		for (; j + WORD <= count; j += WORD, bits++) {
			UNROLL
			for (int k = 0; k < 4; k++) {
				size_t at = i + j + 8 * (size_t)k;
				STORE8(e + at, LOAD8(x + at) - PICK8(lanes_set(*bits, k), ones, zeros));
			}
		}
		for (uint32_t left = j < count ? *bits++ : 0; j < count; j++, left >>= 1)
			e[i + j] = x[i + j] - (left & 1 ? one : zero);
	}
}

void KERNEL(sign_pairs)(void *queue, float *pairs, const float *values, size_t count)
{
	(void)queue;
	for (size_t s = 0; s < count; s++) {
		pairs[2 * s] = values[s];
		pairs[2 * s + 1] = -values[s];
	}
}
