/* Inside of a client: how it connects, what it receives and keeps. */
#ifndef BOOTSTRAP_RENDEZVOUS_CLIENT_INTERNAL_H
#define BOOTSTRAP_RENDEZVOUS_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "transport/wire/address.h"
#include "base/clock.h"
#include "bootstrap/rendezvous_msg.h"

#define CLIENT_ATTEMPT 3.0 /* s: for a connection, for the CHALLENGE, or for the server to read */
#define CLIENT_INPUT (8 * RENDEZVOUS_ENTRY_MAX)

typedef struct relay relay;

typedef struct kv_pair {
	char *key;
	unsigned char *value;
	size_t bytes;
} kv_pair;

struct rendezvous_client {
	gradcomp_store store;
	rendezvous_client_options o;
	rendezvous_keys keys;
	address at[ADDRESS_MAX];
	int nat, fd;
	pthread_mutex_t sending;   /* guards entries sent on fd: the relay's thread writes too */
	relay *relay;              /* reads fd */
	int log_fd;                /* the log, from the relay */
	char ended[200];           /* why it has ended; valid at the end of log_fd */
	char server[ADDRESS_TEXT]; /* the address that answered, or was tried last */
	kv_pair *pairs;
	size_t npairs, capacity, have;
	uint32_t *index;    /* 2 * capacity: by hash of the key, 1 + a pair's number; 0: free */
	int njoined, nleft; /* clients, this one too */
	bool goodbye;       /* has been said */
	char why[200];      /* the server is lost or a client died; "" */
	unsigned char in[CLIENT_INPUT];
};

/* Parses the server's addresses, those most likely to reach it first. */
gradcomp_status client_addresses(rendezvous_client *cl, const char *where, gradcomp_error *err);
/* Returns true for ranks, who know rank 0's server; false for stagers, whose server is srun's. */
static inline bool client_of_ranks(const rendezvous_client *cl)
{
	return cl->o.secret != NULL;
}

/* Tries each address once; NULL, or what went wrong with the last. */
const char *client_try(rendezvous_client *cl, double deadline, bool *unproved);
/* Sends an entry to the server. Any thread. */
bool client_send(rendezvous_client *cl, const char *key, const void *value, size_t bytes);

/* Begins to read the log, to hand it to the client at cl->log_fd, and to other clients. */
gradcomp_status relay_start(rendezvous_client *cl, gradcomp_error *err);
/* Ends that; `linger`: after the others have taken what is here, or a second. */
void relay_stop(rendezvous_client *cl, bool linger);

#endif
