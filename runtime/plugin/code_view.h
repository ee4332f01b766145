/* A compressor's code functions as a collective calls them. */
#ifndef PLUGIN_CODE_VIEW_H
#define PLUGIN_CODE_VIEW_H

#include "gradcomp/collective.h"

typedef struct code_source {
	const struct gradcomp_compressor_v1 *compressor;
	void *instance;
} code_source;

/* Returns the flags of its view. */
static inline uint32_t code_view_flags(const struct gradcomp_compressor_v1 *c)
{
	const uint32_t kept = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_UNBIASED | GRADCOMP_TRAIT_LOSSLESS;
	return c->traits & kept ? 0 : GRADCOMP_CODEC_LOSES;
}

/* Returns what is set beside the primitive when predict() of a collective that serves so much is asked for sums of these
 * codes. */
static inline uint32_t code_view_sums(const struct gradcomp_compressor_v1 *c, uint32_t serves)
{
	return code_view_flags(c) & GRADCOMP_CODEC_LOSES ? serves & GRADCOMP_CAN_OWNED_SUMS : 0;
}

/* Valid as long as *source, which it points to. A code that is longer than was promised fails there,
 * whatever the collective does with it. */
gradcomp_codec code_view(code_source *source);

#endif
