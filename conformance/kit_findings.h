/* Findings go from a group's process to the one that waits for it. kit_ok() and the like of kit.h send them. */
#ifndef CONFORMANCE_KIT_FINDINGS_H
#define CONFORMANCE_KIT_FINDINGS_H

#include "conformance/kit.h"

/* It is shorter than PIPE_BUF, so it arrives in one piece. */
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
