/* Saved states. Whatever object one is of, it begins with a head that says so, in which version, and holds a
 * checksum of what follows it. One that is another object's, of a later version or damaged is refused before
 * anything changes. */
#ifndef JOB_SAVED_STATE_H
#define JOB_SAVED_STATE_H

#include "gradcomp/abi.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum saved_kind {
	SAVED_REDUCER,
	SAVED_SHARED,      /* a reducer's, for any number of ranks */
	SAVED_DELAY,       /* a reducer's that delays averages: what is pending, before the state of the one behind */
	SAVED_AUTO,        /* a reducer's that chooses */
	SAVED_SHARED_AUTO, /* the same, for any number of ranks */
	SAVED_CODER,
	SAVED_BY_NAME,        /* a reducer's with SPECs by name */
	SAVED_SHARED_BY_NAME, /* the same, for any number of ranks */
	SAVED_KINDS
} saved_kind;

/* The struct of each kind's head begins with this one. */
typedef struct saved_head {
	char magic[7];
	char version;
	uint64_t checksum; /* covers all that follows it */
} saved_head;

/* Returns the kind that these bytes begin like, of whatever version, or SAVED_KINDS. */
saved_kind saved_kind_of(const void *state, uint64_t bytes);
/* Returns true for the kinds that any number of ranks loads. */
bool saved_is_shared(const void *state, uint64_t bytes);
/* Copies the kind's head, of n bytes, out of a state. INVALID: it is none, or is shorter; UNSUPPORTED: its version
 * is none that is read. */
gradcomp_status saved_read(saved_kind kind, const void *state, uint64_t bytes, void *head, size_t n,
                           gradcomp_error *err);
/* INVALID when the checksum of what saved_read() has taken for a state is another one. */
gradcomp_status saved_check(saved_kind kind, const void *state, uint64_t bytes, gradcomp_error *err);
/* Fills in the saved_head of a state whose other bytes are there. */
void saved_seal(saved_kind kind, void *state, uint64_t bytes);
/* Returns a hash of bytes that ranks compare. */
uint64_t saved_hash(const void *bytes, size_t n);

#endif
