#include "config/config.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/conffile.h"
#include "base/error.h"
#include "base/install.h"
#include "config/settings.h"
#include "base/suggest.h"

typedef struct config_entry {
	char *text; /* the value as it was written */
	char *origin;
	char *lock;    /* FILE:LINE of what forbids to change it, NULL: nothing */
	char **places; /* FILE:LINE of each line that gave it; more than one of a list */
	size_t nplaces;
	gradcomp_value value;
} config_entry;

struct config {
	config_entry entries[SET_COUNT];
};

/* `origin` is copied; error text is prefixed with it. A locked setting can be given once more as it is. */
static gradcomp_status config_set(config *c, setting_id index, const char *text, const char *origin,
                                  gradcomp_error *err)
{
	config_entry *e = &c->entries[index];
	char *new_text, *new_origin;
	gradcomp_status st;
	gradcomp_error inner;
	if (e->lock)
		return !strcmp(e->text, text)
		               ? GRADCOMP_OK
		               : error_set(err, GRADCOMP_ERR_INVALID, "%s: %s is locked by %s, where it is '%s'",
		                           origin, settings_table[index].row.name, e->lock, e->text);
	new_text = strdup(text);
	new_origin = strdup(origin);
	if (!new_text || !new_origin) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for settings");
		goto fail;
	}
	st = settings_check(&settings_table[index], new_text, &e->value, &inner);
	if (st) {
		error_set(err, st, "%s: %s", origin, inner.text);
		goto fail;
	}
	free(e->text);
	free(e->origin);
	e->text = new_text;
	e->origin = new_origin;
	return GRADCOMP_OK;
fail:
	free(new_text);
	free(new_origin);
	return st;
}

static void config_places_clear(config_entry *e)
{
	while (e->nplaces)
		free(e->places[--e->nplaces]);
	free(e->places);
	e->places = NULL;
}

