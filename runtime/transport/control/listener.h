/* Listening sockets, and the connections on them that have not proved a secret yet: the
 * accepting side of every handshake, for a rank and for the rendezvous server. HELLO
 * and keys are the server's own; the messages are in doc/dev/wire-format.md.
 *
 * At most PENDING_MAX connections are pending, each for PENDING_SECONDS until its HELLO is
 * there and as long again until its proof is, so a flood costs a bounded amount. One thread. */
#ifndef LISTENER_H
#define LISTENER_H

#include "base/log.h"
#include "transport/wire/handshake.h"
#include "transport/wire/address.h"

#include <stdbool.h>
#include <sys/socket.h>

#define LISTENER_SOCKETS \
	(1 + ADDRESS_MAX) /* a rank's: one local, and where it may not use all networks one an address */
#define PENDING_MAX 64
#define PENDING_SECONDS 3.0
#define LISTENER_POLLS (LISTENER_SOCKETS + PENDING_MAX)

/* A connection whose other end has not proved the secret yet. */
typedef struct pending_conn {
	int fd; /* -1: free */
	bool local, challenged;
	double deadline;
	uint64_t arrival;
	struct sockaddr_storage from;
	unsigned have;
	unsigned char in[HELLO_BYTES], hello[HELLO_BYTES], nonce[NONCE_BYTES];
	int passed; /* a descriptor that came with the proof, or -1 */
} pending_conn;

/* A server adds these. `const char *` is NULL, or why the connection is dropped. */
typedef struct listener_ops {
	unsigned hello_bytes; /* at most HELLO_BYTES */
	/* Checks the HELLO in p->in. */
	const char *(*hello)(void *ctx, const pending_conn *p);
	/* Computes what `role` must present for p->hello and p->nonce. */
	void (*proof)(void *ctx, handshake_role role, const pending_conn *p, unsigned char mac[SHA256_BYTES]);
	/* The other end has the secret. Takes over p->fd and p->passed, sends WELCOME with
	 * listener_pending_welcome(), and leaves both at -1. */
	const char *(*accept)(void *ctx, pending_conn *p);
} listener_ops;

typedef struct listener {
	const listener_ops *ops;
	void *ctx;
	const log_sink *log; /* NULL: says nothing */
	int fd[LISTENER_SOCKETS], n;
	bool local[LISTENER_SOCKETS];
	pending_conn pending[PENDING_MAX];
	uint64_t arrivals;
	double shut_until; /* out of descriptors: no accept until then */
	double log_window;
	unsigned log_lines, log_hidden;
	struct listener *next; /* the next of those that are closed in forks */
} listener;

void listener_init(listener *l, const listener_ops *ops, void *ctx, const log_sink *log);
/* Adds a listening socket, which the listener closes. There must be space for it. */
void listener_add(listener *l, int fd, bool local);
/* From now on forked processes have none of its sockets and connections: of a rank, whose data loader's workers may
 * live on when it has ended. */
void listener_close_in_forks(listener *l);
/* Closes all sockets and connections. */
void listener_close(listener *l);

struct pollfd;
/* Fills p[LISTENER_POLLS] with what to poll; returns how many. */
int listener_poll(const listener *l, struct pollfd *p, double now);
/* When it has to be served at the latest; 1e18 when nothing is pending. */
double listener_deadline(const listener *l);
/* Moves all handshakes on. p[n] as listener_poll() made it. */
void listener_serve(listener *l, const struct pollfd *p, int n);

/* For ops->accept: 0, or -1 when the other end does not take WELCOME. */
int listener_pending_welcome(const pending_conn *p);
int listener_pending_gone(const pending_conn *p);
/* Reads on; hands the connection over once it has proved the secret. */
void listener_pending_serve(listener *l, pending_conn *p);
void listener_pending_free(pending_conn *p);

#endif
