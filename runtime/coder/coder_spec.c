#include "coder/coder_spec.h"

#include "config/memory_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strset.h"
#include "gradcomp/coder.h"
#include "plugin/compat.h"
#include "plugin/descriptor.h"
#include "plugin/plugin_host.h"

#define CODES GRADCOMP_PATTERN_BIT(GRADCOMP_CODED)

/* Besides the two: what calls begin with, and what names a rank that means another call. */
#define NEEDS_DENSE (GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER | GRADCOMP_CAN_ALLREDUCE)
#define NEEDS_CODED \
	(GRADCOMP_CAN_CODED_REDUCE_SCATTER | GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_ALLGATHER | \
	 GRADCOMP_CAN_ALLREDUCE)

static const char *lacking(uint32_t missing)
{
	return missing & GRADCOMP_CAN_CODED_REDUCE_SCATTER ? "coded reduce-scatter"
	       : missing & GRADCOMP_CAN_CODED_ALLGATHER    ? "coded all-gather"
	       : missing & GRADCOMP_CAN_REDUCE_SCATTER     ? "reduce-scatter"
	       : missing & GRADCOMP_CAN_ALLGATHER          ? "all-gather"
	                                                   : "all-reduce";
}

typedef struct search {
	uint32_t needs; /* a collective must have these */
	uint32_t traits;
	strset able;
} search;

static int try_compressor(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                          const char *reason)
{
	const struct gradcomp_compressor_v1 *c = (const void *)info;
	search *s = ctx;
	(void)path, (void)reason;
	if (c && c->patterns & CODES && !(s->traits & ~c->traits))
		strset_add(&s->able, name, strlen(name));
	return 0;
}

static int try_collective(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                          const char *reason)
{
	const struct gradcomp_collective_v1 *c = (const void *)info;
	search *s = ctx;
	(void)path, (void)reason;
	if (c && !(s->needs & ~c->serves) && !(s->traits & ~c->traits))
		strset_add(&s->able, name, strlen(name));
	return 0;
}

/* Says what is refused, and what is there instead. */
static gradcomp_status no_code(const config *c, const char *name, const char *why, bool device, gradcomp_error *err)
{
	search s = {.traits = device ? GRADCOMP_TRAIT_CUDA : 0};
	registry_each(c, GRADCOMP_KIND_COMPRESSOR, try_compressor, &s);
	char *list = strset_join(&s.able);
	gradcomp_status st = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                               "'%s' %s; compressors that shards %scan be sent with: %s%snone", name, why,
	                               device ? "on a GPU " : "", list ? list : "", list && *list ? ", " : "");
	free(list);
	strset_clear(&s.able);
	return st;
}

static bool named(const char *text, const char *name)
{
	return strcspn(text, ":") == strlen(name) && !strncmp(text, name, strlen(name));
}

/* An error of a SPEC that nobody gave here names where it was configured. */
static gradcomp_status get(spec_table *t, gradcomp_plugin_kind kind, const char *text, setting_id setting,
                           const plugin **p, const spec **s, gradcomp_error *err)
{
	gradcomp_error inner = {0};
	gradcomp_status st = spec_table_get(t, kind, text ? text : config_str(t->config, setting), p, s, &inner);
	if (!st)
		return GRADCOMP_OK;
	return text ? error_set(err, st, "%s", inner.text)
	            : error_set(err, st, "%s (%s): %s", settings_table[setting].row.name,
	                        config_origin(t->config, setting), inner.text);
}

static gradcomp_status choose_compressor(spec_table *t, const char *text, coder_parts *out, gradcomp_error *err)
{
	const char *asked = text ? text : config_str(t->config, SET_GRADCOMP_COMPRESSOR);
	const plugin *p;
	if (named(asked, "auto"))
		return no_code(t->config, "auto",
		               "chooses among compressors for a model's tensors, which a coder does not know",
		               out->device, err);
	gradcomp_status st =
		get(t, GRADCOMP_KIND_COMPRESSOR, text, SET_GRADCOMP_COMPRESSOR, &p, &out->compressor_spec, err);
	if (st)
		return st;
	out->compressor = p->compressor;
	out->dense = !strcmp(p->info->name, "none");
	if (out->dense)
		return GRADCOMP_OK;
	if (!(p->compressor->patterns & CODES))
		return no_code(t->config, p->info->name,
		               p->compressor->traits & GRADCOMP_TRAIT_SHAPED
		                       ? "works on matrices, of which a flat shard has none"
		                       : "gives no code for runs of numbers, which a shard is",
		               out->device, err);
	if (memory_rows_special(p->info, out->compressor_spec->values))
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "a coder keeps what it has lost as floats: leave memory= and average= out of '%s'",
		                 out->compressor_spec->text);
	if (p->compressor->traits & GRADCOMP_TRAIT_OWN_MOMENTUM || p->compressor->state_arrays || p->compressor->save)
		return no_code(t->config, p->info->name,
		               "keeps state of a model's tensors, which a coder does not know", out->device, err);
	if (out->device && !(p->compressor->traits & GRADCOMP_TRAIT_CUDA && p->compressor->code_on))
		return no_code(t->config, p->info->name, "codes numbers in host memory alone", true, err);
	return GRADCOMP_OK;
}

static gradcomp_status check_on_device(spec_table *t, const plugin *p, uint32_t needs, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = p->collective;
	const char *why = c->unusable ? c->unusable() : NULL;
	search s = {.needs = needs, .traits = GRADCOMP_TRAIT_CUDA};
	if (why)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "collective '%s', by which shards on a GPU are sent, cannot be used: %s",
		                 p->info->name, why);
	if (c->traits & GRADCOMP_TRAIT_CUDA && c->enqueue && c->watch)
		return GRADCOMP_OK;
	registry_each(t->config, GRADCOMP_KIND_COLLECTIVE, try_collective, &s);
	char *list = strset_join(&s.able);
	gradcomp_status st =
		error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                  "collective '%s' takes no CUDA memory, in which shards are; collectives that do: %s",
	                  p->info->name, list && *list ? list : "none is installed");
	free(list);
	strset_clear(&s.able);
	return st;
}

