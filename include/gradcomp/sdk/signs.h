/* Compressors to one bit a number share this. Every tensor is cut into runs; a run is sent as its signs, and one or
 * two magnitudes that stand for them.
 *
 *     average = 1/P * sum over ranks of sign * magnitude    error = u - own sign * magnitude
 *
 * Payload: the magnitudes (F32) of all runs of the bucket, then the signs: a bit a
 * number, 1 for a negative one, every run beginning a new word of 32 bits (Seide et al.,
 * Interspeech 2014; Karimireddy et al., ICML 2019). */
#ifndef GRADCOMP_SDK_SIGNS_H
#define GRADCOMP_SDK_SIGNS_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One value a run: a sum in double, then that sum's scratch; or the two values it stands for. */
enum { SDK_SIGNS_SUM_SCRATCH = 64 };

/* Instances begin with it. */
typedef struct sdk_signs {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	const char *name;
	uint64_t start_step;
	/* Returns the length of a run of this tensor, which is not empty; the last may be shorter. */
	uint64_t (*run)(const struct sdk_signs *s, const gradcomp_tensor *t);
	uint64_t length; /* for run() */
	/* 2: the means of the non-negative and of the negative numbers of a run; 1: the
	 * mean magnitude, and runs are whole tensors. */
	uint32_t values;
	int coded;     /* the collective takes codes: see sdk_signs_code() */
	void *scratch; /* for code() */
} sdk_signs;

/* Such compressors do one of these instead of gathering. */
#define SDK_SIGNS_INSTEAD (GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED))

/* These are functions of gradcomp_compressor_v1. */
gradcomp_status sdk_signs_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                               gradcomp_error *err);
gradcomp_status sdk_signs_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                 gradcomp_error *err);
gradcomp_status sdk_signs_decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                                 uint32_t n, gradcomp_error *err);
gradcomp_status sdk_signs_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                               gradcomp_error *err);
uint64_t sdk_signs_code_bound(void *instance, uint64_t n);
gradcomp_status sdk_signs_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                               uint64_t *bytes, gradcomp_error *err);
gradcomp_status sdk_signs_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                      gradcomp_error *err);
gradcomp_status sdk_signs_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                          gradcomp_error *err);
gradcomp_status sdk_signs_create(const gradcomp_host *host, const sdk_signs *from, void **instance,
                                 gradcomp_error *err);
void sdk_signs_destroy(void *instance);

#ifdef __cplusplus
}
#endif
#endif
