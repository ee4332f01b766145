/* Names the settings there are, from the table in settings.def. */
#ifndef CONFIG_SETTINGS_H
#define CONFIG_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "gradcomp/abi.h"

/* SET_TRANSPORT_TIMEOUT is the setting transport.timeout. */
typedef enum setting_id {
#define SETTING(id, ...) SET_##id,
#include "config/settings.def"
#undef SETTING
	SET_COUNT
} setting_id;

/* The values of the settings that are a choice. */
typedef enum failure_mode { FAILURE_ABORT, FAILURE_SHRINK } failure_mode; /* gradcomp.on_failure */
/* security.frames: how the bytes after the handshake are protected, on connections over a network. */
typedef enum frames_mode { FRAMES_NONE, FRAMES_MAC, FRAMES_ENCRYPT } frames_mode;
typedef enum reload_mode { RELOAD_AUTO, RELOAD_YES, RELOAD_NO } reload_mode; /* dataset.reload */

typedef struct setting {
	gradcomp_param row; /* row.name is "section.key" */
	/* Checks what the row cannot say; NULL: nothing more. The text has no prefix. */
	gradcomp_status (*check)(const char *value, gradcomp_error *err);
	int site; /* the administrator's: only a configuration file may set it */
	/* stands between the parts of a list, which each line of a configuration file adds to; 0: one value */
	char separator;
	int fixed; /* once a configuration file has set it, nobody else may */
} setting;

extern const setting settings_table[SET_COUNT];

/* SET_COUNT when there is no such setting. */
setting_id settings_find(const char *name);
/* GRADCOMP_KEY for gradcomp.key, GRADCOMP_SECTION_KEY for others, GRADCOMP for
 * gradcomp.compressor. */
#define SETTINGS_ENV_MAX 64
void settings_env(const setting *s, char out[SETTINGS_ENV_MAX]);
/* Returns true when a list of gradcomp.lock names the setting, by itself or as SECTION.*. */
bool settings_locked(const char *list, const char *name);
/* Checks a value against its row and with its check. */
gradcomp_status settings_check(const setting *s, const char *text, gradcomp_value *out, gradcomp_error *err);

#endif
