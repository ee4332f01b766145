/* Vectors of four floats, and thin matrices turned by them. */
#ifndef OPERATORS_CPU_FOUR_H
#define OPERATORS_CPU_FOUR_H

#include "operators/cpu/kernels.h"

#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define PICK(a, b, i, j, k, l) __builtin_shuffle(a, b, (v4i){i, j, k, l})
#endif

#ifdef __AVX2__
#define LOW4(v) ((v4f)_mm256_castps256_ps128((__m256)(v)))
#define HIGH4(v) ((v4f)_mm256_extractf128_ps((__m256)(v), 1))
#else
#define LOW4(v) ((v4f){(v)[0], (v)[1], (v)[2], (v)[3]})
#define HIGH4(v) ((v4f){(v)[4], (v)[5], (v)[6], (v)[7]})
#endif

#define LOAD4(p) (*(const v4f_any *)(p))
#define STORE4(p, v) (*(v4f_any *)(p) = (v))

INLINE void transpose4(v4f v[4])
{
	v4f a = PICK(v[0], v[1], 0, 4, 1, 5), b = PICK(v[2], v[3], 0, 4, 1, 5);
	v4f c = PICK(v[0], v[1], 2, 6, 3, 7), d = PICK(v[2], v[3], 2, 6, 3, 7);
	v[0] = PICK(a, b, 0, 1, 4, 5);
	v[1] = PICK(a, b, 2, 3, 6, 7);
	v[2] = PICK(c, d, 0, 1, 4, 5);
	v[3] = PICK(c, d, 2, 3, 6, 7);
}

/* Four rows of w <= 4 floats that lie r apart, as columns; w < 4 only when r = w. */
INLINE void load_columns(v4f v[4], const float *p, size_t r, const size_t w)
{
	v4f a[4];
	UNROLL
	for (size_t j = 0; j < w; j++)
		a[j] = LOAD4(p + j * (w == 4 ? r : 4));
	if (w == 4) {
		transpose4(a);
		UNROLL
		for (size_t j = 0; j < 4; j++)
			v[j] = a[j];
	} else if (w == 3) {
		v[0] = PICK(PICK(a[0], a[1], 0, 3, 6, 6), a[2], 0, 1, 2, 5);
		v[1] = PICK(PICK(a[0], a[1], 1, 4, 7, 7), a[2], 0, 1, 2, 6);
		v[2] = PICK(PICK(a[0], a[1], 2, 5, 5, 5), a[2], 0, 1, 4, 7);
	} else if (w == 2) {
		v[0] = PICK(a[0], a[1], 0, 2, 4, 6);
		v[1] = PICK(a[0], a[1], 1, 3, 5, 7);
	} else
		v[0] = a[0];
}

INLINE void store_columns(float *p, v4f v[4], size_t r, const size_t w)
{
	v4f a[4];
	if (w == 4) {
		transpose4(v);
		UNROLL
		for (size_t j = 0; j < 4; j++)
			a[j] = v[j];
	} else if (w == 3) {
		a[0] = PICK(PICK(v[0], v[1], 0, 4, 1, 5), v[2], 0, 1, 4, 2);
		a[1] = PICK(PICK(v[1], v[2], 1, 5, 2, 6), v[0], 0, 1, 6, 2);
		a[2] = PICK(PICK(v[0], v[1], 3, 7, 3, 7), v[2], 6, 0, 1, 7);
	} else if (w == 2) {
		a[0] = PICK(v[0], v[1], 0, 4, 1, 5);
		a[1] = PICK(v[0], v[1], 2, 6, 3, 7);
	} else
		a[0] = v[0];
	UNROLL
	for (size_t j = 0; j < w; j++)
		/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is memory where there is none to load from */
		STORE4(p + j * (w == 4 ? r : 4), a[j]);
}

/* T[c][k] = in[k][c], or with in NULL out[k][c] = T[c][k], for w <= 4 columns. */
INLINE void turn4(float *T, size_t ldt, const float *in, float *out, size_t lda, size_t count, const size_t w)
{
	size_t k = 0;
	for (; k + 4 <= count; k += 4) {
		v4f v[4];
		if (in)
			load_columns(v, in + k * lda, lda, w);
		UNROLL
		for (size_t c = 0; c < w; c++) {
			if (in)
				STORE4(T + c * ldt + k, v[c]);
			else
				v[c] = LOAD4(T + c * ldt + k);
		}
		if (!in)
			store_columns(out + k * lda, v, lda, w);
	}
	for (; k < count; k++)
		for (size_t c = 0; c < w; c++) {
			if (in)
				T[c * ldt + k] = in[k * lda + c];
			else
				/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the same */
				out[k * lda + c] = T[c * ldt + k];
		}
}

/* The same for any number of columns; the last four may overlap those before. */
INLINE void turn(float *T, size_t ldt, const float *in, float *out, size_t lda, size_t count, size_t w)
{
	if (lda == 1)
		turn4(T, ldt, in, out, 1, count, 1);
	else if (lda == 2)
		turn4(T, ldt, in, out, 2, count, 2);
	else if (lda == 3)
		turn4(T, ldt, in, out, 3, count, 3);
	else if (w >= 4)
		for (size_t c = 0; c<w; c = w - c> 4 && w - c < 8 ? w - 4 : c + 4)
			turn4(T + c * ldt, ldt, in ? in + c : NULL, in ? NULL : out + c, lda, count, 4);
	else
		for (size_t k = 0; k < count; k++)
			for (size_t c = 0; c < w; c++) {
				if (in)
					T[c * ldt + k] = in[k * lda + c];
				else
					out[k * lda + c] = T[c * ldt + k];
			}
}

#endif
