/* SPECs by the names of tensors: "*.bias=none+layers.*.attn*=powersgd:rank=8+*=topk:density=0.01". */
#ifndef CONFIG_NAME_RULES_H
#define CONFIG_NAME_RULES_H

#include <stdbool.h>

#include "gradcomp/gradcomp.h"

/* Bytes of a text, and its rules. */
#define NAME_RULES_MAX 900
#define NAME_RULES 16

/* Texts point into the rules. */
typedef struct name_rule {
	const char *glob, *spec, *collective; /* collective: NULL, or what stands behind the SPEC's '@' */
} name_rule;

typedef struct name_rules {
	char *text;  /* without blanks */
	char *words; /* the same, cut into pieces */
	name_rule rule[NAME_RULES + 1];
	uint32_t n; /* the last one is for all that is left: "*=none" where the text has none of this kind */
} name_rules;

/* Returns true for what has a '=' before any ':' or '/': neither a SPEC nor a policy has. */
bool name_rules_is(const char *text);
/* Reads rules GLOB=SPEC[@COLLECTIVE], separated by '+'; globs are those of fnmatch(3), and '*' stands for dots too. INVALID
 * names the rule. SPECs are not looked at beyond their names. *out is cleared by name_rules_clear(), after an error too. */
gradcomp_status name_rules_parse(const char *text, name_rules *out, gradcomp_error *err);
/* Returns the number of the first rule that a tensor's name matches. */
uint32_t name_rules_find(const name_rules *r, const char *name);
void name_rules_clear(name_rules *r);

#endif
