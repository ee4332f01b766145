/* Saved states of both kinds (reducer_state.h, shared_state.h) begin alike, and are refused for the same reasons.
 * `what` is "state" or "shared state". */
#ifndef REDUCER_STATE_STATE_CHECK_H
#define REDUCER_STATE_STATE_CHECK_H

#include "job/saved_state.h"
#include "reducer/bucketing/bucketing.h"

/* Their heads have room for so many bytes of a SPEC. */
#define STATE_SPEC 256

/* Whose the arrays and the plugin are with bucketing *d: with two levels those of the shards. */
const engine *state_owner(const reducer *r, const bucketing *d);
/* MISMATCH when it is not of this compressor and model. */
gradcomp_status state_check_model(const reducer *r, const char *what, const char *compressor, uint64_t tensors,
                                  uint64_t numel, gradcomp_error *err);
/* Checks that what is kept, so many bytes of floats anywhere in a state, is finite. */
gradcomp_status state_check_finite(const gradcomp_operators *ops, const char *what, const void *floats, uint64_t bytes,
                                   gradcomp_error *err);
/* INVALID when it is damaged, or has bytes of a plugin's that nobody takes. */
gradcomp_status state_check_bytes(const reducer *r, saved_kind kind, const void *state, uint64_t bytes,
                                  uint64_t plugin_bytes, gradcomp_error *err);

#endif
