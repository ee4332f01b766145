/* gradcomp report --html: the page is well-formed XML too, and its plots are SVG in it. What stands in the
 * report may come from anywhere: text is escaped, and numbers are kept within a plot. */
#ifdef HAVE_JANSSON
#include "tools/report_html.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/outfile.h"

#define WIDTH 900
#define LABELS 240         /* width for the labels of a bar chart's rows */
#define VALUES 110         /* behind its bars */
#define BAR 22             /* a row */
#define LANE 12            /* height of a thread's lane in the timeline */
#define ROW (3 * LANE + 8) /* height of a rank there */
#define MOST_TENSORS 40
#define MOST_BUCKETS 60
#define MOST_RANKS 16
#define MOST_TIMES 64 /* ranks whose steps are shown */
#define MOST_STEPS 5000
#define MOST_SLICES 20000
#define NAME_SHOWN 34 /* characters of a label */

static const char head[] =
	"<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
	"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
	"<meta name=\"viewport\" content=\"width=device-width\"/>\n<style>\n"
	":root { --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --page: #fff; --encode: #4477aa; --exchange: #ee8866;\n"
	"  --decode: #44a27a; --wait: #cc3355; --other: #98a2ae; }\n"
	"@media (prefers-color-scheme: dark) { :root { --ink: #e8ecf1; --soft: #a3adba; --line: #3a4350; --page: #171c23; } }\n"
	"body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 960px;\n"
	"  margin: 2em auto; padding: 0 1em; }\n"
	"h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; border-top: 1px solid var(--line); padding-top: 1em; }\n"
	"h3 { font-size: 1em; margin: 1.6em 0 .2em; } p { color: var(--soft); margin: .2em 0 .6em; }\n"
	"table { border-collapse: collapse; } td, th { text-align: left; padding: .1em 1.2em .1em 0; vertical-align: top; }\n"
	"th { font-weight: normal; color: var(--soft); } td { overflow-wrap: anywhere; }\n"
	".cards { display: flex; flex-wrap: wrap; gap: 1em 2.5em; margin: 1em 0; } .cards b { display: block; font-size: 1.6em; }\n"
	".cards span { color: var(--soft); } .failed { color: var(--wait); }\n"
	"svg { width: 100%; height: auto; display: block; } svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }\n"
	"svg .soft { fill: var(--soft); } .axis { stroke: var(--line); stroke-width: 1; }\n"
	".encode { fill: var(--encode); } .exchange { fill: var(--exchange); } .decode { fill: var(--decode); }\n"
	".wait { fill: var(--wait); } .other { fill: var(--other); } .steps { fill: none; stroke: var(--encode); }\n"
	".key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }\n"
	".key.encode { background: var(--encode); } .key.exchange { background: var(--exchange); }\n"
	".key.decode { background: var(--decode); } .key.wait { background: var(--wait); } .key.other { background: var(--other); }\n"
	"</style>\n";

/* Text as a person reads it: nothing of it is markup, and what XML has no character for becomes U+FFFD. At most so
 * many characters, 0: all. */
static void put_text(FILE *out, const char *text, size_t most)
{
	size_t characters = 0;
	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		int control = (*p < 0x20 && *p != '\t' && *p != '\n') || *p == 0x7f;
		int none = !control && p[0] == 0xef && p[1] == 0xbf && p[2] >= 0xbe; /* U+FFFE, U+FFFF */

		if ((*p & 0xc0) != 0x80 && most && ++characters > most) {
			fputs("\xe2\x80\xa6", out); /* ... */
			return;
		}
		if (control || none)
			fputs("\xef\xbf\xbd", out);
		else if (strchr("<>&\"'", *p))
			fprintf(out, "&#%d;", *p);
		else
			fputc(*p, out);
		p += none ? 2 : 0;
	}
}

static const char *string_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

static const char *plural(long long n)
{
	return n == 1 ? "" : "s";
}

