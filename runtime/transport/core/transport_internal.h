/* The transport's insides, shared by the files of transport/. What one of its rooms needs lies in that room's struct.
 *
 * Threads. The application's threads use channels, one thread a channel at a
 * time. The control thread owns the listening sockets and serves the tree. What they share
 * is under `lock`: the tree, the failure, and the backlog. */
#ifndef TRANSPORT_CORE_TRANSPORT_INTERNAL_H
#define TRANSPORT_CORE_TRANSPORT_INTERNAL_H

#include "base/clock.h"
#include "transport/control/accept.h"
#include "transport/control/backlog.h"
#include "transport/control/control_tree.h"
#include "transport/control/job_failure.h"
#include "transport/control/peer_table.h"
#include "transport/core/transport.h"

#include <pthread.h>
#include <stdatomic.h>

struct transport {
	transport_options o;
	char *interface, *allow; /* copies of o's texts */
	int rank, nranks;
	unsigned char *secret; /* made by secret_alloc() */
	char endpoint[TRANSPORT_ENDPOINT_MAX];
	bool forked; /* this process is a fork of the rank */
	pthread_mutex_t lock;
	peer_table peers;
	job_failure failure;
	rank_sockets sockets;
	control_tree tree;
	backlog backlog;
	struct transport_links *links; /* link_kind.h */
	transport *next_alive;         /* forked.c */
};

/* Pending and later waits return transport_failure(). */
static inline bool transport_failed(const transport *t)
{
	return atomic_load_explicit(&t->failure.set, memory_order_acquire);
}

/* transport.c: closes and frees all; no thread runs any more. */
void transport_release(transport *t);

/* forked.c: a process forked off a rank (a data loader's worker) holds copies of
 * the rank's connections. They are closed there, so that the rank's death is
 * seen, and the copy of the transport refuses to work. */
void forked_watch(transport *t);
void forked_forget(transport *t);

#endif
