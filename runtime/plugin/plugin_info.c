/* Looking into one plugin (gradcomp/plugin.h). */
#include "gradcomp/plugin.h"

#include <stdlib.h>

#include "base/error.h"
#include "operators/operator_tables.h"
#include "plugin/operators_v1.h"
#include "plugin/registry.h"
#include "config/spec.h"

typedef struct parsed {
	gradcomp_spec pub; /* first */
	spec inner;
} parsed;

gradcomp_status gradcomp_plugin_open(const char *path, gradcomp_plugin_kind *kind, const gradcomp_plugin_info **info,
                                     gradcomp_error *err)
{
	const plugin *p;
	gradcomp_status st = registry_file(path, &p, err);
	if (st)
		return st;
	*kind = p->kind;
	*info = p->info;
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_spec_parse(const gradcomp_plugin_info *info, const char *text, gradcomp_spec **out,
                                    gradcomp_error *err)
{
	parsed *p = calloc(1, sizeof *p);
	gradcomp_status st;
	if (!p)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a SPEC");
	st = spec_parse(info, text, &p->inner, err);
	if (st) {
		free(p);
		return st;
	}
	p->pub = (gradcomp_spec){.text = p->inner.text, .values = p->inner.values, .nvalues = p->inner.nvalues};
	*out = &p->pub;
	return GRADCOMP_OK;
}

void gradcomp_spec_free(gradcomp_spec *s)
{
	if (s)
		spec_clear(&((parsed *)(void *)s)->inner);
	free(s);
}

const gradcomp_operators_v1 *gradcomp_operators_on_v1(gradcomp_device device, gradcomp_error *err)
{
	return operators_v1_on(device, err);
}

const gradcomp_operators *gradcomp_host_operators(void)
{
	return operators_cpu();
}
