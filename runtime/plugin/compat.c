#include "plugin/compat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strset.h"

static const char *const primitive_names[] = {
	"an all-reduce", "a reduce-scatter", "an all-gather",      "an all-to-all",      "a broadcast",
	"a barrier",     "a merge tree",     "a coded all-reduce", "a coded all-gather",
};

typedef struct pair_search {
	const struct gradcomp_compressor_v1 *compressor;
	strset *able;
} pair_search;

static int pair_try(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	const struct gradcomp_collective_v1 *c = (const void *)info;
	pair_search *s = ctx;
	(void)path;
	(void)reason;
	if (c && gradcomp_compatible_patterns(s->compressor, c->serves))
		strset_add(s->able, name, strlen(name));
	return 0;
}

/* The first primitive that is not there, an index of primitive_names. */
static int pair_lacks(uint32_t patterns, uint32_t serves)
{
	uint32_t needs = 0;
	int first = 0;
	for (int p = GRADCOMP_SUMMED; p <= GRADCOMP_CODED; p++)
		if (patterns & GRADCOMP_PATTERN_BIT(p) && !gradcomp_carries(serves, GRADCOMP_PATTERN_BIT(p)))
			needs |= gradcomp_pattern_needs((gradcomp_pattern)p);
	while (!((needs & ~serves) & 1u << first))
		first++;
	return first;
}

void compat_collectives(const config *c, const struct gradcomp_compressor_v1 *compressor, strset *out)
{
	pair_search s = {compressor, out};
	registry_each(c, GRADCOMP_KIND_COLLECTIVE, pair_try, &s);
}

gradcomp_status compat_pair(const config *c, const plugin *compressor, const plugin *collective, gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *of = compressor->compressor;
	strset able = {0};
	gradcomp_status st;
	char *list;
	if (compat_patterns(compressor, collective))
		return GRADCOMP_OK;
	compat_collectives(c, of, &able);
	list = strset_join(&able);
	st = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	               "compressor '%s' needs %s, which collective '%s' does not have; collectives that serve "
	               "it: %s",
	               of->info.name, primitive_names[pair_lacks(of->patterns, collective->collective->serves)],
	               collective->info->name, list && *list ? list : "none is installed");
	free(list);
	strset_clear(&able);
	return st;
}

uint32_t compat_patterns(const plugin *compressor, const plugin *collective)
{
	return gradcomp_compatible_patterns(compressor->compressor, collective->collective->serves);
}

/* Keeps the first. */
static int find_levels(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                       const char *reason)
{
	const struct gradcomp_collective_v1 *c = (const void *)info;
	char *found = ctx;
	(void)path, (void)reason;
	if (c && !*found && c->serves & GRADCOMP_CAN_SHARD && c->traits & GRADCOMP_TRAIT_CUDA)
		snprintf(found, SPEC_NAME_MAX, "%s", name);
	return 0;
}

void compat_levels_on_device(const config *c, char name[SPEC_NAME_MAX])
{
	*name = 0;
	registry_each(c, GRADCOMP_KIND_COLLECTIVE, find_levels, name);
}
