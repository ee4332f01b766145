/* gradcomp records pack and verify: both read every sample; pack writes them too. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "gradcomp/stage.h"
#include "base/json.h"
#include "tools/records.h"

/* Seconds between two lines of progress, on a terminal and in a file. */
#define EVERY_TTY 0.2
#define EVERY_PLAIN 5.0

static const char usage_pack[] =
	"usage: gradcomp records pack [OPTION]... SOURCE FILE\n"
	"\n"
	"Writes the samples of a folder tree, of tar shards or of another record file to the\n"
	"record file FILE, in their order. FILE appears when it is complete.\n\n"
	"  --force             replace FILE\n"
	"  --format NAME       of SOURCE: auto, tree, tar or records\n"
	"  --json              print an object\n"
	"  --quiet             print errors only\n"
	"  --suffixes A/B      of a tree only files whose names end in .A or .B\n"
	"  --workers N         threads that read, 1 to 64; 8 when not given\n";
static const char usage_verify[] = "usage: gradcomp records verify [OPTION]... PATH\n"
				   "\n"
				   "Reads every part of every sample; in a record file, compares checksums.\n\n"
				   "  --format NAME       auto, tree, tar or records\n"
				   "  --json              print an object\n"
				   "  --quiet             print errors only\n"
				   "  --suffixes A/B      of a tree only files whose names end in .A or .B\n"
				   "  --workers N         threads that read, 1 to 64; 8 when not given\n";

struct pass {
	const char *verb; /* "packing", "checking" */
	const char *source;
	gradcomp_records_writer *writer; /* NULL: only read */
	int quiet, tty, open;            /* open: an unfinished line stands on the terminal */
	uint64_t samples, total, bytes;
	double began, next;
	const char **names;
	const void **data;
	uint64_t *sizes;
	uint32_t room;
};

static gradcomp_status fail(gradcomp_error *err, gradcomp_status status, const char *text)
{
	*err = (gradcomp_error){.status = status};
	snprintf(err->text, sizeof err->text, "%s", text);
	return status;
}

static void clear_line(struct pass *p)
{
	if (p->open)
		fputs("\r\033[K", stderr);
	p->open = 0;
}

static void progress(struct pass *p)
{
	char source[120], done[32], rate[32];
	double t = clock_now() - p->began;
	if (p->quiet || t < p->next)
		return;
	p->next = t + (p->tty ? EVERY_TTY : EVERY_PLAIN);
	clear_line(p);
	fprintf(stderr, "gradcomp: %s %s: %llu of %llu samples, %s, %s/s, %.0f s left%s", p->verb,
	        gradcomp_printable(p->source, source, sizeof source), (unsigned long long)p->samples,
	        (unsigned long long)p->total, gradcomp_size_text(p->bytes, done),
	        gradcomp_size_text(t > 0 ? (uint64_t)((double)p->bytes / t) : 0, rate),
	        p->samples ? t * (double)(p->total - p->samples) / (double)p->samples : 0, p->tty ? "" : "\n");
	p->open = p->tty;
}

/* Arrays for n parts, in one piece of memory that begins with `names`. */
static int more_room(struct pass *p, uint32_t n)
{
	if (n <= p->room)
		return 0;
	free(p->names);
	p->room = 0;
	if (!(p->names = calloc(n, sizeof *p->names + sizeof *p->data + sizeof *p->sizes)))
		return -1;
	p->data = (const void **)(p->names + n);
	p->sizes = (uint64_t *)(p->data + n);
	p->room = n;
	return 0;
}

static gradcomp_status take(void *ctx, uint64_t index, const sample *s, gradcomp_error *err)
{
	struct pass *p = ctx;
	(void)index;
	if (caught_signal())
		return fail(err, GRADCOMP_ERR_STATE, "stopped by a signal");
	if (more_room(p, s->info.nparts) < 0)
		return fail(err, GRADCOMP_ERR_NOMEM, "out of memory");
	for (uint32_t i = 0; i < s->info.nparts; i++) {
		p->names[i] = s->parts[i].name;
		p->data[i] = s->parts[i].data;
		p->sizes[i] = s->parts[i].bytes;
		p->bytes += s->parts[i].bytes;
	}
	p->samples++;
	progress(p);
	if (!p->writer)
		return GRADCOMP_OK;
	return gradcomp_records_add(p->writer, s->info.key, s->info.label, s->info.nparts, p->names, p->data,
	                            p->sizes, err);
}

/* Names of the classes, to be freed; *n of them. */
static const char **classes_of(const gradcomp_samples *s, uint32_t *n)
{
	for (*n = 0; gradcomp_samples_class(s, *n); ++*n)
		;
	const char **names = calloc((size_t)*n + 1, sizeof *names);
	for (uint32_t i = 0; names && i < *n; i++)
		names[i] = gradcomp_samples_class(s, i);
	return names;
}

