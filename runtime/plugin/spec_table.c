#include "plugin/spec_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/memory_rows.h"
#include "config/name_rules.h"
#include "config/policy.h"
#include "plugin/compat.h"
#include "plugin/plugin_host.h"

/* Checks that there is an error memory where a SPEC says how to keep it. */
static gradcomp_status check_memory(const plugin *p, const spec *s, gradcomp_error *err)
{
	if (p->kind != GRADCOMP_KIND_COMPRESSOR || !memory_rows_special(p->info, s->values) ||
	    gradcomp_keeps_error(p->compressor, s->values))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 "'%s' keeps no error memory: leave memory= and average= out, which say how it is kept",
	                 s->text);
}

gradcomp_status spec_resolve(const config *c, gradcomp_plugin_kind kind, const char *text, const plugin **out,
                             spec *values, gradcomp_error *err)
{
	const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
	char name[SPEC_NAME_MAX];
	gradcomp_status st;
	gradcomp_host host;
	gradcomp_error inner = {0};
	gradcomp_status (*check)(const gradcomp_host *, const gradcomp_value *, gradcomp_error *);
	if (name_rules_is(text))
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"'%s' has SPECs by the names of a model's tensors, which are for models that are attached and "
			"for reducers; here one SPEC is needed, such as block:bits=8",
			text);
	if (policy_is(text))
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"'%s' is a policy, which is for the calls of a program's own process groups (PyTorch's "
			"backend gradcomp); here one SPEC is needed, such as block:bits=8",
			text);
	if ((st = spec_name(text, name, err)) || (st = registry_open(c, kind, name, out, err)) ||
	    (st = spec_parse((*out)->info, text, values, err)))
		return st;
	check = kind == GRADCOMP_KIND_COMPRESSOR ? (*out)->compressor->check : (*out)->collective->check;
	if (check) {
		plugin_host(&host, &quiet);
		st = check(&host, values->values, &inner);
		if (st)
			error_set(err, st, "%s: %s", name, inner.text[0] ? inner.text : gradcomp_strerror(st));
	}
	if (!st)
		st = check_memory(*out, values, err);
	if (st)
		spec_clear(values);
	return st;
}

typedef struct spec_entry {
	struct spec_entry *next;
	gradcomp_plugin_kind kind;
	char *asked;
	const gradcomp_plugin_info *builtin; /* the table of one that is no plugin; else NULL, and `plugin` is set */
	const plugin *plugin;
	spec values;
	/* A compressor's: the collective where the default cannot carry it; NULL: not looked for yet. */
	struct spec_entry *fallback;
} spec_entry;

void spec_table_init(spec_table *t, const config *c)
{
	*t = (spec_table){.config = c};
	pthread_mutex_init(&t->lock, NULL);
}

void spec_table_clear(spec_table *t)
{
	spec_entry *e;
	if (!t->config)
		return;
	while ((e = t->first)) {
		t->first = e->next;
		spec_clear(&e->values);
		free(e->asked);
		free(e);
	}
	pthread_mutex_destroy(&t->lock);
	t->config = NULL;
}

/* The entry of a SPEC; with `builtin` it is that one's, else a plugin's. */
static gradcomp_status entry_get(spec_table *t, gradcomp_plugin_kind kind, const gradcomp_plugin_info *builtin,
                                 const char *text, spec_entry **out, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	spec_entry *e;
	pthread_mutex_lock(&t->lock);
	for (e = t->first; e && (e->kind != kind || e->builtin != builtin || strcmp(e->asked, text)); e = e->next)
		;
	if (e)
		goto done;
	e = calloc(1, sizeof *e);
	if (e)
		e->asked = strdup(text);
	if (!e || !e->asked)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for SPEC '%s'", text);
	else if (builtin)
		st = spec_parse(builtin, text, &e->values, err);
	else
		st = spec_resolve(t->config, kind, text, &e->plugin, &e->values, err);
	if (st) {
		free(e ? e->asked : NULL);
		free(e);
		e = NULL;
		goto done;
	}
	e->kind = kind;
	e->builtin = builtin;
	e->next = t->first;
	t->first = e;
done:
	pthread_mutex_unlock(&t->lock);
	*out = e;
	return st;
}

