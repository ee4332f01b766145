/* Orthonormalises the columns of a tall thin matrix: Cholesky QR.
 *
 *     G = A^T A,  G = R^T R,  A := A R^-1
 *
 * The Gram matrix is summed in double, where products of floats are exact, in
 * an order fixed by n and r: eight lanes of a block's rows, blocks in their order, and at most
 * CHUNKS runs of blocks, which a GPU sums side by side. Its columns are scaled to
 * length 1 first, so 1e-30 and 1e30 are alike. One round leaves the columns orthogonal to about
 * 1e-15 / pivot; where the smallest pivot makes that worse than float rounding,
 * a second round repairs it (CholeskyQR2, Yamamoto et al. 2015). A column whose
 * squared distance from the span of those before it is below DEPENDENT of its own
 * length is noise: it is left out, and filled in at the end with the unit vector
 * that stands best on the others. Every rank runs this on equal data and must
 * reach equal bits, so nothing here depends on the processor. */
#include <string.h>

#include "operators/cpu/four.h"

/* Blocks have BLOCK rows, and half of them where there are more than FEW columns: a tile is on the stack. */
enum { MOST = 128, FEW = 64, BLOCK = 128, CHUNKS = 64 };
#define DEPENDENT 1e-12
#define ONE_ROUND 1e-7

/* Sums run in eight lanes, whatever a register holds; SIDE columns of the Gram
 * matrix by SIDE are summed together. */
#ifdef __AVX512F__
enum { SIDE = 4, LANES = 8 };
#else
enum { SIDE = 2, LANES = 4 };
#endif
typedef double lanes __attribute__((vector_size(LANES * 8)));

typedef struct ortho {
	size_t n, r, block; /* block: rows of a block, and length of a tile's column */
	int nkept;
	int kept[MOST];     /* columns in use, ascending */
	double scale[MOST]; /* 1 / length of a column */
	double square[MOST][MOST + 1];
	double tile[FEW * BLOCK] __attribute__((aligned(64)));
} ortho;

/* The square holds two triangles, each with its diagonal. The upper one is the Gram matrix, unscaled, and
 * where columns i and j are kept its factor R takes the place of that. i <= j in both. */
INLINE double *upper(ortho *o, size_t i, size_t j)
{
	return &o->square[i][j + 1];
}

/* The lower one is the part of the Gram matrix that a chunk gives; then R^-1 over kept columns, scaled in. */
INLINE double *lower(ortho *o, size_t i, size_t j)
{
	return &o->square[j][i];
}

INLINE double *column(ortho *o, size_t c)
{
	return o->tile + c * o->block;
}

/* Columns c.. of the tile from those of A, or the other way. */
INLINE void move_columns(ortho *o, float *A, size_t rows, size_t c, const size_t w, const int store)
{
	size_t i = 0, r = o->r;
	for (; i + 4 <= rows; i += 4) {
		v4f v[4];
		if (!store)
			load_columns(v, A + i * r + c, r, w);
		UNROLL
		for (size_t j = 0; j < w; j++) {
			v4d *at = (v4d *)(column(o, c + j) + i);
			if (store)
				v[j] = NARROW(*at);
			else
				*at = WIDEN(v[j]);
		}
		if (store)
			store_columns(A + i * r + c, v, r, w);
	}
	for (; i < rows; i++)
		for (size_t j = c; j < c + w; j++) {
			if (store)
				A[i * r + j] = (float)column(o, j)[i];
			else
				column(o, j)[i] = A[i * r + j];
		}
}

/* tile[c][i] = A[i][c], or back. The last four columns may overlap those before. */
INLINE void move_tile(ortho *o, float *A, size_t rows, const int store)
{
	size_t r = o->r;
	if (r == 1)
		move_columns(o, A, rows, 0, 1, store);
	else if (r == 2)
		move_columns(o, A, rows, 0, 2, store);
	else if (r == 3)
		move_columns(o, A, rows, 0, 3, store);
	else
		for (size_t c = 0; c < r; c = r - c < 8 && r - c > 4 ? r - 4 : c + 4)
			move_columns(o, A, rows, c, 4, store);
}

/* Returns how long the columns are: rows that are not there are 0. */
static size_t tile_load(ortho *o, float *A, size_t rows)
{
	size_t length = (rows + 7) / 8 * 8;
	for (size_t c = 0; rows < length && c < o->r; c++)
		memset(column(o, c) + length - 8, 0, 8 * sizeof(double));
	move_tile(o, A, rows, 0);
	return length;
}

