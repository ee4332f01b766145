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
         .help = "of gradients (as floats) in a message; 0: reducer.bucket_bytes, and 1M in the first"},
};

static const gradcomp_param merge_params[] = {
	{.name = "greedy",
         .type = GRADCOMP_PARAM_BOOL,
         .def = "no",
         .help = "by the rule as published, not by the best plan of its model"},
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
	{.name = "mgwfbp", .params = merge_params, .nparams = 1},
	{.name = "omgs", .params = merge_params, .nparams = 1},
	{.name = "auto"},
};
enum { METHODS = sizeof table / sizeof *table };

static void unknown(const char *name, gradcomp_error *err)
{
	suggest near;
	suggest_start(&near, name);
	for (int i = 0; i < METHODS; i++)
		suggest_try(&near, table[i].name);
	error_set(
		err, GRADCOMP_ERR_NOTFOUND,
		"no schedule '%s'%s; there are wfbp, single, fixed[:bytes=25M], mgwfbp[:greedy], omgs[:greedy], auto and "
		"plan:file=FILE",
		name, suggest_text(&near));
}

const gradcomp_plugin_info *schedule_spec_info(const char *text, gradcomp_error *err)
{
	char name[SPEC_NAME_MAX];
	if (spec_name(text, name, err)) { /* such as two at once: wfbp,single */
		unknown(text, err);
		return NULL;
	}
	for (int m = 0; m < METHODS; m++)
		if (!strcmp(table[m].name, name))
			return &table[m];
	unknown(name, err);
	return NULL;
}

gradcomp_status schedule_spec_read(const gradcomp_plugin_info *info, const spec *s, schedule_spec *out,
                                   gradcomp_error *err)
{
	schedule_method m = (schedule_method)(info - table);
	int merges = m == SCHEDULE_MGWFBP || m == SCHEDULE_OMGS, greedy = merges && s->values[0].i;
	const char *text = s->text;
	if (greedy)
		text = m == SCHEDULE_OMGS ? "omgs:greedy" : "mgwfbp:greedy";
	else if (merges)
		text = info->name;
	*out = (schedule_spec){.text = strdup(text), .method = m};
	if (greedy)
		out->method = m == SCHEDULE_OMGS ? SCHEDULE_OMGS_GREEDY : SCHEDULE_MGWFBP_GREEDY;
	if (m == SCHEDULE_FIXED)
		out->bytes = (uint64_t)s->values[0].i;
	if (m == SCHEDULE_PLAN)
		out->file = strdup(s->values[0].s);
	if (!out->text || (m == SCHEDULE_PLAN && !out->file)) {
		schedule_spec_clear(out);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for schedule '%s'", s->text);
	}
	return GRADCOMP_OK;
}

gradcomp_status schedule_spec_parse(const char *text, schedule_spec *out, gradcomp_error *err)
{
	gradcomp_error inner = {0};
	const gradcomp_plugin_info *info = schedule_spec_info(text, &inner);
	gradcomp_status st;
	spec s;
	if (!info)
		return error_set(err, inner.status, "%s", inner.text);
	st = spec_parse(info, text, &s, err);
	if (st)
		return st;
	st = schedule_spec_read(info, &s, out, err);
	spec_clear(&s);
	return st;
}

void schedule_spec_clear(schedule_spec *s)
{
	free(s->text);
	free(s->file);
	*s = (schedule_spec){0};
}
