/* The files of cost.h share this. */
#ifndef COST_COST_INTERNAL_H
#define COST_COST_INTERNAL_H

#include "gradcomp/collective.h"
#include "cost/cost.h"

#include <math.h>

/* Behind any warm-up, and a step on, for compressors whose steps take turns. */
#define STEP ((uint64_t)1 << 20)
#define STEPS 2

/* Describes a rank's part of an exchange. */
typedef struct call {
	uint32_t primitive;
	int among_holders; /* it is among those that hold one shard */
	uint64_t bytes;    /* predict() is asked with these */
	double coded;      /* a coded call's: bytes of a code for each byte of floats */
} call;

/* In a large group predict() takes a while, and plans that are compared have buckets and
 * rounds in common. One slot for each hash of a call. */
#define KNOWN 1024
typedef struct known_load {
	uint64_t bytes;
	uint32_t primitive; /* 0: nothing is here */
	int among_holders;
	gradcomp_call_load load;
} known_load;

/* Which bit a GRADCOMP_CAN_* is. */
static inline int cost_primitive_bit(uint32_t primitive)
{
	return __builtin_ctz(primitive);
}

static inline int worthless(double x)
{
	return !isfinite(x) || x < 0;
}

/* cost_exchange.c. Each adds its seconds to *seconds, and its bytes to *sum.
 * cost_nonfinite: a word of all ranks, whether a gradient is not finite. cost_round:
 * `payload` is the bytes of a rank that are expected of a GATHERED round. */
gradcomp_status cost_call(const cost_model *c, const call *k, double *seconds, bucket_cost *sum, gradcomp_error *err);
gradcomp_status cost_nonfinite(const cost_model *c, double *seconds, bucket_cost *sum, gradcomp_error *err);
gradcomp_status cost_round(const cost_model *c, const gradcomp_round *rd, uint32_t round, double payload,
                           double *seconds, bucket_cost *sum, gradcomp_error *err);

#endif
