/* Values of other nodes: the requesting side.
 *
 * Every rank has a table of tickets in the shared memory. A thread of the rank, or a forked
 * child, that wants a value writes a ticket. The rank's service thread requests the value from
 * its owner, receives it into the rank's receive buffer, and updates the ticket. One ticket is
 * one loan: it ends with release().
 */
#ifndef IO_DATASET_NET_FETCH_H
#define IO_DATASET_NET_FETCH_H

#include "io/dataset/node/ticket.h"

/* Flags for fetch_obtain() alone: a value that has not come is not waited for but loaded; or waited for, since
 * loading has failed. */
#define FETCH_RELOAD 16u
#define FETCH_PATIENT 32u

#define BUCKET 16u /* tickets among which an index is looked for, and the next bucket's */
#define TICKETS_LEAST 256u
#define TICKETS_MOST 65536u
#define BLOCKS 1024u /* in a rank's receive buffer: one for each reply */

/* A rank and its children share this. */
typedef struct fetch_area {
	atomic_uint asleep;        /* the service wants to be woken */
	atomic_uint starved;       /* something waits for space in the receive buffer */
	atomic_uint_fast64_t mean; /* bytes of the values that have come; 0: none has */
	atomic_int refs[BLOCKS];   /* values in a block that a process has on loan or may take */
	atomic_uint_fast64_t attention[TICKETS_MOST / 64]; /* tickets the service is to look at */
} fetch_area;

/* How many tickets a rank has. */
uint32_t fetch_tickets(uint32_t prefetch);
/* How many positions ahead values are requested: `prefetch`, or more of short ones, which half of
 * the receive buffer must hold. */
uint64_t fetch_reach(const gradcomp_dataset *ds, uint32_t prefetch);
/* Requests a value that will be wanted later. Does not wait. */
void fetch_expect(gradcomp_dataset *ds, uint64_t index, unsigned flags);
gradcomp_status fetch_obtain(gradcomp_dataset *ds, uint64_t index, unsigned flags, gradcomp_value_view *view,
                             gradcomp_error *err);
void fetch_release(gradcomp_dataset *ds, ticket *t);
/* Drops what this process expected along the order; what is on its way, as soon as it comes. */
void fetch_drop(gradcomp_dataset *ds);
/* Returns true when a ticket that has come, of the process of that word, had been dropped, and is free now. */
bool fetch_dropped(gradcomp_dataset *ds, ticket *t, uint32_t whose);
/* Returns true when a view's hold is a ticket. */
bool fetch_holds(const gradcomp_dataset *ds, const void *hold);
/* The service is to look at it. */
void fetch_notify(gradcomp_dataset *ds, const ticket *t);

#endif
