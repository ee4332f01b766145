/* Cosine transforms of chunks, and their largest coefficients. */
#include <string.h>

#include "operators/cpu/dct.h"
#include "operators/cpu/select.h"

/* A chunk in rows of DCT_LONGEST, zeros behind the columns that it has. */
typedef struct dct_tile {
	float at[DCT_LONGEST][DCT_LONGEST] __attribute__((aligned(64)));
} dct_tile;

/* The transform of n numbers, as it is and turned: B_n[j][b] and B_n[b][j]. */
typedef struct dct_side {
	uint32_t n; /* 0: of none yet */
	dct_tile forward, back;
} dct_side;

static void dct_side_make(dct_side *b, uint32_t n)
{
	double cosine[DCT_LONGEST + 1];
	const double length[2] = {__builtin_sqrt(1.0 / n), __builtin_sqrt(2.0 / n)};
	if (b->n == n)
		return;
	memset(b, 0, sizeof *b);
	b->n = n;
	for (uint32_t t = 0; t <= n; t++)
		cosine[t] = dct_cosine(t, n);
	for (uint32_t j = 0; j < n; j++)
		for (uint32_t i = 0; i < n; i++)
			b->forward.at[j][i] = b->back.at[i][j] = dct_basis(cosine, length, n, j, i);
}

/* to += a from */
INLINE void dct_row_add(float *to, float a, const float *from)
{
	UNROLL
	for (size_t i = 0; i < DCT_LONGEST; i += 8)
		STORE8(to + i, LOAD8(to + i) + a * LOAD8(from + i));
}

/* to = left right, left n x l with zeros passed over: 0 or -0 would be added to what
 * is never -0. */
static void dct_multiply(dct_tile *to, const dct_tile *left, const dct_tile *right, uint32_t n, uint32_t l)
{
	for (uint32_t i = 0; i < n; i++) {
		float sum[DCT_LONGEST] __attribute__((aligned(64))) = {0};
		for (uint32_t k = 0; k < l; k++)
			if (left->at[i][k] != 0)
				dct_row_add(sum, left->at[i][k], right->at[k]);
		memcpy(to->at[i], sum, sizeof sum);
	}
}

static void dct_load(dct_tile *u, const gradcomp_matrix *t, const dct_chunk *c)
{
	for (uint64_t i = 0; i < c->rows; i++) {
		const float *x = t->x + (c->row + i) * t->m + c->column;
		for (uint64_t j = 0; j < c->columns; j++) {
			const float v = x[j] < DCT_LIMIT ? x[j] : DCT_LIMIT;
			u->at[i][j] = v > -DCT_LIMIT ? v : -DCT_LIMIT;
		}
	}
}

static void dct_choose(void *queue, float *val, uint16_t *place, const dct_tile *u, const dct_chunk *c)
{
	float flat[DCT_LONGEST * DCT_LONGEST];
	uint32_t idx[DCT_LONGEST * DCT_LONGEST];
	for (uint64_t i = 0; i < c->rows; i++)
		memcpy(flat + i * c->columns, u->at[i], c->columns * sizeof *flat);
	KERNEL(topk)(queue, idx, val, flat, c->rows * c->columns, c->k, NULL);
	for (uint64_t j = 0; j < c->k; j++)
		place[j] = (uint16_t)idx[j];
}

void KERNEL(dct_topk)(void *queue, float *val, uint16_t *place, const gradcomp_matrix *t, size_t count, uint32_t chunk,
                      uint32_t k)
{
	dct_side rows = {.n = 0}, columns = {.n = 0};
	dct_tile u, v;
	for (size_t i = 0; i < count; i++) {
		const dct_cut cut = dct_cut_of(t[i].n, t[i].m, chunk, k);
		for (uint64_t j = 0; j < cut.across * cut.down; j++) {
			const dct_chunk c = dct_chunk_at(&cut, t[i].n, t[i].m, k, j);
			dct_side_make(&rows, (uint32_t)c.rows);
			dct_side_make(&columns, (uint32_t)c.columns);
			dct_load(&u, &t[i], &c);
			dct_multiply(&v, &u, &columns.forward, (uint32_t)c.rows, (uint32_t)c.columns);
			dct_multiply(&u, &rows.back, &v, (uint32_t)c.rows, (uint32_t)c.rows);
			dct_choose(queue, val + c.at, place + c.at, &u, &c);
		}
		val += cut.sent;
		place += cut.sent;
	}
}

