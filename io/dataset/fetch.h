/* Values of other nodes, on the side of those who want them.
 *
 * Every rank has a table of tickets in the shared memory. Whoever wants a value (a thread
 * of the rank, a forked child) writes a ticket; the rank's service thread asks the owner,
 * receives the value into the rank's receive buffer, and says so on the ticket. One
 * ticket is one loan: it ends with release().
 *
 *     FREE -> SETUP -> WANTED -> FLYING -> READY -> HELD -> FREE
 *                        ^          |--> ABSENT -> LOADING -> OFFERED -> HELD
 *                        |__________|
 *
 * LOADING may ask for space in the receive buffer (ALLOC), and gets it or not. A ticket whose process
 * has died is freed by the service. A HELD value that is DAMAGED is told to its owner. */
#ifndef IO_DATASET_FETCH_H
#define IO_DATASET_FETCH_H

#include "io/dataset/dataset_internal.h"

enum {
	TICKET_FREE = 0,
	TICKET_SETUP,
	TICKET_WANTED,
	TICKET_FLYING,
	TICKET_READY,
	TICKET_HELD,
	TICKET_ABSENT, /* the owner has it not: whoever wants it loads it */
	TICKET_LOADING,
	TICKET_ALLOC,    /* wants `bytes` of the receive buffer */
	TICKET_OFFERED, /* lent, and to be offered to its owner */
	TICKET_LEFT,    /* given back before that was done */
	TICKET_DAMAGED  /* what came does not match its checksum: the owner is to look */
};

/* Who follows the order waits for the owner to load it; others load it themselves. */
#define TICKET_ORDERED 1u
#define TICKET_URGENT 2u /* somebody waits */
#define TICKET_FINAL 4u  /* ABSENT: the owner has no memory for it, and wants it not */

typedef struct ticket {
	_Alignas(64) atomic_uint word;
	atomic_uint flags;
	atomic_uint_fast64_t index;
	atomic_uint_fast64_t bytes, arrived; /* the latter is the service's count of values that came */
	/* Of whoever has it in hand by its word. */
	uint64_t offset, sum;
	uint32_t block;
} ticket;
_Static_assert(sizeof(ticket) == 64, "one line of the cache");

#define BUCKET 16u /* tickets among which an index is looked for, and the next bucket's */
#define TICKETS_LEAST 256u
#define TICKETS_MOST 65536u
#define BLOCKS 1024u /* of a rank's receive buffer: one for each reply */

/* What a rank and its children share. */
typedef struct fetch_area {
	atomic_uint asleep;      /* the service wants to be woken */
	atomic_uint starved;     /* something waits for space in the receive buffer */
	atomic_int refs[BLOCKS]; /* of values in a block that somebody holds or may take */
	atomic_uint_fast64_t attention[TICKETS_MOST / 64]; /* tickets the service is to look at */
} fetch_area;

/* How many tickets a rank has. */
uint32_t fetch_tickets(uint32_t ahead);
/* Says early that a value will be wanted. Does not wait. */
void fetch_expect(gradcomp_dataset *ds, uint64_t index, unsigned flags);
gradcomp_status fetch_obtain(gradcomp_dataset *ds, uint64_t index, unsigned flags, gradcomp_value_view *view,
                             gradcomp_error *err);
void fetch_release(gradcomp_dataset *ds, ticket *t);
/* Drops what this process expected along the order. */
void fetch_drop(gradcomp_dataset *ds);
/* Whether a view's hold is a ticket. */
bool fetch_holds(const gradcomp_dataset *ds, const void *hold);
/* The service is to look at it. */
void fetch_notify(gradcomp_dataset *ds, const ticket *t);
/* From one state to another, by whoever owns that word now. */
bool ticket_move(ticket *t, uint32_t word, uint32_t to);

#endif
