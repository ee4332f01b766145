/* Compressors that give the collective a code and are otherwise dense share this: an instance of theirs begins with
 * an sdk_coded. */
#ifndef GRADCOMP_SDK_CODED_H
#define GRADCOMP_SDK_CODED_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sdk_coded {
	const gradcomp_host *host;
	const char *name;    /* the plugin's, a constant */
	uint64_t start_step; /* steps before it are not compressed */
} sdk_coded;

/* These are functions of gradcomp_compressor_v1. The host calls no encode(), and what the code loses it has put
 * into the error memory before decode(). */
gradcomp_status sdk_coded_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                               gradcomp_error *err);
gradcomp_status sdk_coded_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                 gradcomp_error *err);
gradcomp_status sdk_coded_decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                                 uint32_t n, gradcomp_error *err);

/* Returns 1 when a compressor that would rather gather is to give codes: see gradcomp_layout.patterns. */
static inline int sdk_coded_instead(const gradcomp_layout *layout)
{
	return GRADCOMP_HAS(layout, patterns) && layout->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) &&
	       !(layout->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED));
}

/* Plans, for plan(), one round of the bucket's floats, coded. */
void sdk_coded_round(const gradcomp_bucket *bucket, gradcomp_plan *plan);

/* Checks, for the decoders, that a run of n floats came in `bytes` bytes. Fails with MISMATCH unless these are
 * `want`. */
gradcomp_status sdk_coded_length(const sdk_coded *c, uint64_t bytes, uint64_t want, uint64_t n, gradcomp_error *err);

#ifdef __cplusplus
}
#endif
#endif
