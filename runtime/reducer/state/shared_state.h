/* One state for any number of ranks (gradcomp_reducer_save_shared()). It is by parameter, never
 * by rank, node or bucket:
 *
 *     head      what the state belongs to, and a checksum of all that follows the checksum
 *     arrays    error memory, then the compressor's arrays: of every parameter, in the order of
 *               the layout, the mean over ranks
 *     the plugin's own bytes, equal on all ranks
 *
 * A sum over ranks of what is owed is owed by a mean of P: so the mean of error memory is what
 * the average lacks, and Q ranks that each hold that mean owe the same. With two levels a number
 * is held once a node, for the mean over nodes: then it is the mean over its holders. What a
 * collective holds back (server_error.h) is in units of the sum like error memory, goes into the
 * mean with it, and begins again with zero.
 *
 * The plan of buckets and what was measured of a job are of its ranks, and stay as they are. */
#ifndef REDUCER_STATE_SHARED_STATE_H
#define REDUCER_STATE_SHARED_STATE_H

#include "reducer/state/state_check.h"

#include <stdbool.h>

typedef struct shared_head {
	saved_head saved;
	uint64_t step, numel, tensors, plugin_bytes;
	uint32_t has_error, state_arrays, nranks, reserved0; /* nranks: that it is the mean of */
	char compressor[STATE_SPEC];
} shared_head;

/* Checks that this is a whole shared state of such a reducer. */
gradcomp_status shared_state_check(const reducer *r, const void *state, uint64_t bytes, shared_head *h,
                                   gradcomp_error *err);
/* The plugin's own bytes in a state that has been checked; NULL when the compressor's instance
 * goes on with what it has: there are none, or they are not of the tensors that it works on. */
const void *shared_state_plugin(const reducer *r, const void *state, const shared_head *h);
/* Called with the lock held: takes up the arrays and the step of a state that has been checked. */
gradcomp_status shared_state_take(reducer *r, const void *state, const shared_head *h, gradcomp_error *err);
/* Forms the mean over a group's ranks of n floats, in double, rounded once; the same bits on all. A rank that has
 * no memory for it ends the job. */
gradcomp_status shared_state_mean(gradcomp_group *g, float *x, uint64_t n, gradcomp_error *err);
/* Called with the lock held: does what gradcomp_reducer_save_shared() does. */
gradcomp_status shared_state_save(reducer *r, unsigned char *buf, uint64_t capacity, uint64_t *bytes,
                                  gradcomp_error *err);

#endif