static double within(double x, double least, double most)
{
	return x >= least ? fmin(x, most) : least; /* NaN is `least` */
}

static void put_ms(FILE *out, double seconds)
{
	double ms = within(seconds, 0, 1e9) * 1e3;
	fprintf(out, ms >= 100 ? "%.0f ms" : ms >= 1 ? "%.1f ms" : "%.3f ms", ms);
}

static void put_mb(FILE *out, double bytes)
{
	double mb = within(bytes, 0, 1e24) / 1e6;
	fprintf(out, mb >= 100 ? "%.0f MB" : mb >= 1 ? "%.2f MB" : "%.4f MB", mb);
}

static void put_percent(FILE *out, double share)
{
	fprintf(out, "%.1f %%", within(share, 0, 1e6) * 100);
}

static void put_count(FILE *out, double n)
{
	fprintf(out, "%.0f", within(n, 0, 1e18));
}

typedef struct bar {
	const char *label; /* hostile */
	const char *class;
	double value;
} bar;

static void put_bars(FILE *out, const bar *bars, size_t n, void (*put)(FILE *out, double value))
{
	double most = 0, room = WIDTH - LABELS - VALUES;
	for (size_t i = 0; i < n; i++)
		most = fmax(most, within(bars[i].value, 0, 1e300));
	fprintf(out,
	        "<svg viewBox=\"0 0 %d %zu\" role=\"img\">\n<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"0\" y2=\"%zu\"/>\n",
	        WIDTH, n * BAR + 4, LABELS, LABELS, n * BAR + 4);
	for (size_t i = 0; i < n; i++) {
		double length = most > 0 ? room * within(bars[i].value / most, 0, 1) : 0;

		fprintf(out, "<text x=\"%d\" y=\"%zu\" text-anchor=\"end\">", LABELS - 8, i * BAR + 17);
		put_text(out, bars[i].label, NAME_SHOWN);
		fprintf(out,
		        "</text><rect class=\"%s\" x=\"%d\" y=\"%zu\" width=\"%.1f\" height=\"%d\" rx=\"2\"><title>",
		        bars[i].class, LABELS, i * BAR + 4, length, BAR - 6);
		put_text(out, bars[i].label, 0);
		fprintf(out, "</title></rect><text class=\"soft\" x=\"%.1f\" y=\"%zu\">", LABELS + length + 6,
		        i * BAR + 17);
		put(out, bars[i].value);
		fputs("</text>\n", out);
	}
	fputs("</svg>\n", out);
}

static void put_title(FILE *out, const char *title, const char *what)
{
	fprintf(out, "<h3>%s</h3>\n<p>%s</p>\n", title, what);
}

static void put_row(FILE *out, const char *name, const char *text)
{
	fprintf(out, "<tr><th>%s</th><td>", name);
	put_text(out, text, 0);
	fputs("</td></tr>\n", out);
}

static void put_job(FILE *out, const json_t *root)
{
	const json_t *link;
	size_t i;
	fputs("<title>gradcomp", out);
	if (*string_of(root, "job"))
		fputs(": job ", out);
	put_text(out, string_of(root, "job"), 0);
	fputs("</title>\n</head>\n<body>\n<h1>", out);
	fputs(*string_of(root, "job") ? "Job " : "A job outside of Slurm", out);
	put_text(out, string_of(root, "job"), 0);
	if (*string_of(root, "step"))
		fputs(", step ", out);
	put_text(out, string_of(root, "step"), 0);
	fputs("</h1>\n<table>\n", out);
	if (*string_of(root, "failure")) {
		fputs("<tr><th>failed</th><td class=\"failed\">", out);
		put_text(out, string_of(root, "failure"), 0);
		fputs("</td></tr>\n", out);
	}
	fprintf(out, "<tr><th>ran</th><td>%lld rank%s on %lld node%s for %.1f s</td></tr>\n", count_of(root, "ranks"),
	        plural(count_of(root, "ranks")), count_of(root, "nodes"), plural(count_of(root, "nodes")),
	        within(number_of(root, "wall_s"), 0, 1e12));
	put_row(out, "ended", string_of(root, "ended"));
	put_row(out, "rank 0 on",
	        json_string_value(json_array_get(json_object_get(root, "hosts"), 0))
	                ? json_string_value(json_array_get(json_object_get(root, "hosts"), 0))
	                : "?");
	json_array_foreach(json_object_get(root, "links"), i, link)
	{
		fputs("<tr><th>link</th><td>", out);
		put_text(out, string_of(link, "transport"), 0);
		fprintf(out, " by %lld connection%s, sent ", count_of(link, "connections"),
		        plural(count_of(link, "connections")));
		put_mb(out, number_of(link, "sent_bytes"));
		fputs("</td></tr>\n", out);
	}
	put_row(out, "gradcomp", string_of(root, "gradcomp"));
	fputs("</table>\n", out);
}

