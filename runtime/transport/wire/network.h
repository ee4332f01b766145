/* The networks of a job: subnets in which several of its nodes have an address, and how fast they are. All ranks find
 * the same ones in the endpoint records, so they can agree on what was measured by their places in this list. */
#ifndef TRANSPORT_WIRE_NETWORK_H
#define TRANSPORT_WIRE_NETWORK_H

#include "transport/wire/endpoint.h"
#include "transport/core/transport.h"

typedef struct network {
	address net;      /* an address in it, and its prefix */
	uint32_t claimed; /* Mbit/s, the least that drivers state; 0: one does not know */
	/* Mbit/s, the least of all nodes, when it has been measured; 0: somewhere nothing came through. */
	uint32_t rate;
	int nodes;
	bool shared; /* two nodes have one address, as of a bridge that is the same everywhere: it leads nowhere */
} network;

typedef struct network_list {
	network of[NETWORKS_MAX];
	int n;
	bool measured;
} network_list;

/* Finds the networks of a rank of each node: those of the first address of each of its interfaces. */
void networks_find(network_list *l, const endpoint *endpoints, const int32_t *node, int nranks, int nnodes);
/* Returns true when there is a choice that the drivers' speeds do not decide. */
bool networks_unclear(const network_list *l);
/* The network of the interface that list[i] belongs to; -1: none that several nodes have. */
int network_of(const network_list *l, const address *list, int n, int i);
/* Writes a network as "10.1.0.0/24". */
void network_name(const network *net, char out[ADDRESS_TEXT]);

/* Orders the n addresses of a peer by how well they reach it: those in a subnet of ours first, the faster before the
 * slower; then those in no subnet of ours, as the peer lists them; then those of networks that carry nothing;
 * last those that are also ours (a bridge that every machine has), unless the peer is on this node. `l` may be NULL. */
void network_address_order(const network_list *l, const address *own, int nown, int same_node, const address *peer,
                           int n, int order[ADDRESS_MAX]);

#endif
