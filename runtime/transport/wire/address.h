/* Internet addresses of this machine and of peers. */
#ifndef TRANSPORT_WIRE_ADDRESS_H
#define TRANSPORT_WIRE_ADDRESS_H

#include "gradcomp/abi.h"

#include <stdbool.h>
#include <sys/socket.h>

#define ADDRESS_MAX 64         /* addresses that a rank has at most */
#define ADDRESS_TEXT 72        /* one as text */
#define ADDRESS_LIST_TEXT 1400 /* room for as many as fit, where a list is handed on as text */

typedef struct address {
	unsigned char ip[16]; /* 4 or 16 bytes, network order */
	uint16_t port;
	uint8_t bytes;      /* 4 or 16 */
	uint8_t prefix;     /* bits of its subnet */
	uint8_t card;       /* equal for addresses of one interface of the machine, from 1; 0: not said */
	uint32_t speed;     /* Mbit/s that the interface's driver states; 0: it does not know */
	uint32_t interface; /* index of an own address's; 0 in an endpoint record */
} address;

/* Addresses of this machine's interfaces that are up: the ADDRESS_MAX that most likely reach others, best first.
 * What has a carrier comes before what has none, what routes lead through before what they do not, bridges after other
 * interfaces, and then the faster before the slower one.
 * `filter` is an interface's name, an address block (10.0.0.0/8) or "" (all;
 * loopback only when there is nothing else). Link-local IPv6 addresses only where a
 * filter leaves nothing else, because they are valid on one cable alone. *n > 0 on
 * success; NOTFOUND says what there is. */
gradcomp_status address_own(const char *filter, address out[ADDRESS_MAX], int *n, gradcomp_error *err);

/* Returns true when the first `prefix` bits are those of `net`. */
bool address_in(const address *a, const address *net, int prefix);

/* Returns true when the address is usable only together with an interface of this machine. */
bool address_link_local(const address *a);

/* Its socket address; returns the length. */
socklen_t address_sockaddr(const address *a, struct sockaddr_storage *out);
/* Writes the peer of a connected or accepted socket as text: "10.0.0.2:4711". */
void address_text(const struct sockaddr_storage *sa, char out[ADDRESS_TEXT]);

/* Returns the port that a TCP socket is bound to; 0 with errno when that cannot be said. */
uint16_t address_local_port(int fd);

/* The form in an endpoint record: 10.0.0.2/24@45678, then what is said of :CARD and :SPEED. */
int address_format(const address *a, char out[ADDRESS_TEXT]);
/* Own addresses in that form, at `port`, with commas between: as many as there is room for, best first. */
gradcomp_status address_own_text(uint16_t port, char out[ADDRESS_LIST_TEXT], gradcomp_error *err);
/* 0, or -1 when the text is not such an address. */
int address_parse(const char *text, size_t bytes, address *out);

/* Opens a socket that listens on all addresses of this machine, at a port of `range`: FIRST-LAST, or "" for any
 * free one. -1 with errno. */
int address_listen(const char *range, uint16_t *port);

#endif
