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
#include "gradcomp/collective.h"
#include "gradcomp/compressor.h"
#include "gradcomp/gradcomp.h"

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

#endif
