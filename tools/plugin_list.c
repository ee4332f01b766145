/* Plugins as text for people. */
#include <string.h>

#include "tools/commands.h"

typedef struct listing {
	const char *only;
	const char *title; /* not printed yet */
	int found, unusable;
} listing;

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
	if (l->only && strcmp(l->only, name))
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
	static const char *const titles[] = {"compressors", "collectives"};
	listing l = {.only = only};
	int status = 0;
	for (int kind = GRADCOMP_KIND_COMPRESSOR; kind <= GRADCOMP_KIND_COLLECTIVE && !status; kind++) {
		int before = l.found;

		l.title = titles[kind];
		status = gradcomp_plugin_each((gradcomp_plugin_kind)kind, print_plugin, &l, err);
		if (!status && !only && l.found == before)
			printf("%s\n  none is installed\n", titles[kind]);
	}
	if (!status) {
		const gradcomp_plugin_info *info = gradcomp_auto_info();

		l.title = "chosen while the job runs, in place of a compressor";
		print_plugin(&l, info->name, "", info, NULL);
	}
	*found = l.found;
	*unusable = l.unusable;
	return (gradcomp_status)status;
}
