/* Reads what --gradcomp=auto is asked for: its SPEC, the settings, the list of candidates. */
#include "kinds/autotune/tuner.h"
#include "step/gpu/gpu.h"

#include "base/error.h"
#include "plugin/compat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ERROR, ALLOW, DENY, CANDIDATES, MARGIN, WINDOW, INTERVAL };

static const gradcomp_param params[] = {
	[MAX_ERROR] = {.name = "max_error",
                       .type = GRADCOMP_PARAM_FLOAT,
                       .def = "0.995",
                       .min = 0.001,
                       .max = 100,
                       .help = "share of a gradient that may stay in error memory"},
	[ALLOW] = {.name = "allow",
                   .type = GRADCOMP_PARAM_STRING,
                   .def = "",
                   .help = "compressors that may be used beside the base, a/b/c; empty: all candidates"},
	[DENY] = {.name = "deny",
                  .type = GRADCOMP_PARAM_STRING,
                  .def = "",
                  .help = "compressors that may not be used, a/b/c"},
	[CANDIDATES] = {.name = "candidates",
                        .type = GRADCOMP_PARAM_STRING,
                        .def = "",
                        .help = "SPECs to choose from, a/b:x=1/c, of one parameter each; empty: the setting "
                                "auto.candidates"},
	[MARGIN] = {.name = "margin",
                    .type = GRADCOMP_PARAM_FLOAT,
                    .def = "0.05",
                    .min = 0,
                    .max = 1,
                    .help = "least gain, as a share of a step, for which a candidate is tried"},
	[WINDOW] = {.name = "window",
                    .type = GRADCOMP_PARAM_INT,
                    .def = "8",
                    .min = 3,
                    .max = 64,
                    .help = "steps by which a candidate is judged"},
	[INTERVAL] = {.name = "interval",
                      .type = GRADCOMP_PARAM_INT,
                      .def = "500",
                      .min = 20,
                      .max = 1000000,
                      .help = "steps after which dense is tried again; grows while the choice wins"},
};

/* Describes auto itself, with the table of its parameters. Not a plugin. */
static const gradcomp_plugin_info tuner_info = {
	.abi_version = GRADCOMP_ABI_VERSION,
	.struct_size = sizeof tuner_info,
	.name = "auto",
	.version = "1.0",
	.summary = "chosen while the job runs: a compressor that makes steps shorter, or none",
	.licence = "MIT",
	.params = params,
	.nparams = sizeof params / sizeof params[0],
};

const gradcomp_plugin_info *gradcomp_auto_info(void)
{
	return &tuner_info;
}

bool tuner_requested(const config *c, const char *compressor)
{
	const char *spec = compressor ? compressor : config_str(c, SET_GRADCOMP_COMPRESSOR);
	return !strncmp(spec, tuner_info.name, strcspn(spec, ":")) && strcspn(spec, ":") == strlen(tuner_info.name);
}

/* Returns 1 when the name of a SPEC, which others may follow, is in a list a,b,c. */
static int listed(const char *list, const char *spec)
{
	size_t n = strcspn(spec, ":@, "), length;
	for (const char *item; (item = spec_list_next(&list, &length));)
		if (length == n && !strncmp(item, spec, n))
			return 1;
	return 0;
}

static gradcomp_status name_candidate(tuner_config *w, const char *text, size_t n, gradcomp_error *err)
{
	candidate *k = &w->candidate[w->n];
	k->text = strndup(text, n);
	k->compressor = strndup(text, n);
	w->n++;
	return k->text && k->compressor ? GRADCOMP_OK
	                                : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for auto's candidates");
}

/* Adds the mix, which there may be of two or more beside the base. */
static gradcomp_status add_mix(tuner_config *w, gradcomp_error *err)
{
	candidate *k = &w->candidate[w->n];
	if (w->n < 3 || w->n == TUNER_CANDIDATES)
		return GRADCOMP_OK;
	k->mixed = k->costed = 1;
	return name_candidate(w, TUNER_MIX, strlen(TUNER_MIX), err);
}

