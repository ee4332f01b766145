/* gradcomp list: plugins and their parameters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands.h"
#include "base/json.h"
#include "base/suggest.h"

static const char usage[] = "usage: gradcomp list [--json] [NAME]\n"
			    "       gradcomp list --pairs\n"
			    "\n"
			    "Prints the plugins on the plugin path (all, or those called NAME), their\n"
			    "parameters, and for those that cannot be used the reason. Compressors to choose\n"
			    "among come first, classic ones last. With --pairs: which collective carries which\n"
			    "payloads, and which payloads a compressor has.\n";

typedef struct writer {
	jsonw j;
	const char *only;
	gradcomp_plugin_kind kind;
	int found, unusable;
} writer;

static void write_bound(jsonw *j, const char *key, const gradcomp_param *row, double bound)
{
	int numeric = row->type == GRADCOMP_PARAM_INT || row->type == GRADCOMP_PARAM_FLOAT ||
	              row->type == GRADCOMP_PARAM_SIZE;
	if (numeric && row->min != row->max)
		json_put_float(j, key, bound);
	else
		json_put_null(j, key);
}

static void write_param(jsonw *j, const gradcomp_param *row)
{
	static const char *const types[] = {
		[GRADCOMP_PARAM_INT] = "int",   [GRADCOMP_PARAM_FLOAT] = "float",   [GRADCOMP_PARAM_BOOL] = "bool",
		[GRADCOMP_PARAM_SIZE] = "size", [GRADCOMP_PARAM_CHOICE] = "choice", [GRADCOMP_PARAM_STRING] = "string"};
	json_put_object(j, NULL);
	json_put_string(j, "name", row->name);
	json_put_string(j, "type", types[row->type]);
	json_put_string(j, "default", row->def);
	write_bound(j, "min", row, row->min);
	write_bound(j, "max", row, row->max);
	json_put_array(j, "choices");
	for (int i = 0; row->type == GRADCOMP_PARAM_CHOICE && row->choices[i]; i++)
		json_put_string(j, NULL, row->choices[i]);
	json_put_end(j);
	json_put_string(j, "help", row->help);
	json_put_end(j);
}

static int write_plugin(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                        const char *reason)
{
	writer *w = ctx;
	jsonw *j = &w->j;
	if (w->only && strcmp(w->only, name))
		return 0;
	w->found++;
	w->unusable += !info;
	json_put_object(j, NULL);
	json_put_string(j, "name", name);
	json_put_string(j, "path", path);
	json_put_bool(j, "usable", info != NULL);
	if (w->kind == GRADCOMP_KIND_COMPRESSOR)
		json_put_string(j, "group", plugin_list_group(name));
	if (info) {
		json_put_uint(j, "abi", info->abi_version);
		json_put_string(j, "version", info->version);
		json_put_string(j, "summary", info->summary);
		json_put_string(j, "licence", info->licence);
		json_put_array(j, "parameters");
		for (uint32_t i = 0; i < info->nparams; i++)
			write_param(j, &info->params[i]);
		json_put_end(j);
	} else {
		json_put_string(j, "reason", reason);
	}
	json_put_end(j);
	return 0;
}

/* Lists what stands where a compressor does and is no plugin. */
static void write_auto(writer *w)
{
	const gradcomp_plugin_info *info = gradcomp_auto_info();
	jsonw *j = &w->j;
	w->found++;
	json_put_object(j, "auto");
	json_put_string(j, "name", info->name);
	json_put_string(j, "summary", info->summary);
	json_put_array(j, "parameters");
	for (uint32_t i = 0; i < info->nparams; i++)
		write_param(j, &info->params[i]);
	json_put_end(j);
	json_put_end(j);
}

static gradcomp_status write_all(FILE *f, writer *w, gradcomp_error *err)
{
	int status;
	json_put_start(&w->j, f);
	json_put_object(&w->j, NULL);
	json_put_string(&w->j, "gradcomp", gradcomp_version());
	json_put_uint(&w->j, "abi", GRADCOMP_ABI_VERSION);
	json_put_array(&w->j, "compressors");
	w->kind = GRADCOMP_KIND_COMPRESSOR;
	status = gradcomp_plugin_each(w->kind, write_plugin, w, err);
	json_put_end(&w->j);
	json_put_array(&w->j, "collectives");
	w->kind = GRADCOMP_KIND_COLLECTIVE;
	if (!status)
		status = gradcomp_plugin_each(w->kind, write_plugin, w, err);
	json_put_end(&w->j);
	if (!w->only || !strcmp(w->only, gradcomp_auto_info()->name))
		write_auto(w);
	json_put_end(&w->j);
	json_put_finish(&w->j);
	return (gradcomp_status)status;
}

static gradcomp_status list_json(writer *w, gradcomp_error *err)
{
	char *text = NULL;
	gradcomp_status st;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	if (!f) {
		*err = (gradcomp_error){.status = GRADCOMP_ERR_NOMEM};
		return GRADCOMP_ERR_NOMEM;
	}
	st = write_all(f, w, err);
	fclose(f);
	if (!st)
		fputs(text, stdout);
	free(text);
	return st;
}

static int try_name(void *near, const char *name, const char *path, const gradcomp_plugin_info *info,
                    const char *reason)
{
	(void)path, (void)info, (void)reason;
	suggest_try(near, name);
	return 0;
}

static int no_such(const char *name)
{
	suggest near;
	suggest_start(&near, name);
	for (int kind = GRADCOMP_KIND_COMPRESSOR; kind <= GRADCOMP_KIND_COLLECTIVE; kind++)
		gradcomp_plugin_each((gradcomp_plugin_kind)kind, try_name, &near, NULL);
	suggest_try(&near, gradcomp_auto_info()->name);
	fprintf(stderr, "gradcomp: no plugin is called '%s'%s; gradcomp list prints all\n", name, suggest_text(&near));
	return 1;
}

int cmd_list(int argc, char **argv)
{
	const char *words[1] = {NULL};
	int as_json = 0, pairs = 0, status;
	const command_option options[] = {{"--json", NULL, &as_json}, {"--pairs", NULL, &pairs}, {NULL, NULL, NULL}};
	gradcomp_error err;
	writer w = {.only = NULL};
	status = command_take_options(argc, argv, usage, options, words, 1);
	if (status >= 0)
		return status;
	if (pairs && (as_json || words[0]))
		return command_usage_error(usage, "list: --pairs stands alone");
	if (pairs)
		return compat_print(&err) ? command_failed(&err) : 0;
	w.only = words[0];
	if (as_json ? list_json(&w, &err) : plugin_list_print(w.only, &w.found, &w.unusable, &err))
		return command_failed(&err);
	if (!w.only)
		return 0;
	return w.found ? w.unusable > 0 : no_such(w.only);
}
