/* Products of a large matrix with a thin one, each in one pass over the large
 * one. The thin factor is held transposed in a tile on the stack, so that
 * vectors run along the rows of M. Columns of the factor are taken in groups of
 * at most 8, each group with its own unrolled code. */
#include <string.h>

#include "operators/cpu/four.h"

enum { GROUP = 8, TILE = 1024 };

/* Runs statement with W a constant from 1 to 8. */
#define WITH_WIDTH(w, call) \
	switch (w) { \
	case 1: \
		call(1); \
		break; \
	case 2: \
		call(2); \
		break; \
	case 3: \
		call(3); \
		break; \
	case 4: \
		call(4); \
		break; \
	case 5: \
		call(5); \
		break; \
	case 6: \
		call(6); \
		break; \
	case 7: \
		call(7); \
		break; \
	default: \
		call(8); \
	}

/* The sums of four vectors. */
INLINE void sum8x4(float out[4], const v8f v[4])
{
	v4f s[4];
	UNROLL
	for (int i = 0; i < 4; i++)
		s[i] = LOW4(v[i]) + HIGH4(v[i]);
	transpose4(s);
	*(v4f_any *)out = (s[0] + s[2]) + (s[1] + s[3]);
}

/* `rows` rows of P (+)= M T^T. */
INLINE void mq_rows(float *P, size_t ldp, const float *M, size_t ldm, const float *T, size_t count, int add,
                    const size_t rows, const size_t W)
{
	v8f acc[4][GROUP];
	size_t k = 0;
	UNROLL
	for (size_t i = 0; i < rows; i++) {
		UNROLL
		for (size_t c = 0; c < W; c++)
			acc[i][c] = SPLAT8(0);
	}
	for (; k + 8 <= count; k += 8) {
		v8f a[4];
		UNROLL
		for (size_t i = 0; i < rows; i++)
			a[i] = LOAD8(M + i * ldm + k);
		UNROLL
		for (size_t c = 0; c < W; c++) {
			v8f t = LOAD8(T + c * TILE + k);
			UNROLL
			for (size_t i = 0; i < rows; i++)
				acc[i][c] = FMA(a[i], t, acc[i][c]);
		}
	}
	float sum[16] = {0};
	UNROLL
	for (size_t i = 0; i < 16; i += 4) {
		v8f four[4];
		UNROLL
		for (size_t j = 0; j < 4; j++)
			four[j] = i + j < rows * W ? acc[(i + j) / W][(i + j) % W] : SPLAT8(0);
		if (i < rows * W)
			sum8x4(sum + i, four);
	}
	UNROLL
	for (size_t i = 0; i < rows; i++) {
		UNROLL
		for (size_t c = 0; c < W; c++) {
			float s = sum[i * W + c];
			for (size_t j = k; j < count; j++)
				s += M[i * ldm + j] * T[c * TILE + j];
			P[i * ldp + c] = add ? P[i * ldp + c] + s : s;
		}
	}
}

/* At most four columns at a time, or the sums do not fit in registers. */
INLINE void mq_tile(float *P, size_t ldp, const float *M, size_t ldm, const float *T, size_t count, size_t n, int add,
                    const size_t W)
{
	const size_t rows = W <= 3 ? 4 : 2, low = W <= 4 ? W : 4, high = W - low;
	for (size_t i = 0; i < n;) {
		float *p = P + i * ldp;
		const float *a = M + i * ldm;
		if (i + rows <= n) {
			mq_rows(p, ldp, a, ldm, T, count, add, rows, low);
			if (high)
				mq_rows(p + 4, ldp, a, ldm, T + 4 * TILE, count, add, rows, high);
			i += rows;
		} else {
			mq_rows(p, ldp, a, ldm, T, count, add, 1, low);
			if (high)
				mq_rows(p + 4, ldp, a, ldm, T + 4 * TILE, count, add, 1, high);
			i++;
		}
	}
}

