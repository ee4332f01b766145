/* A crash in a plugin, as the rule it breaks. */
#ifndef CHECK_CRASH_H
#define CHECK_CRASH_H

#include "check/call.h"
#include "check/kit.h"

/* The exit status after a crash that has been reported. */
#define CRASH_STATUS 77

/* From here on a crash is reported to k, and ends the process. */
void crash_watch(kit *k);

#endif
