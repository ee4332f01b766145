/* rendezvous.h: a place where processes that nobody introduces find each other.
 *
 * The stagers of a step run before its tasks do, when PMIx is not there yet. srun
 * keeps a place for them, a small key-value server on one TCP port, and each of them
 * brings a gradcomp_store on it to gradcomp_job_create():
 *
 *     rendezvous_server *place;                              // beside srun
 *     rendezvous_server_open(NULL, 4, &place, &err);
 *     hand_out(rendezvous_server_where(place), rendezvous_server_token(place));
 *     rendezvous_server_run(place, fd, &err);
 *
 *     rendezvous_client *client;                             // on node i of 4
 *     rendezvous_client_options who = { .struct_size = sizeof who, .where = w, .token = t, .rank = i, .nranks = 4 };
 *     rendezvous_connect(&who, &client, &err);            // returns when all 4 have come
 *     gradcomp_job_create(&(gradcomp_job_options){ .struct_size = ..., .store = rendezvous_store(client) }, ...);
 *     rendezvous_disconnect(client);
 *
 * The token is a secret. Who does not have it is not let in and reads nothing of what
 * is exchanged, which only the clients open (doc/wire-format.md).
 *
 * Threads: one at a time for each object. */
#ifndef BOOTSTRAP_RENDEZVOUS_H
#define BOOTSTRAP_RENDEZVOUS_H

#include "gradcomp/gradcomp.h"


typedef struct rendezvous_server rendezvous_server;
typedef struct rendezvous_client rendezvous_client;

/* Listens for `nranks` clients, 1 to 65536, on a free port (setting
 * stage.rendezvous_ports). `settings` as in gradcomp_job_options; may be NULL. */
gradcomp_status rendezvous_server_open(const char *const *settings, int nranks, rendezvous_server **out,
                                                   gradcomp_error *err);
/* Addresses, "10.0.0.9/24@41257,fd00::9/64@41257", and the token: printable, without
 * blanks. The token is sealed by MUNGE for this user alone where security.secret
 * allows and munged answers. Owned by the place. */
const char *rendezvous_server_where(const rendezvous_server *m);
const char *rendezvous_server_token(const rendezvous_server *m);
/* Serves until all clients have come and gone, or `until` (a descriptor; -1: none)
 * is at its end. Blocks all signals' work: it ends by these alone. */
gradcomp_status rendezvous_server_run(rendezvous_server *m, int until, gradcomp_error *err);
/* NULL is fine. */
void rendezvous_server_close(rendezvous_server *m);

typedef struct rendezvous_client_options {
	uint32_t struct_size;
	int32_t rank, nranks;
	uint32_t reserved0;
	const char *where, *token;
	double timeout; /* seconds for all to come; 0: setting stage.rendezvous_timeout */
	/* Asked about ten times a second; non-zero gives up with STATE. May be NULL. */
	int (*stop)(void *ctx);
	void *ctx;
} rendezvous_client_options;

/* Returns when all clients have come. IO: the server cannot be reached; AUTH: it does
 * not have the token; TIMEOUT: names the ranks that did not come; PEER: one came and
 * died. */
gradcomp_status rendezvous_connect(const rendezvous_client_options *options, rendezvous_client **out,
                                                   gradcomp_error *err);
/* Keys of at most 63 bytes, values of at most 4096, 8 of them a client; the first
 * value of a key stays. Owned by the client. */
const gradcomp_store *rendezvous_store(const rendezvous_client *g);
/* NULL is fine. */
void rendezvous_disconnect(rendezvous_client *g);

#endif
