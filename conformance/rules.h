/* The rules a plugin is held to. 1 to 6 are those of gradcomp/compressor.h; the
 * others stand in its comments and are numbered in the guide for plugin authors. */
#ifndef CONFORMANCE_RULES_H
#define CONFORMANCE_RULES_H

#include <stdint.h>

typedef enum rule {
	RULE_NONE = 0,
	RULE_CONSERVATION,
	RULE_AGREEMENT,
	RULE_BYTES,
	RULE_RESUME,
	RULE_TENSORS,
	RULE_DECODE_ONLY,
	RULE_DESCRIPTOR,
	RULE_PARAMETERS,
	RULE_BOUNDS,
	RULE_PEERS,
	RULE_SAVED_STATE,
	RULE_GLOBALS,
	RULE_THREADS,
	RULE_STEADY,
	RULE_MEMORY,
	RULE_TIME,
	RULE_UNBIASED,
	RULE_NONFINITE,
	RULE_CODE,
	RULE_DEVICE,
	RULE_PREDICT,
	RULE_PROCESS,
	RULE_NOISE,
	RULE_PRIMITIVES,
	RULE_LINKS,
	RULES
} rule;

/* MISSED: a check that applies and was not come to, since the run ended before. WARN: a failure of a check that
 * came with a later ABI than the plugin was built for. */
typedef enum rule_result { RESULT_OK = 0, RESULT_FAIL, RESULT_SKIP, RESULT_MISSED, RESULT_WARN } rule_result;

/* One word, as it is printed and searched for. */
const char *rule_name(rule r);
/* Says in one line what is asked of a plugin. */
const char *rule_text(rule r);
/* The ABI that brought it: plugins built for an older one are only warned. */
uint32_t rule_since(rule r);

#endif
