/* A saved state of auto, for those who write and read one.
 *
 * One byte string: a head; which part each tensor is in; each owed tensor's number and floats;
 * each part's length and state. Each of these is padded to a multiple of 8 bytes. */
#ifndef REDUCER_CHOICE_STATE_H
#define REDUCER_CHOICE_STATE_H

#include "choice_parts.h"

extern const char choice_magic[8];

typedef struct choice_head {
	char magic[8];
	uint64_t checksum; /* of all that follows it */
	uint64_t bytes, step, tensors;
	uint32_t ntensors, nparts, nowed, settled;
	char candidate[256], part[CHOICE_PARTS][256]; /* as they were written */
	uint64_t list; /* hash of all candidates: whose times these are */
	decision last;
	double error;
} choice_head;

static inline uint64_t choice_padded(uint64_t bytes)
{
	return (bytes + 7) & ~(uint64_t)7;
}

/* Of the state's `bytes`. */
uint64_t choice_checksum(const void *buf, uint64_t bytes);
uint64_t choice_list_hash(const choice *c);
uint64_t choice_tensors_hash(const choice *c);
/* Of the caller's tensor i: its numbers, and what it takes in a state when it is owed. */
uint64_t choice_numel(const choice *c, uint32_t i);
uint64_t choice_owed_bytes(const choice *c, uint32_t i);
/* With the lock held: waits until no check runs. `what` is refused in the middle of a step. */
gradcomp_status choice_settle(choice *c, const char *what, gradcomp_error *err);

#endif