/* Columns i.. times columns j.., wi and wj of them. */
INLINE void gram_part(ortho *o, size_t i, size_t j, size_t length, const size_t wi, const size_t wj)
{
	lanes sum[SIDE][SIDE][8 / LANES] = {{{{0}}}};
	const size_t block = o->block;
	const double *x = column(o, i), *y = column(o, j);
	for (size_t k = 0; k < length; k += 8) {
		UNROLL
		for (size_t a = 0; a < wi; a++) {
			UNROLL
			for (size_t b = 0; b < wj; b++) {
				UNROLL
				for (size_t h = 0; h < 8 / LANES; h++)
					sum[a][b][h] += *(const lanes *)&x[a * block + k + h * LANES] *
					                *(const lanes *)&y[b * block + k + h * LANES];
			}
		}
	}
	UNROLL
	for (size_t a = 0; a < wi; a++) {
		UNROLL
		for (size_t b = 0; b < wj; b++) {
			double s[8];
			if (i + a > j + b)
				continue;
			memcpy(s, sum[a][b], sizeof s);
			*lower(o, i + a, j + b) += ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
		}
	}
}

/* Adds the product of a block's columns to the part. */
static void gram_block(ortho *o, float *A, size_t rows)
{
	const size_t even = o->r / SIDE * SIDE, length = tile_load(o, A, rows);
	for (size_t i = 0; i < even; i += SIDE) {
		for (size_t j = i; j < even; j += SIDE)
			gram_part(o, i, j, length, SIDE, SIDE);
		for (size_t j = even; j < o->r; j++)
			gram_part(o, i, j, length, SIDE, 1);
	}
	for (size_t i = even; i < o->r; i++)
		for (size_t j = i; j < o->r; j++)
			gram_part(o, i, j, length, 1, 1);
}

static void gram(ortho *o, float *A)
{
	/* Chunks of one block each may as well be one chunk: the order is the same. */
	const size_t block = o->block, blocks = (o->n + block * CHUNKS - 1) / (block * CHUNKS),
		     chunk = blocks > 1 ? block * blocks : o->n;
	for (size_t i = 0; i < o->r; i++)
		memset(upper(o, i, i), 0, (o->r - i) * sizeof(double));
	for (size_t from = 0; from < o->n; from += chunk) {
		const size_t to = o->n - from < chunk ? o->n : from + chunk;
		for (size_t j = 0; j < o->r; j++)
			memset(lower(o, 0, j), 0, (j + 1) * sizeof(double));
		for (size_t row = from; row < to; row += block)
			gram_block(o, A + row * o->r, to - row < block ? to - row : block);
		for (size_t i = 0; i < o->r; i++)
			for (size_t j = i; j < o->r; j++)
				*upper(o, i, j) += *lower(o, i, j);
	}
}

/* Cholesky of the scaled Gram matrix over the columns that carry something, and
 * the inverse of its factor. Returns the smallest pivot. */
static double factor(ortho *o)
{
	double inverse[MOST], smallest = 1; /* smallest: of those on the diagonal of R */
	const int *kept = o->kept;
	o->nkept = 0;
	for (int j = 0; j < (int)o->r && (size_t)o->nkept < o->n; j++) {
		int nk = o->nkept;
		double len2 = *upper(o, j, j), pivot = 1;
		if (!(len2 > 0 && len2 < 1e300))
			continue;
		o->scale[j] = 1 / __builtin_sqrt(len2);
		for (int a = 0; a < nk; a++) {
			int i = kept[a];
			double s = *upper(o, i, j) * o->scale[i] * o->scale[j];
			for (int b = 0; b < a; b++)
				s -= *upper(o, kept[b], i) * *upper(o, kept[b], j);
			s *= inverse[a];
			*upper(o, i, j) = s;
			pivot -= s * s;
		}
		if (!(pivot > DEPENDENT))
			continue;
		inverse[nk] = 1 / __builtin_sqrt(pivot);
		smallest = pivot < smallest ? pivot : smallest;
		o->kept[o->nkept++] = j;
	}
	/* From the last row up, so that a GPU may take what is known from all rows above at once. */
	for (int j = 0; j < o->nkept; j++) {
		*lower(o, j, j) = inverse[j];
		for (int i = j - 1; i >= 0; i--) {
			double s = 0;
			for (int k = j; k > i; k--)
				s -= *upper(o, kept[i], kept[k]) * *lower(o, k, j);
			*lower(o, i, j) = s * inverse[i];
		}
	}
	for (int i = 0; i < o->nkept; i++)
		for (int j = i; j < o->nkept; j++)
			*lower(o, i, j) *= o->scale[kept[i]];
	return smallest;
}

