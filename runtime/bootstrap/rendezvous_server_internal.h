/* Inside of the meeting place: who is at its door (place_door.c), its guests and its log
 * (place.c). */
#ifndef BOOTSTRAP_RENDEZVOUS_SERVER_INTERNAL_H
#define BOOTSTRAP_RENDEZVOUS_SERVER_INTERNAL_H

#include <poll.h>
#include <stdbool.h>

#include "transport/core/address.h"
#include "base/clock.h"
#include "bootstrap/rendezvous_msg.h"

#define BACKLOG 64
#define WHERE_TEXT (ADDRESS_MAX * ADDRESS_TEXT)

typedef struct pending {
	int fd;
	bool greeted; /* the challenge is out */
	size_t have;
	uint64_t order;
	double deadline;
	struct sockaddr_storage from;
	unsigned char in[RENDEZVOUS_HELLO_BYTES], hello[RENDEZVOUS_HELLO_BYTES], nonce[NONCE_BYTES];
} pending;

typedef struct slot { /* of a rank */
	int fd;           /* -1: not there */
	bool left;        /* has said good-bye */
	char host[65];
	unsigned entries;
	size_t sent; /* bytes of the log */
	size_t have;
	unsigned char *in; /* RENDEZVOUS_ENTRY_MAX bytes */
} slot;

struct rendezvous_server {
	int listener, nranks, nleft;
	char where[WHERE_TEXT], token[RENDEZVOUS_TOKEN_TEXT];
	rendezvous_keys keys;
	pending backlog[BACKLOG];
	uint64_t arrivals;
	double shut_until; /* no descriptor was left */
	slot *slots;
	struct pollfd *polls;
	unsigned char *log;
	size_t bytes, capacity;
};

/* Takes some of those who knock; in a crowd others lose their place for it. */
void accept_some(rendezvous_server *m);
/* p[i] is of stranger i. Those who prove the token take their seats. */
void serve_backlog(rendezvous_server *m, const struct pollfd *p);
void pending_close(pending *s);

#endif
