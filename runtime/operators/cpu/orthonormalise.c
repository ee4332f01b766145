/* Orthonormalises the columns of a tall thin matrix: Cholesky QR.
 *
 *     G = A^T A,  G = R^T R,  A := A R^-1
 *
 * The Gram matrix is summed in double, where products of floats are exact, in
 * an order fixed by n and r. Its columns are scaled to length 1 first, so 1e-30
 * and 1e30 are alike. One round leaves the columns orthogonal to about
 * 1e-15 / pivot; where the smallest pivot makes that worse than float rounding,
 * a second round repairs it (CholeskyQR2, Yamamoto et al. 2015). A column whose
 * squared distance from the span of those before it is below DEPENDENT of its own
 * length is noise: it is left out, and filled in at the end with the unit vector
 * that stands best on the others. Every rank runs this on equal data and must
 * reach equal bits, so nothing here depends on the processor. */
#include <string.h>

#include "kernels.h"

enum { MOST = 64, BLOCK = 128 };
#define DEPENDENT 1e-12
#define ONE_ROUND 1e-7

typedef struct ortho {
	size_t n, r;
	int nkept;
	int kept[MOST];          /* columns in use, ascending */
	double scale[MOST];      /* 1 / length of a column */
	double gram[MOST][MOST]; /* upper triangle, unscaled */
	double inv[MOST][MOST];  /* upper triangle of R^-1 over kept columns, scaled in */
	double tile[MOST][BLOCK] __attribute__((aligned(64)));
} ortho;

#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define PICK(a, b, i, j, k, l) __builtin_shuffle(a, b, (v4i){i, j, k, l})
#endif

INLINE void transpose4(v4f v[4])
{
	v4f a = PICK(v[0], v[1], 0, 4, 1, 5), b = PICK(v[2], v[3], 0, 4, 1, 5);
	v4f c = PICK(v[0], v[1], 2, 6, 3, 7), d = PICK(v[2], v[3], 2, 6, 3, 7);
	v[0] = PICK(a, b, 0, 1, 4, 5);
	v[1] = PICK(a, b, 2, 3, 6, 7);
	v[2] = PICK(c, d, 0, 1, 4, 5);
	v[3] = PICK(c, d, 2, 3, 6, 7);
}

/* tile[c][i] = A[i][c]; rows that are not there are 0. */
static void tile_load(ortho *o, const float *A, size_t rows)
{
	size_t r = o->r, c = 0;
	for (; c + 4 <= r; c += 4) {
		size_t i = 0;
		for (; i + 4 <= rows; i += 4) {
			const float *p = A + i * r + c;
			v4f v[4] = {*(const v4f_any *)p, *(const v4f_any *)(p + r), *(const v4f_any *)(p + 2 * r),
			            *(const v4f_any *)(p + 3 * r)};
			transpose4(v);
			UNROLL
			for (int j = 0; j < 4; j++)
				*(v4d *)&o->tile[c + (size_t)j][i] = WIDEN(v[j]);
		}
		for (; i < rows; i++)
			for (size_t j = c; j < c + 4; j++)
				o->tile[j][i] = A[i * r + j];
	}
	for (; c < r; c++)
		for (size_t i = 0; i < rows; i++)
			o->tile[c][i] = A[i * r + c];
	for (c = 0; rows < BLOCK && c < r; c++)
		memset(&o->tile[c][rows], 0, (BLOCK - rows) * sizeof o->tile[c][0]);
}

static void tile_store(const ortho *o, float *A, size_t rows)
{
	size_t r = o->r, c = 0;
	for (; c + 4 <= r; c += 4) {
		size_t i = 0;
		for (; i + 4 <= rows; i += 4) {
			float *p = A + i * r + c;
			v4f v[4];
			UNROLL
			for (int j = 0; j < 4; j++)
				v[j] = NARROW(*(const v4d *)&o->tile[c + (size_t)j][i]);
			transpose4(v);
			UNROLL
			for (size_t j = 0; j < 4; j++)
				*(v4f_any *)(p + j * r) = v[j];
		}
		for (; i < rows; i++)
			for (size_t j = c; j < c + 4; j++)
				A[i * r + j] = (float)o->tile[j][i];
	}
	for (; c < r; c++)
		for (size_t i = 0; i < rows; i++)
			A[i * r + c] = (float)o->tile[c][i];
}

INLINE double tile_dot(const double *a, const double *b)
{
	v4d s = {0}, t = {0};
	for (int i = 0; i < BLOCK; i += 8) {
		s += *(const v4d *)(a + i) * *(const v4d *)(b + i);
		t += *(const v4d *)(a + i + 4) * *(const v4d *)(b + i + 4);
	}
	s += t;
	return (s[0] + s[2]) + (s[1] + s[3]);
}

static void gram_block(ortho *o)
{
	for (size_t i = 0; i < o->r; i++)
		for (size_t j = i; j < o->r; j++)
			o->gram[i][j] += tile_dot(o->tile[i], o->tile[j]);
}

static void gram(ortho *o, const float *A)
{
	memset(o->gram, 0, sizeof o->gram[0] * o->r);
	for (size_t i = 0; i < o->n; i += BLOCK) {
		tile_load(o, A + i * o->r, o->n - i < BLOCK ? o->n - i : BLOCK);
		gram_block(o);
	}
}

/* Cholesky of the scaled Gram matrix over the columns that carry something, and
 * the inverse of its factor. Returns the smallest pivot. */
