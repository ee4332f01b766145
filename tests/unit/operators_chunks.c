/* Numbers that belong together: sums and ways of blocks, columns of a length, cosine transforms of
 * chunks; against their definitions in double, and all tables alike. What peers send. */
#include "tests/support/operator_input.h"

#include "operators/operator_threads.h"

enum { MATRICES = 4, RANKS = 3 };
static const uint64_t shapes[MATRICES][2] = {{70, 133}, {1, 200}, {0, 7}, {64, 64}};

static const char *table_name;

static void blocks(const gradcomp_operators *op, size_t n, size_t width)
{
	size_t all = (n + width - 1) / width, k = (all + 1) / 2;
	float *x = test_alloc(n, 3), *y = test_alloc(n, 1), *out = test_alloc(k * width, 1), *sums = test_alloc(all, 0);
	uint32_t *idx = calloc(k + 1, sizeof *idx);
	int right = 1;
	for (size_t i = 0; i < n; i++) {
		x[i] = i == n / 2 ? 1e38f : test_normal();
		y[i] = (float)i;
	}
	for (size_t j = 0; j < k; j++)
		idx[j] = (uint32_t)(all - 1 - j);
	op->blocks_sum_abs(NULL, sums, x, n, width, 1e30f);
	op->blocks_gather(NULL, out, x, idx, k, n, width);
	op->blocks_scatter(NULL, y, idx, out, k, n, width);
	op->blocks_scatter(NULL, y, idx, NULL, k / 2, n, width);
	for (size_t b = 0; b < all; b++) {
		double sum = 0;
		for (size_t i = b * width; i < n && i < (b + 1) * width; i++)
			sum += fabs((double)x[i]);
		right &= sum < 1e30 ? fabs(sums[b] - sum) <= 1e-6 * sum : sums[b] == 1e30f;
	}
	for (size_t j = 0; j < k; j++)
		for (size_t i = 0; i < width; i++) {
			size_t at = idx[j] * width + i;
			right &= out[j * width + i] == (at < n ? x[at] : 0) &&
			         (at >= n || y[at] == (j < k / 2 ? 0 : x[at]));
		}
	for (size_t i = 0; i < n && i / width < all - k; i++)
		right &= y[i] == (float)i;
	right &= test_free(x, n, 3) & test_free(y, n, 1) & test_free(out, k * width, 1) & test_free(sums, all, 0);
	ok(right, "%s: %zu of %zu numbers in blocks of %zu", table_name, k, n, width);
	free(idx);
}

static void columns(const gradcomp_operators *op, size_t n, size_t r, float length)
{
	float *A = test_alloc(n * r, 1), *B = test_alloc(n * r, 0), *both[2] = {A, B};
	int right = 1;
	for (size_t i = 0; i < n * r; i++)
		A[i] = B[i] = i % r == 1 ? 0 : test_normal() * 1e-20f;
	op->normalise_columns_batch(NULL, both, 2, n, r, length);
	for (size_t j = 0; j < r && n; j++) {
		double squares = 0;
		for (size_t i = 0; i < n; i++)
			squares += (double)A[i * r + j] * A[i * r + j];
		right &= j == 1 ? squares == 0 : fabs(sqrt(squares) - length) < 1e-6 * length;
	}
	right &= !memcmp(A, B, n * r * sizeof *A) && test_free(A, n * r, 1) & test_free(B, n * r, 0);
	ok(right, "%s: columns of %zu x %zu are %g long", table_name, n, r, length);
}

/* Element (j, b) of the transform of n numbers. */
static double basis(uint64_t n, uint64_t j, uint64_t b)
{
	return sqrt((b ? 2.0 : 1.0) / (double)n) *
	       cos(3.14159265358979323846 * (double)((2 * j + 1) * b) / (2 * (double)n));
}

/* Coefficient (a, b) of the chunk at (row, column), which has so many rows and columns. */
static double coefficient(const gradcomp_matrix *t, uint64_t row, uint64_t column, uint64_t rows, uint64_t columns,
                          uint64_t a, uint64_t b)
{
	double sum = 0;
	for (uint64_t i = 0; i < rows; i++)
		for (uint64_t j = 0; j < columns; j++)
			sum += basis(rows, i, a) * basis(columns, j, b) * t->x[(row + i) * t->m + column + j];
	return sum;
}

/* Sides of `chunk`, as the operators take it. */
static uint64_t down(uint32_t chunk)
{
	return chunk & 0xffff;
}

