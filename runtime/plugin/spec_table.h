/* SPECs from text to plugins and checked values, and those of a job, each resolved once. */
#ifndef PLUGIN_SPEC_TABLE_H
#define PLUGIN_SPEC_TABLE_H

#include "plugin/registry.h"

#include <pthread.h>

/* A SPEC as a user wrote it: finds and loads the plugin, checks the parameters,
 * also with the plugin's own check(). *values is the caller's, for spec_clear(). */
gradcomp_status spec_resolve(const config *c, gradcomp_plugin_kind kind, const char *text, const plugin **out,
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
/* Does what spec_resolve() does, once for each SPEC: *values stays the table's. */
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

#endif
