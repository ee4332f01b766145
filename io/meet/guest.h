/* Inside of a guest: coming in (come.c), what it hears and knows (guest.c). */
#ifndef GUEST_H
#define GUEST_H

#include <stdbool.h>

#include "address.h"
#include "clock.h"
#include "meet.h"

#define GUEST_ATTEMPT 3.0 /* s: for a connection and the greeting, or to be listened to */
#define GUEST_INPUT (8 * MEET_ENTRY_MAX)

typedef struct fact {
	char *key;
	unsigned char *value;
	size_t bytes;
} fact;

struct gradcomp_guest {
	gradcomp_store store;
	gradcomp_guest_options o;
	meet_keys keys;
	address at[ADDRESS_MAX];
	int nat, fd;
	char place[ADDRESS_TEXT]; /* the address that answered, or was tried last */
	fact *facts;
	size_t nfacts, capacity, have;
	int come; /* guests, this one too */
	char why[200]; /* the place is lost or a guest died; "" */
	unsigned char in[GUEST_INPUT];
};

/* 1 ready, 0 too late, -1 to be stopped. */
int guest_wait(const gradcomp_guest *g, int fd, short events, double until);
/* Reads or writes all of it; NULL, or what went wrong. */
const char *guest_all(const gradcomp_guest *g, int fd, void *buf, size_t bytes, bool out, double until);
/* Takes the place's addresses, those most likely to lead there first. */
gradcomp_status guest_addresses(gradcomp_guest *g, const char *where, gradcomp_error *err);
/* Connects and proves the token, again and again until the deadline. */
gradcomp_status guest_come(gradcomp_guest *g, double deadline, gradcomp_error *err);

#endif
