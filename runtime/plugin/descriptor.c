#include "plugin/descriptor.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/first_sizes.h"
#include "config/spec.h"
#include "plugin/operators_v1.h"

#define DESCRIPTOR_PARAMS_MAX 256
#define DESCRIPTOR_NEEDS_MAX 256
#define COMPRESSOR_TRAITS ((GRADCOMP_TRAIT_ALIKE << 1) - 1)
#define COMPRESSOR_PATTERNS ((GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) << 1) - 1)
#define COLLECTIVE_SERVES ((GRADCOMP_CAN_OWNED_SUMS << 1) - 1)

/* The file under check, for error texts. */
typedef struct checked_file {
	const char *path;
	gradcomp_error *err;
} checked_file;

GRADCOMP_PRINTF(2, 3)
static gradcomp_status refuse(const checked_file *s, const char *fmt, ...)
{
	char text[400];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return error_set(s->err, GRADCOMP_ERR_ABI, "%s: %s", s->path, text);
}

static bool plain_name(const char *name)
{
	size_t n = strlen(name);
	return n && n < SPEC_NAME_MAX && *name >= 'a' && *name <= 'z' &&
	       !name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")];
}

static gradcomp_status check_param(const checked_file *s, const gradcomp_param *params, uint32_t i)
{
	const gradcomp_param *row = &params[i];
	gradcomp_error inner;
	gradcomp_value v;
	if (!row->name || !plain_name(row->name))
		return refuse(s, "parameter %u has no name made of a-z, 0-9 and '_', of at most %d characters", i,
		              SPEC_NAME_MAX - 1);
	for (uint32_t j = 0; j < i; j++)
		if (!strcmp(params[j].name, row->name))
			return refuse(s, "parameter '%s' stands in the table twice", row->name);
	if ((int)row->type < GRADCOMP_PARAM_INT || row->type > GRADCOMP_PARAM_STRING)
		return refuse(s, "parameter '%s' has type %d; types are %d to %d", row->name, (int)row->type,
		              GRADCOMP_PARAM_INT, GRADCOMP_PARAM_STRING);
	if (isnan(row->min) || isnan(row->max) || row->min > row->max)
		return refuse(s, "parameter '%s' has the range %g..%g", row->name, row->min, row->max);
	if (row->type == GRADCOMP_PARAM_CHOICE && (!row->choices || !row->choices[0]))
		return refuse(s, "parameter '%s' is a choice without choices", row->name);
	if (!row->help || strchr(row->help, '\n'))
		return refuse(s, "parameter '%s' has no help of one line", row->name);
	if (row->reserved0 || row->reserved[0] || row->reserved[1])
		return refuse(s, "parameter '%s' has a reserved word that is not zero", row->name);
	/* A ',' would end the value in the canonical SPEC. */
	if (row->def && strchr(row->def, ','))
		return refuse(s, "parameter '%s' has a ',' in its default '%s'", row->name, row->def);
	if (row->def && spec_value(row, row->def, &v, &inner))
		return refuse(s, "the default of a parameter is wrong: %s", inner.text);
	return GRADCOMP_OK;
}

/* Has the lengths of the structures that the host hands out; a plugin's needs are checked against them. */
static const struct {
	const char *name;
	size_t bytes;
} given[] = {
	{"host.", sizeof(gradcomp_host)},         {"operators.", sizeof(gradcomp_operators)},
	{"links.", sizeof(gradcomp_links)},       {"layout.", sizeof(gradcomp_layout)},
	{"bucket.", sizeof(gradcomp_bucket)},     {"work.", sizeof(gradcomp_work)},
	{"measured.", sizeof(gradcomp_measured)}, {"codec.", sizeof(gradcomp_codec)},
	{"merger.", sizeof(gradcomp_merger)},     {"exchange.", sizeof(gradcomp_exchange)},
};

/* How long a structure was where a plugin of this ABI was built. */
static size_t given_bytes(size_t k, uint32_t abi)
{
	return abi <= OPERATORS_V1_LAST_ABI && !strcmp(given[k].name, "operators.") ? sizeof(gradcomp_operators_v1)
	                                                                            : given[k].bytes;
}

static gradcomp_status check_needs(const checked_file *s, const gradcomp_plugin_info *info)
{
	if (info->abi_version > GRADCOMP_ABI_VERSION && !info->needs)
		return refuse(s,
		              "field abi_version: found %u, expected at most %u; the plugin was built for a newer "
		              "gradcomp than this %s, and does not list what it needs of it (field needs)",
		              info->abi_version, GRADCOMP_ABI_VERSION, GRADCOMP_VERSION_STRING);
	if (info->abi_version < 2 && (info->nneeds || info->needs))
		return refuse(s, "field needs: found in a plugin of ABI %u, which has no such field",
		              info->abi_version);
	if (info->nneeds > DESCRIPTOR_NEEDS_MAX || !info->nneeds != !info->needs)
		return refuse(s, "field nneeds: found %u%s, expected 1 to %d with a table, or 0 without one",
		              info->nneeds, info->needs ? "" : " without a table", DESCRIPTOR_NEEDS_MAX);
	for (uint32_t i = 0; i < info->nneeds; i++) {
		const gradcomp_need *need = &info->needs[i];
		size_t k = 0, n = sizeof given / sizeof *given;

		if (!need->name)
			return refuse(s, "field needs: row %u has no name", i);
		while (k < n && strncmp(need->name, given[k].name, strlen(given[k].name)))
			k++;
		if (k == n || need->end > given_bytes(k, info->abi_version))
			return refuse(
				s,
				"the plugin needs %s, which this gradcomp %s does not have: it is of ABI %d, the plugin of ABI "
				"%u; install gradcomp as new as the plugin, or the plugin's release for this one",
				need->name, GRADCOMP_VERSION_STRING, GRADCOMP_ABI_VERSION, info->abi_version);
	}
	return GRADCOMP_OK;
}

