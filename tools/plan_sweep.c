/* Every compressor over every collective under every schedule, on every number of nodes, or every link.
 *
 * Threads share the pairs of compressor and collective. Each has a place of its own for what it
 * comes to; tables and what is left out are made of these when all are there, in the order of
 * what was asked, so that they are the same however many threads there were. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread_pool.h"
#include "tools/plan.h"

/* A pair on so many nodes. */
typedef struct attempt {
	int rows;        /* that were predicted, in its place of the table */
	bool refused;    /* the collective cannot carry the compressor */
	plan_skip *skip; /* owned: why, or why a schedule and those behind it are left out; NULL: none is */
} attempt;

typedef struct sweep {
	plan *p;
	attempt *attempts; /* collectives of compressors of tables */
} sweep;

static gradcomp_status no_memory(gradcomp_error *err)
{
	err->status = GRADCOMP_ERR_NOMEM;
	snprintf(err->text, sizeof err->text, "no memory for predictions");
	return err->status;
}

gradcomp_status plan_skip_note(plan *p, const char *what, const char *why, gradcomp_error *err)
{
	plan_skip *more;
	for (int i = 0; i < p->nskips; i++)
		if (!strcmp(p->skips[i].why, why) && !strcmp(p->skips[i].what, what))
			return GRADCOMP_OK;
	more = realloc(p->skips, (size_t)(p->nskips + 1) * sizeof *more);
	if (!more)
		return no_memory(err);
	p->skips = more;
	snprintf(more[p->nskips].what, sizeof more->what, "%s", what);
	snprintf(more[p->nskips++].why, sizeof more->why, "%s", why);
	return GRADCOMP_OK;
}

bool plan_same(const plan_spec *a, const plan_spec *b)
{
	return !strcmp(a->text, b->text);
}

cost_question plan_question(const plan *p, const plan_table *t, const plan_row *row, uint32_t nodes)
{
	return (cost_question){.nodes = nodes,
	                       .ranks_per_node = p->ranks_per_node,
	                       .each_layer = (uint32_t)p->each_layer,
	                       .no_read_ahead = (uint32_t)p->no_read_ahead,
	                       .compressor = row->compressor->text,
	                       .collective = row->collective->text,
	                       .schedule = row->schedule->text,
	                       .classes = t->nclasses ? t->speeds : NULL,
	                       .nclasses = (uint32_t)t->nclasses};
}

gradcomp_status plan_predict(const plan *p, const plan_table *t, const machine_file *machine, const plan_row *row,
                             uint32_t nodes, cost_prediction *out, gradcomp_error *err)
{
	cost_question q = plan_question(p, t, row, nodes);
	*out = (cost_prediction){0};
	return cost_predict(p->model, machine, &q, out, err);
}

static gradcomp_status leave_out(attempt *a, const char *what, const gradcomp_error *why, gradcomp_error *err)
{
	a->skip = malloc(sizeof *a->skip);
	if (!a->skip)
		return no_memory(err);
	snprintf(a->skip->what, sizeof a->skip->what, "%s", what);
	snprintf(a->skip->why, sizeof a->skip->why, "%s", *why->text ? why->text : gradcomp_strerror(why->status));
	return GRADCOMP_OK;
}

/* One compressor and collective, under every schedule. What cannot be predicted, or not of tensors
 * as large as the model's, says so once; a schedule of a file is of one model, and refused where it
 * is of another. */
