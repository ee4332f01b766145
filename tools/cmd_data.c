/* gradcomp data: what a loader would see of a dataset. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "gradcomp/samples.h"
#include "gradcomp/stage.h"
#include "tools/commands.h"

static const char usage[] = "usage: gradcomp data check [OPTION]... PATH\n"
			    "What a loader would see of the dataset at PATH: a folder, a tar shard, a folder of\n"
			    "shards, or a list of shards (train-{000..099}.tar, train-*.tar, A.tar::B.tar): its\n"
			    "samples, their parts, labels and classes. What is refused is named, with what to\n"
			    "say instead, and what each folder in it would be.\n\n"
			    "  --format FORMAT  auto, folder or tar (auto)\n"
			    "  --suffixes LIST  of a folder only files that end so, as jpg/png\n"
			    "  --json           print an object\n\n"
			    "Exit status: 0 it can be read, 1 it cannot, 2 wrong usage.\n";

#define PARTS_MAX 32
#define NOTES_MAX 40
/* So many of a folder's samples are looked at: each is a file to open. */
#define LOOKED_AT 1000u
#define FOLDERS_SHOWN 16

struct part {
	char name[64];
	uint64_t samples, bytes;
	char lacking[120]; /* key of the first sample without it */
};

struct finding {
	uint64_t count, looked_at, bytes, unlabelled, empty;
	struct part parts[PARTS_MAX];
	int nparts;
	bool more_parts;
	uint64_t *of_class; /* samples by class */
	uint32_t nclasses;
	int32_t first_label, last_label;
	char notes[NOTES_MAX][300];
	int nnotes;
};

GRADCOMP_PRINTF(2, 3)
static void note(struct finding *f, const char *fmt, ...)
{
	va_list ap;
	if (f->nnotes == NOTES_MAX)
		return;
	va_start(ap, fmt);
	vsnprintf(f->notes[f->nnotes++], sizeof f->notes[0], fmt, ap);
	va_end(ap);
}

static struct part *find_part(struct finding *f, const char *name, uint64_t before, const char *first)
{
	char shown[64];
	gradcomp_printable(name, shown, sizeof shown);
	for (int i = 0; i < f->nparts; i++)
		if (!strcmp(f->parts[i].name, shown))
			return &f->parts[i];
	if (f->nparts == PARTS_MAX) {
		f->more_parts = true;
		return NULL;
	}
	struct part *p = &f->parts[f->nparts++];
	memcpy(p->name, shown, sizeof shown);
	if (before)
		gradcomp_printable(first, p->lacking, sizeof p->lacking);
	return p;
}

/* Reads what is short, which may be a pointer to the data; opens the rest. */
static gradcomp_status look_at(const gradcomp_samples *s, uint64_t i, const gradcomp_sample_info *info,
                               struct finding *f, const char *first, gradcomp_error *err)
{
	static char buf[1024];
	char key[120];
	for (uint32_t part = 0; part < info->nparts; part++) {
		const char *name;
		uint64_t bytes, got;
		gradcomp_status st = gradcomp_samples_part(s, i, part, &name, &bytes, err);

		if (!st && (st = gradcomp_samples_read(s, i, part, buf, sizeof buf, &got, err)) == GRADCOMP_ERR_RANGE)
			st = GRADCOMP_OK;
		if (st)
			return st;
		struct part *p = find_part(f, name, f->looked_at, first);
		if (p) {
			p->samples++;
			p->bytes += bytes;
		}
		if (!bytes && !f->empty++)
			note(f, "%s is empty", gradcomp_printable(info->key, key, sizeof key));
		if (!strcmp(name, "cls") && info->label < 0)
			note(f, "the part cls of %s is no number: it has no label",
			     gradcomp_printable(info->key, key, sizeof key));
		f->bytes += bytes;
	}
	for (int k = 0; k < f->nparts; k++)
		if (!*f->parts[k].lacking && f->parts[k].samples <= f->looked_at)
			gradcomp_printable(info->key, f->parts[k].lacking, sizeof f->parts[k].lacking);
	f->looked_at++;
	return GRADCOMP_OK;
}

static void take_label(struct finding *f, int32_t label)
{
	if (label < 0) {
		f->unlabelled++;
		return;
	}
	if (f->unlabelled == f->count || label < f->first_label)
		f->first_label = label;
	if (label > f->last_label)
		f->last_label = label;
	if ((uint32_t)label < f->nclasses)
		f->of_class[label]++;
}