static gradcomp_status add(tuner_config *w, const char *text, size_t n, gradcomp_error *err)
{
	candidate *k = &w->candidate[w->n];
	char name[SPEC_NAME_MAX];
	gradcomp_error inner = {0};
	if (w->n == TUNER_CANDIDATES)
		return error_set(err, GRADCOMP_ERR_INVALID, "auto: more than %d candidates", TUNER_CANDIDATES);
	gradcomp_status st = name_candidate(w, text, n, err);
	if (st)
		return st;
	char *at = strrchr(k->compressor, '@');
	if (at) {
		*at = 0;
		k->collective = strdup(at + 1);
		if (!k->collective)
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for auto's candidates");
	}
	st = spec_name(k->compressor, name, &inner);
	if (!st && !strcmp(name, tuner_info.name))
		st = error_set(&inner, GRADCOMP_ERR_INVALID, "'auto' chooses and cannot be chosen");
	if (!st && at)
		st = spec_name(at + 1, name, &inner);
	return st ? error_set(err, st, "auto: candidate '%s': %s", k->text, inner.text) : GRADCOMP_OK;
}

/* Names of allow or deny: what would never be found is a mistake. */
static gradcomp_status check_names(const char *what, const char *list, gradcomp_error *err)
{
	gradcomp_error inner = {0};
	size_t n;
	for (const char *item; (item = spec_list_next(&list, &n));) {
		char one[SPEC_NAME_MAX], name[SPEC_NAME_MAX];
		snprintf(one, sizeof one, "%.*s", n < sizeof one ? (int)n : (int)sizeof one - 1, item);
		if (strchr(one, ':') || n >= sizeof one || spec_name(one, name, &inner))
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "auto: %s: '%.*s' is not a compressor's name; separate names with '/'", what,
			                 (int)n, item);
	}
	return GRADCOMP_OK;
}

/* Takes what may be used of `list`; then what is allowed and not in it. */
static gradcomp_status choose_from(tuner_config *w, const char *list, const char *allow, const char *deny,
                                   gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	uint32_t first = 1;
	const char *at = list, *item;
	size_t n;
	while (!st && (item = spec_list_next(&at, &n))) {
		/* It is not known from the base's name whether it is dense: it is not asked for. */
		if (!listed(deny, item) && (first || !*allow || listed(allow, item)))
			st = add(w, item, n, err);
		first = 0;
	}
	at = allow;
	while (!st && (item = spec_list_next(&at, &n))) {
		int there = 0;
		for (uint32_t i = 0; i < w->n; i++)
			there |= strcspn(w->candidate[i].compressor, ":") == n &&
			         !strncmp(w->candidate[i].compressor, item, n);
		if (!there && !listed(deny, item))
			st = add(w, item, n, err);
	}
	if (!st && !w->n)
		st = error_set(err, GRADCOMP_ERR_INVALID, "auto: no candidate is left of '%s' with deny=%s", list,
		               deny);
	return st;
}

/* A list of the SPEC, to be freed. A comma would end its parameter: it is a '/' there. */
static char *list_of(const gradcomp_value *asked)
{
	char *list = strdup(asked->s);
	for (char *p = list; p && (p = strchr(p, '/')); p++)
		*p = ',';
	return list;
}

static uint64_t hash_text(uint64_t h, const char *text)
{
	for (; *text; text++)
		h = id_mix(h, (unsigned char)*text);
	return id_mix(h, 0);
}

/* Values of auto's SPEC; NULL: after an error. */
static const gradcomp_value *values_of(spec_table *specs, const char *text, gradcomp_error *err)
{
	const char *asked = text ? text : config_str(specs->config, SET_GRADCOMP_COMPRESSOR);
	const spec *s;
	return spec_table_builtin(specs, &tuner_info, asked, &s, err) ? NULL : s->values;
}

gradcomp_status tuner_config_read(spec_table *specs, const char *text, tuner_config *w, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_error inner = {0};
	const gradcomp_value *values = values_of(specs, text, &inner);
	memset(w, 0, sizeof *w);
	if (!values)
		return error_set(err, inner.status, "%s", inner.text);
	char *allow = list_of(&values[ALLOW]), *deny = list_of(&values[DENY]);
	char *list = *values[CANDIDATES].s ? list_of(&values[CANDIDATES])
	                                   : strdup(config_str(specs->config, SET_AUTO_CANDIDATES));
	w->max_error = values[MAX_ERROR].f;
	w->margin = values[MARGIN].f;
	w->window = (uint32_t)values[WINDOW].i;
	w->interval = (uint32_t)values[INTERVAL].i;
	w->candidate = calloc(TUNER_CANDIDATES, sizeof *w->candidate);
	int made = allow && deny && list && w->candidate;
	uint64_t names = made ? hash_text(hash_text(hash_text(0, allow), deny), list) : 0;
	if (!made ||
	    asprintf(&w->text, "auto:max_error=%g of candidates %08llx (margin %g, window %u, interval %u)",
	             w->max_error, (unsigned long long)(names & 0xffffffff), w->margin, w->window, w->interval) < 0) {
		w->text = NULL;
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for auto's candidates");
	}
	if (!st)
		st = check_names("allow", allow, err);
	if (!st)
		st = check_names("deny", deny, err);
	if (!st)
		st = choose_from(w, list, allow, deny, err);
	if (!st)
		st = add_mix(w, err);
	if (st)
		tuner_config_clear(w);
	free(allow);
	free(deny);
	free(list);
	return st;
}