/* Adds up what ranks sent of a chunk, and with `counted` how many sent each; returns whether it was sound. */
static int dct_collect(dct_tile *u, dct_tile *senders, int counted, const gradcomp_coefficients *from, size_t ranks,
                       uint64_t before, const dct_chunk *c, float a)
{
	const uint64_t n = c->rows * c->columns;
	int sound = 1;
	memset(u, 0, sizeof *u);
	if (counted)
		memset(senders, 0, sizeof *senders);
	for (size_t r = 0; r < ranks; r++) {
		const float *val = from[r].val + before + c->at;
		const uint16_t *place = from[r].place + before + c->at;
		for (uint64_t j = 0; j < c->k; j++) {
			sound &= place[j] < n && (!j || place[j] > place[j - 1]) && key_of(val[j]) < KEY_INF;
			if (place[j] < n) {
				u->at[place[j] / c->columns][place[j] % c->columns] += a * val[j];
				if (counted)
					senders->at[place[j] / c->columns][place[j] % c->columns] += 1;
			}
		}
	}
	return sound;
}

static void dct_divide(dct_tile *u, const dct_tile *senders, const dct_chunk *c)
{
	for (uint64_t i = 0; i < c->rows; i++)
		for (uint64_t j = 0; j < c->columns; j++)
			u->at[i][j] = senders->at[i][j] > 1 ? u->at[i][j] / senders->at[i][j] : u->at[i][j];
}

static void dct_store(const gradcomp_matrix *t, const dct_tile *u, const dct_chunk *c, uint32_t flags)
{
	for (uint64_t i = 0; i < c->rows; i++) {
		float *x = t->x + (c->row + i) * t->m + c->column;
		for (uint64_t j = 0; j < c->columns; j++) {
			const float v = flags & GRADCOMP_DCT_ADD ? x[j] + u->at[i][j] : u->at[i][j];
			x[j] = flags & GRADCOMP_DCT_SIGN ? (float)((v > 0) - (v < 0)) : v;
		}
	}
}

void KERNEL(dct_back)(void *queue, const gradcomp_matrix *t, size_t count, uint32_t chunk, uint32_t k,
                      const gradcomp_coefficients *from, size_t ranks, float a, uint32_t flags, int *fault)
{
	dct_side rows = {.n = 0}, columns = {.n = 0};
	dct_tile u, v;
	const int divided = !!(flags & GRADCOMP_DCT_SENDERS);
	uint64_t before = 0;
	(void)queue;
	for (size_t i = 0; i < count; i++) {
		const dct_cut cut = dct_cut_of(t[i].n, t[i].m, chunk, k);
		for (uint64_t j = 0; j < cut.across * cut.down; j++) {
			const dct_chunk c = dct_chunk_at(&cut, t[i].n, t[i].m, k, j);
			dct_side_make(&rows, (uint32_t)c.rows);
			dct_side_make(&columns, (uint32_t)c.columns);
			if (!dct_collect(&u, &v, divided, from, ranks, before, &c, a))
				*fault = 1;
			if (divided)
				dct_divide(&u, &v, &c);
			dct_multiply(&v, &u, &columns.back, (uint32_t)c.rows, (uint32_t)c.columns);
			dct_multiply(&u, &rows.forward, &v, (uint32_t)c.rows, (uint32_t)c.rows);
			dct_store(&t[i], &u, &c, flags);
		}
		before += cut.sent;
	}
}
