/* Does something or leaves it alone as a word says, and computes such words. */
#include <string.h>

#include "operators/cpu/kernels.h"

void KERNEL(any_set)(void *queue, int *out, const void *words, size_t width, size_t stride, size_t n)
{
	const unsigned char *p = words;
	int any = 0;
	(void)queue;
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < width; k++)
			any |= p[i * stride + k] != 0;
	*out = any;
}

void KERNEL(put_flag)(void *queue, void *to, gradcomp_dtype dtype, const int *word)
{
	uint64_t bits = 0;
	(void)queue;
	if (*word)
		bits = flag_bits(dtype);
	memcpy(to, &bits, gradcomp_dtype_bytes(dtype));
}

void KERNEL(copy_if)(void *queue, float *to, const float *from, size_t n, const int *word, int set)
{
	(void)queue;
	if (n && (*word != 0) == (set != 0))
		memcpy(to, from, n * sizeof *to);
}

void KERNEL(fill_if)(void *queue, float *x, float a, size_t n, const int *word)
{
	(void)queue;
	for (size_t i = 0; *word && i < n; i++)
		x[i] = a;
}
