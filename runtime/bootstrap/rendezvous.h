/* rendezvous.h: a key-value server through which processes without PMIx find each other.
 *
 * The staging commands of a step run before its tasks do, when there is no PMIx yet. srun
 * starts a small key-value server for them, on one TCP port. Each of them connects and
 * passes the client to gradcomp_job_create() as its gradcomp_store:
 *
 *     rendezvous_server *server;                             // beside srun
 *     rendezvous_server_open(NULL, 4, &server, &err);
 *     hand_out(rendezvous_server_where(server), rendezvous_server_token(server));
 *     rendezvous_server_run(server, fd, &err);
 *
 *     rendezvous_client *client;                             // on node i of 4
 *     rendezvous_client_options who = { .struct_size = sizeof who, .where = w, .token = t, .rank = i, .nranks = 4 };
 *     rendezvous_connect(&who, &client, &err);            // returns when all 4 have connected
 *     gradcomp_job_create(&(gradcomp_job_options){ .struct_size = ..., .store = rendezvous_store(client) }, ...);
 *     rendezvous_disconnect(client);
 *
 * The token is a secret. The server drops a connection that cannot prove it, and the
 * values are encrypted with a key derived from it (doc/dev/wire-format.md).
 *
 * The ranks of a step that have PMIx meet at such a server, too, which rank 0 opens
 * at a place they all know (step.c).
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
/* The same with a socket that listens, which is the server's even on failure, and a token that clients know. It has
 * neither addresses nor a token as text. */
gradcomp_status rendezvous_server_open_at(int fd, const unsigned char *token, int nranks, rendezvous_server **out,
                                          gradcomp_error *err);
/* Addresses, "10.0.0.9/24@41257,fd00::9/64@41257", and the token: printable, without
 * blanks. The token is sealed by MUNGE for this user alone where security.secret
 * allows and munged answers. Owned by the server. */
const char *rendezvous_server_where(const rendezvous_server *m);
const char *rendezvous_server_token(const rendezvous_server *m);
/* Serves until all clients have connected and left, or `until` (a descriptor; -1: none)
 * is at its end. It listens no more once all have connected. Signals do not end it. */
gradcomp_status rendezvous_server_run(rendezvous_server *m, int until, gradcomp_error *err);
/* Bytes sent to clients, when the server has ended. */
uint64_t rendezvous_server_sent(const rendezvous_server *m);
/* NULL is fine. */
void rendezvous_server_close(rendezvous_server *m);

typedef struct rendezvous_client_options {
	uint32_t struct_size;
	int32_t rank, nranks;
	uint32_t reserved0;
	const char *where, *token;
	double timeout; /* seconds for all to connect; 0: setting stage.rendezvous_timeout */
	/* Set by ranks that meet at rank 0's server: the token itself (32 bytes, copied), and the ports of `where`
	 * that it may listen on, ended by 0. Then rendezvous_connect() returns as soon as this client is connected. */
	const unsigned char *secret;
	const uint16_t *ports;
	/* Called about ten times a second; non-zero gives up with STATE. May be NULL. */
	int (*stop)(void *ctx);
	/* Called once, of the first client that is there, when others have not come for 5 s. May be NULL. */
	void (*waiting)(void *ctx, const char *text);
	void *ctx;
} rendezvous_client_options;

/* Returns when all clients have connected. IO: the server cannot be reached; AUTH: it does
 * not have the token; TIMEOUT: names the ranks that did not connect; PEER: one connected
 * and died. */
gradcomp_status rendezvous_connect(const rendezvous_client_options *options, rendezvous_client **out,
                                   gradcomp_error *err);
/* Keys of at most 63 bytes, values of at most 4096, 8 of them a client; the first
 * value of a key stays. Owned by the client. */
const gradcomp_store *rendezvous_store(const rendezvous_client *g);
/* Why no more comes; "" while it may. Owned by the client. */
const char *rendezvous_why(const rendezvous_client *g);
/* Says goodbye, and returns when all clients have, or the server ends; at most after `limit` seconds. */
void rendezvous_leave(rendezvous_client *g, double limit);
/* NULL is fine. */
void rendezvous_disconnect(rendezvous_client *g);

#endif
