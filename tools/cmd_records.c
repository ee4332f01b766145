/* gradcomp records: the samples of a dataset in one file, and a look into any of the
 * layouts that gradcomp/samples.h reads. */
#include <stdlib.h>
#include <string.h>

#include "gradcomp/stage.h"
#include "base/json.h"
#include "base/number.h"
#include "tools/records.h"

#define NAME_BYTES 256
#define WORKERS 8u

static const char usage[] =
	"usage: gradcomp records {pack|list|verify|cat} [OPTION]... PATH ...\n"
	"\n"
	"  pack SOURCE FILE      the samples of a folder tree or of tar shards in one record file\n"
	"  list PATH             number, label, bytes, parts and key of each sample\n"
	"  verify PATH           reads everything and compares checksums\n"
	"  cat PATH NUMBER [PART]  a part of a sample to standard output\n"
	"\n"
	"PATH and SOURCE are a folder tree, a directory of tar shards, a shard, or a record file.\n\n"
	"  --force             pack: replace FILE\n"
	"  --format NAME       auto, tree, tar or records\n"
	"  --json              print an object\n"
	"  --quiet             pack, verify: print errors only\n"
	"  --suffixes A/B      of a tree only files whose names end in .A or .B\n"
	"  --summary           list: the totals alone\n"
	"  --workers N         threads that read, 1 to 64; 8 when not given\n\n"
	"Exit status: 0 done, 1 failed, 2 wrong usage, 128+N signal N.\n";

static const char *const formats[] = {"auto", "tree", "tar", "records"};

const char *format_name(gradcomp_sample_format format)
{
	return formats[format];
}

int open_dataset(const char *text, const char *path, const dataset_words *w, gradcomp_samples **out,
                 uint32_t *workers)
{
	gradcomp_samples_options o = {.struct_size = sizeof o, .suffixes = w->suffixes, .workers = WORKERS};
	char name[NAME_BYTES];
	gradcomp_error err;
	int64_t n;
	if (w->format) {
		int f = 0;
		while (f < 4 && strcmp(formats[f], w->format))
			f++;
		if (f == 4)
			return usage_error(text, "--format is '%s'; it can be auto, tree, tar or records",
			                   gradcomp_printable(w->format, name, sizeof name));
		o.format = (gradcomp_sample_format)f;
	}
	if (w->workers) {
		if (number_int(w->workers, &n) != NUMBER_OK || n < 1 || n > 64)
			return usage_error(text, "--workers is '%s'; it can be 1 to 64",
			                   gradcomp_printable(w->workers, name, sizeof name));
		o.workers = (uint32_t)n;
	}
	if (workers)
		*workers = o.workers;
	return gradcomp_samples_open(path, &o, out, &err) ? failed(&err) : -1;
}

static gradcomp_status print_parts(jsonw *j, const gradcomp_samples *s, uint64_t index,
                                   const gradcomp_sample_info *info, gradcomp_error *err)
{
	char name[NAME_BYTES];
	for (uint32_t i = 0; i < info->nparts; i++) {
		const char *part;
		uint64_t bytes;
		gradcomp_status status = gradcomp_samples_part(s, index, i, &part, j ? &bytes : NULL, err);
		if (status)
			return status;
		if (j) {
			jsonw_object(j, NULL);
			jsonw_string(j, "name", part);
			jsonw_uint(j, "bytes", bytes);
			jsonw_end(j);
		} else {
			printf("%s%s", i ? "," : "  ", *part ? gradcomp_printable(part, name, sizeof name) : "-");
		}
	}
	return GRADCOMP_OK;
}

/* One sample on a line, or as an object; with neither `j` nor `lines` it is counted alone. */
static gradcomp_status list_one(const gradcomp_samples *s, uint64_t index, jsonw *j, int lines, uint64_t *bytes,
                                gradcomp_error *err)
{
	gradcomp_sample_info info = {.struct_size = sizeof info};
	char key[NAME_BYTES * 4];
	gradcomp_status status = gradcomp_samples_info(s, index, &info, err);
	if (status)
		return status;
	*bytes += info.bytes;
	if (j) {
		jsonw_object(j, NULL);
		jsonw_uint(j, "index", index);
		jsonw_string(j, "key", info.key);
		if (info.label >= 0)
			jsonw_int(j, "label", info.label);
		else
			jsonw_null(j, "label");
		jsonw_array(j, "parts");
		status = print_parts(j, s, index, &info, err);
		jsonw_end(j);
		jsonw_end(j);
	} else if (lines) {
		if (info.label < 0)
			printf("%8llu      -  %10llu", (unsigned long long)index, (unsigned long long)info.bytes);
		else
			printf("%8llu %6d  %10llu", (unsigned long long)index, info.label,
			       (unsigned long long)info.bytes);
		status = print_parts(NULL, s, index, &info, err);
		printf("  %s\n", gradcomp_printable(info.key, key, sizeof key));
	}
	return status;
}

