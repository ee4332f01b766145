/* Models by file or by name: those that are installed are in DATADIR/gradcomp/models, or
 * where GRADCOMP_MODELS says. */
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/install.h"
#include "tools/commands.h"
#include "gradcomp/stage.h"
#include "tools/plan.h"

#define SUFFIX ".model"

/* Every installed model's path, sorted. 0, or as glob(3). */
static int find_models(glob_t *found)
{
	char pattern[8192];
	size_t n = 0;
	/* The folder's own name is no pattern. */
	for (const char *c = plan_models_folder(); *c && n < sizeof pattern / 2; c++) {
		if (strchr("*?[\\", *c))
			pattern[n++] = '\\';
		pattern[n++] = *c;
	}
	snprintf(pattern + n, sizeof pattern - n, "/*" SUFFIX);
	return glob(pattern, 0, NULL, found);
}

/* "a/b/resnet50.model" -> resnet50, of `length` characters. */
static const char *model_name(const char *path, int *length)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	*length = (int)(strlen(name) - strlen(SUFFIX));
	return name;
}

static gradcomp_status no_such_model(const char *name, gradcomp_error *err)
{
	glob_t found;
	char printable[120];
	size_t at;
	at = (size_t)snprintf(err->text, sizeof err->text, "no model '%s': there is no such file, and %s has ",
	                      gradcomp_printable(name, printable, sizeof printable), plan_models_folder());
	err->status = GRADCOMP_ERR_NOTFOUND;
	if (find_models(&found)) {
		snprintf(err->text + at, at < sizeof err->text ? sizeof err->text - at : 0, "none");
		return err->status;
	}
	for (size_t i = 0; i < found.gl_pathc && at < sizeof err->text; i++) {
		int length;
		const char *it = model_name(found.gl_pathv[i], &length);

		at += (size_t)snprintf(err->text + at, sizeof err->text - at, "%s%.*s", i ? ", " : "", length, it);
	}
	globfree(&found);
	return err->status;
}

gradcomp_status plan_model(const char *name, uint64_t tokens, bool timed, model_file **out, gradcomp_error *err)
{
	char path[4096];
	if (!strchr(name, '/') && access(name, F_OK)) {
		snprintf(path, sizeof path, "%s/%s" SUFFIX, plan_models_folder(), name);
		if (*name && !access(path, F_OK))
			return model_file_read(path, out, err);
		return no_such_model(name, err);
	}
	return plan_imports(name) ? plan_import_model(name, tokens, timed, out, err) : model_file_read(name, out, err);
}

double plan_parameters(const model_file *m)
{
	double sum = 0;
	for (uint32_t i = 0; i < m->ntensors; i++) {
		double numel = 1;

		for (uint32_t d = 0; d < m->tensors[i].ndim; d++)
			numel *= (double)m->tensors[i].dims[d];
		sum += numel;
	}
	return sum;
}

int plan_list_models(void)
{
	gradcomp_error err;
	glob_t found;
	int status = 0;
	if (find_models(&found)) {
		fprintf(stderr, "gradcomp: no models in %s\n", plan_models_folder());
		return 1;
	}
	printf("%-14s %13s %8s %7s %6s %11s %12s\n", "model", "parameters", "tensors", "layers", "batch", "forward ms",
	       "backward ms");
	for (size_t i = 0; i < found.gl_pathc; i++) {
		double forward = 0, backward = 0;
		model_file *m;
		int length;
		const char *name = model_name(found.gl_pathv[i], &length);

		if (model_file_read(found.gl_pathv[i], &m, &err)) {
			status = command_failed(&err);
			continue;
		}
		for (uint32_t t = 0; t < m->ntensors; t++) {
			forward += m->tensors[t].forward;
			backward += m->tensors[t].backward;
		}
		printf("%-14.*s %13.0f %8u %7u %6llu %11.1f %12.1f\n", length, name, plan_parameters(m), m->ntensors,
		       m->nlayers, (unsigned long long)m->batch, forward * 1e3, backward * 1e3);
		model_file_free(m);
	}
	globfree(&found);
	return status;
}
