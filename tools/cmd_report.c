/* gradcomp report: a job's report (doc/user/report.md) as a table. */
#include "tools/commands.h"

static const char usage[] = "usage: gradcomp report [--json | --tensors | --html PAGE [--trace FILE]] FILE\n"
			    "\n"
			    "Prints what a job did, from its report: bytes and times a step of rank 0, where the\n"
			    "steps of each rank went, and which rank held up the others.\n\n"
			    "  --json         the report itself, after checking that it is one\n"
			    "  --tensors      also what was done with each tensor\n"
			    "  --html PAGE    writes one page with plots for a browser, which needs no other file\n"
			    "  --trace FILE   the job's timeline (setting gradcomp.trace), for that page\n";

#ifdef HAVE_JANSSON
#include <string.h>

#include "gradcomp/stage.h"
#include "tools/report_html.h"

#define REPORT_SCHEMA 1
#define LINK_MAP_SHOWN 16 /* ranks of which a line has room */
#define TIMES_SHOWN 16    /* ranks that have a line */

/* Text of the report for a terminal: the file may come from anywhere. */
static const char *text_of(const json_t *object, const char *key, char out[256])
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? gradcomp_printable(text, out, 256) : "?";
}

/* Which kind of link leads from whom to whom, in words and, for a few ranks, as a table. */
static void print_link_map(const json_t *root)
{
	const json_t *kinds = json_object_get(root, "link_kinds"), *map = json_object_get(root, "link_map"), *row,
		     *cell;
	char a[256], b[256];
	size_t i, k;
	json_array_foreach(kinds, i, row)
	{
		if (count_of(row, "pairs"))
			printf("links       %-5s between %lld pair%s of ranks\n", text_of(row, "transport", a),
			       count_of(row, "pairs"), count_of(row, "pairs") == 1 ? "" : "s");
		else
			printf("no links    %-5s %s\n", text_of(row, "transport", a), text_of(row, "why_not", b));
	}
	if (json_array_size(map) > LINK_MAP_SHOWN)
		return;
	json_array_foreach(map, i, row)
	{
		printf("from %-6zu", i);
		json_array_foreach(row, k, cell)
			printf(" %-5s",
		               json_is_string(cell) ? gradcomp_printable(json_string_value(cell), a, sizeof a) : "?");
		putchar('\n');
	}
}

/* "network     10.2.0.0/24 on eth1 is used: 943 Mbit/s", and those that are not. */
static void print_networks(const json_t *root)
{
	const json_t *row;
	char a[256], b[256];
	size_t i;
	json_array_foreach(json_object_get(root, "networks"), i, row)
	{
		const json_t *rate = json_object_get(row, "measured_mbit");

		rate = json_is_number(rate) ? rate : json_object_get(row, "driver_mbit");
		printf("network     %s", text_of(row, "network", a));
		if (json_is_string(json_object_get(row, "interface")))
			printf(" on %s", text_of(row, "interface", b));
		printf("%s", json_is_true(json_object_get(row, "used")) ? " is used" : "");
		if (json_is_number(rate))
			printf(": %.0f Mbit/s", json_number_value(rate));
		puts(json_is_number(rate) && json_number_value(rate) <= 0 ? ", it carries nothing" : "");
	}
}

/* Where each rank's steps went, and which of them held up the others. */
static void print_times(const json_t *root)
{
	static const char *const parts[] = {"computing", "loading", "encoding", "exchanging", "waiting"};
	const json_t *times = json_object_get(root, "times"), *slowest = json_object_get(root, "slowest"), *row;
	char a[256], b[256], c[256], key[32];
	size_t i;
	json_array_foreach(times, i, row)
	{
		if (i == TIMES_SHOWN) {
			printf("            and %zu more ranks (--json)\n", json_array_size(times) - i);
			break;
		}
		printf("rank %-6lld ", count_of(row, "rank"));
		for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
			snprintf(key, sizeof key, "%s_s", parts[k]);
			printf("%s %.1f, ", parts[k], number_of(row, key) * 1e3);
		}
		printf("of a step's %.1f ms\n", number_of(row, "step_s") * 1e3);
	}
	if (!json_is_object(slowest))
		return;
	printf("slowest     rank %lld on %s costs %.0f %% of a step by %s: %s;\n", count_of(slowest, "rank"),
	       text_of(slowest, "host", a), number_of(slowest, "share") * 100, text_of(slowest, "kind", b),
	       text_of(slowest, "evidence", c));
	printf("            %s\n", text_of(slowest, "advice", a));
}

