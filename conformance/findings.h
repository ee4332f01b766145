/* What the groups have found, on its way to the process that waits for them. kit_ok() and the like of kit.h send it. */
#ifndef CONFORMANCE_FINDINGS_H
#define CONFORMANCE_FINDINGS_H

#include "conformance/kit.h"

/* What a group's process writes; less than PIPE_BUF, so it arrives in one piece. */
typedef struct finding {
	rule rule;
	rule_result result;
	uint32_t since;   /* the ABI that brought what is checked */
	int crash_signal; /* not 0: of a crash */
	char text[KIT_TEXT];
} finding;

/* In the process that waits. */
void kit_take(kit_result *out, const finding *m);

#endif
