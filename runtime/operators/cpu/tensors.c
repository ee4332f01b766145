/* Whole buckets: what begins and ends the work on many tensors, in runs that stay in the
 * first-level cache. */
#include "operators/cpu/kernels.h"

#include <math.h>

#define TENSOR_RUN 4096

/* Whether all have a type that casts know. */
static int known(const gradcomp_segment *t, size_t count)
{
	int bad = 0;
	for (size_t i = 0; i < count; i++)
		bad |= KERNEL(cast_to_f32)(NULL, NULL, NULL, 0, (gradcomp_dtype)t[i].dtype) != GRADCOMP_OK;
	return !bad;
}

/* The sampled sum of (x + more)^2; either may be NULL. */
static double sampled(const float *x, const float *more, uint64_t n)
{
	double sum = 0;
	for (uint64_t at = 0; at < n; at += GRADCOMP_SAMPLE_EVERY)
		for (uint64_t i = at; i < n && i < at + GRADCOMP_SAMPLE_RUN; i++) {
			double v = (x ? (double)x[i] : 0) + (more ? (double)more[i] : 0);
			sum += v * v;
		}
	return sum;
}

size_t KERNEL(tensors_scratch)(const gradcomp_segment *t, size_t count)
{
	(void)t;
	(void)count;
	return 0;
}

gradcomp_status KERNEL(load_tensors)(void *queue, const gradcomp_segment *t, size_t count, int *bad, double *squares,
                                     void *scratch)
{
	(void)queue;
	(void)scratch;
	if (!known(t, count))
		return GRADCOMP_ERR_UNSUPPORTED;
	for (; count; count--, t++) {
		const size_t size = gradcomp_dtype_bytes((gradcomp_dtype)t->dtype);
		int any = 0;
		for (uint64_t at = 0; at < t->n; at += TENSOR_RUN) {
			size_t len = t->n - at < TENSOR_RUN ? t->n - at : TENSOR_RUN;
			int here;
			if (t->grad != t->x)
				KERNEL(cast_to_f32)(NULL, t->x + at, (const char *)t->grad + at * size, len,
				                    (gradcomp_dtype)t->dtype);
			KERNEL(nonfinite)(NULL, t->x + at, len, &here);
			any |= here;
			if (t->error && t->add)
				KERNEL(add)(NULL, t->x + at, t->error + at, len);
		}
		*bad++ = any;
		if (squares)
			*squares++ = sampled(t->x, t->add ? NULL : t->error, t->n);
	}
	return GRADCOMP_OK;
}

gradcomp_status KERNEL(store_tensors)(void *queue, const gradcomp_segment *t, size_t count, const int *poison,
                                      double *squares, void *scratch)
{
	const int poisoned = poison && *poison;
	(void)queue;
	(void)scratch;
	if (!known(t, count))
		return GRADCOMP_ERR_UNSUPPORTED;
	for (; count; count--, t++) {
		if (poisoned)
			KERNEL(fill)(NULL, t->x, NAN, t->n);
		if (t->grad && t->grad != t->x)
			KERNEL(cast_from_f32)(NULL, t->grad, t->x, t->n, (gradcomp_dtype)t->dtype, 0);
		if (squares)
			*squares++ = sampled(NULL, t->error, t->error ? t->n : 0);
	}
	return GRADCOMP_OK;
}

void KERNEL(fill_tensors_if)(void *queue, const gradcomp_segment *t, size_t count, float a, const int *word)
{
	for (size_t i = 0; i < count; i++)
		KERNEL(fill_if)(queue, t[i].x, a, t[i].n, word);
}

const char *KERNEL(failed)(void)
{
	return NULL;
}
