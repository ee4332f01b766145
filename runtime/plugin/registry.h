/* Finding and loading plugins: by exact name from the directories of
 * gradcomp.plugin_path (PATH/compressors/NAME.so, PATH/collectives/NAME.so),
 * RTLD_NOW | RTLD_LOCAL, never unloaded. Before dlopen a file is refused when it,
 * or a directory above it, could have been written by someone other than root
 * or the user; after it, when the descriptor is missing, of a newer ABI, or
 * inconsistent. Thread-safe. */
#ifndef PLUGIN_REGISTRY_H
#define PLUGIN_REGISTRY_H

#include "config/config.h"
#include "base/log.h"
#include "config/spec.h"
#include "gradcomp/gradcomp.h"

#include <pthread.h>

typedef struct plugin {
	gradcomp_plugin_kind kind;
	const char *path;
	const gradcomp_plugin_info *info;
	const struct gradcomp_compressor_v1 *compressor; /* by kind; the other is NULL */
	const struct gradcomp_collective_v1 *collective;
	/* "topk 1.0@3f2a9c0d": name, version, start of the file's SHA-256 as it was loaded. The
	 * same on all ranks of a job, or what they send each other may mean something else. */
	char identity[80];
} plugin;

#define PLUGIN_PAIR_TEXT 168
/* Which files a compressor and a collective are, for ranks to compare. */
void registry_identities(const plugin *const pair[2], char out[PLUGIN_PAIR_TEXT]);

/* *out is owned by the registry and lives for ever. NOTFOUND lists the names
 * that exist. */
gradcomp_status registry_open(const config *c, gradcomp_plugin_kind kind, const char *name, const plugin **out,
                              gradcomp_error *err);
/* The plugin in the file NAME.so, in whatever folder, of whatever kind. */
gradcomp_status registry_file(const char *path, const plugin **out, gradcomp_error *err);
/* Adds a compressor that is not a plugin (auto) to what "did you mean" suggests. `name` lives
 * for ever. */
void registry_builtin(const char *name);
int registry_each(const config *c, gradcomp_plugin_kind kind,
                  int (*each)(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                              const char *reason),
                  void *ctx);
/* Checks that the two go together. The text lists the collectives that go with this compressor. */
gradcomp_status registry_pair(const config *c, const plugin *compressor, const plugin *collective, gradcomp_error *err);
/* Returns the patterns that the compressor may plan with the collective; 0: they do not go together. */
uint32_t registry_patterns(const plugin *compressor, const plugin *collective);
/* A SPEC as a user wrote it: finds and loads the plugin, checks the parameters,
 * also with the plugin's own check(). *values is the caller's, for spec_clear(). */
gradcomp_status registry_resolve(const config *c, gradcomp_plugin_kind kind, const char *text, const plugin **out,
                                 spec *values, gradcomp_error *err);

/* SPECs resolved with the settings `config`, each text once: a job has one table for its life.
 * What it hands out lives as long as the table. Thread-safe, but for init and clear. */
typedef struct spec_table {
	const config *config;
	pthread_mutex_t lock;
	struct spec_entry *first;
} spec_table;

void spec_table_init(spec_table *t, const config *c);
/* A zeroed table is fine. */
void spec_table_clear(spec_table *t);
/* Does what registry_resolve() does, once for each SPEC: *values stays the table's. */
gradcomp_status spec_table_get(spec_table *t, gradcomp_plugin_kind kind, const char *text, const plugin **out,
                               const spec **values, gradcomp_error *err);
/* The SPEC of what is no plugin but has a table like one: as spec_parse(). */
gradcomp_status spec_table_builtin(spec_table *t, const gradcomp_plugin_info *info, const char *text,
                                   const spec **values, gradcomp_error *err);
/* Compressor p[0] and collective p[1] from their SPECs, and that they go together. NULL
 * stands for what is configured; a collective that nobody configured is the default
 * one, or the first installed one that can carry the compressor. */
gradcomp_status spec_table_both(spec_table *t, const char *compressor, const char *collective, const plugin *p[2],
                                const spec *s[2], gradcomp_error *err);
/* The same, of a job: its ranks compare what they do by the collective's all-gather. */
gradcomp_status spec_table_job(spec_table *t, const char *compressor, const char *collective, const plugin *p[2],
                               const spec *s[2], gradcomp_error *err);
/* The services handed to plugins; `log` must outlive every instance. */
void registry_host(gradcomp_host *host, const log_sink *log);

/* Returns 1 when a compressor sends every number, at most rounded, and holds nothing back. */
static inline int registry_dense(const plugin *compressor)
{
	return !(compressor->compressor->traits &
	         (GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_UNBIASED | GRADCOMP_TRAIT_OWN_MOMENTUM));
}

#endif
