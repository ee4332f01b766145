/* All compressors and collectives of this build, and which go together. */
#ifndef TESTS_SUPPORT_PLUGIN_PAIRS_H
#define TESTS_SUPPORT_PLUGIN_PAIRS_H

#include "tests/support/collective_layouts.h"

enum { MOST_COMPRESSORS = 64 };

static char compressors[MOST_COMPRESSORS][SPEC_NAME_MAX];
static int ncompressors;

static int note_compressor(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                           const char *reason)
{
	(void)ctx, (void)path, (void)reason;
	if (info && ncompressors < MOST_COMPRESSORS)
		snprintf(compressors[ncompressors++], sizeof compressors[0], "%s", name);
	return 0;
}

/* The settings, to be freed; NULL: something is missing, and told. */
static config *pairs_find(const char *const *settings)
{
	gradcomp_error err;
	config *c;
	if (!grid_find(settings) || config_load(settings, &c, &err))
		return NULL;
	registry_each(c, GRADCOMP_KIND_COMPRESSOR, note_compressor, NULL);
	return c;
}

/* Checks that they go together. *made: the compressor, if they do. */
static gradcomp_status pair(const config *c, const char *compressor, const char *collective,
                            const struct gradcomp_compressor_v1 **made, gradcomp_error *err)
{
	const plugin *p[2];
	const spec *s[2];
	spec_table specs;
	spec_table_init(&specs, c);
	gradcomp_status st = spec_table_both(&specs, compressor, collective, p, s, err);
	*made = st ? NULL : p[0]->compressor;
	spec_table_clear(&specs);
	return st;
}

#endif
