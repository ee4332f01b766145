/* Why the quickest plan is the quickest, in words. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan.h"

enum { NODES_FARTHEST = 16384, NAMED = 3 };

static double work_of(const plan_row *row)
{
	return row->p.encode_s + row->p.decode_s;
}

static double hidden(const plan_row *row)
{
	return fmax(0, work_of(row) + row->p.exchange_s - row->p.exposed_s);
}

/* "1/31 of" or "1.2 times". */
static const char *share(double bytes, double of, char out[PLAN_TEXT])
{
	if (bytes < of)
		snprintf(out, PLAN_TEXT, "1/%.3g of", of / bytes);
	else
		snprintf(out, PLAN_TEXT, "%.3g times", bytes / of);
	return out;
}

static void say_link(const plan_row *dense, FILE *out)
{
	char a[PLAN_TEXT], b[PLAN_TEXT], c[PLAN_TEXT];
	fprintf(out, "with %s the link is busy %s of the %s of a step, and the next step waits %s for gradients\n",
	        dense->compressor->shown, plan_seconds_text(dense->p.exchange_s, a),
	        plan_seconds_text(dense->p.step_s, b), plan_seconds_text(dense->p.exposed_s, c));
}

static void say_compressor(const plan_row *row, const plan_row *dense, FILE *out)
{
	char a[PLAN_TEXT], b[PLAN_TEXT], c[PLAN_TEXT], d[PLAN_TEXT];
	fprintf(out, "%s ", row->compressor->shown);
	if (dense && row->p.sent_bytes > 0 && dense->p.sent_bytes > 0)
		fprintf(out, "sends %s the bytes, ", share(row->p.sent_bytes, dense->p.sent_bytes, a));
	fprintf(out, "costs %s of computing and %s on the link", plan_seconds_text(work_of(row), a),
	        plan_seconds_text(row->p.exchange_s, b));
	if (hidden(row) > 0)
		fprintf(out, ", of which %s together are hidden", plan_seconds_text(hidden(row), c));
	fprintf(out, "; the next step waits %s\n", plan_seconds_text(row->p.exposed_s, d));
}

/* Against dense fp32 and dense fp16, where they could be predicted. */
static void say_factor(const plan_row *best, const plan_row *other, const char *kind, FILE *out)
{
	char a[PLAN_TEXT];
	if (other && best->p.step_s > 0 && !plan_same(best->compressor, other->compressor))
		fprintf(out, ", %.3g times as fast as %s (%s, %s)", other->p.step_s / best->p.step_s, kind,
		        other->compressor->shown, plan_seconds_text(other->p.step_s, a));
}

static const plan_row *best_without(const plan_table *t, const plan_spec *one)
{
	for (int i = 0; i < t->n; i++)
		if (!plan_same(t->rows[i].compressor, one))
			return &t->rows[i];
	return NULL;
}

static bool as_quick(const plan_row *row, const plan_row *best)
{
	return row->p.step_s <= best->p.step_s * (1 + PLAN_MARGIN);
}

/* Within 2 %, or else by intervals that meet. */
static bool near(const plan_row *row, const plan_row *best, bool by_interval)
{
	if (as_quick(row, best))
		return !by_interval;
	return by_interval && row->p.least_s <= best->p.most_s;
}

/* Other compressors that are as quick as what is advised; or those whose interval meets its. */
static void say_others(const plan_table *t, bool by_interval, const char *before, const char *after, FILE *out)
{
	for (int i = 0; i < t->n; i++) {
		const plan_row *row = &t->rows[i];

		if (plan_same(row->compressor, t->best->compressor) || plan_best_of(t, row->compressor) != row ||
		    !near(row, t->best, by_interval))
			continue;
		fprintf(out, "%s%s", before, row->compressor->shown);
		before = ", ";
	}
	if (*before == ',')
		fprintf(out, "; %s\n", after);
}

/* The same of other collectives and schedules of the compressor that is advised. */
static void say_ways(const plan_table *t, bool by_interval, const char *what, FILE *out)
{
	int n = 0;
	for (int i = 0; i < t->n; i++) {
		const plan_row *row = &t->rows[i];

		if (row == t->best || !plan_same(row->compressor, t->best->compressor) ||
		    !near(row, t->best, by_interval))
			continue;
		if (n++ >= NAMED)
			continue;
		if (n == 1)
			fprintf(out, "of %s as quick %s: ", row->compressor->shown, what);
		fprintf(out, "%s%s with %s", n > 1 ? ", " : "", row->collective->shown, row->schedule->shown);
	}
	if (n > NAMED)
		fprintf(out, " and %d more", n - NAMED);
	if (n)
		fputc('\n', out);
}