static double factor(ortho *o)
{
	double R[MOST][MOST], smallest = 1;
	o->nkept = 0;
	for (int j = 0; j < (int)o->r && (size_t)o->nkept < o->n; j++) {
		int nk = o->nkept;
		double len2 = o->gram[j][j], pivot = 1;
		if (!(len2 > 0 && len2 < 1e300))
			continue;
		o->scale[j] = 1 / __builtin_sqrt(len2);
		for (int a = 0; a < nk; a++) {
			int i = o->kept[a];
			double s = o->gram[i][j] * o->scale[i] * o->scale[j];
			for (int b = 0; b < a; b++)
				s -= R[b][a] * R[b][nk];
			R[a][nk] = s / R[a][a];
			pivot -= R[a][nk] * R[a][nk];
		}
		if (!(pivot > DEPENDENT))
			continue;
		R[nk][nk] = __builtin_sqrt(pivot);
		smallest = pivot < smallest ? pivot : smallest;
		o->kept[o->nkept++] = j;
	}
	for (int j = 0; j < o->nkept; j++) {
		o->inv[j][j] = 1 / R[j][j];
		for (int i = j - 1; i >= 0; i--) {
			double s = 0;
			for (int k = i + 1; k <= j; k++)
				s -= R[i][k] * o->inv[k][j];
			o->inv[i][j] = s / R[i][i];
		}
	}
	for (int i = 0; i < o->nkept; i++)
		for (int j = i; j < o->nkept; j++)
			o->inv[i][j] *= o->scale[o->kept[i]];
	return smallest;
}

/* out = out * keep, and out += in * a. */
INLINE void tile_scale(double *out, double keep)
{
	const v4d k = {keep, keep, keep, keep};
	for (int i = 0; i < BLOCK; i += 4)
		*(v4d *)(out + i) *= k;
}

INLINE void tile_add(double *out, const double *in, double a)
{
	const v4d k = {a, a, a, a};
	for (int i = 0; i < BLOCK; i += 4)
		*(v4d *)(out + i) += *(const v4d *)(in + i) * k;
}

/* A := A R^-1 on the kept columns, 0 on the others. From the last column down,
 * so that each can be made where it stands. */
static void apply(ortho *o, float *A)
{
	for (size_t i = 0; i < o->n; i += BLOCK) {
		size_t rows = o->n - i < BLOCK ? o->n - i : BLOCK;
		tile_load(o, A + i * o->r, rows);
		int a = o->nkept - 1;
		for (int j = (int)o->r - 1; j >= 0; j--) {
			double *out = o->tile[j];
			if (a < 0 || o->kept[a] != j) {
				memset(out, 0, sizeof o->tile[j]);
				continue;
			}
			tile_scale(out, o->inv[a][a]);
			for (int b = 0; b < a; b++)
				tile_add(out, o->tile[o->kept[b]], o->inv[b][a]);
			a--;
		}
		tile_store(o, A + i * o->r, rows);
	}
}

/* Column c := e_t made orthogonal to the kept columns and of length 1, where row
 * t is the one the kept columns reach least: at most nkept / n < 1 of e_t is lost. */
static void fill_column(ortho *o, float *A, size_t c)
{
	size_t n = o->n, r = o->r, t = 0;
	double least = 0;
	for (size_t i = 0; i < n; i++) {
		double s = 0;
		for (int a = 0; a < o->nkept; a++) {
			double v = A[i * r + (size_t)o->kept[a]];
			s += v * v;
		}
		if (!i || s < least) {
			least = s;
			t = i;
		}
	}
	for (size_t i = 0; i < n; i++)
		A[i * r + c] = i == t;
	for (int round = 0; round < 2; round++) {
		double dot[MOST] = {0}, len2 = 0, unit;
		for (size_t i = 0; i < n; i++)
			for (int a = 0; a < o->nkept; a++)
				dot[a] += (double)A[i * r + c] * A[i * r + (size_t)o->kept[a]];
		for (size_t i = 0; i < n; i++) {
			double v = A[i * r + c];
			for (int a = 0; a < o->nkept; a++)
				v -= dot[a] * A[i * r + (size_t)o->kept[a]];
			A[i * r + c] = (float)v;
			len2 += (double)A[i * r + c] * A[i * r + c];
		}
		unit = 1 / __builtin_sqrt(len2);
		for (size_t i = 0; i < n; i++)
			A[i * r + c] = (float)(A[i * r + c] * unit);
	}
}

static void fill(ortho *o, float *A)
{
	int used[MOST] = {0};
	for (int a = 0; a < o->nkept; a++)
		used[o->kept[a]] = 1;
	for (size_t c = 0; c < o->r && (size_t)o->nkept < o->n; c++)
		if (!used[c]) {
			fill_column(o, A, c);
			o->kept[o->nkept++] = (int)c;
		}
}

void KERNEL(orthonormalise)(void *queue, float *A, size_t n, size_t r)
{
	(void)queue;
	ortho o;
	if (!n || !r || r > MOST)
		return;
	o.n = n;
	o.r = r;
	gram(&o, A);
	double pivot = factor(&o);
	apply(&o, A);
	if (pivot < ONE_ROUND) {
		gram(&o, A);
		factor(&o);
		apply(&o, A);
	}
	if ((size_t)o.nkept < r)
		fill(&o, A);
}
