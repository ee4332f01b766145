/* gradcomp list: plugins and their parameters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "json.h"

static const char usage[] = "usage: gradcomp list [--json] [NAME]\n"
			    "\n"
			    "Prints the plugins on the plugin path (all, or those called NAME), their\n"
			    "parameters, and for those that cannot be used the reason.\n";

typedef struct writer {
	json j;
	const char *only;
	int found, unusable;
} writer;

static void write_bound(json *j, const char *key, const gradcomp_param *row, double bound)
{
	int numeric = row->type == GRADCOMP_PARAM_INT || row->type == GRADCOMP_PARAM_FLOAT ||
	              row->type == GRADCOMP_PARAM_SIZE;

	if (numeric && row->min != row->max)
		json_float(j, key, bound);
	else
		json_null(j, key);
}

static void write_param(json *j, const gradcomp_param *row)
{
	static const char *const types[] = {"int", "float", "bool", "size", "choice", "string"};

	json_object(j, NULL);
	json_string(j, "name", row->name);
	json_string(j, "type", types[row->type]);
	json_string(j, "default", row->def);
	write_bound(j, "min", row, row->min);
	write_bound(j, "max", row, row->max);
	json_array(j, "choices");
	for (int i = 0; row->type == GRADCOMP_PARAM_CHOICE && row->choices[i]; i++)
		json_string(j, NULL, row->choices[i]);
	json_end(j);
	json_string(j, "help", row->help);
	json_end(j);
}

static int write_plugin(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                        const char *reason)
{
	writer *w = ctx;
	json *j = &w->j;

	if (w->only && strcmp(w->only, name))
		return 0;
	w->found++;
	w->unusable += !info;
	json_object(j, NULL);
	json_string(j, "name", name);
	json_string(j, "path", path);
	json_bool(j, "usable", info != NULL);
	if (info) {
		json_uint(j, "abi", info->abi_version);
		json_string(j, "version", info->version);
		json_string(j, "summary", info->summary);
		json_string(j, "licence", info->licence);
		json_array(j, "parameters");
		for (uint32_t i = 0; i < info->nparams; i++)
			write_param(j, &info->params[i]);
		json_end(j);
	} else {
		json_string(j, "reason", reason);
	}
	json_end(j);
	return 0;
}

static gradcomp_status write_all(FILE *f, writer *w, gradcomp_error *err)
{
	int status;

	json_start(&w->j, f);
	json_object(&w->j, NULL);
	json_string(&w->j, "gradcomp", gradcomp_version());
	json_uint(&w->j, "abi", GRADCOMP_ABI_VERSION);
	json_array(&w->j, "compressors");
	status = gradcomp_plugin_each(GRADCOMP_KIND_COMPRESSOR, write_plugin, w, err);
	json_end(&w->j);
	json_array(&w->j, "collectives");
	if (!status)
		status = gradcomp_plugin_each(GRADCOMP_KIND_COLLECTIVE, write_plugin, w, err);
	json_end(&w->j);
	json_end(&w->j);
	json_finish(&w->j);
	return (gradcomp_status)status;
}

static gradcomp_status list_json(writer *w, gradcomp_error *err)
{
	char *text = NULL;
	gradcomp_status status;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);

	if (!f) {
		*err = (gradcomp_error){.status = GRADCOMP_ERR_NOMEM};
		return GRADCOMP_ERR_NOMEM;
	}
	status = write_all(f, w, err);
	fclose(f);
	if (!status)
		fputs(text, stdout);
	free(text);
	return status;
}

int cmd_list(int argc, char **argv)
{
	const char *words[1] = {NULL};
	int as_json = 0, status;
	const command_option options[] = {{"--json", NULL, &as_json}, {NULL, NULL, NULL}};
	gradcomp_error err;
	writer w = {.only = NULL};

	status = take_options(argc, argv, usage, options, words, 1);
	if (status >= 0)
		return status;
	w.only = words[0];
	if (as_json ? list_json(&w, &err) : print_plugins(w.only, &w.found, &w.unusable, &err))
		return failed(&err);
	if (!w.only)
		return 0;
	if (!w.found) {
		fprintf(stderr, "gradcomp: no plugin is called '%s'; gradcomp list prints all\n", w.only);
		return 1;
	}
	return w.unusable ? 1 : 0;
}
