/* Machine, model and plan files of a test's own making, and in which words they are refused. */
#ifndef TESTS_SUPPORT_REFUSED_FILE_H
#define TESTS_SUPPORT_REFUSED_FILE_H

#include "cost/planning.h"
#include "schedule/plan_file.h"

#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

static char path[128];
static gradcomp_error e;

static void refused_file_make(void)
{
	tmpdir_make("model");
	snprintf(path, sizeof path, "%s/file", tmpdir);
}

static void put(const char *text, size_t bytes)
{
	FILE *f = fopen(path, "w");
	if (!f || fwrite(text, 1, bytes, f) != bytes || fclose(f))
		printf("Bail out! %s cannot be written\n", path);
}

typedef enum kind { MACHINE, MODEL, PLAN } kind;

static gradcomp_status read_it(kind k)
{
	machine_file *machine;
	model_file *model;
	plan_file plan;
	gradcomp_status st;
	memset(&e, 0, sizeof e);
	switch (k) {
	case MACHINE:
		st = machine_file_read(path, &machine, &e);
		if (!st)
			machine_file_free(machine);
		return st;
	case MODEL:
		st = model_file_read(path, &model, &e);
		if (!st)
			model_file_free(model);
		return st;
	default:
		st = plan_file_read(path, &plan, &e);
		if (!st)
			plan_file_clear(&plan);
		return st;
	}
}

/* `good` with `from` replaced by `to` is refused in these words; `from` "" stands for the end. */
typedef struct bad {
	const char *from, *to, *words;
} bad;

static void all_refused(kind k, const char *name, const char *good, const bad *list, size_t n)
{
	put(good, strlen(good));
	if (!is_int(read_it(k), 0, "%s: a good one", name))
		printf("# %s\n", e.text);
	for (size_t i = 0; i < n; i++) {
		const char *at = *list[i].from ? strstr(good, list[i].from) : good + strlen(good);
		char text[4000], place[200];
		int refused;

		if (!at) {
			ok(0, "'%s' is not in the text", list[i].from);
			continue;
		}
		snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, list[i].to, at + strlen(list[i].from));
		put(text, strlen(text));
		refused = read_it(k) == GRADCOMP_ERR_INVALID;
		snprintf(place, sizeof place, "%s:", path);
		if (!ok(refused && !strncmp(e.text, place, strlen(place)) && strstr(e.text, list[i].words), "%s: %.40s",
		        name, *list[i].words ? list[i].words : list[i].to))
			printf("# %s\n# for: %s\n", e.text, list[i].to);
	}
}

#endif
