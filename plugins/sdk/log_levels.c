#include "gradcomp/sdk/log_levels.h"

#include <string.h>

/* x^n */
static double power(double x, uint32_t n)
{
	double y = 1;
	for (uint32_t i = 0; i < n; i++)
		y *= x;
	return y;
}

/* The n-th root of 1 + a, to the last bit or two, by halving: no C library promises the bits of pow(). */
static double root(double a, uint32_t n)
{
	double low = 1, high = 1 + a;
	for (int i = 0; i < 100; i++) {
		double middle = low + (high - low) / 2;
		if (power(middle, n) <= 1 + a)
			low = middle;
		else
			high = middle;
	}
	return low;
}

void sdk_log_levels_make(sdk_log_levels *l, const gradcomp_quantiser *q, double alpha)
{
	double r = root(alpha, q->levels), y = 1;
	*l = (sdk_log_levels){.bits = q->bits, .levels = q->levels, .block = q->block};
	for (uint32_t c = 1; c < l->levels; c++) {
		y *= r;
		l->value[c] = (float)((y - 1) / alpha);
	}
	l->value[l->levels] = 1;
	for (uint32_t c = 1; c <= l->levels; c++)
		l->edge[c] = (float)(((double)l->value[c - 1] + l->value[c]) / 2);
}

static uint64_t blocks_of(const sdk_log_levels *l, uint64_t n)
{
	return (n + l->block - 1) / l->block;
}

/* The level next to x, 0 <= x <= 1. */
static int nearest(const sdk_log_levels *l, float x)
{
	uint32_t below = 0, above = l->levels + 1;
	while (above - below > 1) {
		uint32_t middle = (below + above) / 2;
		if (x > l->edge[middle])
			below = middle;
		else
			above = middle;
	}
	return (int)below;
}

void sdk_log_levels_quantise(const sdk_log_levels *l, void *out, const float *x, uint64_t n)
{
	unsigned char *tops = out, *codes = tops + blocks_of(l, n) * sizeof(float);
	uint32_t each = 8 / l->bits, mask = (1u << l->bits) - 1;
	memset(codes, 0, (n + each - 1) / each);
	for (uint64_t at = 0; at < n; at += l->block, tops += sizeof(float)) {
		uint64_t end = n - at < l->block ? n : at + l->block;
		float top = 0;
		for (uint64_t i = at; i < end; i++) {
			float magnitude = x[i] < 0 ? -x[i] : x[i];
			top = magnitude > top ? magnitude : top;
		}
		memcpy(tops, &top, sizeof top);
		for (uint64_t i = at; top > 0 && i < end; i++) {
			int code = nearest(l, (x[i] < 0 ? -x[i] : x[i]) / top);
			code = x[i] < 0 ? -code : code;
			codes[i / each] |= (unsigned char)(((uint32_t)code & mask) << i % each * l->bits);
		}
	}
}

static float read(const sdk_log_levels *l, const unsigned char *tops, const unsigned char *codes, uint64_t i)
{
	uint32_t each = 8 / l->bits, half = 1u << (l->bits - 1);
	uint32_t bits = (uint32_t)codes[i / each] >> i % each * l->bits & (2 * half - 1);
	int code = (int)(bits ^ half) - (int)half;
	float top;
	memcpy(&top, tops + i / l->block * sizeof top, sizeof top);
	/* Not beyond the table, whatever a peer sends. */
	uint32_t level = (uint32_t)(code < 0 ? -code : code);
	float v = top * l->value[level > l->levels ? l->levels : level];
	return code < 0 ? -v : v;
}

void sdk_log_levels_dequantise(const sdk_log_levels *l, float *y, const void *in, uint64_t n)
{
	const unsigned char *tops = in, *codes = tops + blocks_of(l, n) * sizeof(float);
	for (uint64_t i = 0; i < n; i++)
		y[i] = read(l, tops, codes, i);
}

void sdk_log_levels_dequantise_add(const sdk_log_levels *l, float *y, float a, const void *in, uint64_t n)
{
	const unsigned char *tops = in, *codes = tops + blocks_of(l, n) * sizeof(float);
	for (uint64_t i = 0; i < n; i++)
		y[i] += a * read(l, tops, codes, i);
}