static gradcomp_status check_info(const checked_file *s, const char *name, const gradcomp_plugin_info *info)
{
	gradcomp_status st = check_needs(s, info);
	if (st)
		return st;
	if (!info->name || strcmp(info->name, name))
		return refuse(s, "field name: found '%s', expected '%s' as the file is called",
		              info->name ? info->name : "(null)", name);
	if (!info->version || !info->summary || !info->licence)
		return refuse(s, "field %s is missing",
		              !info->version   ? "version"
		              : !info->summary ? "summary"
		                               : "licence");
	if (info->nparams > DESCRIPTOR_PARAMS_MAX || (info->nparams && !info->params))
		return refuse(s, "field nparams: found %u%s, expected 0 to %d", info->nparams,
		              info->params ? "" : " without a table", DESCRIPTOR_PARAMS_MAX);
	if (info->reserved[0])
		return refuse(s, "a reserved word of the descriptor is not zero");
	for (uint32_t i = 0; !st && i < info->nparams; i++)
		st = check_param(s, info->params, i);
	return st;
}

static gradcomp_status missing(const checked_file *s, const char *function, const char *why)
{
	return refuse(s, "function %s is missing%s", function, why);
}

static gradcomp_status check_compressor(const checked_file *s, const struct gradcomp_compressor_v1 *c)
{
	if (!c->patterns || c->patterns & ~COMPRESSOR_PATTERNS)
		return refuse(s, "field patterns: found 0x%x, expected one or more bits of 0x%x", c->patterns,
		              COMPRESSOR_PATTERNS);
	if (c->instead & ~COMPRESSOR_PATTERNS)
		return refuse(s, "field instead: found 0x%x, expected bits of 0x%x, or none", c->instead,
		              COMPRESSOR_PATTERNS);
	if (c->traits & ~COMPRESSOR_TRAITS)
		return refuse(s, "field traits: found 0x%x, expected bits of 0x%x", c->traits, COMPRESSOR_TRAITS);
	uint32_t any = c->patterns | c->instead;
	int payloads = any != GRADCOMP_PATTERN_BIT(GRADCOMP_CODED); /* that encode() and decode() see */
	if (!c->create || !c->destroy || !c->plan || (payloads && (!c->encode || !c->decode)))
		return missing(s,
		               !c->create    ? "create"
		               : !c->destroy ? "destroy"
		               : !c->plan    ? "plan"
		               : !c->encode  ? "encode"
		                             : "decode",
		               "");
	if (any & GRADCOMP_PATTERN_BIT(GRADCOMP_MERGED) && !c->merge)
		return missing(s, "merge", ", which pattern MERGED needs");
	if (any & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) &&
	    (!c->code_bound || !c->code || !c->code_decode || !c->code_decode_add))
		return missing(s,
		               !c->code_bound    ? "code_bound"
		               : !c->code        ? "code"
		               : !c->code_decode ? "code_decode"
		                                 : "code_decode_add",
		               ", which pattern CODED needs");
	if (!c->save != !c->load)
		return missing(s, c->save ? "load" : "save", "; save and load come together");
	return GRADCOMP_OK;
}

