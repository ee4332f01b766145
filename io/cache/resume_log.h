/* Which files of a copy that is being made are finished. Reading marks the entries it
 * names as sealed. A producer that died has written it, so each file is to be checked. */
#ifndef IO_CACHE_RESUME_LOG_H
#define IO_CACHE_RESUME_LOG_H

#include "io/manifest/manifest.h"

void resume_log_read(stage_manifest *m, int temp);
int resume_log_open(int temp);
int resume_log_add(int log, size_t index, const stage_entry *e);

#endif
