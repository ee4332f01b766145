/* Tells who watches the reducers of this process (gradcomp_watch_phases()) what their threads begin and end. */
#ifndef REDUCER_PHASES_H
#define REDUCER_PHASES_H

#include "gradcomp/gradcomp.h"

#include <stdbool.h>

/* Takes the place of the watcher there was; NULL: nobody watches. Waits for calls of the former. Any thread. */
void phases_watch(gradcomp_phase_watcher *watch, void *ctx);
/* Without a watcher it costs a load. Any thread, which must not hold a lock that a watcher's wait could need. */
void phases_tell(gradcomp_phase phase, uint32_t bucket, bool begins);

#endif
