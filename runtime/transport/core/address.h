/* Internet addresses of this machine and of peers. */
#ifndef TRANSPORT_CORE_ADDRESS_H
#define TRANSPORT_CORE_ADDRESS_H

#include "gradcomp/abi.h"

#include <stdbool.h>
#include <sys/socket.h>

#define ADDRESS_MAX 12   /* of a rank */
#define ADDRESS_TEXT 64  /* one as text */

typedef struct address {
	unsigned char ip[16]; /* 4 or 16 bytes, network order */
	uint16_t port;
	uint8_t bytes;  /* 4 or 16 */
	uint8_t prefix; /* of its subnet */
	uint32_t scope; /* interface of an own link-local address; 0 in an endpoint record */
} address;

/* Addresses of this machine's interfaces that are up, at most ADDRESS_MAX.
 * `filter` is an interface's name, an address block (10.0.0.0/8) or "" (all;
 * loopback only when there is nothing else). Link-local IPv6 addresses only where a
 * filter leaves nothing else, because they are valid on one cable alone. *n > 0 on
 * success; NOTFOUND says what there is. */
gradcomp_status address_own(const char *filter, address out[ADDRESS_MAX], int *n, gradcomp_error *err);

/* Orders the n addresses of a peer by how likely they reach it: those in a
 * subnet of ours first; last those that are also ours (a bridge that every machine
 * has), unless the peer is on this node. */
void address_order(const address *own, int nown, int same_node, const address *peer, int n,
                   int order[ADDRESS_MAX]);

/* Usable only together with an interface of this machine. */
bool address_link_local(const address *a);

/* Its socket address; returns the length. */
socklen_t address_sockaddr(const address *a, struct sockaddr_storage *out);
/* The peer of a connected or accepted socket as text: "10.0.0.2:4711". */
void address_text(const struct sockaddr_storage *sa, char out[ADDRESS_TEXT]);

/* The form in an endpoint record: 10.0.0.2/24@45678. */
int address_format(const address *a, char out[ADDRESS_TEXT]);
/* All own addresses in that form, at `port`, with commas between. */
gradcomp_status address_own_text(uint16_t port, char out[ADDRESS_MAX * ADDRESS_TEXT], gradcomp_error *err);
/* 0, or -1 when the text is not such an address. */
int address_parse(const char *text, size_t bytes, address *out);

/* A socket that listens on all addresses of this machine, at a port of `range`:
 * FIRST-LAST, or "" for any free one. -1 with errno. */
int address_listen(const char *range, uint16_t *port);

#endif
