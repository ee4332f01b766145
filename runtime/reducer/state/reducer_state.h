/* The bytes of a reducer's state:
 *
 *     head   what the state belongs to, and a checksum of all that follows the checksum
 *     plan   where buckets end, then their positions in the order of exchanges: 32 bits each
 *     error memory and the compressor's arrays: of every parameter, or of this rank's shards
 *     the collective's memory
 *     the plugin's own bytes
 *
 * Version 2 had neither the plan nor what the head says of it. */
#ifndef REDUCER_STATE_REDUCER_STATE_H
#define REDUCER_STATE_REDUCER_STATE_H

#include "reducer/state/state_check.h"

typedef struct state_head {
	saved_head saved;
	uint64_t step, numel, tensors, plugin_bytes;
	uint32_t has_error, state_arrays, rank, nranks;
	uint64_t kept;          /* numbers of an array: all, or those of this rank's shards */
	uint64_t nserver_error; /* numbers of the collective's memory */
	uint64_t held_hash;     /* which numbers they are: by buckets; 0: of every parameter */
	char compressor[STATE_SPEC];
	/* Since version 3: of the plan. settled: it was made from what the job measured. */
	uint32_t nbuckets, lag, settled, reserved0;
} state_head;

#endif