void tuner_config_clear(tuner_config *w)
{
	for (uint32_t i = 0; i < w->n; i++) {
		candidate *k = &w->candidate[i];
		free(k->text);
		free(k->compressor);
		free(k->collective);
		free(k->why);
		free(k->load);
	}
	free(w->candidate);
	free(w->text);
	memset(w, 0, sizeof *w);
}

gradcomp_status tuner_candidate_resolve(spec_table *specs, const char *collective, candidate *k, gradcomp_error *err)
{
	gradcomp_status st;
	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a list that was read has a candidate */
	if (k->specs[0] || k->mixed)
		return GRADCOMP_OK;
	collective = k->collective ? k->collective : collective;
	char *aside = NULL;
	/* The candidate's reducer will have these. */
	if (k->on_device && !collective && config_is_default(specs->config, SET_GRADCOMP_COLLECTIVE))
		st = gpu_pair(specs, k->compressor, k->in_levels, k->plugins, k->specs, &aside, err);
	else
		st = spec_table_both(specs, k->compressor, collective, k->plugins, k->specs, err);
	free(aside);
	if (st)
		return st;
	k->dense = compat_dense(k->plugins[0]);
	if (k->plugins[0]->compressor->traits & GRADCOMP_TRAIT_OWN_MOMENTUM)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "it brings its own momentum, so that it cannot take turns with others");
	return GRADCOMP_OK;
}

static gradcomp_status names_installed(const config *c, const char *what, const char *list, gradcomp_error *err)
{
	gradcomp_error inner = {0};
	size_t n;
	for (const char *item; (item = spec_list_next(&list, &n));) {
		char name[SPEC_NAME_MAX];
		const plugin *found;
		snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, item);
		if (registry_open(c, GRADCOMP_KIND_COMPRESSOR, name, &found, &inner))
			return error_set(err, inner.status, "%s: %s", what, inner.text);
	}
	return GRADCOMP_OK;
}

/* Checks that all that somebody has typed in the SPEC itself is there. */
static gradcomp_status check_typed(spec_table *specs, const char *text, const char *collective, tuner_config *w,
                                   gradcomp_error *err)
{
	gradcomp_error inner = {0};
	gradcomp_status st = GRADCOMP_OK;
	const gradcomp_value *values = values_of(specs, text, &inner);
	if (!values)
		return error_set(err, inner.status, "%s", inner.text);
	for (uint32_t i = 1; !st && *values[CANDIDATES].s && i < w->n; i++)
		if (tuner_candidate_resolve(specs, collective, &w->candidate[i], &inner))
			st = error_set(err, inner.status, "auto: candidate '%s': %s", w->candidate[i].text, inner.text);
	for (int which = ALLOW; !st && which <= DENY; which++) {
		char *list = list_of(&values[which]);
		if (list)
			st = names_installed(specs->config, which == ALLOW ? "auto: allow" : "auto: deny", list, err);
		free(list);
	}
	return st;
}

/* Only the base of the settings' candidates must be there: another one that is not is left out when it would be
 * tried. */
gradcomp_status tuner_check_spec(spec_table *specs, const char *text, const char *collective, gradcomp_error *err)
{
	tuner_config w;
	gradcomp_status st = tuner_config_read(specs, text, &w, err);
	if (st)
		return st;
	st = tuner_candidate_resolve(specs, collective, &w.candidate[0], err);
	if (!st && !w.candidate[0].dense)
		st = error_set(err, GRADCOMP_ERR_INVALID,
		               "auto: its first candidate, '%s', keeps something back: others are compared with a "
		               "dense one",
		               w.candidate[0].text);
	if (!st)
		st = check_typed(specs, text, collective, &w, err);
	tuner_config_clear(&w);
	return st;
}
