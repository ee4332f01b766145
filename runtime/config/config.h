/* Effective settings: built from the table in settings.def, then the site's
 * gradcomp.conf, then the environment, then the srun option, then overrides of
 * the application; the last one wins and is remembered as the value's origin.
 *
 * Environment: GRADCOMP is gradcomp.compressor; GRADCOMP_KEY is gradcomp.key;
 * GRADCOMP_SECTION_KEY is section.key. The SPANK plugin hands options over in
 * the same variables and names them in GRADCOMP_OPTIONS ("compressor
 * collective"). GRADCOMP empty or "off" sets nothing. GRADCOMP_CONF names
 * another file, which must exist. It replaces the site's, but for what that has locked.
 *
 * What gradcomp.lock lists, and what a file says of quotas and security, cannot be changed
 * by anything that comes later: it is refused with the line that has locked it.
 *
 * Beside the site's file, those in conf.d are read, in the order of their names. The last that gives a value
 * has it; a list is what all lines of it say.
 *
 * A file is refused as a whole, with file:line, for an unknown section or
 * key, a key that is no list given twice, an overlong line, a value its row does not allow, and
 * when someone other than root or the user could have written it. */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include "config/settings.h"

typedef struct config config;

/* `overrides`: "section.key=value" strings ended by NULL, or NULL. */
gradcomp_status config_load(const char *const *overrides, config **out, gradcomp_error *err);

/* For a process whose settings are wrong, to tell the others: the defaults, and the plugin path
 * that the environment names. NULL without memory. */
config *config_load_defaults(void);

/* The value of an option of srun, by its setting. */
typedef struct config_option {
	setting_id id;
	const char *value; /* NULL: not given */
} config_option;

/* For srun, before there is a job: `options`, ended by SET_COUNT, stand where a job has
 * them in its environment. What they replace there is not looked at, nor is GRADCOMP_OPTIONS. */
gradcomp_status config_load_options(const config_option *options, config **out, gradcomp_error *err);
void config_free(config *c);

/* The value, which is already checked against its row. */
const char *config_str(const config *c, setting_id id);
int64_t config_int(const config *c, setting_id id); /* INT, SIZE (bytes), BOOL */
double config_float(const config *c, setting_id id);
/* Where the value came from, as gradcomp_setting_each() gives it. */
const char *config_origin(const config *c, setting_id id);
/* "FILE:LINE" of the lines that gave a setting which only files may give: of a list there can be several. NULL
 * after the last. */
const char *config_place(const config *c, setting_id id, size_t i);
/* Returns true when nobody has given a value. */
bool config_is_default(const config *c, setting_id id);
/* Returns "FILE:LINE" of what forbids everybody to change the setting; NULL: nothing. */
const char *config_lock_of(const config *c, setting_id id);
/* Calls each() with one line for each variable GRADCOMP_... of the environment that means nothing to gradcomp:
 * mostly a slip of the pen. */
void config_unknown(void (*each)(void *ctx, const char *text), void *ctx);
/* NULL when there is no such setting. */
const char *config_find(const config *c, const char *name);
void config_each(const config *c,
                 void (*each)(void *ctx, const char *name, const char *value, const char *origin, const char *help),
                 void *ctx);

#endif
