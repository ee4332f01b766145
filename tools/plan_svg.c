/* Step time against nodes, as SVG: the compressors that come nearest to the best anywhere,
 * and dense. Both axes are logarithmic; the look is that of bench/svg.py. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/newfile.h"
#include "tools/plan.h"

enum { LINES = 8, WIDTH = 640, HEIGHT = 420, LEFT = 70, RIGHT = 20, TOP = 40, BOTTOM = 50, LEGEND = 18 };

static const char *const colours[LINES] = {"#0b62a4", "#d1495b", "#3a7d44", "#e09f3e",
                                           "#6f4e7c", "#17a2b8", "#a05d2c", "#555555"};

typedef struct line {
	const plan_spec *compressor;
	double worth; /* the least ratio to the best step time, on any number of nodes */
	int dense;
} line;

typedef struct picture {
	FILE *out;
	const plan *p;
	line lines[PLAN_SPECS];
	int n;
	double x[2], y[2]; /* logarithms: least, most */
} picture;

static void put_text(FILE *out, double x, double y, int size, const char *anchor, const char *text)
{
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\">", x, y, size, anchor);
	for (; *text; text++) {
		if (strchr("<>&\"", *text))
			fprintf(out, "&#%d;", *text);
		else if ((unsigned char)*text >= 0x20)
			fputc(*text, out);
	}
	fputs("</text>\n", out);
}

static double across(const picture *s, double nodes)
{
	return LEFT + (log(nodes) - s->x[0]) / (s->x[1] - s->x[0]) * (WIDTH - LEFT - RIGHT);
}

static double up(const picture *s, double seconds)
{
	return HEIGHT - BOTTOM - (log(seconds) - s->y[0]) / (s->y[1] - s->y[0]) * (HEIGHT - TOP - BOTTOM);
}

static int dense_first(const void *a, const void *b)
{
	const line *x = a, *y = b;

	if (x->dense != y->dense)
		return y->dense - x->dense;
	return (x->worth > y->worth) - (x->worth < y->worth);
}

/* Dense ones, then the others by how near they come to the best. */
static void choose(picture *s)
{
	for (int i = 0; i < s->p->compressors.n; i++) {
		line l = {&s->p->compressors.spec[i], INFINITY, 0};

		l.dense = plan_same(l.compressor, &s->p->dense) || plan_same(l.compressor, &s->p->half);
		for (int n = 0; n < s->p->nnodes; n++) {
			const plan_table *t = &s->p->tables[n];
			const plan_row *row = plan_best_of(t, l.compressor);

			if (row)
				l.worth = fmin(l.worth, row->p.step_s / t->rows[0].p.step_s);
		}
		if (isfinite(l.worth))
			s->lines[s->n++] = l;
	}
	qsort(s->lines, (size_t)s->n, sizeof *s->lines, dense_first);
	s->n = s->n < LINES ? s->n : LINES;
}

static void bounds(picture *s)
{
	double margin;

	s->x[0] = log(s->p->nodes[0]);
	s->x[1] = log(s->p->nodes[s->p->nnodes - 1]);
	s->y[0] = INFINITY;
	s->y[1] = -INFINITY;
	for (int i = 0; i < s->n; i++)
		for (int n = 0; n < s->p->nnodes; n++) {
			const plan_row *row = plan_best_of(&s->p->tables[n], s->lines[i].compressor);

			if (row && row->p.step_s > 0) {
				s->y[0] = fmin(s->y[0], log(row->p.step_s));
				s->y[1] = fmax(s->y[1], log(row->p.step_s));
			}
		}
	margin = fmax(0.05 * (s->y[1] - s->y[0]), 0.05);
	s->y[0] -= margin;
	s->y[1] += margin;
}

