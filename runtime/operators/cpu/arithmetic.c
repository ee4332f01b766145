/* Element by element: sums, scaling, the operations of an all-reduce, the search
 * for what is not finite, copies and limits. */
#include <string.h>

#include "operators/cpu/half.h"
#include "operators/cpu/lanes.h"

void KERNEL(add)(void *queue, float *y, const float *x, size_t n)
{
	(void)queue;
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		v8f a = LOAD8(y + i) + LOAD8(x + i), b = LOAD8(y + i + 8) + LOAD8(x + i + 8);
		v8f c = LOAD8(y + i + 16) + LOAD8(x + i + 16), d = LOAD8(y + i + 24) + LOAD8(x + i + 24);
		STORE8(y + i, a);
		STORE8(y + i + 8, b);
		STORE8(y + i + 16, c);
		STORE8(y + i + 24, d);
	}
	for (; i < n; i++)
		y[i] += x[i];
}

void KERNEL(scale)(void *queue, float *x, float a, size_t n)
{
	(void)queue;
	v8f va = SPLAT8(a);
	size_t i = 0;
	for (; i + 16 <= n; i += 16) {
		v8f b = LOAD8(x + i) * va, c = LOAD8(x + i + 8) * va;
		STORE8(x + i, b);
		STORE8(x + i + 8, c);
	}
	for (; i < n; i++)
		x[i] *= a;
}

/* These are for floats too: an unordered comparison is false, so a NaN on either side comes through. */
#define FMAX_OF(a, b) ((a) >= (b) || (a) != (a) ? (a) : (b))
#define FMIN_OF(a, b) ((a) <= (b) || (a) != (a) ? (a) : (b))
#define MAX_OF(a, b) ((a) >= (b) ? (a) : (b))
#define MIN_OF(a, b) ((a) <= (b) ? (a) : (b))
#define SUM_OF(a, b) ((a) + (b))
#define OR_OF(a, b) ((a) | (b))
#define AND_OF(a, b) ((a) & (b))
#define XOR_OF(a, b) ((a) ^ (b))
#define PRODUCT_OF(a, b) ((a) * (b))
/* Two of 16 bits may have a product that an int cannot hold. */
#define WHOLE_PRODUCT_OF(a, b) ((uint64_t)(a) * (b))
#define EACH(type, OP) \
	do { \
		type *y = acc; \
		const type *x = in; \
		for (size_t i = 0; i < n; i++) \
			y[i] = (type)OP(y[i], x[i]); \
	} while (0)
#define EACH_HALF(kind, OP) \
	do { \
		uint16_t *y = acc; \
		const uint16_t *x = in; \
		for (; i < n; i++) { \
			float a = kind##_float(y[i]), b = kind##_float(x[i]); \
			y[i] = float_##kind(OP(a, b), 0); \
		} \
	} while (0)

static gradcomp_status reduce_half(uint16_t *acc, const uint16_t *in, size_t n, gradcomp_dtype dtype, gradcomp_op op)
{
	size_t i = 0;
	if (op == GRADCOMP_SUM && dtype == GRADCOMP_BF16) {
#ifdef __AVX2__
		for (; i + 8 <= n; i += 8)
			float_bf168(acc + i, _mm256_add_ps(bf16_float8(acc + i), bf16_float8(in + i)), 0);
#endif
		EACH_HALF(bf16, SUM_OF);
	} else if (op == GRADCOMP_SUM) {
#ifdef __AVX2__
		for (; i + 8 <= n; i += 8)
			float_f168(acc + i, _mm256_add_ps(f16_float8(acc + i), f16_float8(in + i)), 0);
#endif
		EACH_HALF(f16, SUM_OF);
	} else if (op == GRADCOMP_MAX && dtype == GRADCOMP_BF16)
		EACH_HALF(bf16, FMAX_OF);
	else if (op == GRADCOMP_MAX)
		EACH_HALF(f16, FMAX_OF);
	else if (op == GRADCOMP_MIN && dtype == GRADCOMP_BF16)
		EACH_HALF(bf16, FMIN_OF);
	else if (op == GRADCOMP_MIN)
		EACH_HALF(f16, FMIN_OF);
	else if (op == GRADCOMP_PRODUCT && dtype == GRADCOMP_BF16)
		EACH_HALF(bf16, PRODUCT_OF);
	else if (op == GRADCOMP_PRODUCT)
		EACH_HALF(f16, PRODUCT_OF);
	else
		return GRADCOMP_ERR_UNSUPPORTED;
	return GRADCOMP_OK;
}