static gradcomp_status run(struct pass *p, const gradcomp_samples *s, uint32_t workers, const char *file,
                           gradcomp_error *err)
{
	gradcomp_status status = GRADCOMP_OK;
	uint32_t n;
	const char **classes = classes_of(s, &n);
	p->total = gradcomp_samples_count(s);
	p->began = clock_now();
	p->next = p->tty ? EVERY_TTY : EVERY_PLAIN;
	if (!classes)
		return fail(err, GRADCOMP_ERR_NOMEM, "out of memory");
	if (file)
		status = gradcomp_records_create(file, &p->writer, err);
	if (!status && file && n)
		status = gradcomp_records_classes(p->writer, n, classes, err);
	if (!status)
		status = samples_each(s, workers, take, p, err);
	clear_line(p);
	if (status)
		gradcomp_records_abandon(p->writer);
	else if (file)
		status = gradcomp_records_finish(p->writer, err);
	free(classes);
	free(p->names);
	return status;
}

static void print_json(const struct pass *p, const gradcomp_samples *s, const char *file)
{
	jsonw j;
	jsonw_start(&j, stdout);
	jsonw_object(&j, NULL);
	jsonw_string(&j, file ? "source" : "path", p->source);
	if (file)
		jsonw_string(&j, "file", file);
	jsonw_string(&j, "format", format_name(gradcomp_samples_format(s)));
	jsonw_uint(&j, "count", p->samples);
	jsonw_uint(&j, "bytes", p->bytes);
	jsonw_float(&j, "seconds", clock_now() - p->began);
	jsonw_end(&j);
	jsonw_finish(&j);
}

static void closing_line(const struct pass *p, const gradcomp_samples *s, const char *file)
{
	char source[256], out[256], bytes[32], rate[32];
	double t = clock_now() - p->began;
	const char *done = file                                                     ? "packed"
	                   : gradcomp_samples_format(s) == GRADCOMP_SAMPLES_RECORDS ? "checked"
	                                                                            : "read";
	fprintf(stderr, "gradcomp: %s %llu sample%s, %s of %s in %.1f s (%s/s)", done,
	        (unsigned long long)p->samples, p->samples == 1 ? "" : "s", gradcomp_size_text(p->bytes, bytes),
	        gradcomp_printable(p->source, source, sizeof source), t,
	        gradcomp_size_text(t > 0 ? (uint64_t)((double)p->bytes / t) : 0, rate));
	if (file)
		fprintf(stderr, " into %s", gradcomp_printable(file, out, sizeof out));
	fputc('\n', stderr);
}

static int work(const char *usage, const char *path, const char *file, const dataset_words *w, int json, int quiet)
{
	struct pass p = {.verb = file ? "packing" : "checking",
	                 .source = path,
	                 .quiet = quiet,
	                 .tty = isatty(STDERR_FILENO)};
	gradcomp_samples *s;
	gradcomp_error err = {0};
	uint32_t workers;
	int status = open_dataset(usage, path, w, &s, &workers);
	if (status >= 0)
		return status;
	catch_signals();
	if (run(&p, s, workers, file, &err))
		status = caught_signal() ? 128 + caught_signal() : failed(&err);
	else
		status = 0;
	if (!status && !quiet)
		closing_line(&p, s, file);
	if (!status && json)
		print_json(&p, s, file);
	gradcomp_samples_close(s);
	return status;
}

int records_pack(int argc, char **argv)
{
	const char *words[2] = {0};
	dataset_words w = {0};
	int json = 0, quiet = 0, force = 0;
	const command_option options[] = {
		{"--format", &w.format, NULL},
		{"--suffixes", &w.suffixes, NULL},
		{"--workers", &w.workers, NULL},
		{"--force", NULL, &force},
		{"--json", NULL, &json},
		{"--quiet", NULL, &quiet},
		{0},
	};
	char name[256];
	struct stat st;
	int status = take_options(argc, argv, usage_pack, options, words, 2);
	if (status >= 0)
		return status;
	if (!words[1] || !*words[1])
		return usage_error(usage_pack, "records pack needs a source and a file");
	if (!force && lstat(words[1], &st) == 0) {
		fprintf(stderr, "gradcomp: %s exists; --force replaces it\n",
		        gradcomp_printable(words[1], name, sizeof name));
		return 1;
	}
	return work(usage_pack, words[0], words[1], &w, json, quiet);
}

int records_verify(int argc, char **argv)
{
	const char *path = NULL;
	dataset_words w = {0};
	int json = 0, quiet = 0;
	const command_option options[] = {
		{"--format", &w.format, NULL}, {"--suffixes", &w.suffixes, NULL}, {"--workers", &w.workers, NULL},
		{"--json", NULL, &json},       {"--quiet", NULL, &quiet},         {0},
	};
	int status = take_options(argc, argv, usage_verify, options, &path, 1);
	if (status >= 0)
		return status;
	if (!path)
		return usage_error(usage_verify, "records verify needs a path");
	return work(usage_verify, path, NULL, &w, json, quiet);
}
