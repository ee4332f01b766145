/* Looking at what is installed, without a job (gradcomp/gradcomp.h). */
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "error.h"
#include "registry.h"
#include "spec.h"

int gradcomp_requested(void)
{
	const char *asked = secure_getenv("GRADCOMP");

	return asked && *asked && strcmp(asked, "off");
}

int gradcomp_plugin_each(gradcomp_plugin_kind kind,
                         int (*each)(void *ctx, const char *name, const char *path,
                                     const gradcomp_plugin_info *info, const char *reason),
                         void *ctx, gradcomp_error *err)
{
	config *c;
	gradcomp_status status = config_load(NULL, &c, err);
	int result;

	if (status)
		return status;
	result = registry_each(c, kind, each, ctx);
	config_free(c);
	return result;
}

gradcomp_status gradcomp_setting_each(void (*each)(void *ctx, const char *name, const char *value,
                                                   const char *origin, const char *help),
                                      void *ctx, gradcomp_error *err)
{
	config *c;
	gradcomp_status status = config_load(NULL, &c, err);

	if (status)
		return status;
	config_each(c, each, ctx);
	config_free(c);
	return GRADCOMP_OK;
}

/* A SPEC that was given, or the configured one; then its error names the origin. */
static gradcomp_status inspect_spec(const config *c, gradcomp_plugin_kind kind, const char *text,
                                    const char *setting, const plugin **out, gradcomp_error *err)
{
	gradcomp_error inner;
	gradcomp_status status;
	spec s;

	status = registry_resolve(c, kind, text ? text : config_str(c, setting), out, &s, &inner);
	if (!status)
		spec_clear(&s);
	else if (text)
		error_set(err, status, "%s", inner.text);
	else
		error_set(err, status, "%s (%s): %s", setting, config_origin(c, setting), inner.text);
	return status;
}

gradcomp_status gradcomp_spec_check(const char *compressor, const char *collective, gradcomp_error *err)
{
	const plugin *p[2];
	gradcomp_status status;
	config *c;

	status = config_load(NULL, &c, err);
	if (status)
		return status;
	status = inspect_spec(c, GRADCOMP_KIND_COMPRESSOR, compressor, "gradcomp.compressor", &p[0], err);
	if (!status)
		status = inspect_spec(c, GRADCOMP_KIND_COLLECTIVE, collective, "gradcomp.collective", &p[1], err);
	if (!status)
		status = registry_pair(c, p[0], p[1], err);
	config_free(c);
	return status;
}