static gradcomp_status look(const gradcomp_samples *s, struct finding *f, gradcomp_error *err)
{
	uint64_t n = gradcomp_samples_count(s);
	/* The parts of shards stand in their index; a folder's files are looked at here and there. */
	uint64_t most = gradcomp_samples_format(s) == GRADCOMP_SAMPLES_TAR ? n : LOOKED_AT;
	char first[120] = "";
	while (gradcomp_samples_class(s, f->nclasses))
		f->nclasses++;
	if (!(f->of_class = calloc(f->nclasses + 1, sizeof *f->of_class))) {
		*err = (gradcomp_error){.status = GRADCOMP_ERR_NOMEM};
		return GRADCOMP_ERR_NOMEM;
	}
	f->first_label = INT32_MAX;
	f->last_label = -1;
	for (uint64_t i = 0; i < n; i++, f->count++) {
		gradcomp_sample_info info = {.struct_size = offsetof(gradcomp_sample_info, bytes)};
		gradcomp_sample_info whole = {.struct_size = sizeof whole};
		bool chosen = n <= most || i * most / n != (i + 1) * most / n;
		gradcomp_status st = gradcomp_samples_info(s, i, chosen ? &whole : &info, err);

		if (st)
			return st;
		if (chosen) {
			if (!*first)
				gradcomp_printable(whole.key, first, sizeof first);
			if ((st = look_at(s, i, &whole, f, first, err)))
				return st;
		}
		take_label(f, chosen ? whole.label : info.label);
	}
	return GRADCOMP_OK;
}

static void make_notes(const gradcomp_samples *s, struct finding *f)
{
	char name[120];
	if (!f->count)
		note(f, "there is no sample");
	for (int i = 0; i < f->nparts; i++)
		if (f->parts[i].samples < f->looked_at)
			note(f, "%llu of %llu samples have no part %s; the first is %s",
			     (unsigned long long)(f->looked_at - f->parts[i].samples), (unsigned long long)f->looked_at,
			     f->parts[i].name, f->parts[i].lacking);
	if (f->empty > 1)
		note(f, "%llu parts are empty", (unsigned long long)f->empty);
	for (uint32_t i = 0; i < f->nclasses; i++)
		if (!f->of_class[i])
			note(f, "the class %s has no sample",
			     gradcomp_printable(gradcomp_samples_class(s, i), name, sizeof name));
	if (f->more_parts)
		note(f, "there are more than %d kinds of parts", PARTS_MAX);
}

static const char *format_name(const gradcomp_samples *s)
{
	return gradcomp_samples_format(s) == GRADCOMP_SAMPLES_TAR ? "tar" : "folder";
}

static void show_classes(const gradcomp_samples *s, const struct finding *f)
{
	uint64_t least = UINT64_MAX, most = 0;
	char a[120], b[120];
	for (uint32_t i = 0; i < f->nclasses; i++) {
		least = f->of_class[i] < least ? f->of_class[i] : least;
		most = f->of_class[i] > most ? f->of_class[i] : most;
	}
	printf("classes: %u, %s%s%s, %llu", f->nclasses, gradcomp_printable(gradcomp_samples_class(s, 0), a, sizeof a),
	       f->nclasses > 2   ? " ... "
	       : f->nclasses > 1 ? " "
	                         : "",
	       f->nclasses > 1 ? gradcomp_printable(gradcomp_samples_class(s, f->nclasses - 1), b, sizeof b) : "",
	       (unsigned long long)least);
	if (most > least)
		printf(" to %llu", (unsigned long long)most);
	puts(" samples each");
}

static void show(const char *path, const gradcomp_samples *s, const struct finding *f)
{
	char name[200], size[32];
	printf("%s: %s, %llu samples\n", gradcomp_printable(path, name, sizeof name),
	       gradcomp_samples_format(s) == GRADCOMP_SAMPLES_TAR ? "tar shards" : "a folder of files",
	       (unsigned long long)f->count);
	for (int i = 0; i < f->nparts; i++)
		printf("part %s: %llu samples, %s\n", *f->parts[i].name ? f->parts[i].name : "\"\"",
		       (unsigned long long)f->parts[i].samples, gradcomp_size_text(f->parts[i].bytes, size));
	if (f->looked_at < f->count)
		printf("sizes are those of %llu samples that were looked at\n", (unsigned long long)f->looked_at);
	if (f->nclasses)
		show_classes(s, f);
	if (f->last_label >= 0)
		printf("labels: %d to %d, %llu samples without\n", f->first_label, f->last_label,
		       (unsigned long long)f->unlabelled);
	else
		puts("labels: none");
	for (int i = 0; i < f->nnotes; i++)
		printf("note: %s\n", f->notes[i]);
}

