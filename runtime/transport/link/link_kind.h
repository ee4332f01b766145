/* The kinds of links. Each is a table of operations; transport.c has the list of them, and nobody else names one.
 *
 * A kind has a part of its own in a transport that uses it (a device, a cookie), and a group in each channel (what its
 * links there share). Both are known to that kind alone. */
#ifndef TRANSPORT_LINK_LINK_KIND_H
#define TRANSPORT_LINK_LINK_KIND_H

#include "transport/core/transport_internal.h"

#define LINK_KINDS_MAX 4

struct peer_link;
typedef struct link_kind link_kind;

/* A kind in a transport. */
typedef struct link_use {
	const link_kind *kind;
	bool allowed; /* by transport.allow */
	void *part;   /* the kind's own */
	atomic_uint_fast64_t pairs, sent, received;
} link_use;

struct transport_links {
	link_use use[LINK_KINDS_MAX];
	int n;
};

typedef enum link_opened {
	LINK_OPENED,
	LINK_NEGOTIATES, /* its operations call link_begin() or link_turn() in the end */
	LINK_REFUSED     /* the job has failed */
} link_opened;

/* Members that may be NULL are said to be. */
struct link_kind {
	const char *name; /* a word of transport.allow */
	hello_kind hello; /* begins its connections */
	int worth;        /* the kind that is worth most, of those that reach a rank, is used */
	int polls;        /* most descriptors that one of its links polls; 0: each of its connections */
	/* over memory that both ranks have: it is set up over the local socket, and a look is no system call */
	bool near;
	/* it is known only when both ends are connected whether it works; another one takes over where it does not */
	bool may_refuse;
	bool inherits; /* a transport that takes over another's sockets can use it */

	/* For a transport whose sockets are open: makes u->part. Where it may refuse, failing only means that it is not
	 * used. NULL: it has none. */
	gradcomp_status (*start)(link_use *u, transport *t, gradcomp_error *err);
	void (*stop)(link_use *u, const transport *t); /* NULL: nothing is to be freed */
	/* Adds to this rank's endpoint record. NULL: nothing. */
	void (*tell)(const link_use *u, endpoint_node *own);
	/* The records of all ranks are there. NULL: that is none of its matter. */
	void (*met)(const link_use *u, const transport *t);
	/* Asks whether ranks a and b can use it, as far as their records say; of this rank's own links, what was
	 * tried counts too. */
	bool (*reaches)(const link_use *u, const transport *t, int a, int b);
	/* Why no two ranks use it, though it is allowed. */
	const char *(*why_not)(const link_use *u);

	/* For the side that connects: fills in h.streams, h.chunk and `passed`, which are 1, transport.chunk and -1
	 * already. NULL: they stay. */
	gradcomp_status (*offer)(struct peer_link *l, gradcomp_error *err);
	/* All connections are made: takes over their descriptors, and sets l->ops. */
	link_opened (*open)(struct peer_link *l);
	/* Fails the job when the peer's host does not answer any more. NULL: that is noticed otherwise. */
	void (*check)(struct peer_link *l);

	/* Tells how busy the link has been, but not of which peer; false where that is not known. NULL: it never is. */
	bool (*load)(const struct peer_link *l, link_load *out);

	/* A message to several ranks of a channel over this kind: makes it one that is copied once, whose first
	 * piece has the number *first; false when each gets its own. NULL: there is no such thing. */
	bool (*multicast)(channel *c, link_use *u, size_t bytes, uint64_t *first);
	/* This rank waits on `cpu` (its number plus 1): whether a lower one of the channel does too. NULL: not
	 * known. */
	bool (*crowded)(channel *c, link_use *u, uint32_t cpu);
	void (*leave)(void *group); /* the channel is closed, and its links are; NULL: there is no group */
};

/* Opens the kinds of t->o.allow among the n of `kinds`. */
gradcomp_status links_open(transport *t, const link_kind *const *kinds, int n, gradcomp_error *err);
/* Those that can be used get ready. */
gradcomp_status links_start(transport *t, bool inherited, gradcomp_error *err);
void links_close(transport *t);
bool links_allowed(const transport *t, bool near);
void links_tell(const transport *t, endpoint_node *own);
void links_met(const transport *t);

/* The kind of this rank's links to a rank, NULL when there is none; link_use_of() gives that of a connection. */
link_use *link_use_to(const transport *t, int rank);
link_use *link_use_of(const transport *t, hello_kind hello);

#endif
