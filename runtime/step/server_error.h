/* The memory that a collective keeps for itself (GRADCOMP_CAN_EXCHANGE): what was lost
 * where a complete sum was coded, in units of the sum, by bucket and by the stripe that
 * this rank owns of it. Zero at first; saved and loaded with the state; a step with NaN
 * leaves it alone.
 *
 * It is about numbers of a bucket. Before buckets move each rank adds what it has to its own
 * error memory of the same numbers, which conserves the sum over ranks of both, and begins
 * again with zero. */
#ifndef STEP_SERVER_ERROR_H
#define STEP_SERVER_ERROR_H

#include "step/bucket.h"

/* Allocates the memory of all buckets of a list, zeroed. Needs coll_ctx. */
gradcomp_status server_error_make(const engine *eng, bucket_list *d, gradcomp_error *err);
/* Checks that the collective says where in a bucket its memory is. */
gradcomp_status server_error_check(const engine *eng, gradcomp_error *err);
/* Where in the layout that of bucket b is, once this has been checked. */
uint64_t server_error_offset(const engine *eng, const bucket *b);
/* Adds all of it to the error memory. `room` for that of the largest bucket; NULL will do when error memory is
 * floats of the host's. */
gradcomp_status server_error_fold(engine *eng, float *room, gradcomp_error *err);

#endif