/* The a-th kept column := the combination of the first a + 1 that makes it one of
 * A R^-1. */
INLINE void combine(ortho *o, int a, size_t length)
{
	double *out = column(o, o->kept[a]);
	for (size_t i = 0; i < length; i += LANES) {
		lanes s = *(const lanes *)(out + i) * *lower(o, a, a);
		for (int b = 0; b < a; b++)
			s += *(const lanes *)(column(o, o->kept[b]) + i) * *lower(o, b, a);
		*(lanes *)(out + i) = s;
	}
}

/* A := A R^-1 on the kept columns, 0 on the others. From the last column down,
 * so that each can be made where it stands. */
static void apply(ortho *o, float *A)
{
	for (size_t i = 0; i < o->n; i += o->block) {
		size_t rows = o->n - i < o->block ? o->n - i : o->block, length = tile_load(o, A + i * o->r, rows);
		int a = o->nkept - 1;
		for (int j = (int)o->r - 1; j >= 0; j--)
			if (a < 0 || o->kept[a] != j)
				memset(column(o, j), 0, o->block * sizeof(double));
			else
				combine(o, a--, length);
		move_tile(o, A + i * o->r, rows, 1);
	}
}

/* The row that the kept columns reach least, the first of equal ones. */
static size_t least_row(const ortho *o, const float *A)
{
	size_t t = 0;
	double least = 0;
	for (size_t i = 0; i < o->n; i++) {
		double s = 0;
		for (int a = 0; a < o->nkept; a++) {
			double v = A[i * o->r + (size_t)o->kept[a]];
			s += v * v;
		}
		if (!i || s < least) {
			least = s;
			t = i;
		}
	}
	return t;
}

/* Column c less its part in the kept ones, and of length 1. */
static void repair_column(const ortho *o, float *A, size_t c)
{
	const size_t n = o->n, r = o->r;
	double dot[MOST], square = 0;
	for (int a = 0; a < o->nkept; a++) {
		dot[a] = 0;
		for (size_t i = 0; i < n; i++)
			dot[a] += (double)A[i * r + c] * A[i * r + (size_t)o->kept[a]];
	}
	for (size_t i = 0; i < n; i++) {
		double v = A[i * r + c];
		for (int a = 0; a < o->nkept; a++)
			v -= dot[a] * A[i * r + (size_t)o->kept[a]];
		A[i * r + c] = (float)v;
		square += (double)A[i * r + c] * A[i * r + c];
	}
	const double unit = 1 / __builtin_sqrt(square);
	for (size_t i = 0; i < n; i++)
		A[i * r + c] = (float)(A[i * r + c] * unit);
}

/* Column c := e_t made orthogonal to the kept columns and of length 1, where row t is the one
 * that they reach least: at most nkept / n < 1 of e_t is lost. As they are orthonormal, the
 * products with e_t are row t and the length follows from it, without a sum over rows. Where
 * little may be left of e_t, their errors count for more, and a second step repairs that. */
static void fill_column(ortho *o, float *A, size_t c)
{
	const size_t n = o->n, r = o->r, t = least_row(o, A);
	double dot[MOST], left = 1;
	for (int a = 0; a < o->nkept; a++) {
		dot[a] = A[t * r + (size_t)o->kept[a]];
		left -= dot[a] * dot[a];
	}
	const double unit = 1 / __builtin_sqrt(left);
	for (size_t i = 0; i < n; i++) {
		double v = i == t;
		for (int a = 0; a < o->nkept; a++)
			v -= dot[a] * A[i * r + (size_t)o->kept[a]];
		A[i * r + c] = (float)(v * unit);
	}
	if (4 * (size_t)o->nkept > 3 * n)
		repair_column(o, A, c);
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

static void orthonormalise(float *A, size_t n, size_t r)
{
	ortho o;
	if (!n || !r || r > MOST)
		return;
	o.n = n;
	o.r = r;
	o.block = r > FEW ? BLOCK / 2 : BLOCK;
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

/* No room is needed on this device. */
size_t KERNEL(orthonormalise_scratch)(size_t count, size_t n, size_t r)
{
	(void)count, (void)n, (void)r;
	return 0;
}

void KERNEL(orthonormalise_split)(void *queue, float *const *A, size_t count, size_t n, size_t r, void *scratch)
{
	(void)queue, (void)scratch;
	for (size_t i = 0; i < count; i++)
		orthonormalise(A[i], n, r);
}