static gradcomp_status list_all(const gradcomp_samples *s, const char *path, int json, int summary,
                                gradcomp_error *err)
{
	uint64_t bytes = 0, n = gradcomp_samples_count(s);
	gradcomp_status status = GRADCOMP_OK;
	const char *name;
	char text[32];
	jsonw j;
	if (json) {
		jsonw_start(&j, stdout);
		jsonw_object(&j, NULL);
		jsonw_string(&j, "path", path);
		jsonw_string(&j, "format", format_name(gradcomp_samples_format(s)));
		jsonw_uint(&j, "count", n);
		jsonw_array(&j, "classes");
		for (uint32_t i = 0; (name = gradcomp_samples_class(s, i)); i++)
			jsonw_string(&j, NULL, name);
		jsonw_end(&j);
		if (!summary)
			jsonw_array(&j, "samples");
	}
	for (uint64_t i = 0; !status && i < n; i++)
		status = list_one(s, i, json && !summary ? &j : NULL, !json && !summary, &bytes, err);
	if (status)
		return status;
	if (json) {
		if (!summary)
			jsonw_end(&j);
		jsonw_uint(&j, "bytes", bytes);
		jsonw_end(&j);
		jsonw_finish(&j);
	} else if (summary) {
		uint32_t classes = 0;
		while (gradcomp_samples_class(s, classes))
			classes++;
		printf("%s: %llu sample%s, %s", format_name(gradcomp_samples_format(s)), (unsigned long long)n,
		       n == 1 ? "" : "s", gradcomp_size_text(bytes, text));
		printf(classes ? ", %u class%s\n" : "\n", classes, classes == 1 ? "" : "es");
	}
	return GRADCOMP_OK;
}

static int records_list(int argc, char **argv)
{
	const char *path = NULL;
	dataset_words w = {0};
	int json = 0, summary = 0;
	const command_option options[] = {
		{"--format", &w.format, NULL}, {"--suffixes", &w.suffixes, NULL}, {"--workers", &w.workers, NULL},
		{"--json", NULL, &json},       {"--summary", NULL, &summary},     {0},
	};
	gradcomp_samples *s = NULL;
	gradcomp_error err;
	int status = take_options(argc, argv, usage, options, &path, 1);
	if (status >= 0)
		return status;
	if (!path)
		return usage_error(usage, "records list needs a path");
	if ((status = open_dataset(usage, path, &w, &s, NULL)) >= 0)
		return status;
	status = list_all(s, path, json, summary, &err) ? failed(&err) : 0;
	gradcomp_samples_close(s);
	return status;
}

/* The part that is called so; without a name, the only one. */
static int find_part(const gradcomp_samples *s, uint64_t index, uint32_t nparts, const char *want, uint32_t *part)
{
	char key[NAME_BYTES], shown[NAME_BYTES], have[NAME_BYTES] = "";
	gradcomp_sample_info info = {.struct_size = sizeof info};
	const char *name;
	size_t n = 0;
	*part = 0;
	if (!want && nparts == 1)
		return -1;
	for (uint32_t i = 0; i < nparts; i++) {
		if (gradcomp_samples_part(s, index, i, &name, NULL, NULL))
			continue;
		if (want && !strcmp(name, want)) {
			*part = i;
			return -1;
		}
		if (n < sizeof have)
			n += (size_t)snprintf(have + n, sizeof have - n, "%s%s", i ? ", " : "",
			                      *name ? gradcomp_printable(name, shown, sizeof shown) : "''");
	}
	gradcomp_samples_info(s, index, &info, NULL);
	fprintf(stderr, "gradcomp: sample %llu (%s) has the parts %s; %s\n", (unsigned long long)index,
	        gradcomp_printable(info.key, key, sizeof key), have, want ? "not this one" : "say which");
	return 1;
}

static int records_cat(int argc, char **argv)
{
	const char *words[3] = {0};
	dataset_words w = {0};
	const command_option options[] = {{"--format", &w.format, NULL},
	                                  {"--suffixes", &w.suffixes, NULL},
	                                  {"--workers", &w.workers, NULL},
	                                  {0}};
	gradcomp_samples *s;
	gradcomp_error err;
	sample_part p;
	sample got = {0};
	char name[NAME_BYTES];
	uint32_t part;
	int64_t n;
	int status = take_options(argc, argv, usage, options, words, 3);
	if (status >= 0)
		return status;
	if (!words[1])
		return usage_error(usage, "records cat needs a path and a number");
	if (number_int(words[1], &n) != NUMBER_OK || n < 0)
		return usage_error(usage, "'%s' is no number of a sample",
		                   gradcomp_printable(words[1], name, sizeof name));
	if ((status = open_dataset(usage, words[0], &w, &s, NULL)) >= 0)
		return status;
	if (sample_read(s, (uint64_t)n, &got, &err)) {
		status = failed(&err);
	} else if ((status = find_part(s, (uint64_t)n, got.info.nparts, words[2], &part)) < 0) {
		p = got.parts[part];
		/* main() looks whether stdout took it. */
		fwrite(p.data, 1, p.bytes, stdout);
		status = 0;
	}
	sample_free(&got);
	gradcomp_samples_close(s);
	return status;
}

int cmd_records(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
	} parts[] = {
		{"pack", records_pack},
		{"list", records_list},
		{"verify", records_verify},
		{"cat", records_cat},
	};
	const char *what = argc > 1 ? argv[1] : "";
	char name[NAME_BYTES];
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
		if (!strcmp(what, parts[i].name))
			return parts[i].run(argc - 1, argv + 1);
	if (!strcmp(what, "--help") || !strcmp(what, "-h"))
		return usage_help(usage);
	return usage_error(usage, *what ? "records: there is no '%s'" : "records needs to be told what to do%s",
	                   gradcomp_printable(what, name, sizeof name));
}
