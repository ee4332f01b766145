/* One bucket of one rank in flight, and what carries payloads between ranks. */
#ifndef CHECK_FLIGHT_H
#define CHECK_FLIGHT_H

#include "check/call.h"

typedef struct flight {
	gradcomp_work work;
	float *x[TENSORS_MAX], *error[TENSORS_MAX], *state[STATES_MAX];
	guarded flat, apart[TENSORS_MAX], memory, states[STATES_MAX], scratch, fault, payload;
	gradcomp_payload out;
} flight;

/* Buffers for a bucket, x = u. */
void flight_begin(ranks *s, flight *f, int w, const gradcomp_bucket *b, const gradcomp_plan *plan,
                  const float *g);
/* x, the error memory and the state arrays can be read only. */
void flight_lock(flight *f, int read_only);
/* This rank's payload of a round. */
gradcomp_status flight_encode(ranks *s, flight *f, int w, const gradcomp_round *rd, uint32_t round);
/* What is in the error memory and the states goes back to the ranks, and the average
 * to g, unless the step has failed or was given up. */
void flight_end(ranks *s, flight *f, int w, float *g);

/* A round between all ranks' flights of a bucket: the payloads to their receivers,
 * decode() included. */
gradcomp_status exchange(ranks *s, flight *f, const gradcomp_round *rd, uint32_t round);
gradcomp_status exchange_coded(ranks *s, flight *f, const gradcomp_round *rd);

#endif
