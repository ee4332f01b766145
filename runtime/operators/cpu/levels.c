/* Numbers in few bits whose levels are given. */
#include <float.h>
#include <string.h>

#include "operators/cpu/quantise.h"

INLINE size_t tops_bytes(const gradcomp_levels *l, size_t n)
{
	return (n + l->block - 1) / l->block * sizeof(float);
}

/* The highest code whose edge is below x, 0 <= x <= 1. */
static int level_below(const gradcomp_levels *l, float x)
{
	uint32_t below = 0, above = l->levels + 1;
	while (above - below > 1) {
		const uint32_t middle = (below + above) / 2;
		if (x > l->edge[middle])
			below = middle;
		else
			above = middle;
	}
	return (int)below;
}

void KERNEL(levels_pack)(void *queue, void *out, const float *x, size_t n, const gradcomp_levels *l)
{
	unsigned char *tops = out, *codes = tops + tops_bytes(l, n);
	const uint32_t each = 8 / l->bits, mask = (1u << l->bits) - 1;
	memset(codes, 0, (n + each - 1) / each);
	for (size_t at = 0; at < n; at += l->block, tops += sizeof(float)) {
		const size_t end = n - at < l->block ? n : at + l->block;
		float top;
		KERNEL(absmax)(queue, &top, x + at, end - at, NULL);
		top = top < FLT_MAX ? top : FLT_MAX;
		memcpy(tops, &top, sizeof top);
		for (size_t i = at; top > 0 && i < end; i++) {
			const int level = level_below(l, (x[i] < 0 ? -x[i] : x[i]) / top),
				  code = x[i] < 0 ? -level : level;
			codes[i / each] |= (unsigned char)(((uint32_t)code & mask) << i % each * l->bits);
		}
	}
}

INLINE float level_value(const gradcomp_levels *l, const unsigned char *tops, const unsigned char *codes, size_t i)
{
	const uint32_t each = 8 / l->bits, half = 1u << (l->bits - 1);
	const uint32_t bits = (uint32_t)codes[i / each] >> i % each * l->bits & (2 * half - 1);
	const int code = (int)(bits ^ half) - (int)half;
	const uint32_t level = (uint32_t)(code < 0 ? -code : code);
	float top;
	memcpy(&top, tops + i / l->block * sizeof top, sizeof top);
	const float v = top * l->value[level > l->levels ? l->levels : level];
	return code < 0 ? -v : v;
}

void KERNEL(levels_read)(void *queue, float *y, const void *in, size_t n, const gradcomp_levels *l)
{
	const unsigned char *tops = in, *codes = tops + tops_bytes(l, n);
	(void)queue;
	for (size_t i = 0; i < n; i++)
		y[i] = level_value(l, tops, codes, i);
}

void KERNEL(levels_values_add)(float *y, float a, const uint8_t *tops, const uint8_t *codes, size_t n,
                               const gradcomp_levels *l)
{
	for (size_t i = 0; i < n; i++)
		y[i] += a * level_value(l, tops, codes, i);
}

void KERNEL(levels_add)(void *queue, float *y, float a, const void *in, size_t n, const gradcomp_levels *l)
{
	(void)queue;
	KERNEL(levels_values_add)(y, a, in, (const uint8_t *)in + tops_bytes(l, n), n, l);
}