static void print_job(const json_t *root)
{
	const json_t *hosts = json_object_get(root, "hosts"), *links = json_object_get(root, "links"), *link;
	char a[256], b[256];
	size_t i;
	if (json_is_string(json_object_get(root, "job")))
		printf("job         %s, step %s\n", text_of(root, "job", a), text_of(root, "step", b));
	printf("ended       %s after %.1f s\n", text_of(root, "ended", a), number_of(root, "wall_s"));
	if (json_is_string(json_object_get(root, "failure")))
		printf("failed      %s\n", text_of(root, "failure", a));
	printf("ranks       %lld on %lld node%s, rank 0 on %s\n", count_of(root, "ranks"), count_of(root, "nodes"),
	       count_of(root, "nodes") == 1 ? "" : "s",
	       json_is_string(json_array_get(hosts, 0))
	               ? gradcomp_printable(json_string_value(json_array_get(hosts, 0)), b, sizeof b)
	               : "?");
	printf("gradcomp    %s\n", text_of(root, "gradcomp", a));
	json_array_foreach(links, i, link)
		printf("link        %-4s by %lld connection%s: %.2f MB sent, %.2f MB received\n",
	               text_of(link, "transport", a), count_of(link, "connections"),
	               count_of(link, "connections") == 1 ? "" : "s", number_of(link, "sent_bytes") / 1e6,
	               number_of(link, "received_bytes") / 1e6);
	print_link_map(root);
	print_networks(root);
	print_times(root);
}

/* How many tensors and elements went each way. */
static void print_choices(const json_t *tensors)
{
	json_t *counts = json_object(), *tensor;
	const char *choice;
	char a[256];
	size_t i;
	json_array_foreach(tensors, i, tensor)
	{
		const char *name = json_string_value(json_object_get(tensor, "choice"));
		json_t *row = name ? json_object_get(counts, name) : NULL;

		if (!name)
			continue;
		if (!row)
			json_object_set_new(counts, name,
			                    row = json_pack("{s:I,s:I}", "n", (json_int_t)0, "d", (json_int_t)0));
		json_object_set_new(row, "n", json_integer(count_of(row, "n") + 1));
		json_object_set_new(row, "d", json_integer(count_of(row, "d") + count_of(tensor, "numel")));
	}
	json_object_foreach(counts, choice, tensor)
		printf("  %-9s %lld tensor%s, %lld elements\n", gradcomp_printable(choice, a, sizeof a),
	               count_of(tensor, "n"), count_of(tensor, "n") == 1 ? "" : "s", count_of(tensor, "d"));
	json_decref(counts);
}

/* "  schedule  mgwfbp: 6 messages, predicted 41.2 ms a step (fixed: 47.9 ms), measured 42.0 ms" */
static void print_schedule(const json_t *s)
{
	char a[256], b[256];
	size_t n = json_array_size(json_object_get(s, "buckets"));
	if (!json_is_object(s))
		return;
	printf("  schedule  %s", text_of(s, "asked", a));
	if (strcmp(text_of(s, "plan", b), a) && json_is_string(json_object_get(s, "plan")))
		printf(" (%s)", b);
	printf(": %zu message%s", n, n == 1 ? "" : "s");
	if (json_is_number(json_object_get(s, "predicted_s")))
		printf(", predicted %.1f ms a step (fixed: %.1f ms)", number_of(s, "predicted_s") * 1e3,
		       number_of(s, "predicted_fixed_s") * 1e3);
	if (json_is_number(json_object_get(s, "step_s")))
		printf(", measured %.1f ms", number_of(s, "step_s") * 1e3);
	if (count_of(s, "plans") > 1)
		printf(", %lld plans", count_of(s, "plans"));
	putchar('\n');
	if (json_is_string(json_object_get(s, "fallback")))
		printf("            %s\n", text_of(s, "fallback", a));
}

