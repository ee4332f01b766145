/* Whole buckets: what begins and ends the work on many tensors, in runs that stay in the
 * first-level cache. */
#include "operators/cpu/lanes.h"

#include <math.h>
#include <stdbool.h>

#define TENSOR_RUN 4096

/* Returns true when all have a type that casts know. */
static int known(const gradcomp_segment *t, size_t count)
{
	int bad = 0;
	for (size_t i = 0; i < count; i++)
		bad |= KERNEL(cast_to_f32)(NULL, NULL, NULL, 0, (gradcomp_dtype)t[i].dtype) != GRADCOMP_OK;
	return !bad;
}

/* to = x + e. Returns whether that is not all finite. */
static int add_found(float *to, const float *x, const float *e, size_t n)
{
	v8u a = {0}, b = {0};
	size_t i = 0;
	int bad = 0;
	for (; i + 32 <= n; i += 32) {
		v8f s = LOAD8(x + i) + LOAD8(e + i), t = LOAD8(x + i + 8) + LOAD8(e + i + 8);
		v8f u = LOAD8(x + i + 16) + LOAD8(e + i + 16), v = LOAD8(x + i + 24) + LOAD8(e + i + 24);
		STORE8(to + i, s);
		STORE8(to + i + 8, t);
		STORE8(to + i + 16, u);
		STORE8(to + i + 24, v);
		a |= NONFINITE8(s) | NONFINITE8(u);
		b |= NONFINITE8(t) | NONFINITE8(v);
	}
	a |= b;
	for (; i < n; i++) {
		to[i] = x[i] + e[i];
		bad |= !isfinite(to[i]);
	}
	return bad || (a[0] | a[1] | a[2] | a[3] | a[4] | a[5] | a[6] | a[7]) >> 31;
}

/* Makes 0 of what is not finite. */
static void make_finite(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = isfinite(x[i]) ? x[i] : 0;
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
	int found = 0, *const all = count && t[count - 1].add & GRADCOMP_SEGMENT_ANY ? t[--count].grad : NULL;
	(void)queue;
	(void)scratch;
	if (!known(t, count))
		return GRADCOMP_ERR_UNSUPPORTED;
	for (; count; count--, t++) {
		const bool adds = t->error && t->add & GRADCOMP_SEGMENT_ADD;
		const size_t size = gradcomp_dtype_bytes((gradcomp_dtype)t->dtype);
		int any = 0;
		for (uint64_t at = 0; at < t->n; at += TENSOR_RUN) {
			size_t len = t->n - at < TENSOR_RUN ? t->n - at : TENSOR_RUN;
			const char *from = (const char *)t->grad + at * size;
			float *x = t->x + at;
			int here, floats = t->dtype == GRADCOMP_F32 && (uintptr_t)from % sizeof *x == 0;
			if (t->grad != t->x && !(adds && floats))
				KERNEL(cast_to_f32)(NULL, x, from, len, (gradcomp_dtype)t->dtype);
			if (adds)
				here = add_found(x, floats ? (const float *)(const void *)from : x, t->error + at, len);
			else
				KERNEL(nonfinite)(NULL, x, len, &here);
			if (here && t->add & GRADCOMP_SEGMENT_FINITE)
				make_finite(x, len);
			any |= here;
		}
		found |= *bad++ = any;
		if (squares)
			*squares++ = sampled(t->x, adds ? NULL : t->error, t->n);
	}
	if (all && found)
		*all = 1;
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

const char *KERNEL(failed)(void)
{
	return NULL;
}
