/* The link that a model needs, so that its steps take little longer than they would without exchanging anything.
 *
 * Rates and lengths of messages are looked for alike, as how good a link is: bits a second, or messages a second. At
 * every link that is tried the compressor has whichever of its collectives and schedules is the quickest there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread_pool.h"
#include "tools/plan.h"

/* Figures are exact to EXACT; bounds of them are looked for by steps of STRIDE first. */
#define EXACT 1.02
#define STRIDE 4

typedef struct search {
	const plan *p;
	const plan_table *t;
	const plan_spec *compressor;
	double enough; /* seconds of a step */
	bool messages; /* are varied, not the rate */
} search;

double plan_ideal(const plan *p, const plan_table *t)
{
	double input = p->model->io + p->model->copy, compute = t->rows[0].p.compute_s;
	return p->no_read_ahead ? input + compute : fmax(input, compute);
}

/* *enough: the compressor's quickest step on so good a link is as short as is wanted. */
static gradcomp_status try_link(const search *s, double good, bool *enough, gradcomp_error *err)
{
	machine_file m = s->t->machine;
	linear *level = &m.level[plan_level(s->t->nodes)];
	cost_prediction out;
	*(s->messages ? &level->a : &level->b) = (s->messages ? 1 : 8) / good;
	m.ncalls = 0;
	*enough = false;
	for (int i = 0; i < s->t->n && !*enough; i++) {
		const plan_row *row = &s->t->rows[i];
		gradcomp_status st;

		if (!plan_same(row->compressor, s->compressor))
			continue;
		st = plan_predict(s->p, s->t, &m, row, s->t->nodes, &out, err);
		if (st)
			return st;
		*enough = out.step_s <= s->enough;
	}
	return GRADCOMP_OK;
}

/* The least good link that is enough, between two; INFINITY: none is. */
static gradcomp_status find_least(const search *s, double from, double least, double most, double *found,
                                  gradcomp_error *err)
{
	double good = fmin(fmax(from, least), most), bad;
	bool enough;
	gradcomp_status st = try_link(s, good, &enough, err);
	while (!st && !enough && good < most) {
		good = fmin(good * STRIDE, most);
		st = try_link(s, good, &enough, err);
	}
	*found = INFINITY;
	if (st || !enough)
		return st;
	bad = good;
	while (!st && enough && bad > least) {
		good = bad;
		bad = fmax(bad / STRIDE, least);
		st = try_link(s, bad, &enough, err);
	}
	if (enough)
		good = bad;
	while (!st && good > bad * EXACT) {
		double middle = sqrt(good * bad);

		st = try_link(s, middle, &enough, err);
		*(enough ? &good : &bad) = middle;
	}
	*found = good;
	return st;
}

/* Compressor i of a table, on one of the threads. */
static gradcomp_status find_one(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err)
{
	plan *p = ctx;
	plan_table *t = &p->tables[i / (uint64_t)p->compressors.n];
	const uint64_t which = i % (uint64_t)p->compressors.n;
	const plan_row *row = plan_best_of(t, &p->compressors.spec[which]);
	plan_need *need = &t->needs[which];
	search s = {.p = p, .t = t};
	double good;
	gradcomp_status st;
	(void)worker;
	if (!row)
		return GRADCOMP_OK;
	const double ideal = plan_ideal(p, t);
	const linear *link = &t->machine.level[plan_level(t->nodes)];
	if (!(link->b > 0)) /* nothing is exchanged */
		return GRADCOMP_OK;
	*need = (plan_need){.row = row, .share = ideal / row->p.step_s, .bits = INFINITY};
	s.compressor = row->compressor;
	s.enough = ideal / p->need;
	st = find_least(&s, 8 / link->b, 1e3, 1e14, &need->bits, err);
	if (st)
		return st;
	s.messages = true;
	st = find_least(&s, 1 / fmax(link->a, 1e-6), 1.0 / 60, 1e9, &good, err);
	need->message = isfinite(good) ? 1 / good : 0;
	return st;
}

/* Compressors that cannot be predicted last, and then those that no rate is enough for. */
static int less(const void *a, const void *b)
{
	const plan_need *x = a, *y = b;
	if (!x->row || !y->row)
		return (x->row == NULL) - (y->row == NULL);
	if (x->bits < y->bits || y->bits < x->bits)
		return x->bits < y->bits ? -1 : 1;
	return x->share != y->share ? (x->share > y->share ? -1 : 1) : (x->row > y->row) - (x->row < y->row);
}

gradcomp_status plan_find_needs(plan *p, int threads, gradcomp_error *err)
{
	const size_t n = (size_t)p->compressors.n;
	gradcomp_status st;
	for (int i = 0; i < p->ntables; i++)
		if (!(p->tables[i].needs = calloc(n + 1, sizeof *p->tables[i].needs)))
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what compressors need");
	st = thread_pool_each(threads, n * (size_t)p->ntables, find_one, p, err);
	for (int i = 0; i < p->ntables; i++) {
		plan_table *t = &p->tables[i];

		qsort(t->needs, n, sizeof *t->needs, less);
		while (t->nneeds < p->compressors.n && t->needs[t->nneeds].row)
			t->nneeds++;
	}
	return st;
}

static void show_table(const plan *p, const plan_table *t)
{
	const linear *link = &t->machine.level[plan_level(t->nodes)];
	char rate[PLAN_TEXT], latency[PLAN_TEXT], step[PLAN_TEXT];
	bool out_of_reach = false;
	int width = 10;
	for (int i = 0; i < t->nneeds; i++)
		width = (int)fmax(width, (double)strlen(t->needs[i].row->compressor->shown));
	if (!t->nneeds) {
		printf("%s: nothing is exchanged, or nothing can be predicted\n", plan_table_text(p, t, step));
		return;
	}
	printf("%s, %s and %s a message: %s a step without exchanges\n", plan_table_text(p, t, step),
	       plan_rate_text(8 / link->b, rate), plan_seconds_text(link->a, latency),
	       plan_seconds_text(plan_ideal(p, t), (char[PLAN_TEXT]){0}));
	printf("%-*s  %10s  %14s  %14s\n", width, "compressor", "has now", "needs at least", "latency up to");
	for (int i = 0; i < t->nneeds; i++) {
		const plan_need *need = &t->needs[i];

		printf("%-*s  %8.1f %%  %14s  %14s\n", width, need->row->compressor->shown, 100 * need->share,
		       plan_rate_text(need->bits, rate),
		       need->message > 0 ? plan_seconds_text(need->message, latency) : "-");
		out_of_reach |= !isfinite(need->bits) || !(need->message > 0);
	}
	if (out_of_reach)
		puts("-: no rate, or no latency, is enough by itself");
}

void plan_show_needs(const plan *p)
{
	plan_show_head(p);
	printf("What %g %% of the speed without exchanges needs:\n", 100 * p->need);
	for (int i = 0; i < p->ntables; i++) {
		putchar('\n');
		show_table(p, &p->tables[i]);
	}
	plan_show_skips(p);
}
