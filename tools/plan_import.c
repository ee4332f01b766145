/* Models of other programs, by file or by folder. */
#include "tools/plan.h"

#include <string.h>
#include <sys/stat.h>

#include "base/error.h"

static bool has_ending(const char *path, const char *ending)
{
	size_t n = strlen(path), m = strlen(ending);
	return n > m && !strcmp(path + n - m, ending);
}

bool plan_imports(const char *path)
{
	struct stat s;
	return has_ending(path, ".json") || has_ending(path, ".safetensors") || (!stat(path, &s) && S_ISDIR(s.st_mode));
}

#ifdef HAVE_JANSSON
#include <errno.h>
#include <stdlib.h>

#include "config/record_io.h"
#include "cost/machine.h"
#include "gradcomp/stage.h"
#include "tools/plan_import.h"

#define INDEX "model.safetensors.index.json"
#define FILE_MOST (100 << 20) /* bytes of JSON, as of the header of a safetensors file */

/* Loads an object; NULL after an error. */
static json_t *load(const char *path, gradcomp_error *err)
{
	char name[300], text[200];
	json_error_t why;
	json_t *root;
	struct stat s;
	gradcomp_printable(path, name, sizeof name);
	if (stat(path, &s)) {
		error_errno(err, errno == ENOENT ? GRADCOMP_ERR_NOTFOUND : GRADCOMP_ERR_IO, "model %s", name);
		return NULL;
	}
	if (!S_ISREG(s.st_mode) || s.st_size > FILE_MOST) {
		error_set(err, GRADCOMP_ERR_INVALID, "model %s: this is no file, or has more than %d MiB", name,
		          FILE_MOST >> 20);
		return NULL;
	}
	root = json_load_file(path, 0, &why);
	if (json_is_object(root))
		return root;
	error_set(err, GRADCOMP_ERR_INVALID, "model %s:%d: %s", name, root ? 1 : why.line,
	          root ? "this is JSON, but no object" : gradcomp_printable(why.text, text, sizeof text));
	json_decref(root);
	return NULL;
}

