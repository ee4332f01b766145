/* Links between ranks of one node, over memory that both have. */
#ifndef TRANSPORT_SHM_SHM_H
#define TRANSPORT_SHM_SHM_H

#include "transport/link/link_kind.h"

extern const link_kind shm_kind;

/* How long the rings of a link between ranks of this node are. */
uint32_t shm_ring_bytes(const transport *t);

#endif
