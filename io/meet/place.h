/* Inside of the meeting place: who is at its door (place_door.c), its guests and its log
 * (place.c). */
#ifndef PLACE_H
#define PLACE_H

#include <poll.h>
#include <stdbool.h>

#include "address.h"
#include "clock.h"
#include "meet.h"

#define STRANGERS 64
#define WHERE_TEXT (ADDRESS_MAX * ADDRESS_TEXT)

typedef struct stranger {
	int fd;
	bool greeted; /* the challenge is out */
	size_t have;
	uint64_t order;
	double deadline;
	struct sockaddr_storage from;
	unsigned char in[MEET_HELLO_BYTES], hello[MEET_HELLO_BYTES], nonce[NONCE_BYTES];
} stranger;

typedef struct seat { /* of a rank */
	int fd;           /* -1: not there */
	bool gone;        /* has said good-bye */
	char host[65];
	unsigned entries;
	size_t sent; /* bytes of the log */
	size_t have;
	unsigned char *in; /* MEET_ENTRY_MAX bytes */
} seat;

struct gradcomp_meet {
	int door, nranks, ngone;
	char where[WHERE_TEXT], token[MEET_TOKEN_TEXT];
	meet_keys keys;
	stranger strangers[STRANGERS];
	uint64_t arrivals;
	double shut_until; /* no descriptor was left */
	seat *seats;
	struct pollfd *polls;
	unsigned char *log;
	size_t bytes, capacity;
};

/* Takes some of those who knock; in a crowd others lose their place for it. */
void place_accept_some(gradcomp_meet *m);
/* p[i] is of stranger i. Those who prove the token take their seats. */
void place_serve_strangers(gradcomp_meet *m, const struct pollfd *p);
void place_forget(stranger *s);

#endif
