/* A ticket: what a process has asked of another node, and how far that has come. It stands in memory that all
 * processes of a rank write to; its state changes here alone.
 *
 *     FREE -> SETUP -> WANTED -> FLYING -> READY -> HELD -> FREE
 *                        ^          |--> ABSENT -> LOADING -> OFFERED -> HELD
 *                        |__________|
 *
 * LOADING may ask for space in the receive buffer (ALLOC), and gets it or not. A ticket whose process
 * has died is freed by the service. The owner of a HELD value that is DAMAGED is notified. */
#ifndef IO_DATASET_NODE_TICKET_H
#define IO_DATASET_NODE_TICKET_H

#include "io/dataset/dataset_internal.h"

enum ticket_state {
	TICKET_FREE = 0,
	TICKET_SETUP,
	TICKET_WANTED,
	TICKET_FLYING,
	TICKET_READY,
	TICKET_HELD,
	TICKET_ABSENT, /* the owner does not have it: the requesting process loads it */
	TICKET_LOADING,
	TICKET_ALLOC,   /* wants `bytes` of the receive buffer */
	TICKET_OFFERED, /* lent, and to be offered to its owner */
	TICKET_LEFT,    /* released before that was done */
	TICKET_DAMAGED, /* the value does not match its checksum: the owner is to check its own */
	TICKET_STATES
};

/* next() waits for the owner to load it; get() loads it itself. */
#define TICKET_ORDERED 1u
#define TICKET_URGENT 2u  /* a process waits for it */
#define TICKET_FINAL 4u   /* ABSENT: the owner has no memory for it, and does not take it from another */
#define TICKET_DROPPED 8u /* FLYING: next() does not expect it any more; freed when it comes, unless it is URGENT */
typedef struct ticket {
	_Alignas(64) atomic_uint word;
	atomic_uint flags;
	atomic_uint_fast64_t index;
	atomic_uint_fast64_t bytes, arrived; /* the latter is the service's count of values that arrived */
	/* These belong to the process that the word names. */
	uint64_t offset, sum;
	uint32_t block;
} ticket;
_Static_assert(sizeof(ticket) == 64, "one line of the cache");

/* Changes the word from `word` to a state and the process that owns it then. False, and nothing has changed, when it is
 * another word by now, or when that state does not follow. */
bool ticket_move(ticket *t, uint32_t word, uint32_t to);
/* The same, by the only one who may change it: whatever its word is. FREE is no process's. */
bool ticket_become(ticket *t, enum ticket_state to);

#endif