static gradcomp_status check_collective(const checked_file *s, const struct gradcomp_collective_v1 *c)
{
	const struct {
		uint32_t bit;
		int there;
		const char *name;
	} serves[] = {
		{GRADCOMP_CAN_ALLREDUCE, c->allreduce != NULL, "allreduce"},
		{GRADCOMP_CAN_REDUCE_SCATTER, c->reduce_scatter != NULL, "reduce_scatter"},
		{GRADCOMP_CAN_ALLGATHER, c->allgather != NULL, "allgather"},
		{GRADCOMP_CAN_ALLTOALL, c->alltoall != NULL, "alltoall"},
		{GRADCOMP_CAN_BROADCAST, c->broadcast != NULL, "broadcast"},
		{GRADCOMP_CAN_BARRIER, c->barrier != NULL, "barrier"},
		{GRADCOMP_CAN_MERGE, c->merge != NULL, "merge"},
		{GRADCOMP_CAN_CODED_ALLREDUCE, c->coded_allreduce != NULL, "coded_allreduce"},
		{GRADCOMP_CAN_CODED_ALLGATHER, c->coded_allgather != NULL, "coded_allgather"},
		{GRADCOMP_CAN_CODED_REDUCE_SCATTER, c->coded_reduce_scatter != NULL, "coded_reduce_scatter"},
		{GRADCOMP_CAN_EXCHANGE, c->exchange && c->server_error, "exchange and server_error"},
		{GRADCOMP_CAN_SHARD,
	         c->shard && c->local_reduce_scatter && c->shard_allreduce && c->shard_allgather && c->local_allgather,
	         "one of the shard functions"},
	};

	if (!c->serves || c->serves & ~COLLECTIVE_SERVES)
		return refuse(s, "field serves: found 0x%x, expected one or more bits of 0x%x", c->serves,
		              COLLECTIVE_SERVES);
	if (c->traits & ~(GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_ELSE_HOST | GRADCOMP_TRAIT_TWO_QUEUES |
	                  GRADCOMP_TRAIT_ALL_TYPES) ||
	    (c->traits & GRADCOMP_TRAIT_ELSE_HOST && !(c->traits & GRADCOMP_TRAIT_CUDA && c->unusable)) ||
	    (c->traits & GRADCOMP_TRAIT_TWO_QUEUES && !(c->traits & GRADCOMP_TRAIT_CUDA && c->enqueue)))
		return refuse(
			s,
			"field traits: found 0x%x, expected 0 or 0x%x; with unusable() also 0x%x, with enqueue() 0x%x",
			c->traits, GRADCOMP_TRAIT_CUDA, GRADCOMP_TRAIT_ELSE_HOST, GRADCOMP_TRAIT_TWO_QUEUES);
	if (!c->create || !c->destroy)
		return missing(s, c->create ? "destroy" : "create", "");
	for (size_t i = 0; i < sizeof serves / sizeof serves[0]; i++)
		if (c->serves & serves[i].bit && !serves[i].there)
			return missing(s, serves[i].name, ", which field serves promises");
	if (c->traits & GRADCOMP_TRAIT_CUDA && !c->set_queue)
		return missing(s, "set_queue", ", which trait CUDA needs");
	return GRADCOMP_OK;
}

/* Checks what is read before the rest is copied. */
static gradcomp_status check_size(const checked_file *s, gradcomp_plugin_kind kind, const gradcomp_plugin_info *info,
                                  size_t exported)
{
	static const size_t first[] = {[GRADCOMP_KIND_COMPRESSOR] = FIRST_SIZE(gradcomp_compressor_v1),
	                               [GRADCOMP_KIND_COLLECTIVE] = FIRST_SIZE(gradcomp_collective_v1)};
	if (!info->abi_version)
		return refuse(s, "field abi_version: found 0, expected 1 to %d", GRADCOMP_ABI_VERSION);
	if (info->struct_size < first[kind] || info->struct_size > exported)
		return refuse(s, "field struct_size: found %u, expected %zu to the %zu bytes that are exported",
		              info->struct_size, first[kind], exported);
	return GRADCOMP_OK;
}

gradcomp_status descriptor_read(gradcomp_plugin_kind kind, const char *name, const char *path, const void *from,
                                size_t exported, descriptor *out, gradcomp_error *err)
{
	static const size_t today[] = {[GRADCOMP_KIND_COMPRESSOR] = sizeof(struct gradcomp_compressor_v1),
	                               [GRADCOMP_KIND_COLLECTIVE] = sizeof(struct gradcomp_collective_v1)};
	const gradcomp_plugin_info *info = from;
	checked_file s = {path, err};
	gradcomp_status st;
	if (exported < sizeof *info)
		return refuse(&s, "the exported descriptor has %zu bytes, expected at least %zu", exported,
		              sizeof *info);
	st = check_size(&s, kind, info, exported);
	if (st)
		return st;
	memset(out, 0, sizeof *out);
	memcpy(out, from, info->struct_size < today[kind] ? info->struct_size : today[kind]);
	out->info.struct_size = info->struct_size < today[kind] ? info->struct_size : (uint32_t)today[kind];
	st = check_info(&s, name, &out->info);
	if (st)
		return st;
	/* It would look for operators of the device, of which there is only today's table. */
	if (kind == GRADCOMP_KIND_COMPRESSOR && out->info.abi_version <= OPERATORS_V1_LAST_ABI)
		out->compressor.traits &= ~GRADCOMP_TRAIT_CUDA;
	return kind == GRADCOMP_KIND_COMPRESSOR ? check_compressor(&s, &out->compressor)
	                                        : check_collective(&s, &out->collective);
}

gradcomp_status descriptor_compressor_status(const struct gradcomp_compressor_v1 *c, const char *function,
                                             gradcomp_status st, const gradcomp_error *own, gradcomp_error *err)
{
	if (!st)
		return GRADCOMP_OK;
	if (st > 0)
		return error_set(err, GRADCOMP_ERR_INTERNAL,
		                 "compressor '%s': %s() returned %d: 0 or a negative status is right", c->info.name,
		                 function, (int)st);
	return *own->text ? error_set(err, st, "%s", own->text)
	                  : error_set(err, st, "compressor '%s': %s() failed and gave no reason (%s)", c->info.name,
	                              function, gradcomp_strerror(st));
}
