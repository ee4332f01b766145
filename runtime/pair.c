/* Which collective can carry which compressor, and a SPEC from text to checked
 * values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "names.h"
#include "operators/operators.h"
#include "registry.h"

static const struct {
	uint32_t pattern, needs;
	const char *name;
} pair_rules[] = {
	{GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED), GRADCOMP_CAN_ALLREDUCE, "an all-reduce"},
	{GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED), GRADCOMP_CAN_ALLGATHER, "an all-gather"},
	{GRADCOMP_PATTERN_BIT(GRADCOMP_MERGED), GRADCOMP_CAN_MERGE, "a merge tree"},
	{GRADCOMP_PATTERN_BIT(GRADCOMP_CODED), GRADCOMP_CAN_CODED_ALLREDUCE, "a coded all-reduce"},
};

/* What the collective lacks for these patterns; NULL: nothing. */
static const char *pair_lacks(uint32_t patterns, uint32_t serves)
{
	if (serves & GRADCOMP_CAN_EXCHANGE)
		return NULL;
	for (size_t i = 0; i < sizeof pair_rules / sizeof pair_rules[0]; i++)
		if (patterns & pair_rules[i].pattern && !(serves & pair_rules[i].needs))
			return pair_rules[i].name;
	return NULL;
}

typedef struct pair_search {
	uint32_t patterns;
	names able;
} pair_search;

static int pair_try(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                    const char *reason)
{
	const struct gradcomp_collective_v1 *c = (const void *)info;
	pair_search *s = ctx;

	(void)path;
	(void)reason;
	if (c && !pair_lacks(s->patterns, c->serves))
		names_add(&s->able, name, strlen(name));
	return 0;
}

gradcomp_status registry_pair(const config *c, const plugin *compressor, const plugin *collective,
                              gradcomp_error *err)
{
	pair_search s = {.patterns = compressor->compressor->patterns};
	const char *lacks = pair_lacks(s.patterns, collective->collective->serves);
	gradcomp_status status;
	char *list;

	if (!lacks)
		return GRADCOMP_OK;
	registry_each(c, GRADCOMP_KIND_COLLECTIVE, pair_try, &s);
	list = names_join(&s.able);
	status = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                   "compressor '%s' needs %s, which collective '%s' does not have; collectives that serve "
	                   "it: %s",
	                   compressor->info->name, lacks, collective->info->name,
	                   list && *list ? list : "none is installed");
	free(list);
	names_clear(&s.able);
	return status;
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
	};
}
