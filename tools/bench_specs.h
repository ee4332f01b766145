/* The plugins that a list of SPECs names. */
#ifndef TOOLS_BENCH_SPECS_H
#define TOOLS_BENCH_SPECS_H

#include "gradcomp/gradcomp.h"

typedef struct bench_spec {
	char spec[256], path[512];
} bench_spec;

/* `list` is "SPEC,SPEC" (config/spec.h), or "all" or NULL for all of the kind that are
 * installed, with their defaults. Fills at most `most` of specs[]; returns how many,
 * or -1 with an error that names `option`. */
int bench_specs_find(gradcomp_plugin_kind kind, const char *list, const char *option, bench_spec *specs, int most,
                     gradcomp_error *err);

#endif