static char *beside(const char *path, const char *name)
{
	const char *slash = strrchr(path, '/');
	char *whole;
	return asprintf(&whole, "%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, name) < 0 ? NULL : whole;
}

/* Reads the configuration that lies beside, if there is one. */
static gradcomp_status active_of(const plan_import *to, double *active)
{
	char *path = beside(to->path, "config.json");
	gradcomp_status st = GRADCOMP_OK;
	struct stat s;
	*active = -1;
	if (path && !stat(path, &s)) {
		json_t *config = load(path, to->err);

		st = config ? GRADCOMP_OK : to->err->status;
		*active = config ? plan_config_active(config) : -1;
		json_decref(config);
	}
	free(path);
	return st;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The files of an index: each once. */
static gradcomp_status index_files(plan_import *to, const json_t *index, bool timed)
{
	json_t *map = json_object_get(index, "weight_map"), *value;
	size_t n = 0, unique = 0, most = json_object_size(map);
	char **file = calloc(most ? most : 1, sizeof *file), shown[200];
	gradcomp_status st = file ? GRADCOMP_OK : error_set(to->err, GRADCOMP_ERR_NOMEM, "%s: no memory", to->path);
	const char *key;
	double active;
	json_object_foreach(map, key, value)
	{
		const char *name = json_string_value(value);

		if (st)
			break;
		if (!name || !*name || strchr(name, '/'))
			st = error_set(to->err, GRADCOMP_ERR_INVALID,
			               "%s: the weight_map of '%s' is no name of a file beside it", to->path,
			               gradcomp_printable(key, shown, sizeof shown));
		else if (n && !strcmp(strrchr(file[n - 1], '/') ? strrchr(file[n - 1], '/') + 1 : file[n - 1], name))
			continue;
		else if (!(file[n++] = beside(to->path, name)))
			st = error_set(to->err, GRADCOMP_ERR_NOMEM, "%s: no memory", to->path);
	}
	if (!st) {
		qsort(file, n, sizeof *file, by_name);
		for (size_t i = 0; i < n; i++) {
			if (unique && !strcmp(file[unique - 1], file[i]))
				free(file[i]);
			else
				file[unique++] = file[i];
		}
		n = unique;
		st = active_of(to, &active);
	}
	if (!st)
		st = plan_safetensors(to, file, n, active, timed);
	for (size_t i = 0; file && i < n; i++)
		free(file[i]);
	free(file);
	return st;
}

static gradcomp_status import_json(plan_import *to, bool timed)
{
	json_t *root = load(to->path, to->err);
	gradcomp_status st;
	if (!root)
		return to->err->status;
	if (json_object_get(root, "traceEvents"))
		st = error_set(to->err, GRADCOMP_ERR_INVALID, "model %s: this is a trace; give it with --kineto",
		               to->path);
	else
		st = json_object_get(root, "weight_map") ? index_files(to, root, timed) : plan_config(to, root);
	json_decref(root);
	return st;
}

/* The file of a folder that says most: exact names before what a configuration says. */
static gradcomp_status in_folder(const char *folder, char **path, gradcomp_error *err)
{
	static const char *const names[] = {INDEX, "model.safetensors", "adapter_model.safetensors", "config.json"};
	char shown[300];
	struct stat s;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		if (asprintf(path, "%s/%s", folder, names[i]) < 0) {
			*path = NULL;
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a path");
		}
		if (!stat(*path, &s))
			return GRADCOMP_OK;
		free(*path);
		*path = NULL;
	}
	return error_set(err, GRADCOMP_ERR_NOTFOUND,
	                 "model %s: the folder has neither " INDEX ", model.safetensors nor config.json",
	                 gradcomp_printable(folder, shown, sizeof shown));
}

/* The last word of the path that is no general name of a file: model files have a name of one word. */
static void name_model(model_file *m, const char *path)
{
	const char *end = path + strlen(path), *from;
	for (;;) {
		while (end > path && end[-1] == '/')
			end--;
		for (from = end; from > path && from[-1] != '/';)
			from--;
		if (from == path || (strncmp(from, "model.", 6) && strncmp(from, "config.json", 11) &&
		                     strncmp(from, "adapter_model.", 14)))
			break;
		end = from;
	}
	snprintf(m->name, sizeof m->name, "%.*s", (int)(end - from), from);
	for (char *c = m->name; *c; c++)
		if (*c <= ' ' || *c >= 0x7f)
			*c = '_';
	if (!*m->name)
		snprintf(m->name, sizeof m->name, "model");
}

/* Gives the model away, when it is right. */
static gradcomp_status finish(plan_import *to, gradcomp_status st, model_file **out)
{
	if (!st)
		st = model_check(to->m, to->err);
	if (st)
		model_file_free(to->m);
	else
		*out = to->m;
	return st;
}

gradcomp_status plan_import_kineto(const char *path, const char *names, model_file **out, gradcomp_error *err)
{
	plan_import to = {.m = calloc(1, sizeof *to.m), .path = path, .err = err};
	if (!to.m)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a model");
	name_model(to.m, path);
	return finish(&to, plan_kineto(&to, names), out);
}

gradcomp_status plan_import_model(const char *path, uint64_t tokens, bool timed, model_file **out, gradcomp_error *err)
{
	plan_import to = {.m = calloc(1, sizeof *to.m), .path = path, .tokens = tokens, .err = err};
	char *inside = NULL;
	gradcomp_status st = GRADCOMP_OK;
	struct stat s;
	if (!to.m)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a model");
	if (!stat(path, &s) && S_ISDIR(s.st_mode)) {
		st = in_folder(path, &inside, err);
		to.path = inside;
	}
	if (!st) {
		double active = 1;

		name_model(to.m, to.path);
		to.m->batch = 1;
		if (!has_ending(to.path, ".safetensors"))
			st = import_json(&to, timed);
		else if (!(st = active_of(&to, &active)))
			st = plan_safetensors(&to, (char *[]){(char *)(uintptr_t)to.path}, 1, active, timed);
	}
	for (uint32_t i = 0; i < to.m->nlayers; i++)
		to.m->layers[i].ntensors =
			(i + 1 < to.m->nlayers ? to.m->layers[i + 1].first : to.m->ntensors) - to.m->layers[i].first;
	st = finish(&to, st, out);
	free(inside);
	return st;
}
#else
gradcomp_status plan_import_kineto(const char *path, const char *names, model_file **out, gradcomp_error *err)
{
	(void)names;
	(void)out;
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "trace %s: gradcomp was built without jansson, which reads it; give a model file", path);
}

gradcomp_status plan_import_model(const char *path, uint64_t tokens, bool timed, model_file **out, gradcomp_error *err)
{
	(void)tokens;
	(void)timed;
	(void)out;
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "model %s: gradcomp was built without jansson, which reads it; give a model file", path);
}
#endif