static void mq(float *P, const float *M, const float *Q, size_t n, size_t m, size_t r)
{
	float T[GROUP * TILE] __attribute__((aligned(64)));
	if (!m && n && r)
		memset(P, 0, n * r * sizeof *P);
	for (size_t c = 0; c < r; c += GROUP)
		for (size_t k = 0; k < m; k += TILE) {
			size_t count = m - k < TILE ? m - k : TILE, w = r - c < GROUP ? r - c : GROUP;
			turn(T, TILE, Q + k * r + c, NULL, r, count, w);
#define CALL(W) mq_tile(P + c, r, M + k, m, T, count, n, k != 0, W)
			WITH_WIDTH(w, CALL)
#undef CALL
		}
}

/* T += (rows of M)^T (rows of P), for one run of 8 * vectors columns. */
INLINE void mtp_columns(float *T, const float *M, size_t ldm, const float *P, size_t ldp, const size_t rows,
                        const size_t vectors, const size_t W)
{
	v8f acc[2][GROUP];
	UNROLL
	for (size_t v = 0; v < vectors; v++) {
		UNROLL
		for (size_t c = 0; c < W; c++)
			acc[v][c] = LOAD8(T + c * TILE + 8 * v);
	}
	UNROLL
	for (size_t i = 0; i < rows; i++) {
		UNROLL
		for (size_t v = 0; v < vectors; v++) {
			v8f a = LOAD8(M + i * ldm + 8 * v);
			UNROLL
			for (size_t c = 0; c < W; c++)
				acc[v][c] = FMA(a, SPLAT8(P[i * ldp + c]), acc[v][c]);
		}
	}
	UNROLL
	for (size_t v = 0; v < vectors; v++) {
		UNROLL
		for (size_t c = 0; c < W; c++)
			STORE8(T + c * TILE + 8 * v, acc[v][c]);
	}
}

INLINE void mtp_rows(float *T, const float *M, size_t ldm, const float *P, size_t ldp, size_t count, const size_t rows,
                     const size_t W)
{
	const size_t vectors = W <= 4 ? 2 : 1;
	size_t k = 0;
	for (; k + 8 * vectors <= count; k += 8 * vectors)
		mtp_columns(T + k, M + k, ldm, P, ldp, rows, vectors, W);
	for (; k + 8 <= count; k += 8)
		mtp_columns(T + k, M + k, ldm, P, ldp, rows, 1, W);
	for (; k < count; k++)
		for (size_t c = 0; c < W; c++)
			for (size_t i = 0; i < rows; i++)
				T[c * TILE + k] += M[i * ldm + k] * P[i * ldp + c];
}

INLINE void mtp_tile(float *T, const float *M, size_t ldm, const float *P, size_t ldp, size_t count, size_t n,
                     const size_t W)
{
	size_t i = 0;
	for (; i + 8 <= n; i += 8)
		mtp_rows(T, M + i * ldm, ldm, P + i * ldp, ldp, count, 8, W);
	for (; i < n; i++)
		mtp_rows(T, M + i * ldm, ldm, P + i * ldp, ldp, count, 1, W);
}

static void mtp(float *Q, const float *M, const float *P, size_t n, size_t m, size_t r)
{
	float T[GROUP * TILE] __attribute__((aligned(64)));
	for (size_t c = 0; c < r; c += GROUP)
		for (size_t k = 0; k < m; k += TILE) {
			size_t count = m - k < TILE ? m - k : TILE, w = r - c < GROUP ? r - c : GROUP;
			memset(T, 0, w * TILE * sizeof *T);
#define CALL(W) mtp_tile(T, M + k, m, P + c, r, count, n, W)
			WITH_WIDTH(w, CALL)
#undef CALL
			turn(T, TILE, NULL, Q + k * r + c, r, count, w);
		}
}

enum { FINISH = 4 * TILE, MOST_COLUMNS = 128 };

/* One row of the last pass: e = x - p TE, x = p TQ. The second product is
 * REPLICATED: a plain multiplication and addition a term, columns ascending. */