#define EACH_TYPE(FOP, OP) \
	switch (dtype) { \
	case GRADCOMP_F32: \
		EACH(float, FOP); \
		return GRADCOMP_OK; \
	case GRADCOMP_F64: \
		EACH(double, FOP); \
		return GRADCOMP_OK; \
	case GRADCOMP_I32: \
		EACH(int32_t, OP); \
		return GRADCOMP_OK; \
	case GRADCOMP_I64: \
		EACH(int64_t, OP); \
		return GRADCOMP_OK; \
	case GRADCOMP_U8: \
		EACH(uint8_t, OP); \
		return GRADCOMP_OK; \
	case GRADCOMP_I8: \
		EACH(int8_t, OP); \
		return GRADCOMP_OK; \
	case GRADCOMP_I16: \
		EACH(int16_t, OP); \
		return GRADCOMP_OK; \
	default: \
		return GRADCOMP_ERR_UNSUPPORTED; \
	}
/* Of integers with or without a sign alike. */
#define EACH_WHOLE(OP) \
	switch (dtype) { \
	case GRADCOMP_I32: \
		EACH(uint32_t, OP); \
		return GRADCOMP_OK; \
	case GRADCOMP_I64: \
		EACH(uint64_t, OP); \
		return GRADCOMP_OK; \
	case GRADCOMP_U8: \
	case GRADCOMP_I8: \
		EACH(uint8_t, OP); \
		return GRADCOMP_OK; \
	case GRADCOMP_I16: \
		EACH(uint16_t, OP); \
		return GRADCOMP_OK; \
	default: \
		return GRADCOMP_ERR_UNSUPPORTED; \
	}

/* Sums and products of integers wrap around. */
static gradcomp_status reduce_sum(void *acc, const void *in, size_t n, gradcomp_dtype dtype)
{
	if (dtype == GRADCOMP_F64)
		EACH(double, SUM_OF);
	else if (dtype == GRADCOMP_F32)
		KERNEL(add)(NULL, acc, in, n);
	else
		EACH_WHOLE(SUM_OF)
	return GRADCOMP_OK;
}

static gradcomp_status reduce_product(void *acc, const void *in, size_t n, gradcomp_dtype dtype)
{
	if (dtype == GRADCOMP_F64)
		EACH(double, PRODUCT_OF);
	else if (dtype == GRADCOMP_F32)
		EACH(float, PRODUCT_OF);
	else
		EACH_WHOLE(WHOLE_PRODUCT_OF)
	return GRADCOMP_OK;
}

static gradcomp_status reduce_max(void *acc, const void *in, size_t n, gradcomp_dtype dtype)
{
	EACH_TYPE(FMAX_OF, MAX_OF)
}

static gradcomp_status reduce_min(void *acc, const void *in, size_t n, gradcomp_dtype dtype)
{
	EACH_TYPE(FMIN_OF, MIN_OF)
}

static gradcomp_status reduce_or(void *acc, const void *in, size_t n, gradcomp_dtype dtype)
{
	EACH_WHOLE(OR_OF)
}

static gradcomp_status reduce_and(void *acc, const void *in, size_t n, gradcomp_dtype dtype)
{
	EACH_WHOLE(AND_OF)
}

static gradcomp_status reduce_xor(void *acc, const void *in, size_t n, gradcomp_dtype dtype){EACH_WHOLE(XOR_OF)}