/* A bar for each rank's step, in three parts, which follow each other. Encoding and exchanging run beside them. */
static void put_times(FILE *out, const json_t *root)
{
	static const char *const parts[][2] = {
		{"computing_s", "encode"}, {"loading_s", "exchange"}, {"waiting_s", "wait"}};
	const json_t *times = json_object_get(root, "times"), *slowest = json_object_get(root, "slowest"), *row;
	size_t n = json_array_size(times) < MOST_TIMES ? json_array_size(times) : MOST_TIMES, i;
	double most = 0, room = WIDTH - LABELS - VALUES;
	if (!n)
		return;
	for (i = 0; i < n; i++) {
		double all = 0;

		for (int k = 0; k < 3; k++)
			all += within(number_of(json_array_get(times, i), parts[k][0]), 0, 1e9);
		most = fmax(most, all);
	}
	fputs("<h2>Ranks</h2>\n", out);
	if (json_is_object(slowest)) {
		fprintf(out, "<p class=\"failed\">rank %lld on ", count_of(slowest, "rank"));
		put_text(out, string_of(slowest, "host"), 0);
		fputs(" costs ", out);
		put_percent(out, number_of(slowest, "share"));
		fputs(" of a step by ", out);
		put_text(out, string_of(slowest, "kind"), 0);
		fputs(": ", out);
		put_text(out, string_of(slowest, "evidence"), 0);
		fputs("; ", out);
		put_text(out, string_of(slowest, "advice"), 0);
		fputs("</p>\n", out);
	}
	fprintf(out,
	        "<h3>Where steps went</h3>\n<p>Means over steps.<span class=\"key encode\"></span>computing"
	        "<span class=\"key exchange\"></span>loading<span class=\"key wait\"></span>waiting for the others and for "
	        "what was sent last</p>\n<svg viewBox=\"0 0 %d %zu\" role=\"img\">\n",
	        WIDTH, n * BAR + 4);
	for (i = 0; i < n; i++) {
		double at = LABELS;
		row = json_array_get(times, i);
		fprintf(out, "<text x=\"%d\" y=\"%zu\" text-anchor=\"end\">rank %lld</text>", LABELS - 8, i * BAR + 17,
		        count_of(row, "rank"));
		for (int k = 0; k < 3; k++) {
			double seconds = within(number_of(row, parts[k][0]), 0, 1e9);
			double length = most > 0 ? room * seconds / most : 0;

			fprintf(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%zu\" width=\"%.1f\" height=\"%d\"><title>",
			        parts[k][1], at, i * BAR + 4, length, BAR - 6);
			put_ms(out, seconds);
			fputs("</title></rect>", out);
			at += length;
		}
		fprintf(out, "<text class=\"soft\" x=\"%.1f\" y=\"%zu\">", at + 6, i * BAR + 17);
		put_ms(out, number_of(row, "step_s"));
		fputs("</text>\n", out);
	}
	fputs("</svg>\n", out);
	if (json_array_size(times) > n)
		fprintf(out, "<p>The first %zu of %zu ranks.</p>\n", n, json_array_size(times));
}

