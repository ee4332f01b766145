/* The bytes of a reducer's state:
 *
 *     head   what the state belongs to, and a checksum of all that follows the checksum
 *     plan   where buckets end, then their positions in the order of exchanges: 32 bits each
 *     error memory and the compressor's arrays: of every parameter, or of this rank's shards
 *     the collective's memory
 *     the plugin's own bytes
 *
 * Version 2 had neither the plan nor what the head says of it. */
#ifndef REDUCER_REDUCER_STATE_H
#define REDUCER_REDUCER_STATE_H

#include "reducer/bucketing/bucketing.h"

typedef struct state_head {
	char magic[8];
	uint64_t checksum; /* of all that follows it */
	uint64_t step, numel, tensors, plugin_bytes;
	uint32_t has_error, state_arrays, rank, nranks;
	uint64_t kept;          /* numbers of an array: all, or those of this rank's shards */
	uint64_t nserver_error; /* numbers of the collective's memory */
	uint64_t held_hash;     /* which numbers they are: by buckets; 0: of every parameter */
	char compressor[256];
	/* Since version 3: of the plan. settled: it was made from what the job measured. */
	uint32_t nbuckets, lag, settled, reserved0;
} state_head;

/* Whose the arrays and the plugin are with bucketing *d: with two levels those of the shards. */
const engine *state_owner(const reducer *r, const bucketing *d);
uint64_t state_checksum(const void *state, uint64_t bytes);
/* Of a state of either kind: `what` is "state" or "shared state". Whether it is of this
 * compressor and model; whether it is undamaged, and its plugin's bytes have somebody to take them. */
gradcomp_status state_check_model(const reducer *r, const char *what, const char *compressor, uint64_t tensors,
                                  uint64_t numel, gradcomp_error *err);
/* Whether what is kept, so many bytes of floats anywhere in a state, is finite. */
gradcomp_status state_check_finite(const gradcomp_operators *ops, const char *what, const void *floats, uint64_t bytes,
                                   gradcomp_error *err);
gradcomp_status state_check_bytes(const reducer *r, const char *what, const void *state, uint64_t bytes, uint64_t sum,
                                  uint64_t plugin_bytes, gradcomp_error *err);

#endif