INLINE void finish_row(float *x, float *e, const float *p, const float *TE, const float *TQ, size_t ldt, size_t count,
                       const size_t r)
{
	v8f splat[MOST_COLUMNS];
	size_t k = 0;
	splat[0] = SPLAT8(p[0]);
	UNROLL
	for (size_t c = 1; c < r; c++)
		splat[c] = SPLAT8(p[c]);
	for (; k + 8 <= count; k += 8) {
		v8f s = splat[0] * LOAD8(TQ + k);
		UNROLL
		for (size_t c = 1; c < r; c++)
			s += splat[c] * LOAD8(TQ + c * ldt + k);
		if (e) {
			v8f left = LOAD8(x + k);
			UNROLL
			for (size_t c = 0; c < r; c++)
				left = FNMA(splat[c], LOAD8(TE + c * ldt + k), left);
			STORE8(e + k, left);
		}
		STORE8(x + k, s);
	}
	for (; k < count; k++) {
		float s = p[0] * TQ[k], left = x[k];
		for (size_t c = 1; c < r; c++)
			s += p[c] * TQ[c * ldt + k];
		if (e) {
			for (size_t c = 0; c < r; c++)
				left -= p[c] * TE[c * ldt + k];
			e[k] = left;
		}
		x[k] = s;
	}
}

INLINE void finish_tile(float *X, float *E, const float *P, const float *TE, const float *TQ, size_t ldt, size_t count,
                        size_t n, size_t m, const size_t r)
{
	for (size_t i = 0; i < n; i++)
		if (E)
			finish_row(X + i * m, E + i * m, P + i * r, TE, TQ, ldt, count, r);
		else
			finish_row(X + i * m, NULL, P + i * r, TE, TQ, ldt, count, r);
}

static void finish(float *X, float *E, const float *P, const float *Elocal, const float *Q, size_t n, size_t m,
                   size_t r)
{
	float TE[FINISH] __attribute__((aligned(64))), TQ[FINISH] __attribute__((aligned(64)));
	if (!r) {
		if (E && n && m)
			memcpy(E, X, n * m * sizeof *E);
		if (n && m)
			memset(X, 0, n * m * sizeof *X);
		return;
	}
	size_t width = r <= 4 ? TILE : FINISH / r / 8 * 8;
	for (size_t k = 0; k < m; k += width) {
		size_t count = m - k < width ? m - k : width;
		turn(TQ, width, Q + k * r, NULL, r, count, r);
		if (E)
			turn(TE, width, Elocal + k * r, NULL, r, count, r);
#define CALL(W) finish_tile(X + k, E ? E + k : NULL, P, TE, TQ, width, count, n, m, W)
		if (r > GROUP)
			CALL(r);
		else
			WITH_WIDTH(r, CALL)
#undef CALL
	}
}

/* No room is needed on this device. */
size_t KERNEL(product_scratch)(size_t count, size_t n, size_t m, size_t r)
{
	(void)count;
	(void)n;
	(void)m;
	(void)r;
	return 0;
}

void KERNEL(product_mq_batch)(void *queue, float *const *P, const float *const *M, const float *const *Q, size_t count,
                              size_t n, size_t m, size_t r, void *scratch)
{
	(void)queue, (void)scratch;
	for (size_t i = 0; i < count; i++)
		mq(P[i], M[i], Q[i], n, m, r);
}

void KERNEL(product_mtp_batch)(void *queue, float *const *Q, const float *const *M, const float *const *P, size_t count,
                               size_t n, size_t m, size_t r, void *scratch)
{
	(void)queue, (void)scratch;
	for (size_t i = 0; i < count; i++)
		mtp(Q[i], M[i], P[i], n, m, r);
}

void KERNEL(low_rank_finish_batch)(void *queue, float *const *X, float *const *E, const float *const *P,
                                   const float *const *Elocal, const float *const *Q, size_t count, size_t n, size_t m,
                                   size_t r)
{
	(void)queue;
	for (size_t i = 0; i < count; i++)
		finish(X[i], E ? E[i] : NULL, P[i], E ? Elocal[i] : NULL, Q[i], n, m, r);
}
