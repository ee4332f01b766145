/* A link over shared memory, as its three files see it: shm.c sets it up, wakes
 * and closes it, shm_send.c fills the outgoing ring, shm_receive.c empties the
 * incoming one. All of it runs on the thread that uses the channel. */
#ifndef TRANSPORT_SHM_SHM_INTERNAL_H
#define TRANSPORT_SHM_SHM_INTERNAL_H

#include "transport/core/link.h"
#include "transport/shm/shm_ring.h"

#include <sys/socket.h>

#define MESSAGE_INLINE 0x49434731u /* "1GCI": the payload follows in the ring */
#define MESSAGE_READ 0x52434731u   /* "1GCR": the payload's address follows */
#define HEAD_BYTES 16
#define COPY_PIECE (32u << 10)   /* copied before the other side is told */

typedef struct head {
	uint32_t magic, seq;
	uint64_t bytes;
} head;

typedef struct shm {
	ring_page *page;
	ring_side *mine, *theirs;
	unsigned char *out, *in;
	uint64_t ring; /* bytes of a ring */
	uint64_t head, tail;       /* this side's own indices */
	uint64_t seen_head, seen_tail; /* the peer's, when last checked */
	uint64_t tickets;          /* messages offered for reading */
	uint64_t taken;            /* messages read */
	request *cur;              /* the first send not wholly in the ring */
	size_t put, got;           /* payload bytes of the current send and receive */
	uint64_t from;             /* address of the message being read; 0: none */
	unsigned char *piece;
	pid_t pid;
	int reading; /* this side can read the peer's memory */
	int probed;
} shm;

/* Fails the job; returns -1. */
int shm_corrupt(peer_link *l);
/* Moves what can be moved; 1 when something moved, -1 with the job failed. */
int shm_push(peer_link *l, shm *m);
int shm_pull(peer_link *l, shm *m);

/* After this side has published something the peer may sleep for. The fence and
 * the one in shm_sleep() see to it that either the sleeper sees the change or
 * this side sees the sleeper. */
static inline void shm_bell(peer_link *l, shm *m, uint32_t bit)
{
	char byte = 0;

	atomic_thread_fence(memory_order_seq_cst);
	if (!(atomic_load_explicit(&m->theirs->want, memory_order_relaxed) & bit))
		return;
	if (atomic_exchange_explicit(&m->theirs->want, 0, memory_order_relaxed))
		send(l->fd[0], &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

#endif
