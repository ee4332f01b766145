/* Memory, and steps element by element that are not part of an all-reduce. */
#include <string.h>

#include "operators/cpu/kernels.h"

void KERNEL(copy)(void *queue, void *to, const void *from, size_t bytes)
{
	(void)queue;
	if (bytes)
		memcpy(to, from, bytes);
}

void KERNEL(fill)(void *queue, float *x, float a, size_t n)
{
	(void)queue;
	for (size_t i = 0; i < n; i++)
		x[i] = a;
}

void KERNEL(axpy)(void *queue, float *y, float a, const float *x, size_t n)
{
	(void)queue;
	const v8f va = SPLAT8(a);
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		UNROLL
		for (size_t j = 0; j < 32; j += 8)
			STORE8(y + i + j, LOAD8(y + i + j) + LOAD8(x + i + j) * va);
	}
	for (; i < n; i++)
		y[i] += a * x[i];
}

void KERNEL(clamp)(void *queue, float *y, const float *x, const float *limit, size_t n)
{
	(void)queue;
	const float most = *limit, least = -most;
	const v8i high = (v8i)SPLAT8(most), low = (v8i)SPLAT8(least);
	size_t i = 0;
	for (; i + 8 <= n; i += 8) {
		v8f v = LOAD8(x + i);
		v8i over = v > (v8f)high, under = (v < (v8f)low) & ~over;
		STORE8(y + i, (v8f)((high & over) | (low & under) | ((v8i)v & ~(over | under))));
	}
	for (; i < n; i++)
		y[i] = x[i] > most ? most : x[i] < least ? least : x[i];
}