gradcomp_status spec_table_get(spec_table *t, gradcomp_plugin_kind kind, const char *text, const plugin **out,
                               const spec **values, gradcomp_error *err)
{
	spec_entry *e;
	gradcomp_status st = entry_get(t, kind, NULL, text, &e, err);
	if (st)
		return st;
	*out = e->plugin;
	*values = &e->values;
	return GRADCOMP_OK;
}

gradcomp_status spec_table_builtin(spec_table *t, const gradcomp_plugin_info *info, const char *text,
                                   const spec **values, gradcomp_error *err)
{
	spec_entry *e;
	gradcomp_status st = entry_get(t, GRADCOMP_KIND_COMPRESSOR, info, text, &e, err);
	if (!st)
		*values = &e->values;
	return st;
}

/* A SPEC that was given, or the configured one; then its error names the origin. */
static gradcomp_status pair_spec(spec_table *t, gradcomp_plugin_kind kind, const char *text, spec_entry **out,
                                 gradcomp_error *err)
{
	setting_id setting = kind == GRADCOMP_KIND_COMPRESSOR ? SET_GRADCOMP_COMPRESSOR : SET_GRADCOMP_COLLECTIVE;
	gradcomp_error inner;
	gradcomp_status st = entry_get(t, kind, NULL, text ? text : config_str(t->config, setting), out, &inner);
	if (!st)
		return GRADCOMP_OK;
	return text ? error_set(err, st, "%s", inner.text)
	            : error_set(err, st, "%s (%s): %s", settings_table[setting].row.name,
	                        config_origin(t->config, setting), inner.text);
}

/* Nobody named a collective and the default cannot carry the compressor: the first
 * installed one that can. */
static spec_entry *pair_instead(spec_table *t, spec_entry *compressor, spec_entry *collective)
{
	strset able = {0};
	spec_entry *e;
	pthread_mutex_lock(&t->lock);
	e = compressor->fallback;
	pthread_mutex_unlock(&t->lock);
	if (e)
		return e;
	compat_collectives(t->config, compressor->plugin->compressor, &able);
	if (able.count && !entry_get(t, GRADCOMP_KIND_COLLECTIVE, NULL, able.name[0], &e, NULL)) {
		pthread_mutex_lock(&t->lock);
		compressor->fallback = collective = e;
		pthread_mutex_unlock(&t->lock);
	}
	strset_clear(&able);
	return collective;
}

gradcomp_status spec_table_both(spec_table *t, const char *compressor, const char *collective, const plugin *p[2],
                                const spec *s[2], gradcomp_error *err)
{
	spec_entry *e[2];
	gradcomp_status st = pair_spec(t, GRADCOMP_KIND_COMPRESSOR, compressor, &e[0], err);
	if (!st)
		st = pair_spec(t, GRADCOMP_KIND_COLLECTIVE, collective, &e[1], err);
	if (st)
		return st;
	if (!collective && config_is_default(t->config, SET_GRADCOMP_COLLECTIVE) &&
	    !compat_patterns(e[0]->plugin, e[1]->plugin))
		e[1] = pair_instead(t, e[0], e[1]);
	st = compat_pair(t->config, e[0]->plugin, e[1]->plugin, err);
	for (int k = 0; !st && k < 2; k++) {
		p[k] = e[k]->plugin;
		s[k] = &e[k]->values;
	}
	return st;
}

gradcomp_status spec_table_job(spec_table *t, const char *compressor, const char *collective, const plugin *p[2],
                               const spec *s[2], gradcomp_error *err)
{
	gradcomp_status st = spec_table_both(t, compressor, collective, p, s, err);
	if (st || p[1]->collective->serves & GRADCOMP_CAN_ALLGATHER)
		return st;
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "collective '%s' serves no all-gather, by which the ranks of a job compare their settings",
	                 p[1]->info->name);
}
