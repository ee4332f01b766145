/* Casts between float and the smaller types. */
#include "operators/cpu/fp8.h"
#include "operators/cpu/half.h"
#include "operators/cpu/kernels.h"
#include "operators/cpu/quantise.h"

#ifdef __AVX2__
#define EIGHTS(i, n, statement) \
	for (; (i) + 8 <= (n); (i) += 8) { \
		statement; \
	}
#else
#define EIGHTS(i, n, statement)
#endif

gradcomp_status KERNEL(cast_from_f32)(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to,
                                      int saturate)
{
	(void)queue;
	uint16_t *h = out;
	size_t i = 0;
	switch (to) {
	case GRADCOMP_F32:
		if (n)
			memcpy(out, in, n * sizeof *in);
		return GRADCOMP_OK;
	case GRADCOMP_BF16:
		EIGHTS(i, n, float_bf168(h + i, _mm256_loadu_ps(in + i), saturate))
		for (; i < n; i++)
			h[i] = float_bf16(in[i], saturate);
		return GRADCOMP_OK;
	case GRADCOMP_F16:
		EIGHTS(i, n, float_f168(h + i, _mm256_loadu_ps(in + i), saturate))
		for (; i < n; i++)
			h[i] = float_f16(in[i], saturate);
		return GRADCOMP_OK;
	case GRADCOMP_F8E4M3:
		if (saturate)
			fp8_encode(out, in, n, 1, FLOAT8_E4M3);
		else
			fp8_encode(out, in, n, 0, FLOAT8_E4M3);
		return GRADCOMP_OK;
	case GRADCOMP_F8E5M2:
		if (saturate)
			fp8_encode(out, in, n, 1, FLOAT8_E5M2);
		else
			fp8_encode(out, in, n, 0, FLOAT8_E5M2);
		return GRADCOMP_OK;
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

gradcomp_status KERNEL(cast_to_f32)(void *queue, float *out, const void *in, size_t n, gradcomp_dtype from)
{
	(void)queue;
	const uint16_t *h = in;
	size_t i = 0;
	switch (from) {
	case GRADCOMP_F32:
		if (n)
			memcpy(out, in, n * sizeof *out);
		return GRADCOMP_OK;
	case GRADCOMP_BF16:
		EIGHTS(i, n, _mm256_storeu_ps(out + i, bf16_float8(h + i)))
		for (; i < n; i++)
			out[i] = bf16_float(h[i]);
		return GRADCOMP_OK;
	case GRADCOMP_F16:
		EIGHTS(i, n, _mm256_storeu_ps(out + i, f16_float8(h + i)))
		for (; i < n; i++)
			out[i] = f16_float(h[i]);
		return GRADCOMP_OK;
	case GRADCOMP_F8E4M3:
		fp8_decode(out, in, n, FLOAT8_E4M3);
		return GRADCOMP_OK;
	case GRADCOMP_F8E5M2:
		fp8_decode(out, in, n, FLOAT8_E5M2);
		return GRADCOMP_OK;
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

void KERNEL(float16_add)(float *y, float a, const void *in, size_t n, gradcomp_dtype type)
{
	const uint16_t *h = in;
	size_t i = 0;
	if (type == GRADCOMP_F16) {
		EIGHTS(i, n, STORE8(y + i, LOAD8(y + i) + SPLAT8(a) * (v8f)f16_float8(h + i)))
		for (; i < n; i++)
			y[i] += a * f16_float(h[i]);
		return;
	}
	EIGHTS(i, n, STORE8(y + i, LOAD8(y + i) + SPLAT8(a) * (v8f)bf16_float8(h + i)))
	for (; i < n; i++)
		y[i] += a * bf16_float(h[i]);
}

/* Held within -limit..limit; NaN and Inf stay. */
static void hold(float *x, size_t n, float limit)
{
	const float least = -limit;
	const v8f high = SPLAT8(limit), low = SPLAT8(least), zero = {0};
	for (size_t i = 0; i < n; i += 8) {
		const v8f v = LOAD8(x + i);
		/* NOLINTNEXTLINE(misc-redundant-expression): it is not 0 of NaN and Inf */
		const v8i finite = (v8i)(v - v == zero), over = (v8i)(v > high) & finite,
			  under = (v8i)(v < low) & finite;
		STORE8(x + i, (v8f)(((v8i)high & over) | ((v8i)low & under) | ((v8i)v & ~(over | under))));
	}
}

gradcomp_status KERNEL(cast_scaled)(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to, float a,
                                    float limit)
{
	enum { TILE = 1024 };
	float tile[TILE];
	const size_t size = to == GRADCOMP_F32 ? 4 : to == GRADCOMP_BF16 || to == GRADCOMP_F16 ? 2 : 1;
	gradcomp_status st = KERNEL(cast_from_f32)(queue, out, in, 0, to, 0);
	for (size_t i = 0; i < n && !st; i += TILE) {
		const size_t count = n - i < TILE ? n - i : TILE, whole = (count + 7) / 8 * 8;
		memcpy(tile, in + i, count * sizeof *tile);
		memset(tile + count, 0, (whole - count) * sizeof *tile);
		KERNEL(scale)(queue, tile, a, whole);
		if (limit > 0)
			hold(tile, whole, limit);
		st = KERNEL(cast_from_f32)(queue, (char *)out + i * size, tile, count, to, limit > 0);
	}
	return st;
}
