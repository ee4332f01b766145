/* The accepting side of a rank: the sockets that other ranks connect to, and which connections it takes. The control
 * thread serves them. */
#ifndef TRANSPORT_CONTROL_ACCEPT_H
#define TRANSPORT_CONTROL_ACCEPT_H

#include "transport/control/listener.h"
#include "transport/wire/endpoint.h"
#include "transport/core/transport.h"

#define PROBES_MAX 8 /* ranks that measure a network to this one at a time */

typedef struct rank_sockets {
	listener listener;
	address own[ADDRESS_MAX]; /* at which this rank listens */
	int nown;
	int probe[PROBES_MAX]; /* connections that measure a network, or -1 */
} rank_sockets;

void accept_init(transport *t);
/* Opens a local socket, or those of networks. */
gradcomp_status accept_open(transport *t, bool local, bool network, char unix_name[ENDPOINT_UNIX_MAX],
                            size_t *unix_bytes, gradcomp_error *err);
/* Makes the sockets of another transport this one's. */
gradcomp_status accept_inherit(transport *t, const transport *old, gradcomp_error *err);
void accept_close(transport *t);

#endif