static void put_card(FILE *out, const char *what, const char *format, double value)
{
	fputs("<div><b>", out);
	fprintf(out, format, within(value, 0, 1e15));
	fprintf(out, "</b><span>%s</span></div>\n", what);
}

static int by_value(const void *a, const void *b)
{
	double x = ((const bar *)a)->value, y = ((const bar *)b)->value;
	return (x < y) - (x > y);
}

static void put_residuals(FILE *out, const json_t *tensors)
{
	size_t n = json_array_size(tensors), kept = 0, i;
	bar *bars = calloc(n ? n : 1, sizeof *bars);
	const json_t *tensor;
	json_array_foreach(tensors, i, tensor) if (bars && json_is_number(json_object_get(tensor, "error")))
		bars[kept++] = (bar){string_of(tensor, "name"), "encode", number_of(tensor, "error")};
	if (kept) {
		qsort(bars, kept, sizeof *bars, by_value);
		put_title(
			out, "Residual by tensor",
			"The norm of what stayed back over the norm of what was to be sent, mean over steps, of rank 0.");
		if (kept > MOST_TENSORS)
			fprintf(out, "<p>The %d largest of %zu tensors.</p>\n", MOST_TENSORS, kept);
		put_bars(out, bars, kept > MOST_TENSORS ? MOST_TENSORS : kept, put_percent);
	}
	free(bars);
}

static void put_messages(FILE *out, const json_t *buckets)
{
	size_t n = json_array_size(buckets), shown = n > MOST_BUCKETS ? MOST_BUCKETS : n;
	bar bars[MOST_BUCKETS];
	char labels[MOST_BUCKETS][80];
	if (!n)
		return;
	for (size_t i = 0; i < shown; i++) {
		const json_t *b = json_array_get(buckets, i);

		snprintf(labels[i], sizeof labels[i], "message %lld: %lld tensors", count_of(b, "position"),
		         count_of(b, "tensors"));
		bars[i] = (bar){labels[i], "exchange", number_of(b, "numel")};
	}
	put_title(out, "Messages", "Elements of each, in the order of the backward pass.");
	if (n > shown)
		fprintf(out, "<p>The first %zu of %zu.</p>\n", shown, n);
	put_bars(out, bars, shown, put_count);
}

static void put_auto(FILE *out, const json_t *a)
{
	const json_t *candidates = json_object_get(a, "candidates"), *row;
	bar bars[MOST_TENSORS];
	size_t n = 0, i;
	if (!json_is_object(a))
		return;
	put_title(out, "What auto decided", "Seconds of a step with each candidate, as measured.");
	fputs("<p>", out);
	put_text(out, string_of(a, "decision"), 0);
	fputs(": ", out);
	put_text(out, string_of(a, "reason"), 0);
	fputs("</p>\n", out);
	json_array_foreach(candidates, i,
	                   row) if (n < MOST_TENSORS && json_is_number(json_object_get(row, "measured_s"))) bars[n++] =
		(bar){string_of(row, "compressor"), "other", number_of(row, "measured_s")};
	if (n)
		put_bars(out, bars, n, put_ms);
	fputs("<table>\n", out);
	json_array_foreach(json_object_get(a, "switches"), i, row)
	{
		fprintf(out, "<tr><th>step %lld</th><td>", count_of(row, "step"));
		put_text(out, string_of(row, "to"), 0);
		fputs("</td><td>", out);
		put_text(out, string_of(row, "reason"), 0);
		fputs("</td></tr>\n", out);
	}
	fputs("</table>\n", out);
}

