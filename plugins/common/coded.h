/* What compressors share that give the collective a code and are otherwise dense:
 * an instance of theirs begins with a struct coded. */
#ifndef PLUGINS_COMMON_CODED_H
#define PLUGINS_COMMON_CODED_H

#include "gradcomp/compressor.h"

typedef struct coded {
	const gradcomp_host *host;
	const char *name;
	uint64_t start_step; /* steps before it are not compressed */
} coded;

/* As in gradcomp_compressor_v1. The host calls no encode(), and what the code loses
 * it has put into the error memory before decode(). */
gradcomp_status coded_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                           gradcomp_error *err);
gradcomp_status coded_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                             gradcomp_error *err);
gradcomp_status coded_decode(void *instance, const gradcomp_work *work, uint32_t round,
                             const gradcomp_payload *in, uint32_t n, gradcomp_error *err);

/* Whether a compressor that would rather gather is to give codes: see
 * gradcomp_layout.patterns. */
static inline int coded_instead(const gradcomp_layout *layout)
{
	return GRADCOMP_HAS(layout, patterns) && layout->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) &&
	       !(layout->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED));
}

static inline void coded_round(const gradcomp_bucket *bucket, gradcomp_plan *plan)
{
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_CODED, .dtype = GRADCOMP_F32, .count = bucket->numel};
}

/* A run of n floats that is not as long as it must be. */
gradcomp_status coded_length(const coded *c, uint64_t bytes, uint64_t want, uint64_t n, gradcomp_error *err);

#endif
