/* The memory of links over shared memory: made by the side that connects, near the
 * CPU that reads it. libnuma is not everywhere, so the kernel's own calls are used. */
#ifndef TRANSPORT_SHM_SHM_H
#define TRANSPORT_SHM_SHM_H

#include "transport/core/link.h"

/* How long the rings of a link between ranks of this node are. */
uint32_t shm_ring_bytes(const transport *t);
/* Makes the memory for a link of `ring` bytes each way; its descriptor, or -1. */
int shm_create(uint32_t ring, gradcomp_error *err);
/* A memfd that can neither shrink nor grow; -1: no memory. */
int shm_memory(size_t bytes);
/* Whether a descriptor that a peer passed is one of these. */
bool shm_valid(int fd, size_t bytes);

/* Tells the peer on which CPU this side waits (its number plus 1); the same of the peer, 0 where it is not
 * known. The peer may lie. */
uint32_t shm_waits_on(peer_link *l, uint32_t cpu);

/* How many memory nodes are online; 1 where that is not known. */
int shm_numa_nodes(void);
/* Pages of p[bytes] that nobody has touched yet will come from the memory node this
 * thread runs on, whoever touches them first. p begins a page. 0, or -1 where the kernel
 * has no such policy or forbids it; the memory can be used all the same. */
int shm_numa_near(void *p, size_t bytes);

#endif
