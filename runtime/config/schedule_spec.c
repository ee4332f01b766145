#include "config/schedule_spec.h"

#include "base/error.h"
#include "config/spec.h"
#include "base/suggest.h"

#include <stdlib.h>
#include <string.h>

static const gradcomp_param fixed_params[] = {
	{.name = "bytes",
         .type = GRADCOMP_PARAM_SIZE,
         .def = "0",
         .min = 0,
         .max = 1099511627776.0,
         .help = "of gradients (as floats) in a message; 0: reducer.first_bucket_bytes, then reducer.bucket_bytes"},
};

static const gradcomp_param plan_params[] = {
	{.name = "file", .type = GRADCOMP_PARAM_STRING, .help = "a plan that gradcomp plan has written"},
};

/* In the order of schedule_method. */
static const gradcomp_plugin_info table[] = {
	{.name = "wfbp"},
	{.name = "single"},
	{.name = "fixed", .params = fixed_params, .nparams = 1},
	{.name = "plan", .params = plan_params, .nparams = 1},
	{.name = "mgwfbp"},
	{.name = "omgs"},
	{.name = "auto"},
};
enum { METHODS = sizeof table / sizeof *table };

static gradcomp_status unknown(const char *name, gradcomp_error *err)
{
	suggest near;

	suggest_start(&near, name);
	for (int i = 0; i < METHODS; i++)
		suggest_try(&near, table[i].name);
	return error_set(err, GRADCOMP_ERR_NOTFOUND,
	                 "no schedule '%s'%s; there are wfbp, single, fixed[:bytes=25M], mgwfbp, omgs, auto and "
	                 "plan:file=FILE",
	                 name, suggest_text(&near));
}

gradcomp_status schedule_spec_parse(const char *text, schedule_spec *out, gradcomp_error *err)
{
	char name[SPEC_NAME_MAX];
	gradcomp_status st;
	spec s;
	int m = 0;

	if (spec_name(text, name, err)) /* such as two at once: wfbp,single */
		return unknown(text, err);
	while (m < METHODS && strcmp(table[m].name, name))
		m++;
	if (m == METHODS)
		return unknown(name, err);
	st = spec_parse(&table[m], text, &s, err);
	if (st)
		return st;
	*out = (schedule_spec){.text = strdup(s.text), .method = (schedule_method)m};
	if (m == SCHEDULE_FIXED)
		out->bytes = (uint64_t)s.values[0].i;
	if (m == SCHEDULE_PLAN)
		out->file = strdup(s.values[0].s);
	spec_clear(&s);
	if (!out->text || (m == SCHEDULE_PLAN && !out->file)) {
		schedule_spec_clear(out);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for schedule '%s'", text);
	}
	return GRADCOMP_OK;
}

void schedule_spec_clear(schedule_spec *s)
{
	free(s->text);
	free(s->file);
	*s = (schedule_spec){0};
}
