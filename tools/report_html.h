/* A report, and the timeline if there is one, as one page for a browser. */
#ifndef TOOLS_REPORT_HTML_H
#define TOOLS_REPORT_HTML_H

#include <jansson.h>

#include "gradcomp/abi.h"

static inline double number_of(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

/* Counts of a file from anywhere: from 0 to 2^53, so that a thousand of them can be added. */
#define COUNT_MOST (1LL << 53)

static inline long long count_of(const json_t *object, const char *key)
{
	json_int_t n = json_integer_value(json_object_get(object, key));
	return n < 0 ? 0 : n > COUNT_MOST ? COUNT_MOST : n;
}

/* Returns a report; NULL after a message on stderr. */
json_t *report_load(const char *path);
/* `trace` may be NULL. Both may come from anywhere; the page runs no script and loads nothing. */
gradcomp_status report_html(const json_t *report, const json_t *trace, const char *path, gradcomp_error *err);

#endif
