/* Reading gradcomp.conf: an INI file, judged strictly (see config.h). */
#ifndef CONFIG_CONFFILE_H
#define CONFIG_CONFFILE_H

#include "config/settings.h"

/* Takes one line that names a known setting; `origin` is "FILE:LINE". A negative
 * return ends the reading and is its result. */
typedef gradcomp_status conffile_take(void *ctx, setting_id index, const char *value, const char *origin,
                                      gradcomp_error *err);

/* Returns the path of this site's file. */
const char *conffile_site(void);

/* NOTFOUND only when the file itself is missing. */
gradcomp_status conffile_read(const char *path, conffile_take *take, void *ctx, gradcomp_error *err);

/* The files conf.d/NAME.conf in the folder of `path`, in the order of their names. There may be none. */
gradcomp_status conffile_drop_ins(const char *path, conffile_take *take, void *ctx, gradcomp_error *err);

#endif
