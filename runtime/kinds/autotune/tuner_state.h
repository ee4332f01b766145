/* A saved state of auto, for those who write and read one.
 *
 * One byte string: a head; which part each tensor is in; the number and the floats of each tensor with a residual
 * that is carried over; each part's length and state. Each of these is padded to a multiple of 8 bytes. */
#ifndef KINDS_AUTOTUNE_TUNER_STATE_H
#define KINDS_AUTOTUNE_TUNER_STATE_H

#include "job/saved_state.h"
#include "kinds/autotune/tuner_internal.h"

/* In one that ranks share the parts' states are shared ones, and what is carried over is the mean over ranks; what was
 * measured of the job is in it, and not taken up. */
typedef struct tuner_state_head {
	saved_head saved;
	uint64_t bytes, step, tensors;
	uint32_t ntensors, nparts, ncarried, settled;
	char candidate[256], part[TUNER_PARTS][256]; /* SPECs as they were written */
	uint64_t list;                               /* hash of all candidates: whose times these are */
	decision last;
	double error;
} tuner_state_head;

static inline uint64_t tuner_padded(uint64_t bytes)
{
	return (bytes + 7) & ~(uint64_t)7;
}

uint64_t tuner_list_hash(const tuner *c);
uint64_t tuner_tensors_hash(const tuner *c);
/* Return, for the caller's tensor i, its numbers, and the bytes that it takes in a state when it is carried over. */
uint64_t tuner_numel(const tuner *c, uint32_t i);
uint64_t tuner_carry_bytes(const tuner *c, uint32_t i);
/* Called with the lock held: waits until no check runs. `what` is refused in the middle of a step. */
gradcomp_status tuner_settle(tuner *c, const char *what, gradcomp_error *err);

#endif
