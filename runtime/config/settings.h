/* The table of all settings: the one place a setting is declared. The manual
 * page gradcomp.conf(5) follows it, and a test compares the two. */
#ifndef CONFIG_SETTINGS_H
#define CONFIG_SETTINGS_H

#include <stddef.h>

#include "gradcomp/abi.h"

typedef struct setting {
	gradcomp_param row; /* row.name is "section.key" */
	/* Checks what the row cannot say; NULL: nothing more. The text has no prefix. */
	gradcomp_status (*check)(const char *value, gradcomp_error *err);
	int site; /* the administrator's: only a configuration file may set it */
	/* stands between the parts of a list, which each line of a configuration file adds to; 0: one value */
	char separator;
	int fixed; /* once a configuration file has set it, nobody else may */
} setting;

extern const setting settings_table[];
extern const size_t settings_count;

/* -1 when there is no such setting. */
int settings_find(const char *name);
/* GRADCOMP_KEY for gradcomp.key, GRADCOMP_SECTION_KEY for others, GRADCOMP for
 * gradcomp.compressor. */
#define SETTINGS_ENV_MAX 64
void settings_env(const setting *s, char out[SETTINGS_ENV_MAX]);
/* Returns 1 when a list of gradcomp.lock names the setting, by itself or as SECTION.*. */
int settings_locked(const char *list, const char *name);
/* A value against its row and its check. */
gradcomp_status settings_check(const setting *s, const char *text, gradcomp_value *out, gradcomp_error *err);

#endif
