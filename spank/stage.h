/* --gradcomp-stage: the gradcomp command, run as the job's user, copies a
 * directory to this node's cache. */
#ifndef SPANK_STAGE_H
#define SPANK_STAGE_H

#include <slurm/spank.h>
#include <stddef.h>

#include "arguments.h"

/* From user_init. Waits for the copy and sets GRADCOMP_DATA. A relative `dir` is
 * in the job's working directory. Returns -1 with the reason in `why`. */
int stage(spank_t sp, const char *dir, const arguments *args, char *why, size_t size);

#endif
