/* The memory of links over shared memory: made by the side that connects, near the CPU that reads it. */
#ifndef TRANSPORT_SHM_SHM_MEMORY_H
#define TRANSPORT_SHM_SHM_MEMORY_H

#include "gradcomp/abi.h"

#include <stdbool.h>
#include <stddef.h>

/* A memfd that can neither shrink nor grow; -1: no memory. */
int shm_memory(size_t bytes);
/* Returns true when a descriptor that a peer passed is one of these. */
bool shm_valid(int fd, size_t bytes);

/* How many memory nodes are online; 1 where that is not known. */
int shm_numa_nodes(void);
/* Pages of p[bytes] that nobody has touched yet will come from the memory node this
 * thread runs on, whoever touches them first. p begins a page. 0, or -1 where the kernel
 * has no such policy or forbids it; the memory can be used all the same. */
int shm_numa_near(void *p, size_t bytes);

#endif
