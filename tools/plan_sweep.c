/* Every compressor over every collective under every schedule. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan.h"

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

cost_question plan_question(const plan *p, const plan_row *row, uint32_t nodes)
{
	return (cost_question){.nodes = nodes,
	                           .ranks_per_node = p->ranks_per_node,
	                           .each_layer = (uint32_t)p->each_layer,
	                           .compressor = row->compressor->text,
	                           .collective = row->collective->text,
	                           .schedule = row->schedule->text};
}

gradcomp_status plan_predict(const plan *p, const plan_row *row, uint32_t nodes, cost_prediction *out,
                             gradcomp_error *err)
{
	cost_question q = plan_question(p, row, nodes);

	*out = (cost_prediction){0};
	return cost_predict(p->model, p->machine, &q, out, err);
}

/* One compressor and collective, under every schedule. What cannot be predicted, or not of tensors
 * as large as the model's, says so once; a schedule of a file is of one model, and refused where it
 * is of another. */
static gradcomp_status try_pair(plan *p, plan_table *t, const plan_spec *compressor, const plan_spec *collective,
                                gradcomp_error *err)
{
	char what[PLAN_SPEC];

	for (int i = 0; i < p->schedules.n; i++) {
		plan_row *row = &t->rows[t->n];
		gradcomp_status st;

		*row = (plan_row){
			.compressor = compressor, .collective = collective, .schedule = &p->schedules.spec[i]};
		st = plan_predict(p, row, t->nodes, &row->p, err);
		if (st == GRADCOMP_ERR_UNSUPPORTED || st == GRADCOMP_ERR_RANGE || st == GRADCOMP_ERR_INTERNAL) {
			snprintf(what, sizeof what, "%.120s over %.120s", compressor->shown, collective->shown);
			return plan_skip_note(p, what, err->text, err);
		}
		if (st)
			return st;
		t->n++;
	}
	return GRADCOMP_OK;
}

/* Over some collective; else the reason is noted. */
static gradcomp_status try_compressor(plan *p, plan_table *t, const plan_spec *compressor, gradcomp_error *err)
{
	gradcomp_error why = {.text = ""};
	gradcomp_status st = GRADCOMP_OK;
	int pairs = 0;

	for (int i = 0; i < p->collectives.n && !st; i++) {
		const plan_spec *collective = &p->collectives.spec[i];

		if (gradcomp_spec_check(compressor->text, collective->text, &why))
			continue;
		pairs++;
		st = try_pair(p, t, compressor, collective, err);
	}
	if (!st && !pairs && p->collectives.n)
		st = plan_skip_note(p, compressor->shown, why.text, err);
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

gradcomp_status plan_sweep(plan *p, gradcomp_error *err)
{
	size_t most = (size_t)p->compressors.n * (size_t)p->collectives.n * (size_t)p->schedules.n;
	gradcomp_status st = GRADCOMP_OK;

	for (int n = 0; n < p->nnodes && !st; n++) {
		plan_table *t = &p->tables[n];

		t->nodes = p->nodes[n];
		t->rows = calloc(most + 1, sizeof *t->rows);
		if (!t->rows)
			return no_memory(err);
		for (int i = 0; i < p->compressors.n && !st; i++)
			st = try_compressor(p, t, &p->compressors.spec[i], err);
		if (st)
			return st;
		qsort(t->rows, (size_t)t->n, sizeof *t->rows, quicker);
		t->dense = plan_best_of(t, &p->dense);
		t->half = plan_best_of(t, &p->half);
		t->best = advised(t);
	}
	return st;
}

void plan_free(plan *p)
{
	for (int n = 0; n < p->nnodes; n++)
		free(p->tables[n].rows);
	free(p->skips);
	model_file_free(p->model);
	machine_file_free(p->machine);
}
