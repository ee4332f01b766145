/* Policies from text to entries, and which entry is for a call (gradcomp/gradcomp.h). What compressors can do is not known
 * here: whoever knows narrows what entries do. */
#ifndef CONFIG_POLICY_H
#define CONFIG_POLICY_H

#include <stdbool.h>

#include "gradcomp/gradcomp.h"

/* Bytes of a policy's text, and its entries. */
#define POLICY_MAX 900
#define POLICY_ENTRIES 32
/* Least bytes of a call where an entry does not say. */
#define POLICY_LEAST (64 << 10)

#define POLICY_ALL_OPERATIONS 7u

/* Texts point into the policy. */
typedef struct policy_entry {
	const char *selector, *spec, *collective, *name;
	uint32_t roles;      /* 1 << gradcomp_role; 0: `name` is asked for */
	uint32_t named;      /* 1 << gradcomp_policy_operation, those that the selector names; 0: none */
	uint32_t operations; /* those it is for */
	uint32_t types;      /* 1 << gradcomp_dtype */
	uint64_t least;      /* bytes */
} policy_entry;

struct gradcomp_policy {
	char *text;  /* without blanks, entries separated by '+' */
	char *words; /* the same, cut into pieces */
	policy_entry entries[POLICY_ENTRIES];
	uint32_t nentries;
};

/* Returns true for what begins as a selector does and has a '/' before any ':'. */
bool policy_is(const char *text);
/* Reads a policy, or a SPEC as the policy dp/SPEC. *out is freed by policy_free(). INVALID says at which character of
 * the text it is wrong. SPECs are not looked at beyond their names. */
gradcomp_status policy_parse(const char *text, gradcomp_policy **out, gradcomp_error *err);
/* Refuses an entry that is for nothing, since those before it are for all that it is. */
gradcomp_status policy_check_hidden(const gradcomp_policy *p, gradcomp_error *err);
/* Returns the number of the first entry that is for a call, though its SPEC may be none; -1: there is none. */
int policy_find(const gradcomp_policy *p, const gradcomp_policy_call *call);
void policy_free(gradcomp_policy *p);

#endif
