#include "plugin/registry.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/descriptor.h"
#include "base/error.h"
#include "gradcomp/gradcomp.h"
#include "base/module.h"
#include "base/sha256.h"
#include "base/strset.h"
#include "config/memory_rows.h"
#include "config/spec.h"
#include "base/suggest.h"

static const char *const kind_word[] = {
	[GRADCOMP_KIND_COMPRESSOR] = "compressor", [GRADCOMP_KIND_COLLECTIVE] = "collective"};
static const char *const kind_folder[] = {
	[GRADCOMP_KIND_COMPRESSOR] = "compressors", [GRADCOMP_KIND_COLLECTIVE] = "collectives"};
static const char *const kind_symbol[] = {
	[GRADCOMP_KIND_COMPRESSOR] = "gradcomp_compressor_v1", [GRADCOMP_KIND_COLLECTIVE] = "gradcomp_collective_v1"};

/* Keeps a plugin that has been loaded, for ever. */
typedef struct loaded {
	plugin plugin;
	descriptor descriptor;
	struct loaded *next;
} loaded;

static loaded *registry_loaded;
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static const char *_Atomic builtin;

void registry_builtin(const char *name)
{
	builtin = name;
}

static const plugin *registry_known(gradcomp_plugin_kind kind, const char *path)
{
	for (const loaded *l = registry_loaded; l; l = l->next)
		if (l->plugin.kind == kind && !strcmp(l->plugin.path, path))
			return &l->plugin;
	return NULL;
}

/* The descriptor of an open object and how many bytes of it are exported. */
static gradcomp_status registry_symbol(void *handle, gradcomp_plugin_kind kind, const char *path, const void **out,
                                       size_t *bytes, gradcomp_error *err)
{
	const char *symbol = kind_symbol[kind];
	const Elf64_Sym *entry = NULL;
	void *address = dlsym(handle, symbol);
	Dl_info where;
	if (!address && dlsym(handle, kind_symbol[!kind]))
		return error_set(err, GRADCOMP_ERR_ABI, "%s is a %s plugin; it belongs into the folder %s", path,
		                 kind_word[!kind], kind_folder[!kind]);
	if (!address)
		return error_set(err, GRADCOMP_ERR_ABI, "%s is no gradcomp plugin: it does not export %s", path,
		                 symbol);
	if (!dladdr1(address, &where, (void **)&entry, RTLD_DL_SYMENT) || !entry ||
	    ELF64_ST_TYPE(entry->st_info) != STT_OBJECT)
		return error_set(err, GRADCOMP_ERR_ABI, "%s: %s is not a constant", path, symbol);
	*out = address;
	*bytes = entry->st_size;
	return GRADCOMP_OK;
}

/* The lock is held. */
static gradcomp_status registry_identify(plugin *p, gradcomp_error *err)
{
	unsigned char digest[SHA256_BYTES];
	char hex[2 * SHA256_BYTES + 1];
	if (sha256_file(p->path, digest) < 0)
		return error_errno(err, GRADCOMP_ERR_IO, "%s", p->path);
	sha256_hex(digest, hex);
	snprintf(p->identity, sizeof p->identity, "%.32s %.24s@%.8s", p->info->name, p->info->version, hex);
	return GRADCOMP_OK;
}

void registry_identities(const plugin *const pair[2], char out[PLUGIN_PAIR_TEXT])
{
	snprintf(out, PLUGIN_PAIR_TEXT, "%s and %s", pair[0]->identity, pair[1]->identity);
}

/* Adds what this library takes with every such compressor to the table of its parameters. The lock is held. */
static gradcomp_status registry_add_rows(descriptor *d, const char *path, gradcomp_error *err)
{
	const gradcomp_param *rows = memory_rows_join(&d->compressor, &d->info.nparams);
	if (!rows && d->info.nparams)
		return error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	d->info.params = rows;
	return GRADCOMP_OK;
}

/* Opens one file; the lock is held. */
static gradcomp_status registry_load(gradcomp_plugin_kind kind, const char *name, const char *path, const plugin **out,
                                     gradcomp_error *err)
{
	const void *exported = NULL;
	gradcomp_status st;
	void *handle;
	size_t bytes = 0;
	loaded *l;
	if ((st = module_open(path, &handle, err)) ||
	    (st = registry_symbol(handle, kind, path, &exported, &bytes, err)))
		return st;
	l = calloc(1, sizeof *l);
	if (!l || !(l->plugin.path = strdup(path))) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
		goto fail;
	}
	st = descriptor_read(kind, name, path, exported, bytes, &l->descriptor, err);
	if (!st && kind == GRADCOMP_KIND_COMPRESSOR)
		st = registry_add_rows(&l->descriptor, path, err);
	if (st)
		goto fail;
	l->plugin.kind = kind;
	l->plugin.info = &l->descriptor.info;
	if (kind == GRADCOMP_KIND_COMPRESSOR)
		l->plugin.compressor = &l->descriptor.compressor;
	else
		l->plugin.collective = &l->descriptor.collective;
	if ((st = registry_identify(&l->plugin, err))) {
		if (kind == GRADCOMP_KIND_COMPRESSOR)
			memory_rows_free(&l->descriptor.info);
		goto fail;
	}
	l->next = registry_loaded;
	registry_loaded = l;
	*out = &l->plugin;
	return GRADCOMP_OK;
