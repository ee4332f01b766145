/* A report, and the timeline if there is one, as one page for a browser. */
#ifndef TOOLS_REPORT_HTML_H
#define TOOLS_REPORT_HTML_H

#include <jansson.h>

#include "gradcomp/abi.h"

static inline double number_of(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

static inline long long count_of(const json_t *object, const char *key)
{
	return (long long)json_integer_value(json_object_get(object, key));
}

/* `trace` may be NULL. Both may come from anywhere; the page runs no script and loads nothing. */
gradcomp_status report_html(const json_t *report, const json_t *trace, const char *path, gradcomp_error *err);

#endif