static void put_axes(const picture *s)
{
	int steps[] = {1, 2, 5};
	char text[32];

	for (int n = 0; n < s->p->nnodes; n++) {
		double x = across(s, s->p->nodes[n]);

		fprintf(s->out, "<path d=\"M%.1f %dV%d\" stroke=\"#ddd\"/>\n", x, HEIGHT - BOTTOM, TOP);
		snprintf(text, sizeof text, "%u", s->p->nodes[n]);
		put_text(s->out, x, HEIGHT - BOTTOM + 16, 10, "middle", text);
	}
	for (int power = -7; power <= 5; power++)
		for (int i = 0; i < 3; i++) {
			double v = steps[i] * pow(10, power);

			if (log(v) < s->y[0] || log(v) > s->y[1])
				continue;
			fprintf(s->out, "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/>\n", LEFT, up(s, v),
			        WIDTH - RIGHT);
			snprintf(text, sizeof text, "%g", v * 1e3);
			put_text(s->out, LEFT - 6, up(s, v) + 4, 10, "end", text);
		}
	fprintf(s->out, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#333\"/>\n", LEFT, TOP, HEIGHT - BOTTOM,
	        WIDTH - RIGHT);
	put_text(s->out, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14, 12, "middle", "nodes");
	fprintf(s->out, "<g transform=\"rotate(-90 16 %d)\">\n", HEIGHT / 2);
	put_text(s->out, 16, HEIGHT / 2.0, 12, "middle", "milliseconds a step");
	fputs("</g>\n", s->out);
}

static void put_line(const picture *s, int i)
{
	const line *l = &s->lines[i];
	const char *go = "M", *dashed = l->dense ? " stroke-dasharray=\"5 4\"" : "";
	double y = HEIGHT + LEGEND * (i / 2), x = LEFT + (i % 2) * (WIDTH - LEFT) / 2.0;

	fputs("<path d=\"", s->out);
	for (int n = 0; n < s->p->nnodes; n++) {
		const plan_row *row = plan_best_of(&s->p->tables[n], l->compressor);

		if (row && row->p.step_s > 0) {
			fprintf(s->out, "%s%.1f %.1f", go, across(s, s->p->nodes[n]), up(s, row->p.step_s));
			go = "L";
		}
	}
	fprintf(s->out, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\"%s/>\n", colours[i], dashed);
	fprintf(s->out, "<path d=\"M%.1f %.1fh22\" stroke=\"%s\" stroke-width=\"3\"%s/>\n", x, y, colours[i],
	        dashed);
	put_text(s->out, x + 28, y + 4, 12, "start", l->compressor->shown);
}

static void put_picture(picture *s)
{
	char title[200];
	int height = HEIGHT + LEGEND * ((s->n + 1) / 2) + 6;

	fprintf(s->out,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n",
	        WIDTH, height);
	fprintf(s->out, "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", WIDTH, height);
	snprintf(title, sizeof title, "%s on %s, %u ranks a node", s->p->model->name, s->p->machine->name,
	         s->p->ranks_per_node);
	put_text(s->out, WIDTH / 2.0, 22, 14, "middle", title);
	put_axes(s);
	for (int i = 0; i < s->n; i++)
		put_line(s, i);
	fputs("</svg>\n", s->out);
}

gradcomp_status plan_svg(const plan *p, const char *path, gradcomp_error *err)
{
	static picture s;
	char why[NEWFILE_WHY];
	newfile *f;

	s = (picture){.p = p};
	choose(&s);
	if (!s.n) {
		err->status = GRADCOMP_ERR_UNSUPPORTED;
		snprintf(err->text, sizeof err->text,
		         "%.200s: nothing can be predicted, so there is nothing to draw", path);
		return err->status;
	}
	bounds(&s);
	f = newfile_open(path, 0, why);
	if (f) {
		s.out = newfile_stream(f);
		put_picture(&s);
		if (!newfile_close(f, why))
			return GRADCOMP_OK;
	}
	err->status = GRADCOMP_ERR_IO;
	snprintf(err->text, sizeof err->text, "%.180s cannot be written: %s", path, why);
	return err->status;
}
