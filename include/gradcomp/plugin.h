/* gradcomp/plugin.h: for programs that look into plugins themselves.
 *
 * Loads one plugin from its file, under the checks that a job makes before it runs a
 * plugin's code, and parses a SPEC against its table. gradcomp plugin-check is
 * written on this and on the headers a plugin sees, and nothing else. */
#ifndef GRADCOMP_PLUGIN_H
#define GRADCOMP_PLUGIN_H

#include "gradcomp/collective.h"
#include "gradcomp/compressor.h"
#include "gradcomp/gradcomp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `path` is a file NAME.so in any folder. *info is the head of the descriptor, a
 * gradcomp_compressor_v1 or gradcomp_collective_v1 as *kind says, and stays for
 * ever. The error says which field of the descriptor is wrong, what it holds, and
 * what would be right. Any thread. */
GRADCOMP_EXPORT gradcomp_status gradcomp_plugin_open(const char *path, gradcomp_plugin_kind *kind,
                                                     const gradcomp_plugin_info **info, gradcomp_error *err);

/* A SPEC that has been parsed: every parameter in the table's order, with defaults
 * where none was given. `text` is the SPEC in full. */
typedef struct gradcomp_spec {
	const char *text;
	const gradcomp_value *values;
	uint32_t nvalues;
} gradcomp_spec;

/* Parses a SPEC as for a job, but without the plugin's own check(). *out is to be freed; nothing is left behind on
 * failure. Any thread. */
GRADCOMP_EXPORT gradcomp_status gradcomp_spec_parse(const gradcomp_plugin_info *info, const char *text,
                                                    gradcomp_spec **out, gradcomp_error *err);
/* NULL is fine. */
GRADCOMP_EXPORT void gradcomp_spec_free(gradcomp_spec *spec);

/* Returns the operators on host memory that a job on this machine would use. Never NULL. */
GRADCOMP_EXPORT const gradcomp_operators *gradcomp_host_operators(void);
/* Those that plugins of ABI 1 and 2 find, for gradcomp_host.operators_on_v1: on host memory, never NULL, and so for
 * .operators_v1 too; else NULL and the reason in *err (may be NULL). */
GRADCOMP_EXPORT const struct gradcomp_operators_v1 *gradcomp_operators_on_v1(gradcomp_device device,
                                                                             gradcomp_error *err);

#ifdef __cplusplus
}
#endif
#endif