static void put_reducer(FILE *out, const json_t *r)
{
	const json_t *schedule = json_object_get(r, "schedule");
	double steps = fmax(number_of(r, "steps"), 1);
	double work = (number_of(r, "encode_s") + number_of(r, "exchange_s") + number_of(r, "decode_s")) / steps;
	double exposed = number_of(r, "exposed_s") / steps;
	bar times[8], bytes[] = {{"uncompressed", "other", number_of(r, "dense_bytes") / steps},
	                         {"sent", "exchange", number_of(r, "wire_bytes") / steps}};
	bar hidden[] = {{"hidden behind the passes", "decode", fmax(work - exposed, 0)},
	                {"waited for", "wait", exposed}};
	size_t n = 0;
	fputs("<h2>", out);
	put_text(out, string_of(r, "compressor"), 0);
	fputs(" over ", out);
	put_text(out, string_of(r, "collective"), 0);
	fputs("</h2>\n<div class=\"cards\">\n", out);
	put_card(out, "steps", "%.0f", number_of(r, "steps"));
	put_card(out, "ranks", "%.0f", number_of(r, "ranks"));
	if (json_is_number(json_object_get(r, "ratio")))
		put_card(out, "times fewer bytes", "%.1f", number_of(r, "ratio"));
	if (json_is_number(json_object_get(r, "hidden")))
		put_card(out, "hidden", "%.0f %%", number_of(r, "hidden") * 100);
	if (json_is_number(json_object_get(r, "error_mean")))
		put_card(out, "stayed back, mean", "%.1f %%", number_of(r, "error_mean") * 100);
	if (count_of(r, "nonfinite_steps"))
		put_card(out, "steps with NaN or Inf", "%.0f", number_of(r, "nonfinite_steps"));
	fputs("</div>\n", out);
	times[n++] = (bar){"encode", "encode", number_of(r, "encode_s") / steps};
	times[n++] = (bar){"exchange", "exchange", number_of(r, "exchange_s") / steps};
	times[n++] = (bar){"decode", "decode", number_of(r, "decode_s") / steps};
	times[n++] = (bar){"waited for", "wait", exposed};
	if (json_is_number(json_object_get(schedule, "step_s")))
		times[n++] = (bar){"whole step, median", "other", number_of(schedule, "step_s")};
	if (json_is_number(json_object_get(schedule, "predicted_s")))
		times[n++] = (bar){"whole step, predicted", "other", number_of(schedule, "predicted_s")};
	put_title(out, "Times of a step", "Mean over steps, of rank 0, summed over messages, which overlap.");
	put_bars(out, times, n, put_ms);
	put_title(out, "Bytes of a step", "Of rank 0: what a ring would send uncompressed, and what was sent.");
	put_bars(out, bytes, 2, put_mb);
	put_title(out, "What was hidden", "The work of compressing and sending, a step.");
	put_bars(out, hidden, 2, put_ms);
	put_residuals(out, json_object_get(r, "tensors"));
	put_messages(out, json_object_get(schedule, "buckets"));
	put_auto(out, json_object_get(r, "auto"));
}

static void put_coder(FILE *out, const json_t *c)
{
	bar bytes[] = {{"uncompressed", "other", number_of(c, "dense_bytes")},
	               {"sent", "exchange", number_of(c, "wire_bytes")}};
	bar times[] = {{"convert", "encode", number_of(c, "convert_s")},
	               {"exchange", "exchange", number_of(c, "exchange_s")},
	               {"waited for", "wait", number_of(c, "exposed_s")}};
	fputs("<h2>Coder ", out);
	put_text(out, string_of(c, "name"), 0);
	fputs(": ", out);
	put_text(out, string_of(c, "compressor"), 0);
	fputs("</h2>\n", out);
	put_title(out, "Bytes", "Of rank 0, of all calls.");
	put_bars(out, bytes, 2, put_mb);
	put_title(out, "Times", "Of rank 0, of all calls.");
	put_bars(out, times, 3, put_ms);
}

static bool is_step(const json_t *e)
{
	return !strcmp(string_of(e, "name"), "step") && !strcmp(string_of(e, "ph"), "X") && !count_of(e, "pid");
}

static int by_length(const void *a, const void *b)
{
	double x = number_of(*(const json_t *const *)a, "dur"), y = number_of(*(const json_t *const *)b, "dur");
	return (x > y) - (x < y);
}