static gradcomp_status config_places_add(config_entry *e, const char *origin, gradcomp_error *err)
{
	char **more = realloc(e->places, (e->nplaces + 1) * sizeof *more);
	if (more)
		e->places = more;
	if (!more || !(more[e->nplaces] = strdup(origin)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for settings");
	e->nplaces++;
	return GRADCOMP_OK;
}

/* Sets every setting that no file has locked to its default. */
static gradcomp_status config_defaults(config *c, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (setting_id i = 0; i < SET_COUNT && !st; i++) {
		char *def;

		if (c->entries[i].lock)
			continue;
		config_places_clear(&c->entries[i]);
		def = install_path(settings_table[i].row.def);

		st = def ? config_set(c, i, def, "default", err)
		         : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for settings");
		free(def);
	}
	return st;
}

/* A list grows by what another line says of it; anything else has the value of the last file that names it. */
static gradcomp_status config_from_file(void *ctx, setting_id index, const char *value, const char *origin,
                                        gradcomp_error *err)
{
	config *c = ctx;
	config_entry *e = &c->entries[index];
	char *all = NULL, *origins = NULL;
	gradcomp_status st;
	if (e->lock)
		return config_set(c, index, value, origin, err);
	if (!settings_table[index].separator || !e->nplaces) {
		config_places_clear(e);
		st = config_set(c, index, value, origin, err);
	} else if (asprintf(&all, "%s%.*s%s", e->text, *e->text && *value, &settings_table[index].separator, value) <
	                   0 ||
	           asprintf(&origins, "%s, %s", e->origin, origin) < 0) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for settings");
	} else {
		st = config_set(c, index, all, origins, err);
	}
	free(all);
	free(origins);
	return st ? st : config_places_add(e, origin, err);
}

/* Locks what a file has fixed or locked: it stays from now on what it is. */
static gradcomp_status config_lock(config *c, gradcomp_error *err)
{
	const config_entry *lock = &c->entries[SET_GRADCOMP_LOCK];
	for (setting_id i = 0; i < SET_COUNT; i++) {
		config_entry *e = &c->entries[i];
		bool listed = settings_locked(lock->text, settings_table[i].row.name);

		if (e->lock || !(listed || (settings_table[i].fixed && e->nplaces)))
			continue;
		e->lock = strdup(listed ? lock->origin : e->origin);
		if (!e->lock)
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for settings");
	}
	return GRADCOMP_OK;
}

/* Reads the site's file, and those beside it in conf.d. Another file than the site's replaces it, except for what
 * the site's has locked. */
static gradcomp_status config_file(config *c, gradcomp_error *err)
{
	const char *named = secure_getenv("GRADCOMP_CONF");
	bool other = named && *named && strcmp(named, conffile_site()) != 0;
	gradcomp_error inner;
	gradcomp_status st = conffile_read(conffile_site(), config_from_file, c, &inner);
	if (st && (st != GRADCOMP_ERR_NOTFOUND || (named && *named && !other)))
		return error_set(err, st, "%s%s", st == GRADCOMP_ERR_NOTFOUND ? "GRADCOMP_CONF: " : "", inner.text);
	if ((st = conffile_drop_ins(conffile_site(), config_from_file, c, err)))
		return st;
	if ((st = config_lock(c, err)) || !other || (st = config_defaults(c, err)))
		return st;
	st = conffile_read(named, config_from_file, c, &inner);
	if (st)
		return error_set(err, st, "%s%s", st == GRADCOMP_ERR_NOTFOUND ? "GRADCOMP_CONF: " : "", inner.text);
	return config_lock(c, err);
}

/* Returns true when `word` is one of the words in `list`. */
static bool has_word(const char *list, const char *word)
{
	size_t n = strlen(word);
	while (*list) {
		size_t m = strcspn(list, " ,");

		if (m == n && !strncmp(list, word, n))
			return 1;
		list += m + strspn(list + m, " ,");
	}
	return 0;
}

/* Returns the value that is given for a setting, or NULL. */
static const char *option_value(const config_option *options, setting_id id)
{
	for (; options && options->id != SET_COUNT; options++)
		if (options->id == id)
			return options->value;
	return NULL;
}

/* The SPANK plugin passes options on in the variables a user could have set; what
 * came from an option is named in GRADCOMP_OPTIONS. */
static bool from_option(const config_option *options, setting_id id)
{
	const char *name = settings_table[id].row.name;
	const char *named = secure_getenv("GRADCOMP_OPTIONS");
	if (options)
		return option_value(options, id) != NULL;
	return named && !strncmp(name, "gradcomp.", 9) && has_word(named, name + 9);
}

static void environment_origin(const config_option *options, setting_id id, const char *env, char *out, size_t capacity)
{
	if (!from_option(options, id))
		snprintf(out, capacity, "environment %s", env);
	else if (id == SET_GRADCOMP_COMPRESSOR)
		snprintf(out, capacity, "option --gradcomp");
	else {
		snprintf(out, capacity, "option --gradcomp-%s", settings_table[id].row.name + strlen("gradcomp."));
		for (char *c = out; (c = strchr(c, '_'));)
			*c = '-';
	}
}

static gradcomp_status config_environment(config *c, const config_option *options, gradcomp_error *err)
{
	char env[SETTINGS_ENV_MAX], origin[2 * SETTINGS_ENV_MAX];
	if (secure_getenv("GRADCOMP_COMPRESSOR"))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "environment GRADCOMP_COMPRESSOR: the variable for the compressor is GRADCOMP");
	for (setting_id i = 0; i < SET_COUNT; i++) {
		const char *value = option_value(options, i);
		gradcomp_status st;

		settings_env(&settings_table[i], env);
		if (!value)
			value = secure_getenv(env);
		if (!value || (!strcmp(env, "GRADCOMP") && (!*value || !strcmp(value, "off"))))
			continue;
		if (settings_table[i].site)
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "environment %s: %s can be set in gradcomp.conf only", env,
			                 settings_table[i].row.name);
		environment_origin(options, i, env, origin, sizeof origin);
		st = config_set(c, i, value, origin, err);
		if (st)
			return st;
	}
	return GRADCOMP_OK;
}

static gradcomp_status config_overrides(config *c, const char *const *overrides, gradcomp_error *err)
{
	for (; overrides && *overrides; overrides++) {
		const char *equals = strchr(*overrides, '=');
		char *name = equals ? strndup(*overrides, (size_t)(equals - *overrides)) : NULL;
		gradcomp_status st;
		setting_id index;

		if (!equals)
			return error_set(err, GRADCOMP_ERR_INVALID, "application: '%s' is not \"section.key=value\"",
			                 *overrides);
		if (!name)
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for settings");
		index = settings_find(name);
		if (index == SET_COUNT)
			st = error_set(err, GRADCOMP_ERR_NOTFOUND, "application: unknown setting '%s'", name);
		else if (settings_table[index].site)
			st = error_set(err, GRADCOMP_ERR_INVALID, "application: %s can be set in gradcomp.conf only",
			               name);
		else
			st = config_set(c, index, equals + 1, "application", err);
		free(name);
		if (st)
			return st;
	}
	return GRADCOMP_OK;
}

