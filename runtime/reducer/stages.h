/* Tells who watches the reducers of this process (gradcomp_watch_stages()) what their threads begin and end. */
#ifndef REDUCER_STAGES_H
#define REDUCER_STAGES_H

#include "gradcomp/gradcomp.h"

#include <stdbool.h>

/* Takes the place of the watcher there was; NULL: nobody watches. Waits for calls of the former. Any thread. */
void stages_watch(gradcomp_stage_watcher *watch, void *ctx);
/* Without a watcher it costs a load. Any thread, which must not hold a lock that a watcher's wait could need. */
void stages_tell(gradcomp_stage stage, uint32_t bucket, bool begins);

#endif
