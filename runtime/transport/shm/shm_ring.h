/* The memory two ranks of a node share for one link: a page of indices, then a
 * ring of bytes each way, one producer and one consumer each. The layout is in
 * doc/dev/wire-format.md.
 *
 * What the peer writes here is not trusted: its index is copied once, and
 * checked against this side's own, before it is used. */
#ifndef TRANSPORT_SHM_SHM_RING_H
#define TRANSPORT_SHM_SHM_RING_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#define WANT_DATA 1u
#define WANT_SPACE 2u

/* Written by one side (but `want`, which the other side clears), read by both.
 * Indices count bytes or messages since the beginning and never wrap. */
typedef struct ring_side {
	alignas(64) _Atomic uint64_t head; /* bytes put into this side's outgoing ring */
	alignas(64) _Atomic uint64_t tail; /* bytes taken out of its incoming one */
	_Atomic uint64_t taken;            /* messages read from the peer's memory */
	alignas(64) _Atomic uint32_t want; /* this side sleeps until one of WANT_* */
	alignas(64) _Atomic uint32_t cookie_set;
	_Atomic uint32_t reads;   /* this side can read the other's memory */
	_Atomic uint32_t goodbye; /* it has closed in good order */
	_Atomic uint32_t revoked; /* its buffers are not to be read any more */
	uint64_t cookie_at;
	unsigned char cookie[16];
	_Atomic uint32_t cpu; /* plus 1: that it last waited on; 0: not known */
	uint32_t spare[3];
} ring_side;

typedef struct ring_page {
	ring_side side[2]; /* 0: the rank that connected */
} ring_page;

#define RING_PAGE 4096
_Static_assert(sizeof(ring_side) == 256 && sizeof(ring_page) <= RING_PAGE, "as in doc/dev/wire-format.md");

/* Bytes between a consumer's and a producer's index, or -1 when the producer's
 * (or, the other way round, the consumer's) is impossible. */
static inline int64_t ring_used(uint64_t head, uint64_t tail, uint64_t bytes)
{
	uint64_t used = head - tail;
	return used <= bytes && !(used & 15) ? (int64_t)used : -1;
}

#endif
