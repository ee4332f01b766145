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

/* Returns whether the act finds something; `found`: one of those before it has. */
static int finds(const gradcomp_act *t, int found)
{
	const char *words = t->from;
	int any = t->kind == GRADCOMP_ACT_FIND_TOO && found;
	for (uint64_t i = 0; i < t->n; i++) {
		int word;
		memcpy(&word, words + i * t->arg, sizeof word);
		any |= word != 0;
	}
	return any;
}

void KERNEL(act_if)(void *queue, const gradcomp_act *act, size_t count, float a, const int *word)
{
	uint64_t found = 0;
	for (size_t k = 0; k < count; k++) {
		const gradcomp_act *t = &act[k];
		if (t->kind == GRADCOMP_ACT_FIND || t->kind == GRADCOMP_ACT_FIND_TOO) {
			const int any = finds(t, found != 0);
			found |= (uint64_t)any << k;
			*(int *)t->to = any;
		} else if (t->kind < GRADCOMP_ACT_FIND) {
			KERNEL(fill_if)(queue, t->to, a, t->n, word);
		} else if (t->n && (t->by ? *t->by != 0 : found >> t->arg & 1)) {
			if (t->kind == GRADCOMP_ACT_COPY)
				memcpy(t->to, t->from, t->n * sizeof(float));
			else
				memset(t->to, 0, t->n * sizeof(float));
		}
	}
}
