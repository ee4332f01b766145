/* Which collective carries which compressor: a compressor plans rounds of patterns, a collective serves primitives. Any
 * thread. */
#ifndef PLUGIN_COMPAT_H
#define PLUGIN_COMPAT_H

#include "base/strset.h"
#include "plugin/registry.h"

/* Checks that the two go together. The text lists the collectives that go with this compressor. */
gradcomp_status compat_pair(const config *c, const plugin *compressor, const plugin *collective, gradcomp_error *err);
/* The names of all installed collectives that carry it, added to *out. */
void compat_collectives(const config *c, const struct gradcomp_compressor_v1 *compressor, strset *out);
/* The name of the first installed collective that has two levels on a device; empty: none has. */
void compat_levels_on_device(const config *c, char name[SPEC_NAME_MAX]);
/* Returns the patterns that the compressor may plan with the collective; 0: they do not go together. */
uint32_t compat_patterns(const plugin *compressor, const plugin *collective);
/* Returns 1 when a compressor sends every number, at most rounded, and holds nothing back. */
static inline int compat_dense(const plugin *compressor)
{
	return !(compressor->compressor->traits &
	         (GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_UNBIASED | GRADCOMP_TRAIT_OWN_MOMENTUM));
}

#endif
