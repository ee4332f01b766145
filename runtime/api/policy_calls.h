/* Policies under the settings of a job or a command. */
#ifndef API_POLICY_CALLS_H
#define API_POLICY_CALLS_H

#include "config/config.h"
#include "config/policy.h"

/* Does what gradcomp_policy_create() does, with settings that are given. text: NULL: what they say. collective: SPEC where an entry
 * names none; NULL: the configured one. */
gradcomp_status policy_read(const config *c, const char *text, const char *collective, gradcomp_policy **out,
                            gradcomp_error *err);

#endif