static void say_near(const plan_table *t, FILE *out)
{
	const plan_row *best = t->best;
	char a[PLAN_TEXT], b[PLAN_TEXT];
	say_others(t, false, "as quick within 2 %: ", "which of them trains best a plan does not know", out);
	if (strcmp(plan_seconds_text(best->p.least_s, a), plan_seconds_text(best->p.most_s, b)))
		fprintf(out, "as exactly as the machine was measured %s takes %s to %s a step\n",
		        best->compressor->shown, a, b);
	say_others(t, true, "as quick within what was measured: ", "a run decides", out);
	say_ways(t, false, "within 2 %", out);
	say_ways(t, true, "within what was measured", out);
}

static void say_dense_wins(const plan_table *t, FILE *out)
{
	const plan_row *best = t->best, *other = best_without(t, best->compressor);
	char a[PLAN_TEXT], b[PLAN_TEXT];
	fprintf(out, "dense wins: %s over %s with %s takes %s a step", best->compressor->shown, best->collective->shown,
	        best->schedule->shown, plan_seconds_text(best->p.step_s, a));
	if (other)
		fprintf(out, "; the quickest compressor, %s over %s with %s, would take %s", other->compressor->shown,
		        other->collective->shown, other->schedule->shown, plan_seconds_text(other->p.step_s, b));
	fputc('\n', out);
	say_link(best, out);
	if (other)
		say_compressor(other, best, out);
}

/* The quickest of each compressor's best plans on other nodes; NULL: none can be predicted. */
static const plan_row *winner(const plan *p, const plan_table *t, uint32_t nodes, double *step, double *of_best)
{
	const plan_row *found = NULL;
	cost_prediction out;
	gradcomp_error err;
	for (int i = 0; i < p->compressors.n; i++) {
		const plan_row *row = plan_best_of(t, &p->compressors.spec[i]);

		if (!row || plan_predict(p, t, &t->machine, row, nodes, &out, &err))
			continue;
		if (row->compressor == t->best->compressor)
			*of_best = out.step_s;
		if (!found || out.step_s < *step) {
			found = row;
			*step = out.step_s;
		}
	}
	return found;
}

/* Says if something else would win on more nodes, as far as that can be predicted. */
static void say_elsewhere(const plan *p, const plan_table *t, FILE *out)
{
	char a[PLAN_TEXT], b[PLAN_TEXT];
	uint32_t n = 1, farthest = 0;
	while (n <= t->nodes)
		n *= 2;
	for (; n <= NODES_FARTHEST; n *= 2) {
		double step = 0, of_best = 0;
		const plan_row *row = winner(p, t, n, &step, &of_best);

		if (!row)
			break;
		if (!plan_same(row->compressor, t->best->compressor) && step * (1 + PLAN_MARGIN) < of_best) {
			fprintf(out, "%s would win from %u nodes on: %s a step there against %s\n",
			        row->compressor->shown, n, plan_seconds_text(step, a), plan_seconds_text(of_best, b));
			return;
		}
		farthest = n;
	}
	if (farthest)
		fprintf(out, "nothing else would win on any power of two up to %u nodes\n", farthest);
}

void plan_explain(const plan *p, const plan_table *t, FILE *out)
{
	const plan_row *best = t->best;
	char a[PLAN_TEXT];
	if (!best)
		return;
	if (plan_same(best->compressor, &p->dense)) {
		say_dense_wins(t, out);
	} else {
		fprintf(out, "%s over %s with %s takes %s a step", best->compressor->shown, best->collective->shown,
		        best->schedule->shown, plan_seconds_text(best->p.step_s, a));
		say_factor(best, t->dense, "dense fp32", out);
		say_factor(best, t->half, "dense in 16 bits", out);
		fputc('\n', out);
		if (t->dense)
			say_link(t->dense, out);
		say_compressor(best, t->dense, out);
	}
	say_near(t, out);
	plan_say_classes(t, out);
	if (p->ntables == 1)
		say_elsewhere(p, t, out);
}
