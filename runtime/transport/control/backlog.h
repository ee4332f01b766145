/* Authenticated data connections that no channel has taken yet. The control thread puts them here, and the thread of a
 * channel takes those of its peers. All of it is under the transport's lock, which these functions take but for
 * backlog_pull() and backlog_drop(). */
#ifndef TRANSPORT_CONTROL_BACKLOG_H
#define TRANSPORT_CONTROL_BACKLOG_H

#include "transport/wire/handshake.h"
#include "transport/core/transport.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct backlog_conn {
	struct backlog_conn *next;
	hello h;
	int fd, passed; /* -1: none */
} backlog_conn;

/* A channel that is open, and told of what comes for it. */
typedef struct backlog_channel {
	struct backlog_channel *next;
	uint64_t id;
	int fd;           /* eventfd: something has come */
	atomic_uint came; /* how many in all; may be read without the lock */
} backlog_channel;

/* Channels that this rank has closed for good: the last so many are remembered. */
#define BACKLOG_GONE 4096

typedef struct backlog {
	backlog_conn *first;
	int n;
	backlog_channel *channels;
	uint64_t *gone; /* BACKLOG_GONE of them, made on first use */
	unsigned ngone; /* so far */
} backlog;

/* Queues a connection; takes ownership of both descriptors unless it fails. RANGE: too many wait already; or NOMEM. */
gradcomp_status backlog_put(transport *t, const hello *h, int fd, int passed);
/* Takes the connection at *at out; the caller frees it. */
backlog_conn *backlog_pull(backlog *b, backlog_conn **at);
/* Closes the first connection. */
void backlog_drop(backlog *b);
/* c->id is known: NOMEM when there is no descriptor for it. */
gradcomp_status backlog_listen(transport *t, backlog_channel *c);
void backlog_leave(transport *t, backlog_channel *c);
/* Refuses connections for a channel that is closed here from now on, and closes those that wait. */
void backlog_bury(transport *t, uint64_t id);
bool backlog_is_gone(transport *t, uint64_t id);

#endif
