/* Blocks of numbers that are chosen together. */
#include <string.h>

#include "operators/cpu/kernels.h"

INLINE size_t block_length(size_t n, size_t width, size_t b)
{
	const size_t left = n - b * width;
	return left < width ? left : width;
}

void KERNEL(blocks_sum_abs)(void *queue, float *out, const float *x, size_t n, size_t width, float most)
{
	for (size_t b = 0; b * width < n; b++) {
		double sum;
		KERNEL(sum_abs)(queue, &sum, x + b * width, block_length(n, width, b), NULL);
		out[b] = (float)(sum < most ? sum : most);
	}
}

void KERNEL(blocks_gather)(void *queue, float *out, const float *x, const uint32_t *idx, size_t k, size_t n,
                           size_t width)
{
	(void)queue;
	for (size_t j = 0; j < k; j++, out += width) {
		const size_t count = block_length(n, width, idx[j]);
		memcpy(out, x + idx[j] * width, count * sizeof *out);
		memset(out + count, 0, (width - count) * sizeof *out);
	}
}

void KERNEL(blocks_scatter)(void *queue, float *y, const uint32_t *idx, const float *val, size_t k, size_t n,
                            size_t width)
{
	(void)queue;
	for (size_t j = 0; j < k; j++) {
		float *to = y + idx[j] * width;
		const size_t count = block_length(n, width, idx[j]);
		if (val)
			memcpy(to, val + j * width, count * sizeof *to);
		else
			memset(to, 0, count * sizeof *to);
	}
}