gradcomp_status KERNEL(reduce)(void *queue, void *acc, const void *in, size_t n, gradcomp_dtype dtype, gradcomp_op op)
{
	(void)queue;
	if (dtype == GRADCOMP_F16 || dtype == GRADCOMP_BF16)
		return reduce_half(acc, in, n, dtype, op);
	switch (op) {
	case GRADCOMP_SUM:
		return reduce_sum(acc, in, n, dtype);
	case GRADCOMP_MAX:
		return reduce_max(acc, in, n, dtype);
	case GRADCOMP_MIN:
		return reduce_min(acc, in, n, dtype);
	case GRADCOMP_BOR:
		return reduce_or(acc, in, n, dtype);
	case GRADCOMP_PRODUCT:
		return reduce_product(acc, in, n, dtype);
	case GRADCOMP_BAND:
		return reduce_and(acc, in, n, dtype);
	case GRADCOMP_BXOR:
		return reduce_xor(acc, in, n, dtype);
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

gradcomp_status KERNEL(scale_as)(void *queue, void *x, double a, size_t n, gradcomp_dtype dtype)
{
	float af = (float)a;
	double *d = x;
	uint16_t *h = x;
	size_t i = 0;
	switch (dtype) {
	case GRADCOMP_F32:
		KERNEL(scale)(queue, x, af, n);
		return GRADCOMP_OK;
	case GRADCOMP_F64:
		for (; i < n; i++)
			d[i] *= a;
		return GRADCOMP_OK;
	case GRADCOMP_BF16:
#ifdef __AVX2__
		for (; i + 8 <= n; i += 8)
			float_bf168(h + i, _mm256_mul_ps(bf16_float8(h + i), _mm256_set1_ps(af)), 0);
#endif
		for (; i < n; i++)
			h[i] = float_bf16(bf16_float(h[i]) * af, 0);
		return GRADCOMP_OK;
	case GRADCOMP_F16:
#ifdef __AVX2__
		for (; i + 8 <= n; i += 8)
			float_f168(h + i, _mm256_mul_ps(f16_float8(h + i), _mm256_set1_ps(af)), 0);
#endif
		for (; i < n; i++)
			h[i] = float_f16(f16_float(h[i]) * af, 0);
		return GRADCOMP_OK;
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

void KERNEL(nonfinite)(void *queue, const float *x, size_t n, int *bad)
{
	(void)queue;
	enum { BLOCK = 4096 };
	size_t i = 0;
	*bad = 1;
	while (i + 32 <= n) {
		size_t end = n - i < BLOCK ? n : i + BLOCK;
		v8u a = {0}, b = {0};
		for (; i + 32 <= end; i += 32) {
			a |= NONFINITE8(LOAD8(x + i));
			b |= NONFINITE8(LOAD8(x + i + 8));
			a |= NONFINITE8(LOAD8(x + i + 16));
			b |= NONFINITE8(LOAD8(x + i + 24));
		}
		a |= b;
		if ((a[0] | a[1] | a[2] | a[3] | a[4] | a[5] | a[6] | a[7]) >> 31)
			return;
	}
	for (; i < n; i++)
		if ((float_bits(x[i]) & 0x7f800000) == 0x7f800000)
			return;
	*bad = 0;
}

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

void KERNEL(scale_by)(void *queue, float *y, const float *a, const float *x, size_t n)
{
	(void)queue;
	const float factor = *a;
	const v8f va = SPLAT8(factor);
	size_t i = 0;
	for (; i + 8 <= n; i += 8)
		STORE8(y + i, LOAD8(x + i) * va);
	for (; i < n; i++)
		y[i] = factor * x[i];
}

void KERNEL(axpy_by)(void *queue, float *y, const float *a, const float *x, size_t n)
{
	KERNEL(axpy)(queue, y, *a, x, n);
}

void KERNEL(range_check)(void *queue, int *fault, const float *x, size_t n, float least, float most)
{
	(void)queue;
	int bad = 0;
	for (size_t i = 0; i < n; i++)
		bad |= !(x[i] >= least && x[i] <= most);
	if (bad)
		*fault = 1;
}
