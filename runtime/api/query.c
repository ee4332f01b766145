/* Looking at what is installed, without a job (gradcomp/gradcomp.h). */
#include <stdlib.h>
#include <string.h>

#include "api/query.h"
#include "api/policy_calls.h"
#include "base/error.h"
#include "kinds/autotune/tuner.h"
#include "kinds/kinds.h"
#include "schedule/plan_file.h"
#include "plugin/spec_table.h"
#include "config/schedule_spec.h"
#include "config/spec.h"

int gradcomp_requested(void)
{
	const char *asked = secure_getenv("GRADCOMP");
	return asked && *asked && strcmp(asked, "off");
}

int gradcomp_plugin_each(gradcomp_plugin_kind kind,
                         int (*each)(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                                     const char *reason),
                         void *ctx, gradcomp_error *err)
{
	config *c;
	gradcomp_status st = config_load(NULL, &c, err);
	int result;
	if (st)
		return st;
	result = registry_each(c, kind, each, ctx);
	config_free(c);
	return result;
}

gradcomp_status gradcomp_setting_each(void (*each)(void *ctx, const char *name, const char *value, const char *origin,
                                                   const char *help),
                                      void *ctx, gradcomp_error *err)
{
	config *c;
	gradcomp_status st = config_load(NULL, &c, err);
	if (st)
		return st;
	config_each(c, each, ctx);
	config_free(c);
	return GRADCOMP_OK;
}

static gradcomp_status spec_check(const config *c, const char *compressor, const char *collective, gradcomp_error *err)
{
	const char *asked = compressor ? compressor : config_str(c, SET_GRADCOMP_COMPRESSOR);
	const plugin *p[2];
	const spec *s[2];
	spec_table specs;
	gradcomp_policy *policy = NULL;
	gradcomp_status st = policy_is(asked) ? policy_read(c, asked, collective, &policy, err) : GRADCOMP_OK;
	if (st)
		return st;
	/* Calls that no entry is for go over the collective as they are. */
	if (policy)
		compressor = "none";
	policy_free(policy);
	spec_table_init(&specs, c);
	registry_builtin(gradcomp_auto_info()->name);
	const reducer_kind *kind = kinds_find(c, compressor);
	st = kind ? kind->check(&specs, compressor, collective, err)
	          : spec_table_job(&specs, compressor, collective, p, s, err);
	spec_table_clear(&specs);
	return st;
}

static gradcomp_status schedule_check(const config *c, const char *schedule, gradcomp_error *err)
{
	schedule_spec s = {0};
	plan_file f = {0};
	gradcomp_status st = schedule_spec_parse(schedule ? schedule : config_str(c, SET_GRADCOMP_SCHEDULE), &s, err);
	if (!st && s.method == SCHEDULE_PLAN)
		st = plan_file_read(s.file, &f, err);
	plan_file_clear(&f);
	schedule_spec_clear(&s);
	return st;
}

gradcomp_status gradcomp_spec_check(const char *compressor, const char *collective, gradcomp_error *err)
{
	config *c;
	gradcomp_status st = config_load(NULL, &c, err);
	if (st)
		return st;
	st = spec_check(c, compressor, collective, err);
	config_free(c);
	return st;
}

gradcomp_status gradcomp_schedule_check(const char *schedule, gradcomp_error *err)
{
	config *c;
	gradcomp_status st = config_load(NULL, &c, err);
	if (st)
		return st;
	st = schedule_check(c, schedule, err);
	config_free(c);
	return st;
}

gradcomp_status query_check_options(const config_option *options, const char *compressor, const char *collective,
                                    gradcomp_error *err)
{
	config *c;
	gradcomp_status st = config_load_options(options, &c, err);
	if (st)
		return st;
	st = spec_check(c, compressor, collective, err);
	if (!st)
		st = schedule_check(c, NULL, err);
	config_free(c);
	return st;
}
