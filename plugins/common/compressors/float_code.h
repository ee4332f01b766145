/* Codes of small floats whose blocks share a scale, as float8_pack() writes them: fp8 and fp4 are this with types of
 * their own. A form says which one, and an instance is a copy of it. One thread at a time, as functions of a compressor
 * are called. */
#ifndef PLUGINS_COMMON_COMPRESSORS_FLOAT_CODE_H
#define PLUGINS_COMMON_COMPRESSORS_FLOAT_CODE_H

#include "plugins/common/compressors/rotation.h"

#include "gradcomp/sdk/coded.h"

typedef struct float_code {
	sdk_coded c;
	gradcomp_dtype type; /* of a code */
	uint32_t block;      /* numbers that share a scale, a multiple of 32 */
	uint32_t scales;     /* gradcomp_scales */
	/* Where runs are coded: see code_on(). create() sets it to the host's memory. */
	const gradcomp_operators *op;
	void *queue;
	int *fault; /* on a device, else NULL */
	rotation r;
} float_code;

/* Makes an instance of a form, whose `c` is set and whose `r` is not; `rotate`: with a rotation. Fails with NOMEM, and as
 * rotation_open(). */
gradcomp_status float_code_create(const float_code *form, int rotate, const gradcomp_layout *layout, void **instance,
                                  gradcomp_error *err);

/* These are functions of gradcomp_compressor_v1. */
void float_code_destroy(void *instance);
uint64_t float_code_bound(void *instance, uint64_t n);
gradcomp_status float_code_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                uint64_t *bytes, gradcomp_error *err);
gradcomp_status float_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                  gradcomp_error *err);
gradcomp_status float_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                      gradcomp_error *err);
gradcomp_status float_code_on(void *instance, const gradcomp_operators *operators, void *queue, int *fault,
                              gradcomp_error *err);
void float_code_layout(void *instance, uint64_t n, gradcomp_code_layout *out);
gradcomp_status float_code_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                gradcomp_error *err);

#endif
