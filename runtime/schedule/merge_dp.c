/* The merge plan that ends first.
 *
 * When the first i tensors are cut into k buckets, their selection has taken
 * k select_a + select_b (numel of them) whatever the cuts are, since it is linear. So the
 * stream's time is known from i and k, and of what is left only the end of the last
 * exchange matters, which is best when it is least:
 *
 *     end[k][i] = min over j of max(end[k-1][j], ready(i, k)) + exchange(j..i)
 *
 * Without select_a the number of buckets does not matter to the stream, and one pass
 * without k says what the least end is; then k goes up from 1 until it is reached. With
 * it, k goes up until the stream alone would take longer than the best plan so far. */
#include "schedule/merge.h"

#include <math.h>
#include <stdlib.h>

/* Above so many buckets fewer of them are not looked for. */
#define FEW 64
/* Plans whose ends differ by rounding alone are equally good. */
#define EQUAL (1 + 1e-12)

typedef struct solver {
	const merge_problem *p;
	double *ready;      /* ready[i]: the stream when the first i tensors are through, but for select_a */
	uint64_t *before;   /* numbers in the first i tensors */
	double *last, *end; /* ends of k - 1 and of k buckets; n + 1 each */
	uint32_t *from;     /* from[(k-1) (n+1) + i]: where the last of k buckets begins */
	uint32_t rows;      /* rows that `from` has */
} solver;

static int fits(const solver *s, uint32_t j, uint32_t i)
{
	return i - j == 1 || !s->p->max_numel || s->before[i] - s->before[j] <= s->p->max_numel;
}

/* The best last bucket of the first i tensors, when what is before it ends at `before[j]`,
 * j from `least` on. */
static double last_bucket(const solver *s, const double *before, uint32_t least, uint32_t i, double ready,
                          uint32_t *from)
{
	double best = INFINITY;
	for (uint32_t j = i; j-- > least && fits(s, j, i);) {
		double start = before[j] > ready ? before[j] : ready;
		double end = start + s->p->a + s->p->b * (double)(s->before[i] - s->before[j]);

		if (end <= best) {
			best = end;
			*from = j;
		}
	}
	return best;
}

/* Solves for however many buckets: end[i] of all i, from[] in the first row. Only without select_a. */
static void any_number(solver *s)
{
	s->end[0] = 0;
	for (uint32_t i = 1; i <= s->p->n; i++)
		s->end[i] = last_bucket(s, s->end, 0, i, s->ready[i], &s->from[i]);
}

/* Adds one bucket: `end` of k buckets from `last` of k - 1. */
static int one_more(solver *s, uint32_t k)
{
	uint32_t n = s->p->n;
	double *swap = s->last;
	if (k > s->rows) {
		uint32_t rows = 2 * s->rows, *more = reallocarray(s->from, (size_t)rows * (n + 1), sizeof *more);

		if (!more)
			return -1;
		s->from = more;
		s->rows = rows;
	}
	s->last = s->end;
	s->end = swap;
	for (uint32_t i = 0; i < k; i++)
		s->end[i] = INFINITY;
	for (uint32_t i = k; i <= n; i++)
		s->end[i] = last_bucket(s, s->last, k - 1, i, s->ready[i] + k * s->p->select_a,
		                        &s->from[(size_t)(k - 1) * (n + 1) + i]);
	return 0;
}

static void write_cut(const solver *s, uint32_t buckets, uint8_t *cut)
{
	uint32_t i = s->p->n;
	for (uint32_t t = 0; t < i; t++)
		cut[t] = 0;
	while (i) {
		cut[i - 1] = 1;
		i = s->from[(buckets ? (size_t)(buckets - 1) * (s->p->n + 1) : 0) + i];
		buckets -= buckets > 0;
	}
}

static int solve(solver *s, uint8_t *cut)
{
	const merge_problem *p = s->p;
	uint32_t n = p->n, kept = 0;
	int counted = p->select_a > 0;
	double best = INFINITY, least = 0;
	if (!counted) {
		any_number(s);
		write_cut(s, 0, cut);
		least = s->end[n];
	}
	s->end[0] = 0;
	for (uint32_t i = 1; i <= n; i++)
		s->end[i] = INFINITY;
	for (uint32_t k = 1; k <= n && (counted || k <= FEW); k++) {
		/* The stream of k buckets, and then at least the last tensor. */
		if (counted && s->ready[n] + k * p->select_a + p->a + p->b * (double)p->numel[n - 1] >= best)
			break;
		if (one_more(s, k))
			return -1;
		if (s->end[n] * EQUAL < best) {
			best = s->end[n];
			kept = k;
		}
		if (best <= least * EQUAL)
			break;
	}
	if (counted || best <= least * EQUAL)
		write_cut(s, kept, cut);
	return 0;
}

int merge_dp(const merge_problem *p, uint8_t *cut)
{
	uint32_t n = p->n;
	solver s = {.p = p, .rows = 8};
	int rc = -1;
	s.ready = calloc(n + 1, sizeof *s.ready);
	s.before = calloc(n + 1, sizeof *s.before);
	s.last = calloc(n + 1, sizeof *s.last);
	s.end = calloc(n + 1, sizeof *s.end);
	s.from = calloc((size_t)s.rows * (n + 1), sizeof *s.from);
	if (s.ready && s.before && s.last && s.end && s.from) {
		for (uint32_t i = 0; i < n; i++) {
			s.ready[i + 1] = s.ready[i] + p->backward[i] + p->select_b * (double)p->numel[i];
			s.before[i + 1] = s.before[i] + p->numel[i];
		}
		rc = solve(&s, cut);
	}
	free(s.ready);
	free(s.before);
	free(s.last);
	free(s.end);
	free(s.from);
	return rc;
}