static gradcomp_status try_pair(const plan *p, const plan_table *t, const plan_spec *compressor,
                                const plan_spec *collective, plan_row *rows, attempt *a, gradcomp_error *err)
{
	gradcomp_error why = {.text = ""};
	char what[PLAN_SPEC];
	why.status = gradcomp_spec_check(compressor->text, collective->text, &why);
	if (why.status == GRADCOMP_ERR_NOMEM) {
		*err = why;
		return why.status;
	}
	if (why.status) {
		a->refused = true;
		return leave_out(a, compressor->shown, &why, err);
	}
	for (; a->rows < p->schedules.n; a->rows++) {
		plan_row *row = &rows[a->rows];

		*row = (plan_row){
			.compressor = compressor, .collective = collective, .schedule = &p->schedules.spec[a->rows]};
		why.status = plan_predict(p, t, &t->machine, row, t->nodes, &row->p, &why);
		if (why.status == GRADCOMP_ERR_UNSUPPORTED || why.status == GRADCOMP_ERR_RANGE ||
		    why.status == GRADCOMP_ERR_INTERNAL) {
			snprintf(what, sizeof what, "%.120s over %.120s", compressor->shown, collective->shown);
			return leave_out(a, what, &why, err);
		}
		if (why.status) {
			*err = why;
			return why.status;
		}
	}
	return GRADCOMP_OK;
}

/* Attempt i, on one of the threads. */
static gradcomp_status try_one(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err)
{
	const sweep *s = ctx;
	const plan *p = s->p;
	const uint64_t collectives = (uint64_t)p->collectives.n, pairs = (uint64_t)p->compressors.n * collectives;
	const plan_table *t = &p->tables[i / pairs];
	uint64_t pair = i % pairs;
	(void)worker;
	return try_pair(p, t, &p->compressors.spec[pair / collectives], &p->collectives.spec[pair % collectives],
	                &t->rows[pair * (uint64_t)p->schedules.n], &s->attempts[i], err);
}

/* The table's rows without gaps between them, and what is left out. Of a compressor that no collective
 * carries only that is said. */
static gradcomp_status gather(plan *p, plan_table *t, const attempt *a, gradcomp_error *err)
{
	const plan_row *from = t->rows;
	gradcomp_status st = GRADCOMP_OK;
	for (int i = 0; i < p->compressors.n && !st; i++) {
		bool carried = false;

		for (int k = 0; k < p->collectives.n && !st; k++, a++, from += p->schedules.n) {
			memmove(&t->rows[t->n], from, (size_t)a->rows * sizeof *from);
			t->n += a->rows;
			carried |= !a->refused;
			if (a->refused ? !carried && k + 1 == p->collectives.n : a->skip != NULL)
				st = plan_skip_note(p, a->skip->what, a->skip->why, err);
		}
	}
	return st;
}

/* Equal seconds: what was asked first. */
static int quicker(const void *a, const void *b)
{
	const plan_row *x = a, *y = b;
	if (x->p.step_s != y->p.step_s)
		return x->p.step_s < y->p.step_s ? -1 : 1;
	if (x->compressor != y->compressor)
		return x->compressor < y->compressor ? -1 : 1;
	if (x->collective != y->collective)
		return x->collective < y->collective ? -1 : 1;
	return (x->schedule > y->schedule) - (x->schedule < y->schedule);
}

static bool as_good(const plan_row *row, const plan_row *best)
{
	return row && row->p.step_s <= best->p.step_s * (1 + PLAN_MARGIN);
}

static const plan_row *advised(const plan_table *t)
{
	if (!t->n)
		return NULL;
	return as_good(t->dense, t->rows) ? t->dense : as_good(t->half, t->rows) ? t->half : t->rows;
}

const plan_row *plan_best_of(const plan_table *t, const plan_spec *compressor)
{
	for (int i = 0; i < t->n; i++)
		if (plan_same(t->rows[i].compressor, compressor))
			return &t->rows[i];
	return NULL;
}

static gradcomp_status make_table(plan *p, plan_table *t, const attempt *attempts, gradcomp_error *err)
{
	gradcomp_status st = gather(p, t, attempts, err);
	if (st)
		return st;
	qsort(t->rows, (size_t)t->n, sizeof *t->rows, quicker);
	t->dense = plan_best_of(t, &p->dense);
	t->half = plan_best_of(t, &p->half);
	t->best = advised(t);
	return GRADCOMP_OK;
}