static gradcomp_status config_make(const config_option *options, const char *const *overrides, config **out,
                                   gradcomp_error *err)
{
	config *c = calloc(1, sizeof *c);
	gradcomp_status st;
	if (!c)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for settings");
	if ((st = config_defaults(c, err)) || (st = config_file(c, err)) ||
	    (st = config_environment(c, options, err)) || (st = config_overrides(c, overrides, err))) {
		config_free(c);
		return st;
	}
	*out = c;
	return GRADCOMP_OK;
}

config *config_load_defaults(void)
{
	config *c = calloc(1, sizeof *c);
	const char *path = secure_getenv("GRADCOMP_PLUGIN_PATH");
	if (!c)
		return NULL;
	if (config_defaults(c, NULL)) {
		config_free(c);
		return NULL;
	}
	if (path && *path)
		(void)config_set(c, SET_GRADCOMP_PLUGIN_PATH, path, "environment GRADCOMP_PLUGIN_PATH", NULL);
	return c;
}

gradcomp_status config_load(const char *const *overrides, config **out, gradcomp_error *err)
{
	return config_make(NULL, overrides, out, err);
}

gradcomp_status config_load_options(const config_option *options, config **out, gradcomp_error *err)
{
	return config_make(options, NULL, out, err);
}

void config_free(config *c)
{
	if (!c)
		return;
	for (setting_id i = 0; i < SET_COUNT; i++) {
		free(c->entries[i].text);
		free(c->entries[i].origin);
		free(c->entries[i].lock);
		config_places_clear(&c->entries[i]);
	}
	free(c);
}

const char *config_str(const config *c, setting_id id)
{
	return c->entries[id].text;
}

int64_t config_int(const config *c, setting_id id)
{
	return c->entries[id].value.i;
}

double config_float(const config *c, setting_id id)
{
	return c->entries[id].value.f;
}

const char *config_origin(const config *c, setting_id id)
{
	return c->entries[id].origin;
}

const char *config_place(const config *c, setting_id id, size_t i)
{
	const config_entry *e = &c->entries[id];
	return i < e->nplaces ? e->places[i] : NULL;
}

bool config_is_default(const config *c, setting_id id)
{
	return !strcmp(config_origin(c, id), "default");
}

const char *config_lock_of(const config *c, setting_id id)
{
	return c->entries[id].lock;
}

const char *config_find(const config *c, const char *name)
{
	setting_id index = settings_find(name);
	return index == SET_COUNT ? NULL : c->entries[index].text;
}

void config_each(const config *c,
                 void (*each)(void *ctx, const char *name, const char *value, const char *origin, const char *help),
                 void *ctx)
{
	for (setting_id i = 0; i < SET_COUNT; i++)
		each(ctx, settings_table[i].row.name, c->entries[i].text, c->entries[i].origin,
		     settings_table[i].row.help);
}

/* A prefix "NAME*" stands for all that begin so. */
static bool is_variable(const char *name, size_t n, const char *known)
{
	size_t m = strlen(known);
	return known[m - 1] == '*' ? n >= m - 1 && !strncmp(name, known, m - 1) : n == m && !strncmp(name, known, n);
}

void config_unknown(void (*each)(void *ctx, const char *text), void *ctx)
{
	/* These are no settings: they are for other parts of gradcomp, for its tests, and such as module files are
	 * wont to set. */
	static const char *const others[] = {
		"CONF", "OPTIONS", "COMPONENTS", "RENDEZVOUS*", "RUN",  "RUN_*", "DATA", "DATA_*", "LIBRARY", "MODELS",
		"SRC",  "BUILD",   "INJECT",     "TEST_*",      "ROOT", "HOME",  "DIR",  "PREFIX", "VERSION"};
	char env[SETTINGS_ENV_MAX], text[400], typed[SUGGEST_MAX];
	for (char **v = environ; v && *v; v++) {
		size_t n = strcspn(*v, "=");
		bool known = strncmp(*v, "GRADCOMP_", 9) != 0;
		suggest near;

		for (size_t i = 0; i < sizeof others / sizeof others[0] && !known; i++)
			known = is_variable(*v + 9, n - 9, others[i]);
		snprintf(typed, sizeof typed, "%.*s", (int)(n < 200 ? n : 200), *v);
		suggest_start(&near, strlen(typed) > 14 ? typed : ""); /* GRADCOMP_ alone is alike in all */
		for (setting_id i = 0; i < SET_COUNT && !known; i++) {
			settings_env(&settings_table[i], env);
			known = is_variable(*v, n, env);
			suggest_try(&near, env);
		}
		if (known)
			continue;
		snprintf(text, sizeof text, "environment %.*s: gradcomp knows no such variable%s",
		         (int)(n < 200 ? n : 200), *v, suggest_text(&near));
		each(ctx, text);
	}
}