static int by_start(const void *a, const void *b)
{
	double x = number_of(*(const json_t *const *)a, "ts"), y = number_of(*(const json_t *const *)b, "ts");
	return (x > y) - (x < y);
}

/* Step by step, of rank 0. */
static void put_steps(FILE *out, const json_t **steps, size_t n)
{
	double most = 0, height = 180;
	for (size_t i = 0; i < n; i++)
		most = fmax(most, within(number_of(steps[i], "dur"), 0, 1e15));
	put_title(out, "Step by step", "How long each step of rank 0 took, of those in the timeline.");
	fprintf(out,
	        "<svg viewBox=\"0 0 %d %.0f\" role=\"img\">\n<line class=\"axis\" x1=\"70\" x2=\"%d\" y1=\"10\" y2=\"10\"/>"
	        "<line class=\"axis\" x1=\"70\" x2=\"%d\" y1=\"%.0f\" y2=\"%.0f\"/>\n<text class=\"soft\" x=\"64\" y=\"15\" text-anchor=\"end\">",
	        WIDTH, height + 30, WIDTH, WIDTH, height, height);
	put_ms(out, most / 1e6);
	fprintf(out,
	        "</text><text class=\"soft\" x=\"64\" y=\"%.0f\" text-anchor=\"end\">0</text>\n<polyline class=\"steps\" points=\"",
	        height + 4);
	for (size_t i = 0; i < n; i++)
		fprintf(out, "%.1f,%.1f ", 70 + (WIDTH - 72) * (n > 1 ? (double)i / (double)(n - 1) : 0.5),
		        height - (most > 0 ? (height - 10) * within(number_of(steps[i], "dur") / most, 0, 1) : 0));
	fprintf(out,
	        "\"/>\n<text class=\"soft\" x=\"70\" y=\"%.0f\">step %lld</text><text class=\"soft\" x=\"%d\" y=\"%.0f\" "
	        "text-anchor=\"end\">step %lld</text>\n</svg>\n",
	        height + 20, count_of(json_object_get(steps[0], "args"), "step"), WIDTH, height + 20,
	        count_of(json_object_get(steps[n - 1], "args"), "step"));
}

static const char *class_of(const char *name)
{
	static const char *const of[][2] = {{"begin", "encode"},
	                                    {"encode", "encode"},
	                                    {"decode", "decode"},
	                                    {"finish", "decode"},
	                                    {"exchange", "exchange"},
	                                    {"reduce_local", "exchange"},
	                                    {"allgather_local", "exchange"},
	                                    {"wait", "wait"},
	                                    {"wait_for", "wait"}};
	for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
		if (!strcmp(of[i][0], name))
			return of[i][1];
	return "other";
}

/* Returns the lane of a rank, from above; -1: not shown. */
static int lane_of(const char *thread)
{
	static const char *const lanes[] = {"application", "compute", "exchange"};
	for (int i = 0; i < 3; i++)
		if (!strcmp(lanes[i], thread))
			return i;
	return -1;
}

