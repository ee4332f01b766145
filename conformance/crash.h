/* Tells a crash in a plugin as the rule it breaks. */
#ifndef CONFORMANCE_CRASH_H
#define CONFORMANCE_CRASH_H

#include "conformance/call_state.h"
#include "conformance/kit.h"

/* The exit status after a crash that has been reported. */
#define CRASH_STATUS 77

/* From here on a crash is reported to k, and ends the process. */
void crash_watch(kit *k);
/* Every thread needs a stack for that of its own; one such thread at a time. */
void crash_stack(void);

#endif