/* Says which is used where nobody names one. */
static const char *usual(spec_table *t, uint32_t needs, const coder_parts *out, bool levels, char name[SPEC_NAME_MAX])
{
	const plugin *p;
	const spec *s;
	gradcomp_error inner;
	if (!out->device || !config_is_default(t->config, SET_GRADCOMP_COLLECTIVE))
		return NULL;
	*name = 0;
	/* Sums go within nodes first over NCCL itself. */
	if (levels && !out->dense && config_is_default(t->config, SET_GRADCOMP_DEVICE_COLLECTIVE))
		compat_levels_on_device(t->config, name);
	return *name && !spec_table_get(t, GRADCOMP_KIND_COLLECTIVE, name, &p, &s, &inner) &&
	                       !(needs & ~p->collective->serves) && !check_on_device(t, p, needs, &inner)
	               ? name
	               : config_str(t->config, SET_GRADCOMP_DEVICE_COLLECTIVE);
}

static gradcomp_status choose_collective(spec_table *t, const char *text, bool levels, coder_parts *out,
                                         gradcomp_error *err)
{
	search s = {.needs = out->dense ? NEEDS_DENSE : NEEDS_CODED, .traits = out->device ? GRADCOMP_TRAIT_CUDA : 0};
	const plugin *p;
	char name[SPEC_NAME_MAX];
	if (!text)
		text = usual(t, s.needs, out, levels, name);
	gradcomp_status st =
		get(t, GRADCOMP_KIND_COLLECTIVE, text, SET_GRADCOMP_COLLECTIVE, &p, &out->collective_spec, err);

	if (st)
		return st;
	if (s.needs & ~p->collective->serves) {
		registry_each(t->config, GRADCOMP_KIND_COLLECTIVE, try_collective, &s);
		if (!text && s.able.count && config_is_default(t->config, SET_GRADCOMP_COLLECTIVE)) {
			st = spec_table_get(t, GRADCOMP_KIND_COLLECTIVE, s.able.name[0], &p, &out->collective_spec,
			                    err);
		} else {
			char *list = strset_join(&s.able);
			st = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
			               "collective '%s' serves no %s, which a coder of '%s' needs; collectives "
			               "that do: %s",
			               p->info->name, lacking(s.needs & ~p->collective->serves),
			               out->compressor->info.name, list && *list ? list : "none is installed");
			free(list);
		}
		strset_clear(&s.able);
	}
	if (st)
		return st;
	out->collective = p->collective;
	out->collective_plugin = p;
	return out->device ? check_on_device(t, p, s.needs, err) : GRADCOMP_OK;
}

gradcomp_status coder_choose(spec_table *t, const char *compressor, const char *collective, bool device, bool levels,
                             coder_parts *out, gradcomp_error *err)
{
	*out = (coder_parts){.device = device};
	gradcomp_status st = choose_compressor(t, compressor, out, err);
	return st ? st : choose_collective(t, collective, levels, out, err);
}

gradcomp_status coder_instance(const coder_parts *parts, const gradcomp_host *host, const gradcomp_layout *layout,
                               void **instance, gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *c = parts->compressor;
	const gradcomp_bucket all = {.struct_size = sizeof all, .ntensors = 1, .numel = layout->numel};
	gradcomp_plan plan = {.struct_size = sizeof plan};
	void *made = NULL;
	gradcomp_error own = {0};
	gradcomp_status st = c->create(host, parts->compressor_spec->values, layout, &made, &own);
	st = descriptor_compressor_status(c, "create", st, &own, err);
	if (st)
		return st;
	st = descriptor_compressor_status(c, "plan", c->plan(made, &all, 0, &plan, &own), &own, err);
	if (!st && (plan.nrounds != 1 || plan.rounds[0].pattern != GRADCOMP_CODED))
		st = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		               "'%s' does not code from the first step on: a coder knows no steps; leave "
		               "start_step out",
		               parts->compressor_spec->text);
	if (st) {
		c->destroy(made);
		return st;
	}
	*instance = made;
	return GRADCOMP_OK;
}

/* With an instance, since some parameters show there that they cannot be. */
gradcomp_status coder_check(const config *c, const char *compressor, const char *collective, gradcomp_error *err)
{
	static const uint64_t dims[] = {1};
	static const gradcomp_tensor tensor = {.name = "shard", .numel = 1, .dims = dims, .ndim = 1};
	const gradcomp_layout layout = {.struct_size = sizeof layout,
	                                .ntensors = 1,
	                                .tensors = &tensor,
	                                .numel = 1,
	                                .nranks = 2,
	                                .patterns = CODES};
	const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
	coder_parts parts;
	spec_table specs;
	gradcomp_host host;
	void *instance = NULL;
	spec_table_init(&specs, c);
	gradcomp_status st = coder_choose(&specs, compressor, collective, false, false, &parts, err);
	plugin_host(&host, &quiet);
	if (!st && !parts.dense)
		st = coder_instance(&parts, &host, &layout, &instance, err);
	if (instance)
		parts.compressor->destroy(instance);
	spec_table_clear(&specs);
	return st;
}

gradcomp_status gradcomp_coder_check(const char *spec, const char *collective, gradcomp_error *err)
{
	config *c;
	gradcomp_status st = config_load(NULL, &c, err);
	if (st)
		return st;
	st = coder_check(c, spec, collective, err);
	config_free(c);
	return st;
}
