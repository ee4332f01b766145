/* What the parts of powersgd share: powersgd.c makes instances, rounds.c has the
 * steps of the method, state.c saves and loads. */
#ifndef POWERSGD_H
#define POWERSGD_H

#include "gradcomp/compressor.h"

typedef struct matrix {
	uint64_t n, m, r; /* r = 0: sent whole */
	uint64_t q;       /* where its Q starts in powersgd.Q, in floats */
	char choice[16];  /* for the report */
} matrix;

typedef struct powersgd {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	uint64_t start_step;
	int warm;
	matrix *tensors; /* one for each of the layout */
	float *Q;        /* warm start only */
	uint64_t q_floats;
} powersgd;

/* Fills Q of a tensor with random numbers, the same on all ranks; other ones for
 * every step. */
void powersgd_draw(const powersgd *p, uint32_t tensor, uint64_t step, const gradcomp_operators *op, void *queue,
                   float *Q);

gradcomp_status powersgd_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                              gradcomp_error *err);
gradcomp_status powersgd_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                gradcomp_error *err);
gradcomp_status powersgd_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                const gradcomp_payload *in, uint32_t n, gradcomp_error *err);
gradcomp_status powersgd_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                              gradcomp_error *err);
gradcomp_status powersgd_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
gradcomp_status powersgd_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err);

#endif