/* Prints what auto came to, and how. */
static void print_auto(const json_t *a)
{
	const json_t *row;
	char text[256], why[256];
	size_t i;
	printf("  auto      %s: %s", text_of(a, "decision", text), text_of(a, "reason", why));
	if (json_is_number(json_object_get(a, "exposed_s")))
		printf("; %.2f ms a step were exposed", number_of(a, "exposed_s") * 1e3);
	putchar('\n');
	json_array_foreach(json_object_get(a, "candidates"), i, row)
	{
		printf("    %-28s", text_of(row, "compressor", text));
		if (json_is_true(json_object_get(row, "left_out")))
			fputs(" left out", stdout);
		if (json_is_number(json_object_get(row, "predicted_s")))
			printf(" predicted %.2f ms", number_of(row, "predicted_s") * 1e3);
		if (json_is_number(json_object_get(row, "measured_s")))
			printf(" measured %.2f ms", number_of(row, "measured_s") * 1e3);
		putchar('\n');
	}
	json_array_foreach(json_object_get(a, "switches"), i, row)
		printf("    step %-8lld %s: %s\n", count_of(row, "step"), text_of(row, "to", text),
	               text_of(row, "reason", why));
}

static void print_reducer(const json_t *r, int every_tensor)
{
	const json_t *tensors = json_object_get(r, "tensors"), *tensor;
	double steps = number_of(r, "steps") > 0 ? number_of(r, "steps") : 1;
	char a[256], b[256];
	size_t i;
	printf("\n%s over %s\n", text_of(r, "compressor", a), text_of(r, "collective", b));
	printf("  steps     %lld on %lld ranks, in %lld bucket%s", count_of(r, "steps"), count_of(r, "ranks"),
	       count_of(r, "buckets"), count_of(r, "buckets") == 1 ? "" : "s");
	if (count_of(r, "nonfinite_steps"))
		printf(", %lld with NaN or Inf", count_of(r, "nonfinite_steps"));
	printf("\n  sent      %.3f MB a step, dense %.3f MB", number_of(r, "wire_bytes") / steps / 1e6,
	       number_of(r, "dense_bytes") / steps / 1e6);
	if (json_is_number(json_object_get(r, "ratio")))
		printf(", ratio %.1f", number_of(r, "ratio"));
	printf("\n  encode    %.2f ms a step\n  exchange  %.2f ms\n  decode    %.2f ms\n  waited    %.2f ms",
	       number_of(r, "encode_s") / steps * 1e3, number_of(r, "exchange_s") / steps * 1e3,
	       number_of(r, "decode_s") / steps * 1e3, number_of(r, "exposed_s") / steps * 1e3);
	if (json_is_number(json_object_get(r, "hidden")))
		printf(", %.0f %% hidden", number_of(r, "hidden") * 100);
	if (number_of(r, "delay") > 0)
		printf("; averages came up to %lld steps late", count_of(r, "delay"));
	if (number_of(r, "error_mean") > 0)
		printf("\n  error     %.1f %% of what was to be sent stayed back, %.1f %% in the last step",
		       number_of(r, "error_mean") * 100, number_of(r, "error_last") * 100);
	putchar('\n');
	print_schedule(json_object_get(r, "schedule"));
	if (json_is_object(json_object_get(r, "auto")))
		print_auto(json_object_get(r, "auto"));
	print_choices(tensors);
	if (every_tensor)
		json_array_foreach(tensors, i, tensor)
		{
			printf("    %-40s %12lld  %s", text_of(tensor, "name", a), count_of(tensor, "numel"),
			       text_of(tensor, "choice", b));
			if (json_is_number(json_object_get(tensor, "error")))
				printf(", error %.1f %%", number_of(tensor, "error") * 100);
			putchar('\n');
		}
}