static void show_json(const char *path, const gradcomp_samples *s, const struct finding *f)
{
	jsonw j;
	json_put_start(&j, stdout);
	json_put_object(&j, NULL);
	json_put_string(&j, "path", path);
	json_put_string(&j, "format", format_name(s));
	json_put_uint(&j, "samples", f->count);
	json_put_uint(&j, "looked_at", f->looked_at);
	json_put_uint(&j, "bytes", f->bytes);
	json_put_uint(&j, "without_label", f->unlabelled);
	json_put_array(&j, "parts");
	for (int i = 0; i < f->nparts; i++) {
		json_put_object(&j, NULL);
		json_put_string(&j, "name", f->parts[i].name);
		json_put_uint(&j, "samples", f->parts[i].samples);
		json_put_uint(&j, "bytes", f->parts[i].bytes);
		json_put_end(&j);
	}
	json_put_end(&j);
	json_put_array(&j, "classes");
	for (uint32_t i = 0; i < f->nclasses; i++) {
		json_put_object(&j, NULL);
		json_put_string(&j, "name", gradcomp_samples_class(s, i));
		json_put_uint(&j, "samples", f->of_class[i]);
		json_put_end(&j);
	}
	json_put_end(&j);
	json_put_array(&j, "notes");
	for (int i = 0; i < f->nnotes; i++)
		json_put_string(&j, NULL, f->notes[i]);
	json_put_end(&j);
	json_put_end(&j);
	json_put_finish(&j);
}

/* Shows what the folders of a dataset that was refused would be: it may be a root above splits. */
static void show_folders(const char *path)
{
	struct dirent **names;
	int n = scandir(path, &names, NULL, alphasort), shown = 0;
	for (int i = 0; i < n; i++) {
		char *below, name[200];
		gradcomp_samples *s = NULL;
		gradcomp_error err;
		struct stat st;

		if (names[i]->d_name[0] != '.' && shown < FOLDERS_SHOWN &&
		    asprintf(&below, "%s/%s", path, names[i]->d_name) > 0) {
			if (!stat(below, &st) && S_ISDIR(st.st_mode) && !gradcomp_samples_open(below, NULL, &s, &err)) {
				printf("%s: %s, %llu samples\n", gradcomp_printable(below, name, sizeof name),
				       gradcomp_samples_format(s) == GRADCOMP_SAMPLES_TAR ? "tar shards"
				                                                          : "a folder of files",
				       (unsigned long long)gradcomp_samples_count(s));
				shown++;
			}
			gradcomp_samples_close(s);
			free(below);
		}
		free(names[i]);
	}
	if (n >= 0)
		free(names);
}

static int check(const char *path, const char *format, const char *suffixes, bool json)
{
	static const char *const formats[] = {
		[GRADCOMP_SAMPLES_AUTO] = "auto", [GRADCOMP_SAMPLES_FOLDER] = "folder", [GRADCOMP_SAMPLES_TAR] = "tar"};
	static struct finding f;
	gradcomp_samples_options o = {.struct_size = sizeof o, .suffixes = suffixes};
	gradcomp_samples *s = NULL;
	gradcomp_error err = {0};
	int number = 0;
	while (format && number < 3 && strcmp(formats[number], format) != 0)
		number++;
	if (number == 3)
		return command_usage_value(usage, "--format", format, "it can be auto, folder or tar");
	o.format = (gradcomp_sample_format)number;
	gradcomp_status st = gradcomp_samples_open(path, &o, &s, &err);
	if (st == GRADCOMP_ERR_INVALID && !json)
		show_folders(path);
	if (!st && !(st = look(s, &f, &err))) {
		make_notes(s, &f);
		if (json)
			show_json(path, s, &f);
		else
			show(path, s, &f);
	}
	free(f.of_class);
	gradcomp_samples_close(s);
	return st ? command_failed(&err) : 0;
}

int cmd_data(int argc, char **argv)
{
	const char *words[2] = {NULL}, *format = NULL, *suffixes = NULL;
	int json = 0;
	const command_option options[] = {
		{"--format", &format, NULL}, {"--json", NULL, &json}, {"--suffixes", &suffixes, NULL}, {0}};
	int status = command_take_options(argc, argv, usage, options, words, 2);
	if (status >= 0)
		return status;
	if (!words[0] || strcmp(words[0], "check") != 0)
		return command_usage_error(usage, "data: there is one thing to do, check%s%s", words[0] ? ", not " : "",
		                           words[0] ? words[0] : "");
	if (!words[1])
		return command_usage_error(usage, "data check needs a path");
	return check(words[1], format, suffixes, json);
}
