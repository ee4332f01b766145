/* Sums of codes that all ranks gathered, in as few launches as one rank's take: for decode(). */
#ifndef GRADCOMP_SDK_CODES_H
#define GRADCOMP_SDK_CODES_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tells what all ranks' payloads hold, in one coding: several vectors, such as the tensors of a bucket. It is the
 * caller's, and read during the call only. */
typedef struct sdk_codes {
	const gradcomp_host *host;
	const char *name; /* the plugin's */
	const gradcomp_work *work;
	const gradcomp_coding *coding;
	const char *fault; /* what a rank sent if a check fails, such as "a magnitude that is not finite" */
	uint32_t parts;
	/* Fills in part i, of zeros before. Called for parts 0, 1, ... in turn, once or more often. */
	void (*part)(void *ctx, uint32_t i, gradcomp_coded *to);
	void *ctx;
} sdk_codes;

/* Checks the payloads of n ranks before anything is written. Fails with MISMATCH and the rank. On a device nobody knows
 * yet: sdk_codes_sum() checks there. */
gradcomp_status sdk_codes_check(const sdk_codes *c, const gradcomp_payload *in, uint32_t n, gradcomp_error *err);
/* Puts codes_sum() of n payloads on the queue. Without a check on the host. */
void sdk_codes_sum(const sdk_codes *c, const gradcomp_payload *in, uint32_t n, float a);

/* Makes of payloads that are the whole bucket by quantise(): the error of rank `own` (-1: none is kept), and the average
 * of n ranks. Fails like sdk_codes_check(), with the host's name for what is wrong. */
gradcomp_status sdk_quantised_average(const gradcomp_host *host, const char *name, const gradcomp_work *work,
                                      const gradcomp_quantiser *q, const gradcomp_payload *in, uint32_t n, int own,
                                      const char *fault, gradcomp_error *err);

#ifdef __cplusplus
}
#endif
#endif
