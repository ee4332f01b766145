/* The transport's insides, shared by the files of transport/.
 *
 * Threads. The application's threads use channels, one thread a channel at a
 * time. The control thread owns the listener and serves the tree. What they share
 * is under `lock`: the tree's sockets, the failure, the backlog and what channels it knows. */
#ifndef TRANSPORT_CORE_TRANSPORT_INTERNAL_H
#define TRANSPORT_CORE_TRANSPORT_INTERNAL_H

#include "base/clock.h"
#include "transport/control/backlog.h"
#include "transport/control/ctrl_msg.h"
#include "transport/control/failure.h"
#include "transport/control/listener.h"
#include "transport/core/endpoint.h"
#include "transport/core/network.h"
#include "transport/core/transport.h"

#include <pthread.h>
#include <stdatomic.h>

#define CULPRIT_TEXT CTRL_MSG_TEXT
#define TREE_OUT 1024
#define PROBES_MAX 8 /* of the ranks that measure a network to this one, at a time */

/* A neighbour on the control tree. */
typedef struct neighbour {
	int rank;   /* -1: there is none */
	int fd;     /* -1: not connected */
	bool left;  /* child: its subtree has entered the leave barrier */
	bool rated; /* child: its subtree has measured the networks */
	double last_recv;
	record_crypto *crypto; /* NULL: messages go in the clear */
	unsigned have, unsent;
	unsigned char in[CTRL_MSG_MAX], out[TREE_OUT];
} neighbour;

enum { TREE_PARENT, TREE_LEFT, TREE_RIGHT, TREE_NEIGHBOURS };

struct transport {
	transport_options o;
	char *interface, *allow;
	int rank, nranks;
	unsigned char *secret; /* of secret_alloc() */
	char endpoint[TRANSPORT_ENDPOINT_MAX];
	address own[ADDRESS_MAX];
	int nown;

	endpoint *endpoints; /* of every rank */
	int32_t *node;       /* of every rank */
	int nnodes;
	network_list networks;
	int nlocal;          /* ranks on this node */
	int ncpus;           /* CPUs that they may run on */
	bool oversubscribed; /* more ranks on this node than CPUs */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	bool running, quit, suspended;
	bool leaving, leave_sent, left;
	bool rates_own,
		rates_sent; /* this rank has measured the networks; so have all below it, and the parent knows */
	uint32_t rates[NETWORKS_MAX]; /* Mbit/s, the least of this rank and those below it that have said */
	bool forked;                  /* this process is a fork of the rank */
	int wake_fd;                  /* eventfd: wakes the control thread */
	job_failure failure;

	listener listener;
	int probe[PROBES_MAX]; /* connections that measure a network; of the control thread */
	neighbour tree[TREE_NEIGHBOURS];
	backlog backlog;
	transport *next_alive;         /* forked.c */
	struct transport_links *links; /* link_kind.h */
};

/* Pending and later waits return transport_failure(). */
static inline bool transport_failed(const transport *t)
{
	return atomic_load_explicit(&t->failure.set, memory_order_acquire);
}

/* transport.c: closes and frees all; no thread runs any more. */
void transport_release(transport *t);

/* peer_table.c: reads the endpoint records of all ranks. */
gradcomp_status peer_table_read(transport *t, const char *const *texts, gradcomp_error *err);
/* Whether two ranks can reach each other's local sockets, and so share memory. */
bool peers_share(const transport *t, int a, int b);
/* Whether other ranks can reach it over a network. This rank can reach others without addresses of its own. */
bool peer_has_address(const transport *t, int rank);
/* Copies those of some ranks of another transport. */
gradcomp_status peer_table_inherit(transport *t, const transport *old, const int *peers, gradcomp_error *err);

/* accept.c: opens the sockets that other ranks connect to, a local one or those of networks; accept_ops authenticates them. */
gradcomp_status accept_open(transport *t, bool local, bool network, char unix_name[ENDPOINT_UNIX_MAX],
                            size_t *unix_bytes, gradcomp_error *err);
extern const listener_ops accept_ops;
/* The sockets of another transport become this one's. */
gradcomp_status accept_inherit(transport *t, const transport *old, gradcomp_error *err);

/* connect.c: the other side, on the caller's thread: blocks until the
 * connection is made, the transport fails or `deadline` has passed. `passed` is
 * a descriptor to pass to it (shm), or -1. */
gradcomp_status connect_peer(transport *t, hello *h, int passed, double deadline, int *fd, gradcomp_error *err);
/* Begins a connection; its descriptor, or -1 with errno. connect_finish() ends it when the socket can be written to: NULL
 * when the other end has proved the secret, or why it is of no use. The caller closes it. */
int connect_begin(const address *a);
const char *connect_finish(transport *t, int fd, hello *h, double deadline);

/* survey.c: Mbit/s to the next node over each network, on the lowest rank of a node; SURVEY_UNKNOWN for what this rank
 * cannot tell. Takes some 0.1 s, and 0.5 s where networks do not answer. */
#define SURVEY_UNKNOWN UINT32_MAX
void survey_measure(transport *t, uint32_t rate[NETWORKS_MAX], double deadline);
void survey_log(const transport *t);
/* Reads and forgets what has come over the connection; false at its end. */
bool survey_swallow(int fd);

/* tree.c */
void *tree_main(void *transport);
/* Takes the connection to a neighbour, made with this HELLO; -1 when that
 * rank is none, or is connected already, or without memory. Locks. */
int tree_attach(transport *t, int rank, int fd, const hello *h);
/* Closes the connection, if there is one. */
void tree_drop(neighbour *n);
/* With the lock held: fails the job, unless it has failed or everybody has left. */
void tree_fail(transport *t, gradcomp_status status, int culprit, const char *text);
/* Of a rank that lives: the job does not go on without it. */
void tree_overdue(transport *t, int culprit, const char *text);
/* With the lock held: enters or moves on the leave barrier. */
void tree_leave(transport *t);
/* The same for what was measured: `rate` is this rank's, NULL to move on. When all ranks have said theirs the least of each
 * network is in t->networks, which is measured then. */
void tree_rates(transport *t, const uint32_t *rate);
/* With the lock held: writes what is still unsent, waiting at most `seconds`. */
void tree_flush(transport *t, double seconds);
void tree_wake(transport *t);

/* forked.c: a process forked off a rank (a data loader's worker) holds copies of
 * the rank's connections. They are closed there, so that the rank's death is
 * seen, and the copy of the transport refuses to work. */
void forked_watch(transport *t);
void forked_forget(transport *t);

#endif
