/* The ranks of the job, from their endpoint records. It is filled before the control thread starts, and does not change
 * after that but for what networks carry, and for what each endpoint's atomics learn. */
#ifndef TRANSPORT_CONTROL_PEER_TABLE_H
#define TRANSPORT_CONTROL_PEER_TABLE_H

#include "transport/wire/endpoint.h"
#include "transport/wire/network.h"
#include "transport/core/transport.h"

typedef struct peer_table {
	endpoint *endpoints; /* one a rank */
	int32_t *node;       /* each rank's */
	int nnodes;
	network_list networks;
	int nlocal;          /* ranks on this node */
	int ncpus;           /* CPUs that they may run on */
	bool oversubscribed; /* more ranks on this node than CPUs */
} peer_table;

/* Reads the endpoint records of all ranks. */
gradcomp_status peer_table_read(transport *t, const char *const *texts, gradcomp_error *err);
/* Copies those of some ranks of another transport. */
gradcomp_status peer_table_inherit(transport *t, const transport *old, const int *peers, gradcomp_error *err);
void peer_table_free(peer_table *p, int nranks);
/* Returns true when two ranks can reach each other's local sockets, and so share memory. */
bool peer_share(const transport *t, int a, int b);
/* Returns true when other ranks can reach it over a network. This rank can reach others without addresses of its
 * own. */
bool peer_has_address(const transport *t, int rank);

#endif
