/* SPEC: NAME[:key=value[,key=value...]], checked against a plugin's table. */
#ifndef CONFIG_SPEC_H
#define CONFIG_SPEC_H

#include "gradcomp/abi.h"

typedef struct spec {
	char *text;             /* canonical: NAME, then every parameter in table order */
	gradcomp_value *values; /* in table order; strings point into the spec */
	uint32_t nvalues;
} spec;

#define SPEC_NAME_MAX 32

/* Reads the NAME part alone; refuses what cannot be a name (so also any '/'). */
gradcomp_status spec_name(const char *text, char name[SPEC_NAME_MAX], gradcomp_error *err);
/* Unknown, repeated, malformed or out-of-range parameters are refused with the
 * list of what the plugin takes. */
gradcomp_status spec_parse(const gradcomp_plugin_info *info, const char *text, spec *out, gradcomp_error *err);
void spec_clear(spec *s);
/* Steps through a list "SPEC,SPEC": the first item at *at, without the blanks around it; *at is then
 * behind it and its comma. A piece "key=value" belongs to the SPEC before it. NULL at the end. An
 * item between two commas is empty. */
const char *spec_list_next(const char **at, size_t *length);
/* Reads yes or no, and the other words for them. Returns 0 when it is neither. */
int spec_bool(const char *text, int64_t *out);
/* Checks one value against one row; used for plugin parameters and settings alike. */
gradcomp_status spec_value(const gradcomp_param *row, const char *text, gradcomp_value *out, gradcomp_error *err);

#endif