static uint64_t across(uint32_t chunk)
{
	return chunk >> 16 ? chunk >> 16 : chunk;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* How far values are from the definition; whether those that are sent are as large as any. */
static double off_by(const gradcomp_matrix *t, uint32_t chunk, uint32_t k, const float *val, const uint16_t *place,
                     size_t *sent)
{
	double off = 0;
	for (uint64_t row = 0; row < t->n; row += down(chunk))
		for (uint64_t column = 0; column < t->m; column += across(chunk)) {
			uint64_t rows = least(t->n - row, down(chunk)), columns = least(t->m - column, across(chunk));
			uint64_t n = rows * columns, kept = n < k ? n : k, next = 0;
			double least = INFINITY, rest = 0;
			for (uint64_t i = 0; i < rows; i++)
				for (uint64_t j = 0; j < columns; j++) {
					double want = coefficient(t, row, column, rows, columns, i, j);
					if (next < kept && place[*sent + next] == i * columns + j) {
						off = fmax(off, fabs(val[*sent + next++] - want));
						least = fmin(least, fabs(want));
					} else {
						rest = fmax(rest, fabs(want));
					}
				}
			off = next < kept ? INFINITY : fmax(off, rest - least);
			*sent += kept;
		}
	return off;
}

static size_t coefficients(uint32_t chunk, uint32_t k)
{
	size_t sent = 0;
	for (int i = 0; i < MATRICES; i++)
		for (uint64_t row = 0; row < shapes[i][0]; row += down(chunk))
			for (uint64_t column = 0; column < shapes[i][1]; column += across(chunk))
				sent += least(k, least(shapes[i][0] - row, down(chunk)) *
				                         least(shapes[i][1] - column, across(chunk)));
	return sent;
}

static void chunks(const gradcomp_operators *op, uint32_t chunk, uint32_t k)
{
	const gradcomp_operators *portable = operators_cpu_variant("portable");
	size_t sent = coefficients(chunk, k), numel = 0, at = 0;
	gradcomp_matrix t[MATRICES], u[MATRICES];
	float *x, *y, *val[RANKS], *again = test_alloc(sent, 0);
	uint16_t *place[RANKS], *there = calloc(sent + 1, sizeof *there);
	gradcomp_coefficients from[RANKS];
	double off = 0, back = 0;
	int alike = 1, fault = 0;
	for (int i = 0; i < MATRICES; i++)
		numel += shapes[i][0] * shapes[i][1];
	x = test_alloc(numel, 1), y = test_alloc(numel, 1);
	for (int i = 0; i < MATRICES; at += shapes[i][0] * shapes[i][1], i++) {
		t[i] = (gradcomp_matrix){x + at, shapes[i][0], shapes[i][1]};
		u[i] = (gradcomp_matrix){y + at, shapes[i][0], shapes[i][1]};
	}
	for (int r = 0; r < RANKS; r++) {
		val[r] = test_alloc(sent, 0), place[r] = calloc(sent + 1, sizeof *place[r]);
		from[r] = (gradcomp_coefficients){val[r], place[r]};
		for (size_t i = 0; i < numel; i++)
			x[i] = test_normal();
		op->dct_topk(NULL, val[r], place[r], t, MATRICES, chunk, k);
		portable->dct_topk(NULL, again, there, t, MATRICES, chunk, k);
		alike &= !memcmp(again, val[r], 4 * sent) && !memcmp(there, place[r], 2 * sent);
	}
	at = 0;
	for (int i = 0; i < MATRICES && across(chunk) < 20; i++)
		off = fmax(off, off_by(&t[i], chunk, k, val[RANKS - 1], place[RANKS - 1], &at));
	/* All coefficients of one rank are the numbers again. */
	op->dct_back(NULL, u, MATRICES, chunk, k, &from[RANKS - 1], 1, 1, 0, &fault);
	for (size_t i = 0; i < numel && k >= down(chunk) * across(chunk); i++)
		back = fmax(back, fabs(x[i] - y[i]));
	ok(alike && off < 1e-5 && back < 1e-5 && !fault && test_free(again, sent, 0),
	   "%s: %u coefficients of chunks of %llu x %llu, off by %.1e, back by %.1e", table_name, k,
	   (unsigned long long)down(chunk), (unsigned long long)across(chunk), off, back);
	for (uint32_t flags = 0; flags < 8; flags++) {
		float *z = test_alloc(numel, 1);
		memcpy(z, y, numel * sizeof *z);
		op->dct_back(NULL, u, MATRICES, chunk, k, from, RANKS, 1.0f / RANKS, flags, &fault);
		for (int i = 0; i < MATRICES; i++)
			u[i].x = z + (u[i].x - y);
		portable->dct_back(NULL, u, MATRICES, chunk, k, from, RANKS, 1.0f / RANKS, flags, &fault);
		for (int i = 0; i < MATRICES; i++)
			u[i].x = y + (u[i].x - z);
		alike &= !memcmp(y, z, numel * sizeof *z);
		for (size_t i = 0; i < numel && flags & GRADCOMP_DCT_SIGN; i++)
			alike &= y[i] == 0 || fabsf(y[i]) == 1;
		alike &= test_free(z, numel, 1);
	}
	ok(alike && !fault, "%s: what %d ranks sent comes back with the bits of the portable table", table_name, RANKS);
	size_t bad = test_random() % sent;
	uint16_t was = place[0][bad];
	for (int what = 0; what < 3; what++) {
		int found = 0;
		place[0][bad] = what == 0 ? 4096 : what == 1 && bad + 1 < sent ? place[0][bad + 1] : was;
		float v = val[0][bad];
		val[0][bad] = what == 2 ? NAN : v;
		op->dct_back(NULL, u, MATRICES, chunk, k, from, 1, 1, 0, &found);
		/* The one behind may be the first of another chunk. */
		ok(found || what == 1, "%s: a place or value that is wrong is found", table_name);
		val[0][bad] = v, place[0][bad] = was;
	}
	for (int r = 0; r < RANKS; r++)
		test_free(val[r], sent, 0), free(place[r]);
	ok(test_free(x, numel, 1) & test_free(y, numel, 1), "%s: nothing is written outside", table_name);
	free(there);
}

/* Each coefficient is divided by how many of the ranks sent it: whole where one did. */
static void senders(const gradcomp_operators *op)
{
	enum { N = 15 };
	static const uint16_t place[RANKS][2] = {{3, 7}, {3, 14}, {2, 3}};
	float val[RANKS][2], x[N];
	gradcomp_coefficients from[RANKS];
	double want[N] = {0}, sum[N] = {0}, worst = 0;
	int count[N] = {0}, fault = 0;
	const gradcomp_matrix t = {x, 3, 5};
	for (int r = 0; r < RANKS; r++) {
		from[r] = (gradcomp_coefficients){val[r], place[r]};
		for (int j = 0; j < 2; j++) {
			val[r][j] = test_normal();
			sum[place[r][j]] += val[r][j];
			count[place[r][j]]++;
		}
	}
	for (uint64_t i = 0; i < N; i++)
		for (uint64_t c = 0; c < N; c++)
			want[i] += count[c] ? sum[c] / count[c] * basis(3, i / 5, c / 5) * basis(5, i % 5, c % 5) : 0;
	op->dct_back(NULL, &t, 1, 5, 2, from, RANKS, 1, GRADCOMP_DCT_SENDERS, &fault);
	for (int i = 0; i < N; i++)
		worst = fmax(worst, fabs(x[i] - want[i]));
	ok(worst < 1e-5 && !fault, "%s: coefficients divided by those that sent them, off by %.1e", table_name, worst);
}

static void each(const char *name, const gradcomp_operators *op)
{
	table_name = name;
	blocks(op, 1, 1), blocks(op, 1000, 7), blocks(op, 300000, 256), blocks(op, 300000, 299999), blocks(op, 5, 8);
	columns(op, 0, 3, 1), columns(op, 1, 2, 1), columns(op, 200, 5, 0.3f), columns(op, 65, 64, 2);
	chunks(op, 16, 5), chunks(op, 64, 32), chunks(op, 9, 81), chunks(op, 64, 4096);
	chunks(op, GRADCOMP_DCT_SIDES(7, 19), 133), chunks(op, GRADCOMP_DCT_SIDES(10, 1), 3),
		chunks(op, GRADCOMP_DCT_SIDES(1, 13), 4);
	chunks(op, GRADCOMP_DCT_SIDES(35, 64), 32), chunks(op, 1, 1);
	senders(op);
}

int main(void)
{
	gradcomp_error err = {0};
	test_seed();
	test_variants(each);
	is_int(operator_threads_start(3, &err), GRADCOMP_OK, "threads");
	each("with threads", operators_cpu());
	operator_threads_stop();
	return done_testing();
}
