/* Chunks of matrices, and the cosines of their transforms: the same on the host and on a device. */
#ifndef OPERATORS_CPU_DCT_H
#define OPERATORS_CPU_DCT_H

#include "operators/cpu/kernels.h"

enum { DCT_LONGEST = 64 };
#define DCT_LIMIT 1e32f

/* How a matrix is cut. */
typedef struct dct_cut {
	uint64_t rows, columns; /* those of a whole chunk */
	uint64_t across, down;  /* chunks of a row, and rows of chunks */
	uint64_t band;          /* coefficients of a whole row of chunks */
	uint64_t sent;          /* coefficients of the matrix that are sent */
} dct_cut;

/* One chunk: where it begins, and where its coefficients do. */
typedef struct dct_chunk {
	uint64_t row, column, rows, columns, at, k;
} dct_chunk;

INLINE uint64_t dct_least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Coefficients of a row of chunks with so many rows. */
INLINE uint64_t dct_band(const dct_cut *c, uint64_t rows, uint64_t m, uint64_t k)
{
	return m / c->columns * dct_least(k, rows * c->columns) + dct_least(k, rows * (m % c->columns));
}

/* `chunk` as the operators take it. */
INLINE dct_cut dct_cut_of(uint64_t n, uint64_t m, uint32_t chunk, uint64_t k)
{
	dct_cut c = {chunk & 0xffff, chunk >> 16 ? chunk >> 16 : chunk, 0, 0, 0, 0};
	if (!n || !m)
		return c;
	c.across = (m + c.columns - 1) / c.columns;
	c.down = (n + c.rows - 1) / c.rows;
	c.band = dct_band(&c, c.rows, m, k);
	c.sent = n / c.rows * c.band + dct_band(&c, n % c.rows, m, k);
	return c;
}

/* Chunk i of an n x m matrix. */
INLINE dct_chunk dct_chunk_at(const dct_cut *c, uint64_t n, uint64_t m, uint64_t k, uint64_t i)
{
	dct_chunk p;
	const uint64_t down = i / c->across, across = i % c->across;
	p.row = down * c->rows;
	p.column = across * c->columns;
	p.rows = dct_least(c->rows, n - p.row);
	p.columns = dct_least(c->columns, m - p.column);
	p.at = down * c->band + across * dct_least(k, p.rows * c->columns);
	p.k = dct_least(k, p.rows * p.columns);
	return p;
}

/* cos(pi t / (2 n)), 0 <= t <= n, by its series: no library promises the same bits everywhere. */
INLINE double dct_cosine(uint64_t t, uint64_t n)
{
	const double x = 3.14159265358979323846 / 2 * (double)t / (double)n;
	double term = 1, sum = 1;
	for (int i = 2; i <= 26; i += 2) {
		term *= -(x * x) / (i * (i - 1));
		sum += term;
	}
	return sum;
}

/* B_n[j][b], from the cosines of 0..n and the lengths of the first and of the other columns. */
INLINE float dct_basis(const double *cosine, const double *length, uint32_t n, uint32_t j, uint32_t b)
{
	uint32_t t = (2 * j + 1) * b % (4 * n);
	t = t > 2 * n ? 4 * n - t : t;
	return (float)((b ? length[1] : length[0]) * (t > n ? -cosine[2 * n - t] : cosine[t]));
}

#endif
