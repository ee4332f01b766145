/* Predictions as tables. */
#include <math.h>
#include <string.h>

#include "tools/plan.h"

static double factor(const plan_row *of, const plan_row *row)
{
	return of ? of->p.step_s / row->p.step_s : NAN;
}

/* "-" for what is not known, or has no end. */
static void print_number(double x, int width, int digits)
{
	if (!isfinite(x))
		printf(" %*s", width, "-");
	else
		printf(" %*.*f", width, digits, x);
}

static double milliseconds(const plan_row *row)
{
	return row ? row->p.step_s * 1e3 : NAN;
}

static int width_of(const plan_specs *list, const char *title)
{
	int width = (int)strlen(title);
	for (int i = 0; i < list->n; i++)
		if ((int)strlen(list->spec[i].shown) > width)
			width = (int)strlen(list->spec[i].shown);
	return width;
}

typedef struct widths {
	int compressor, collective, schedule;
} widths;

static widths widths_of(const plan *p)
{
	return (widths){width_of(&p->compressors, "compressor"), width_of(&p->collectives, "collective"),
	                width_of(&p->schedules, "schedule")};
}

static void print_row(const widths *w, const plan_table *t, const plan_row *row)
{
	printf("%-*s  %-*s  %-*s %7u %10.3f %10.3f %10.3f %10.3f %10.3f", w->compressor, row->compressor->shown,
	       w->collective, row->collective->shown, w->schedule, row->schedule->shown, row->p.buckets,
	       row->p.step_s * 1e3, row->p.exposed_s * 1e3, (row->p.encode_s + row->p.decode_s) * 1e3,
	       row->p.exchange_s * 1e3, row->p.sent_bytes / 1e6);
	print_number(factor(t->dense, row), 7, 2);
	print_number(factor(t->half, row), 7, 2);
	putchar('\n');
}

static const char *link_text(const plan_table *t, char out[PLAN_TEXT])
{
	return plan_rate_text(8 / t->machine.level[plan_level(t->nodes)].b, out);
}

/* The best of each compressor, or everything. */
static void print_table(const plan *p, const plan_table *t)
{
	widths w = widths_of(p);
	int hidden_rows = 0;
	printf("%-*s  %-*s  %-*s %7s %10s %10s %10s %10s %10s %7s %7s\n", w.compressor, "compressor", w.collective,
	       "collective", w.schedule, "schedule", "buckets", "step ms", "waiting ms", "code ms", "link ms",
	       "MB sent", "x fp32", "x 16bit");
	for (int i = 0; i < t->n; i++) {
		if (p->all || plan_best_of(t, t->rows[i].compressor) == &t->rows[i])
			print_row(&w, t, &t->rows[i]);
		else
			hidden_rows++;
	}
	if (hidden_rows)
		printf("and %d more, slower ones of the same compressors (--all)\n", hidden_rows);
}

/* The best plan of each table. */
static void print_tables(const plan *p)
{
	widths w = widths_of(p);
	char where[PLAN_TEXT];
	const int width = p->nlinks > 1 ? 12 : 7;
	printf("%*s  %-*s  %-*s  %-*s %10s %10s %10s %10s %7s %7s\n", width, p->nlinks > 1 ? "link" : "nodes",
	       w.compressor, "compressor", w.collective, "collective", w.schedule, "schedule", "step ms", "fp32 ms",
	       "16bit ms", "MB sent", "x fp32", "x 16bit");
	for (int n = 0; n < p->ntables; n++) {
		const plan_table *t = &p->tables[n];
		const plan_row *best = t->best;

		if (p->nlinks > 1)
			link_text(t, where);
		else
			snprintf(where, sizeof where, "%u", t->nodes);
		if (!best) {
			printf("%*s  nothing can be predicted\n", width, where);
			continue;
		}
		printf("%*s  %-*s  %-*s  %-*s", width, where, w.compressor, best->compressor->shown, w.collective,
		       best->collective->shown, w.schedule, best->schedule->shown);
		print_number(milliseconds(best), 10, 3);
		print_number(milliseconds(t->dense), 10, 3);
		print_number(milliseconds(t->half), 10, 3);
		print_number(best->p.sent_bytes / 1e6, 10, 3);
		print_number(factor(t->dense, best), 7, 2);
		print_number(factor(t->half, best), 7, 2);
		putchar('\n');
	}
}

void plan_show_head(const plan *p)
{
	char a[PLAN_TEXT], b[PLAN_TEXT];
	const plan_table *first = &p->tables[0], *last = &p->tables[p->ntables - 1];
	double forward = 0, backward = 0;
	for (uint32_t i = 0; i < p->model->ntensors; i++) {
		forward += p->model->tensors[i].forward;
		backward += p->model->tensors[i].backward;
	}
	printf("%s: %.0f parameters in %u tensors, %.3f ms forward, %.3f ms backward\n", p->model->name,
	       plan_parameters(p->model), p->model->ntensors, forward * 1e3, backward * 1e3);
	printf("%s: measured on %u x %u ranks; predicted for ", p->machine->name, p->machine->nodes,
	       p->machine->ranks_per_node);
	if (first->nodes == last->nodes)
		printf("%u x %u ranks", first->nodes, p->ranks_per_node);
	else
		printf("%u to %u nodes of %u ranks", first->nodes, last->nodes, p->ranks_per_node);
	if (p->nlinks) {
		printf(" over %s", link_text(first, a));
		if (p->nlinks > 1)
			printf(" to %s", link_text(last, b));
		printf("; calls that were measured do not count");
	}
	printf("\n\n");
}

/* Each reason once, behind all that it keeps out. */
void plan_show_skips(const plan *p)
{
	if (p->nskips)
		puts("\nLeft out:");
	for (int i = 0; i < p->nskips; i++) {
		int said = 0;

		for (int k = 0; k < i && !said; k++)
			said = !strcmp(p->skips[k].why, p->skips[i].why);
		if (said)
			continue;
		printf("  %s", p->skips[i].what);
		for (int k = i + 1; k < p->nskips; k++)
			if (!strcmp(p->skips[k].why, p->skips[i].why))
				printf(", %s", p->skips[k].what);
		printf(": %s\n", p->skips[i].why);
	}
}

void plan_show(const plan *p)
{
	const plan_table *first = &p->tables[0], *last = &p->tables[p->ntables - 1];
	const char *where = p->nlinks > 1 ? "Over" : "On";
	char text[PLAN_TEXT];
	plan_show_head(p);
	if (p->ntables == 1)
		print_table(p, first);
	else
		print_tables(p);
	putchar('\n');
	if (p->ntables > 1 && first->n) {
		printf("%s %s:\n", where, plan_table_text(p, first, text));
		plan_explain(p, first, stdout);
		printf("\n%s %s:\n", where, plan_table_text(p, last, text));
	}
	plan_explain(p, last, stdout);
	plan_show_skips(p);
}
