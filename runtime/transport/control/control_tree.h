/* The control tree: rank r's parent is (r-1)/2. One thread serves it, and accepts connections. What is here is
 * under the transport's lock. */
#ifndef TRANSPORT_CONTROL_CONTROL_TREE_H
#define TRANSPORT_CONTROL_CONTROL_TREE_H

#include "transport/wire/ctrl_msg.h"
#include "transport/wire/handshake.h"
#include "transport/core/transport.h"

#include <pthread.h>

#define CULPRIT_TEXT CTRL_MSG_TEXT
#define TREE_OUT 1024

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

/* What a rank has told of itself last (transport_tally()). */
typedef struct tree_tally {
	uint16_t bytes;
	bool last;
	unsigned char data[TALLY_BYTES_MAX];
} tree_tally;

typedef struct control_tree {
	neighbour near[TREE_NEIGHBOURS];
	pthread_cond_t changed; /* anything of this */
	pthread_t thread;
	int wake_fd; /* eventfd: wakes the thread */
	bool running, quit, suspended;
	bool leaving, leave_sent, left;
	bool rates_own,
		rates_sent; /* this rank has measured the networks; so have all below it, and the parent knows */
	uint32_t rates[NETWORKS_MAX]; /* Mbit/s, the least of this rank and those below it that have said */
	tree_tally *told;             /* rank 0, once a rank has: by rank */
	int told_last;                /* that have told their last */
} control_tree;

/* Its neighbours in the tree are known, and not connected; NOMEM when there is no descriptor. */
gradcomp_status tree_open(transport *t);
void tree_close(control_tree *tree);
void *tree_main(void *transport);
/* Takes the connection to a neighbour, made with this HELLO; -1 when that
 * rank is none, or is connected already, or without memory. Locks. */
int tree_attach(transport *t, int rank, int fd, const hello *h);
/* Closes the connection, if there is one. */
void tree_drop(neighbour *n);
/* Called with the lock held: fails the job, unless it has failed or everybody has left. */
void tree_fail(transport *t, gradcomp_status status, int culprit, const char *text);
/* Called with the lock held: enters or moves on the leave barrier. */
void tree_leave(transport *t);
/* The same for what was measured: `rate` is this rank's, NULL to move on. When all ranks have said theirs the least
 * of each network is in t->peers.networks, which is measured then. */
void tree_rates(transport *t, const uint32_t *rate);
/* Called with the lock held: writes what is still unsent, waiting at most `seconds`. */
void tree_flush(transport *t, double seconds);
void tree_wake(transport *t);

#endif
