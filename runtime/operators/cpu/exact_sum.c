/* The sum of magnitudes as if it were exact: in integers, so that it depends on no
 * order, and all who add the same numbers get the same bits.
 *
 * In a block whose largest number is below 2^51 units, the unit being the last bit of
 * floats 2^27 times smaller, all but the still smaller ones are multiples of it. Added
 * to 2^52 units in double, they stand in the low bits as integers. The others are
 * added one by one. */
#include "operators/cpu/four.h"
#include "operators/cpu/select.h"

enum { RUN = 1024, REACH = 27, UNITS = 320 };

typedef uint64_t v4l __attribute__((vector_size(32)));

/* part[u] counts units of 2^(u - 150), the last bit of a float of exponent u. */
typedef struct parts {
	uint64_t part[UNITS];
} parts;

static void add_one(parts *p, uint32_t key)
{
	uint32_t u = key >> 23;
	p->part[u ? u : 1] += (key & 0x7fffff) | (uint32_t)(u != 0) << 23;
}

INLINE void add_block(parts *p, const float *x, uint32_t unit)
{
	const uint64_t bits = (uint64_t)(unit - 98 + 1023) << 52;
	const v4l offset = (v4l){0} + bits;
	v4l sum[2] = {{0}};
	for (size_t i = 0; i < RUN; i += 8) {
		UNROLL
		for (size_t j = 0; j < 2; j++) {
			v4f v = (v4f)((v4i)LOAD4(x + i + 4 * j) & 0x7fffffff);
			sum[j] += (v4l)(WIDEN(v) + (v4d)offset) - offset;
		}
	}
	sum[0] += sum[1];
	uint64_t s = sum[0][0] + sum[0][1] + sum[0][2] + sum[0][3];
	p->part[unit] += s & UINT32_MAX;
	p->part[unit + 32] += s >> 32;
}

/* The largest key of a block, and through *least the smallest that is not 0. */
INLINE uint32_t range(uint32_t *least, const float *x)
{
	v8i most = {0}, low = (v8i){0} + INT32_MAX;
	for (size_t i = 0; i < RUN; i += 8) {
		/* 0 becomes the largest of all. */
		v8i key = (v8i)LOAD8(x + i) & 0x7fffffff, turned = (v8i)((v8u)key + INT32_MAX);
		most = LARGER8(most, key);
		low = SMALLER8(low, turned);
	}
	for (int i = 1; i < 8; i++) {
		most[0] = most[i] > most[0] ? most[i] : most[0];
		low[0] = low[i] < low[0] ? low[i] : low[0];
	}
	*least = (uint32_t)low[0] - INT32_MAX;
	return (uint32_t)most[0];
}

/* Bit i of the sum is worth 2^(i - 149). */
static double rounded(const parts *p)
{
	uint8_t bit[UNITS + 64] = {0};
	uint64_t rest = 0, mantissa = 0;
	size_t top = 0, low;
	for (size_t i = 0; i < sizeof bit; i++) {
		rest += i + 1 < UNITS ? p->part[i + 1] : 0;
		bit[i] = rest & 1;
		rest >>= 1;
		top = bit[i] ? i : top;
	}
	low = top < 53 ? 0 : top - 52;
	for (size_t i = top + 1; i-- > low;)
		mantissa = mantissa << 1 | bit[i];
	if (low && bit[low - 1]) {
		int beyond = mantissa & 1;
		for (size_t i = 0; i + 1 < low; i++)
			beyond |= bit[i];
		mantissa += (uint64_t)beyond;
	}
	return __builtin_ldexp((double)mantissa, (int)low - 149);
}

double KERNEL(exact_sum)(float *top, const float *x, size_t n)
{
	parts p;
	uint32_t largest = 0, least;
	size_t i = 0;
	memset(&p, 0, sizeof p);
	for (; i + RUN <= n; i += RUN) {
		uint32_t most = range(&least, x + i), unit = most >> 23 > REACH + 1 ? (most >> 23) - REACH : 1;
		float large[RUN];
		largest = most > largest ? most : largest;
		if (unit == 1 || least >> 23 >= unit) {
			add_block(&p, x + i, unit);
			continue;
		}
		const int32_t limit = (int32_t)(unit << 23);
		for (size_t j = 0; j < RUN; j += 8) {
			v8i v = (v8i)LOAD8(x + i + j);
			STORE8(large + j, (v8f)(v & ((v & 0x7fffffff) >= limit)));
		}
		for (size_t j = 0; j < RUN; j += 32)
			for (uint32_t hit = reach32(x, i + j, n, 1) & ~reach32(x, i + j, n, unit << 23); hit;
			     hit &= hit - 1)
				add_one(&p, key_of(x[i + j + (unsigned)__builtin_ctz(hit)]));
		add_block(&p, large, unit);
	}
	for (; i < n; i++) {
		uint32_t key = key_of(x[i]);
		largest = key > largest ? key : largest;
		add_one(&p, key);
	}
	*top = bits_float(largest);
	return rounded(&p);
}