/* One step of the first ranks, in which rank 0 took as long as it mostly did. */
static void put_timeline(FILE *out, const json_t *events, const json_t *step)
{
	double start = number_of(step, "ts"), length = number_of(step, "dur"), room = WIDTH - 72;
	long long number = count_of(json_object_get(step, "args"), "step"), ranks = 0;
	size_t i, shown = 0;
	const json_t *e;

	json_array_foreach(events, i, e) if (count_of(e, "pid") >= ranks && count_of(e, "pid") < MOST_RANKS) ranks =
		count_of(e, "pid") + 1;
	fprintf(out,
	        "<h3>Timeline of step %lld</h3>\n<p>A step that took as long as the median: what the application, the "
	        "compressors and the exchange of each rank did.<span class=\"key encode\"></span>encode"
	        "<span class=\"key exchange\"></span>exchange<span class=\"key decode\"></span>decode<span class=\"key wait\"></span>"
	        "wait<span class=\"key other\"></span>other</p>\n<svg viewBox=\"0 0 %d %lld\" role=\"img\">\n",
	        number, WIDTH, ranks * ROW + 24);
	for (long long r = 0; r < ranks; r++)
		fprintf(out,
		        "<text class=\"soft\" x=\"0\" y=\"%lld\">rank %lld</text><line class=\"axis\" x1=\"70\" x2=\"%d\" y1=\"%lld\" y2=\"%lld\"/>\n",
		        r * ROW + 22, r, WIDTH, r * ROW + 3 * LANE + 4, r * ROW + 3 * LANE + 4);
	json_array_foreach(events, i, e)
	{
		const char *name = string_of(e, "name");
		long long rank = count_of(e, "pid");
		int lane = lane_of(string_of(e, "cat"));
		double from = (number_of(e, "ts") - start) / length, to = from + number_of(e, "dur") / length;

		if (lane < 0 || rank < 0 || rank >= ranks || strcmp(string_of(e, "ph"), "X") || !(to > 0 && from < 1) ||
		    shown++ >= MOST_SLICES)
			continue;
		from = within(from, 0, 1);
		fprintf(out, "<rect class=\"%s\" x=\"%.2f\" y=\"%lld\" width=\"%.2f\" height=\"%d\"><title>",
		        class_of(name), 70 + room * from, rank * ROW + lane * LANE + 2,
		        fmax(room * (within(to, 0, 1) - from), 0.4), LANE - 2);
		put_text(out, name, 0);
		fputs(", ", out);
		put_ms(out, number_of(e, "dur") / 1e6);
		fputs("</title></rect>\n", out);
	}
	fprintf(out,
	        "<text class=\"soft\" x=\"70\" y=\"%lld\">0</text><text class=\"soft\" x=\"%d\" y=\"%lld\" text-anchor=\"end\">",
	        ranks * ROW + 18, WIDTH, ranks * ROW + 18);
	put_ms(out, length / 1e6);
	fputs("</text>\n</svg>\n", out);
}

static void put_trace(FILE *out, const json_t *trace)
{
	const json_t *events = json_object_get(trace, "traceEvents"), *e, **steps = calloc(MOST_STEPS, sizeof *steps);
	size_t n = 0, i;
	fputs("<h2>Timeline</h2>\n", out);
	json_array_foreach(events, i, e) if (steps && is_step(e) && number_of(e, "dur") > 0) steps[n++ % MOST_STEPS] =
		e;
	if (n > MOST_STEPS)
		n = MOST_STEPS;
	if (n) {
		qsort(steps, n, sizeof *steps, by_start);
		put_steps(out, steps, n);
		qsort(steps, n, sizeof *steps, by_length);
		put_timeline(out, events, steps[n / 2]);
	} else {
		fputs("<p>It has no step of rank 0.</p>\n", out);
	}
	free(steps);
}

gradcomp_status report_html(const json_t *report, const json_t *trace, const char *path, gradcomp_error *err)
{
	gradcomp_status st;
	const json_t *row;
	outfile *f;
	FILE *out;
	size_t i;
	st = outfile_open("page", path, 0, &f, err);
	if (st)
		return st;
	out = outfile_stream(f);
	fputs(head, out);
	put_job(out, report);
	put_times(out, report);
	json_array_foreach(json_object_get(report, "reducers"), i, row) put_reducer(out, row);
	json_array_foreach(json_object_get(report, "coders"), i, row) put_coder(out, row);
	if (trace)
		put_trace(out, trace);
	else
		fputs("<h2>Timeline</h2>\n<p>Step times and a timeline are here when the job wrote one (the setting gradcomp.trace, "
		      "GRADCOMP_TRACE) and gradcomp report was given it with --trace.</p>\n",
		      out);
	fputs("</body>\n</html>\n", out);
	return outfile_close(f, err);
}
#endif