fail:
	if (l)
		free((void *)l->plugin.path);
	free(l);
	return st;
}

static gradcomp_status registry_get(gradcomp_plugin_kind kind, const char *name, const char *path, const plugin **out,
                                    gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&registry_lock);
	*out = registry_known(kind, path);
	if (!*out)
		st = registry_load(kind, name, path, out, err);
	pthread_mutex_unlock(&registry_lock);
	return st;
}

gradcomp_status registry_file(const char *path, const plugin **out, gradcomp_error *err)
{
	const char *file = strrchr(path, '/');
	char name[SPEC_NAME_MAX];
	gradcomp_status st;
	size_t length;
	void *handle;
	file = file ? file + 1 : path;
	length = strlen(file);
	if (length < 4 || length - 3 >= sizeof name || strcmp(file + length - 3, ".so"))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "%s is not called NAME.so, with a NAME of at most %d characters", path,
		                 SPEC_NAME_MAX - 1);
	snprintf(name, sizeof name, "%.*s", (int)length - 3, file);
	st = module_open(path, &handle, err);
	if (st)
		return st;
	return registry_get(dlsym(handle, kind_symbol[GRADCOMP_KIND_COLLECTIVE]) &&
	                                    !dlsym(handle, kind_symbol[GRADCOMP_KIND_COMPRESSOR])
	                            ? GRADCOMP_KIND_COLLECTIVE
	                            : GRADCOMP_KIND_COMPRESSOR,
	                    name, path, out, err);
}

/* Returns the plugin's file; NULL and errno: ENOENT, ENOMEM. */
static char *registry_find(const config *c, gradcomp_plugin_kind kind, const char *name)
{
	char *relative, *path;
	if (asprintf(&relative, "%s/%s.so", kind_folder[kind], name) < 0) {
		errno = ENOMEM;
		return NULL;
	}
	path = module_find(config_str(c, SET_GRADCOMP_PLUGIN_PATH), relative);
	free(relative); /* which leaves errno alone */
	return path;
}

/* Lists the names NAME.so in all directories of the plugin path. */
static void registry_names(const config *c, gradcomp_plugin_kind kind, strset *out)
{
	for (const char *p = config_str(c, SET_GRADCOMP_PLUGIN_PATH);; p++) {
		size_t n = strcspn(p, ":");
		struct dirent *entry;
		char *path;
		DIR *d;

		if (asprintf(&path, "%.*s/%s", (int)n, p, kind_folder[kind]) < 0)
			return;
		d = opendir(path);
		while (d && (entry = readdir(d))) {
			size_t length = strlen(entry->d_name);

			if (length > 3 && entry->d_name[0] != '.' && !strcmp(entry->d_name + length - 3, ".so"))
				strset_add(out, entry->d_name, length - 3);
		}
		if (d)
			closedir(d);
		free(path);
		p += n;
		if (!*p)
			return;
	}
}

static gradcomp_status registry_missing(const config *c, gradcomp_plugin_kind kind, const char *name,
                                        gradcomp_error *err)
{
	strset all = {0};
	gradcomp_status st;
	suggest near;
	char *list;
	registry_names(c, kind, &all);
	suggest_start(&near, name);
	for (size_t i = 0; i < all.count; i++)
		suggest_try(&near, all.name[i]);
	if (kind == GRADCOMP_KIND_COMPRESSOR && builtin)
		suggest_try(&near, builtin);
	list = strset_join(&all);
	st = error_set(err, GRADCOMP_ERR_NOTFOUND, "%s '%s' is not installed%s; there %s %s (in %s of %s)",
	               kind_word[kind], name, suggest_text(&near), all.count == 1 ? "is" : "are",
	               !all.count ? "none"
	               : list     ? list
	                          : "others",
	               kind_folder[kind], config_str(c, SET_GRADCOMP_PLUGIN_PATH));
	free(list);
	strset_clear(&all);
	return st;
}

gradcomp_status registry_open(const config *c, gradcomp_plugin_kind kind, const char *name, const plugin **out,
                              gradcomp_error *err)
{
	char checked[SPEC_NAME_MAX], *path;
	gradcomp_status st = spec_name(name, checked, err);
	if (st)
		return st;
	path = registry_find(c, kind, checked);
	if (!path && errno == ENOMEM)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to look for %s '%s'", kind_word[kind], checked);
	if (!path)
		return registry_missing(c, kind, checked, err);
	st = registry_get(kind, checked, path, out, err);
	free(path);
	return st;
}

int registry_each(const config *c, gradcomp_plugin_kind kind,
                  int (*each)(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                              const char *reason),
                  void *ctx)
{
	strset all = {0};
	int result = 0;
	registry_names(c, kind, &all);
	for (size_t i = 0; i < all.count && !result; i++) {
		char *path = registry_find(c, kind, all.name[i]);
		char checked[SPEC_NAME_MAX];
		const plugin *p = NULL;
		gradcomp_error err = {0};

		if (!path)
			error_set(&err, GRADCOMP_ERR_NOTFOUND, "the file cannot be reached");
		else if (!spec_name(all.name[i], checked, &err))
			registry_get(kind, checked, path, &p, &err);
		result = each(ctx, all.name[i], path ? path : "", p ? p->info : NULL, p ? NULL : err.text);
		free(path);
	}
	strset_clear(&all);
	return result;
}
