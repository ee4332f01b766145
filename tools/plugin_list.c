/* Plugins as text for people. */
#include <string.h>

#include "tools/commands.h"

enum { RECOMMENDED, OTHERS, CLASSIC, GROUPS };

/* Users choose among the recommended compressors. The classic ones are for comparisons with their papers. One that is
 * not here, a plugin of somebody else's too, stands between them. */
static const struct {
	const char *name;
	int group;
} judged[] = {
	{"block", RECOMMENDED}, {"blocktopk", RECOMMENDED}, {"cast", RECOMMENDED},     {"fp8", RECOMMENDED},
	{"gtopk", CLASSIC},     {"lags", CLASSIC},          {"lqsgd", CLASSIC},        {"mstopk", CLASSIC},
	{"natural", CLASSIC},   {"onebit", CLASSIC},        {"powersgd", RECOMMENDED}, {"randomk", CLASSIC},
	{"signsgd", CLASSIC},   {"terngrad", CLASSIC},      {"threshold", CLASSIC},    {"topk", RECOMMENDED},
	{"zfp", CLASSIC},
};

static const char *const group_names[GROUPS] = {[RECOMMENDED] = "recommended", [CLASSIC] = "classic"};

typedef struct listing {
	const char *only;
	const char *title; /* not printed yet */
	int group;         /* of compressors; GROUPS: all */
	int found, unusable;
} listing;

static int group_of(const char *name)
{
	for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
		if (!strcmp(judged[i].name, name))
			return judged[i].group;
	return OTHERS;
}

const char *plugin_list_group(const char *name)
{
	return group_names[group_of(name)];
}

static void print_params(const gradcomp_plugin_info *info)
{
	char row[300];
	size_t width = 0;
	for (uint32_t i = 0; i < info->nparams; i++) {
		gradcomp_param_text(&info->params[i], row, sizeof row);
		if (strlen(row) > width && strlen(row) <= 44)
			width = strlen(row);
	}
	for (uint32_t i = 0; i < info->nparams; i++) {
		gradcomp_param_text(&info->params[i], row, sizeof row);
		printf("      %-*s  %s\n", (int)width, row, info->params[i].help);
	}
}

static int print_plugin(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                        const char *reason)
{
	listing *l = ctx;
	(void)path;
	if ((l->only && strcmp(l->only, name)) || (l->group != GROUPS && l->group != group_of(name)))
		return 0;
	if (l->title)
		puts(l->title);
	l->title = NULL;
	l->found++;
	if (info) {
		printf("  %-12s %s (version %s, %s)\n", name, info->summary, info->version, info->licence);
		print_params(info);
	} else {
		printf("  %-12s cannot be used: %s\n", name, reason);
		l->unusable++;
	}
	return 0;
}

gradcomp_status plugin_list_print(const char *only, int *found, int *unusable, gradcomp_error *err)
{
	static const struct {
		const char *title;
		gradcomp_plugin_kind kind;
		int group;
	} parts[] = {
		{"compressors to choose among", GRADCOMP_KIND_COMPRESSOR, RECOMMENDED},
		{"other compressors", GRADCOMP_KIND_COMPRESSOR, OTHERS},
		{"classic compressors, to compare with their papers", GRADCOMP_KIND_COMPRESSOR, CLASSIC},
		{"collectives", GRADCOMP_KIND_COLLECTIVE, GROUPS},
	};
	const gradcomp_plugin_info *info = gradcomp_auto_info();
	listing l = {.only = only};
	int status = 0;
	for (size_t i = 0; i < sizeof parts / sizeof *parts && !status; i++) {
		const int before = l.found;
		l.title = parts[i].title;
		l.group = parts[i].group;
		status = gradcomp_plugin_each(parts[i].kind, print_plugin, &l, err);
		if (!status && !only && !l.found && l.group == CLASSIC)
			puts("compressors\n  none is installed");
		if (!status && !only && l.found == before && l.group == GROUPS)
			puts("collectives\n  none is installed");
	}
	if (!status) {
		l.title = "chosen while the job runs, in place of a compressor";
		l.group = GROUPS;
		print_plugin(&l, info->name, "", info, NULL);
	}
	*found = l.found;
	*unusable = l.unusable;
	return (gradcomp_status)status;
}
