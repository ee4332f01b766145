/* Which collective can carry which compressor, and a SPEC from text to checked
 * values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strset.h"
#include "operators/operator_tables.h"
#include "plugin/registry.h"

static const char *const primitive_names[] = {
	"an all-reduce", "a reduce-scatter", "an all-gather", "an all-to-all", "a broadcast",
	"a barrier", "a merge tree", "a coded all-reduce", "a coded all-gather",
};

typedef struct pair_search {
	const struct gradcomp_compressor_v1 *compressor;
	strset able;
} pair_search;

static int pair_try(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                    const char *reason)
{
	const struct gradcomp_collective_v1 *c = (const void *)info;
	pair_search *s = ctx;

	(void)path;
	(void)reason;
	if (c && gradcomp_compatible_patterns(s->compressor, c->serves))
		strset_add(&s->able, name, strlen(name));
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

gradcomp_status registry_pair(const config *c, const plugin *compressor, const plugin *collective,
                              gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *of = compressor->compressor;
	pair_search s = {.compressor = of};
	gradcomp_status status;
	char *list;

	if (registry_patterns(compressor, collective))
		return GRADCOMP_OK;
	registry_each(c, GRADCOMP_KIND_COLLECTIVE, pair_try, &s);
	list = strset_join(&s.able);
	status = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                   "compressor '%s' needs %s, which collective '%s' does not have; collectives that serve "
	                   "it: %s",
	                   of->info.name, primitive_names[pair_lacks(of->patterns, collective->collective->serves)],
	                   collective->info->name, list && *list ? list : "none is installed");
	free(list);
	strset_clear(&s.able);
	return status;
}

/* A SPEC that was given, or the configured one; then its error names the origin. */
static gradcomp_status pair_spec(const config *c, gradcomp_plugin_kind kind, const char *text, const plugin **out,
                                 spec *values, gradcomp_error *err)
{
	static const char *const settings[] = {"gradcomp.compressor", "gradcomp.collective"};
	const char *setting = settings[kind];
	gradcomp_error inner;
	gradcomp_status status = registry_resolve(c, kind, text ? text : config_str(c, setting), out, values, &inner);

	if (!status)
		return GRADCOMP_OK;
	return text ? error_set(err, status, "%s", inner.text)
	            : error_set(err, status, "%s (%s): %s", setting, config_origin(c, setting), inner.text);
}

/* Nobody named a collective and the default cannot carry the compressor: the first
 * installed one that can. */
static void pair_instead(const config *c, const plugin *p[2], spec s[2])
{
	pair_search search = {.compressor = p[0]->compressor};
	const plugin *other;
	spec values;

	registry_each(c, GRADCOMP_KIND_COLLECTIVE, pair_try, &search);
	if (search.able.count &&
	    !registry_resolve(c, GRADCOMP_KIND_COLLECTIVE, search.able.name[0], &other, &values, NULL)) {
		spec_clear(&s[1]);
		p[1] = other;
		s[1] = values;
	}
	strset_clear(&search.able);
}

gradcomp_status registry_both(const config *c, const char *compressor, const char *collective, const plugin *p[2],
                              spec s[2], gradcomp_error *err)
{
	gradcomp_status status;

	s[0] = s[1] = (spec){0};
	status = pair_spec(c, GRADCOMP_KIND_COMPRESSOR, compressor, &p[0], &s[0], err);
	if (!status)
		status = pair_spec(c, GRADCOMP_KIND_COLLECTIVE, collective, &p[1], &s[1], err);
	if (!status && !collective && !strcmp(config_origin(c, "gradcomp.collective"), "default") &&
	    !registry_patterns(p[0], p[1]))
		pair_instead(c, p, s);
	if (!status)
		status = registry_pair(c, p[0], p[1], err);
	if (status) {
		spec_clear(&s[0]);
		spec_clear(&s[1]);
	}
	return status;
}

uint32_t registry_patterns(const plugin *compressor, const plugin *collective)
{
	return gradcomp_compatible_patterns(compressor->compressor, collective->collective->serves);
}

gradcomp_status registry_resolve(const config *c, gradcomp_plugin_kind kind, const char *text,
                                 const plugin **out, spec *values, gradcomp_error *err)
{
	const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
	char name[SPEC_NAME_MAX];
	gradcomp_status status;
	gradcomp_host host;
	gradcomp_error inner = {0};
	gradcomp_status (*check)(const gradcomp_host *, const gradcomp_value *, gradcomp_error *);

	if ((status = spec_name(text, name, err)) || (status = registry_open(c, kind, name, out, err)) ||
	    (status = spec_parse((*out)->info, text, values, err)))
		return status;
	check = kind == GRADCOMP_KIND_COMPRESSOR ? (*out)->compressor->check : (*out)->collective->check;
	if (!check)
		return GRADCOMP_OK;
	registry_host(&host, &quiet);
	status = check(&host, values->values, &inner);
	if (!status)
		return GRADCOMP_OK;
	spec_clear(values);
	return error_set(err, status, "%s: %s", name, inner.text[0] ? inner.text : gradcomp_strerror(status));
}

/* ---- what plugins are given ---- */

static void host_log(void *ctx, gradcomp_log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_vline(ctx, level, fmt, ap);
	va_end(ap);
}

static void *host_alloc(size_t bytes)
{
	size_t whole;
	void *p;

	if (bytes > PTRDIFF_MAX - 63)
		return NULL;
	whole = (bytes + 63) / 64 * 64;
	p = aligned_alloc(64, whole ? whole : 64);
	return p ? memset(p, 0, whole) : NULL;
}

static const gradcomp_operators *host_operators_on(gradcomp_device device, gradcomp_error *err)
{
	if (device == GRADCOMP_CUDA)
		return operators_cuda(err);
	if (device != GRADCOMP_HOST)
		error_set(err, GRADCOMP_ERR_INVALID, "device %d: must be 0 (host) or 1 (CUDA)", (int)device);
	return device == GRADCOMP_HOST ? operators_cpu() : NULL;
}

void registry_host(gradcomp_host *host, const log_sink *log)
{
	*host = (gradcomp_host){
		.struct_size = sizeof *host,
		.abi_version = GRADCOMP_ABI_VERSION,
		.ctx = (void *)log, /* only read, by host_log */
		.log = host_log,
		.fail = error_set,
		.alloc = host_alloc,
		.release = free,
		.operators = operators_cpu(),
		.operators_on = host_operators_on,
	};
}