static int by_speed(const void *a, const void *b)
{
	const plan_class *x = a, *y = b;
	return (x->speed > y->speed) - (x->speed < y->speed);
}

/* Gives the table its classes, and its machine the slowest of their links. */
static void place_classes(const plan *p, plan_table *t)
{
	const uint64_t ranks = (uint64_t)t->nodes * p->ranks_per_node;
	linear *slowest = &t->machine.level[plan_level(t->nodes)], *fastest;
	uint64_t given = 0;
	bool links = false;
	t->usual = *slowest;
	if (!p->nclasses)
		return;
	for (int i = 0; i < p->nclasses; i++) {
		t->classes[t->nclasses++] = p->classes[i];
		given += p->classes[i].ranks;
		links |= p->classes[i].link.bits > 0;
	}
	if (given < ranks)
		t->classes[t->nclasses++] =
			(plan_class){.ranks = (uint32_t)(ranks - given), .speed = 1, .link = {.message = -1}};
	qsort(t->classes, (size_t)t->nclasses, sizeof *t->classes, by_speed);
	if (links)
		t->machine.ncalls = 0;
	t->alike = t->machine;
	fastest = &t->alike.level[plan_level(t->nodes)];
	*slowest = *fastest = plan_link_of(&t->classes[0], t->usual);
	for (int i = 0; i < t->nclasses; i++) {
		linear l = plan_link_of(&t->classes[i], t->usual);

		t->speeds[i] = (sim_class){t->classes[i].ranks, t->classes[i].speed};
		if (l.b > slowest->b || (l.b >= slowest->b && l.a > slowest->a))
			t->slow_link = i;
		*slowest = (linear){fmax(slowest->a, l.a), fmax(slowest->b, l.b)};
		*fastest = (linear){fmin(fastest->a, l.a), fmin(fastest->b, l.b)};
	}
}

/* One for each number of nodes, or each link; without rows. */
static void place_tables(plan *p)
{
	p->ntables = p->nlinks > p->nnodes ? p->nlinks : p->nnodes;
	for (int i = 0; i < p->ntables; i++) {
		plan_table *t = &p->tables[i];
		const plan_link *link = &p->links[p->nlinks > 1 ? i : 0];
		linear *level;

		t->nodes = p->nodes[p->nnodes > 1 ? i : 0];
		t->machine = *p->machine;
		level = &t->machine.level[plan_level(t->nodes)];
		if (p->nlinks) {
			level->b = 8 / link->bits;
			if (link->message >= 0)
				level->a = link->message;
			t->machine.ncalls = 0;
		}
		place_classes(p, t);
	}
}

gradcomp_status plan_sweep(plan *p, int threads, gradcomp_error *err)
{
	place_tables(p);
	const size_t pairs = (size_t)p->compressors.n * (size_t)p->collectives.n, all = pairs * (size_t)p->ntables;
	sweep s = {.p = p, .attempts = calloc(all + 1, sizeof *s.attempts)};
	gradcomp_status st = s.attempts ? GRADCOMP_OK : no_memory(err);
	for (int n = 0; n < p->ntables && !st; n++) {
		p->tables[n].rows = calloc(pairs * (size_t)p->schedules.n + 1, sizeof *p->tables[n].rows);
		if (!p->tables[n].rows)
			st = no_memory(err);
	}
	if (!st)
		st = thread_pool_each(threads, all, try_one, &s, err);
	for (int n = 0; n < p->ntables && !st; n++)
		st = make_table(p, &p->tables[n], &s.attempts[(size_t)n * pairs], err);
	for (size_t i = 0; s.attempts && i < all; i++)
		free(s.attempts[i].skip);
	free(s.attempts);
	return st;
}

void plan_free(plan *p)
{
	for (int n = 0; n < p->ntables; n++) {
		free(p->tables[n].rows);
		free(p->tables[n].needs);
	}
	free(p->skips);
	model_file_free(p->model);
	machine_file_free(p->machine);
}
