/* The connecting side of a rank, on the caller's thread. */
#ifndef TRANSPORT_CONTROL_CONNECT_H
#define TRANSPORT_CONTROL_CONNECT_H

#include "transport/wire/handshake.h"
#include "transport/wire/address.h"
#include "transport/core/transport.h"

/* Blocks until the connection is made, the transport fails or `deadline` has passed. `passed` is a descriptor to
 * pass to it (shm), or -1. */
gradcomp_status connect_peer(transport *t, hello *h, int passed, double deadline, int *fd, gradcomp_error *err);
/* Begins a connection; its descriptor, or -1 with errno. connect_finish() ends it when the socket can be written
 * to: NULL when the other end has proved the secret, or why it is of no use. The caller closes it. */
int connect_begin(const address *a);
const char *connect_finish(transport *t, int fd, hello *h, double deadline);

#endif