/* Reads a file, which `what` names: "report". */
static json_t *load_json(const char *path, const char *what)
{
	json_error_t e;
	json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
	char name[256], text[256];
	gradcomp_printable(path, name, sizeof name);
	if (!root && e.line > 0)
		fprintf(stderr, "gradcomp: %s:%d: this is no %s: %s\n", name, e.line, what,
		        gradcomp_printable(e.text, text, sizeof text));
	else if (!root)
		fprintf(stderr, "gradcomp: %s\n", gradcomp_printable(e.text, text, sizeof text));
	return root;
}

static json_t *load_trace(const char *path)
{
	json_t *root = load_json(path, "timeline");
	char name[256];
	if (!root || json_is_array(json_object_get(root, "traceEvents")))
		return root;
	fprintf(stderr, "gradcomp: %s is JSON, but no timeline (it has no traceEvents)\n",
	        gradcomp_printable(path, name, sizeof name));
	json_decref(root);
	return NULL;
}

json_t *report_load(const char *path)
{
	json_t *root = load_json(path, "report");
	char name[256];
	if (!root)
		return NULL;
	gradcomp_printable(path, name, sizeof name);
	if (json_is_integer(json_object_get(root, "schema")) && count_of(root, "schema") == REPORT_SCHEMA)
		return root;
	if (json_is_integer(json_object_get(root, "schema")))
		fprintf(stderr, "gradcomp: %s is a report of schema %lld; this command reads schema %d\n", name,
		        count_of(root, "schema"), REPORT_SCHEMA);
	else
		fprintf(stderr, "gradcomp: %s is JSON, but no report of gradcomp\n", name);
	json_decref(root);
	return NULL;
}

int cmd_report(int argc, char **argv)
{
	const char *words[1] = {NULL};
	const char *html = NULL, *trace_path = NULL;
	int as_json = 0, every_tensor = 0, status;
	const command_option options[] = {{"--html", &html, NULL},
	                                  {"--trace", &trace_path, NULL},
	                                  {"--json", NULL, &as_json},
	                                  {"--tensors", NULL, &every_tensor},
	                                  {NULL, NULL, NULL}};
	json_t *root, *trace = NULL, *reducer;
	gradcomp_error err;
	size_t i;
	status = command_take_options(argc, argv, usage, options, words, 1);
	if (status >= 0)
		return status;
	if (!words[0])
		return command_usage_error(usage, "report: which file?");
	if (trace_path && !html)
		return command_usage_error(usage, "report: --trace is for --html");
	if (html && (as_json || every_tensor))
		return command_usage_error(usage, "report: --html goes without --json and --tensors");
	root = report_load(words[0]);
	if (!root)
		return 1;
	if (trace_path && !(trace = load_trace(trace_path))) {
		json_decref(root);
		return 1;
	}
	if (html) {
		status = report_html(root, trace, html, &err) ? command_failed(&err) : 0;
		json_decref(trace);
		json_decref(root);
		return status;
	}
	if (as_json) {
		json_dumpf(root, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		print_job(root);
		json_array_foreach(json_object_get(root, "reducers"), i, reducer) print_reducer(reducer, every_tensor);
	}
	json_decref(root);
	return 0;
}

#else

int cmd_report(int argc, char **argv)
{
	const char *words[1], *html, *trace_path;
	int as_json, every_tensor;
	const command_option options[] = {{"--html", &html, NULL},
	                                  {"--trace", &trace_path, NULL},
	                                  {"--json", NULL, &as_json},
	                                  {"--tensors", NULL, &every_tensor},
	                                  {NULL, NULL, NULL}};
	int status = command_take_options(argc, argv, usage, options, words, 1);
	if (status >= 0)
		return status;
	fputs("gradcomp: this gradcomp was built without jansson and cannot read reports; python3 -m json.tool FILE "
	      "prints one\n",
	      stderr);
	return 1;
}

#endif
