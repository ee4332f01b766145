/* One bucket of one rank in flight, and what carries payloads between ranks. */
#ifndef CONFORMANCE_BUCKET_RUN_H
#define CONFORMANCE_BUCKET_RUN_H

#include "conformance/call.h"

typedef struct bucket_run {
	gradcomp_work work;
	float **x, **error, *state[STATES_MAX]; /* x, error, apart: for each tensor */
	guarded flat, *apart, memory, states[STATES_MAX], scratch, fault, payload;
	gradcomp_payload out;
	bool overflown; /* encode() has said so of its own numbers, or decode() of all ranks' */
} bucket_run;

/* Buffers for a bucket, x = u. */
void bucket_run_begin(ranks *s, bucket_run *f, int w, const gradcomp_bucket *b, const gradcomp_plan *plan,
                      const float *g);
/* x, the error memory and the state arrays can be read only. */
void bucket_run_lock(bucket_run *f, int read_only);
/* Encodes this rank's payload of a round. */
gradcomp_status bucket_run_encode(ranks *s, bucket_run *f, int w, const gradcomp_round *rd, uint32_t round);
/* Gives back what is in the error memory and the states to the ranks, and the average to g, unless the step has
 * failed or was given up. */
void bucket_run_end(ranks *s, bucket_run *f, int w, float *g);

/* Carries out a round between the runs of a bucket of all ranks: brings payloads to their receivers, and calls
 * decode(). */
gradcomp_status bucket_run_exchange(ranks *s, bucket_run *f, const gradcomp_round *rd, uint32_t round);
gradcomp_status bucket_run_exchange_coded(ranks *s, bucket_run *f, const gradcomp_round *rd);

#endif
