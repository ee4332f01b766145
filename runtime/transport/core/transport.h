/* Links between the ranks of a job.
 *
 * transport_listen() opens this rank's sockets and makes its endpoint record. The
 * bootstrap gives all ranks all records, and transport_start() begins. Data connections
 * are made on first use, per peer and channel: over shm when both ranks can share memory,
 * over verbs when both have a device on the same network, else over tcp. Every connection
 * begins with a mutual challenge and response over the job's secret
 * (doc/dev/wire-format.md). Nothing is accepted from anybody who has not proved it, and a flood
 * of connections costs a bounded number of slots.
 *
 * Control tree. Each rank keeps an authenticated control connection to its parent
 * and children in a binary tree over ranks. One thread serves them and accepts
 * connections. They carry heartbeats, reports of a failure and the leave barrier.
 * Whatever set of ranks dies, each part of the tree that is left has a neighbour that died.
 * So all ranks learn which rank it was, without a connection to it.
 *
 * Time limits. A peer whose connection closes without a goodbye is dead at once. A peer
 * that is silent on the control tree for `timeout` seconds (stopped, partitioned) is dead
 * then. A peer that is alive but takes no part in a collective for `wait_timeout` seconds
 * fails the wait. */
#ifndef TRANSPORT_CORE_TRANSPORT_H
#define TRANSPORT_CORE_TRANSPORT_H

#include "gradcomp/collective.h"
#include "base/log.h"
#include "config/settings.h"

#include <stdbool.h>

#define TRANSPORT_SECRET_BYTES 32
#define TRANSPORT_ENDPOINT_MAX 1792

typedef struct transport transport;
typedef struct channel channel;

/* Says if long sends over tcp leave straight from their buffers; auto: until the kernel says that it copies. */
typedef enum zerocopy_mode { ZEROCOPY_AUTO, ZEROCOPY_YES, ZEROCOPY_NO } zerocopy_mode;

/* A job takes these. Pieces of 256 KiB fill links of 1 to 100 Gbit/s, and hide the work on one behind the next. A
 * wait that spins longer than 50 us takes the processor from the ranks beside it, a shorter one sleeps through what
 * the kernel needs. */
#define TRANSPORT_CHUNK ((size_t)256 << 10)
#define TRANSPORT_SPIN_US 50

typedef struct transport_options {
	int rank, nranks;
	double timeout;        /* s; setting transport.timeout */
	double wait_timeout;   /* s; transport.wait_timeout */
	double join_timeout;   /* s for all to come to transport_start(); 0: timeout */
	bool outlives;         /* a rank that is lost is GRADCOMP_ERR_PEER_LOST: the job may go on without it */
	int streams;           /* tcp connections a peer and channel; transport.streams */
	size_t chunk;          /* bytes of a piece of a pipelined transfer */
	int spin_us;           /* how long a wait spins before it sleeps */
	const char *interface; /* name, CIDR or ""; transport.interface */
	const char *allow;     /* "shm,tcp,verbs"; transport.allow */
	const struct fabric_ops *fabric;     /* for verbs; NULL: there is none, */
	const char *verbs_missing;           /* and why */
	const char *verbs_device;            /* NAME, NAME:PORT..., "auto" or NULL; transport.verbs_device */
	int verbs_gid;                       /* index or -1 */
	int verbs_named;                     /* transport.allow is not the default */
	size_t verbs_memory;                 /* bytes; transport.verbs_memory */
	frames_mode frames;                  /* security.frames */
	int cma;                             /* process_vm_readv between ranks of a node; transport.cma */
	zerocopy_mode zerocopy;              /* for long sends over tcp */
	const log_sink *log;                 /* outlives the transport */
	const gradcomp_operators *operators; /* for recv_reduce; NULL: the links have none */
} transport_options;

/* Opens sockets; nothing is accepted yet. */
gradcomp_status transport_listen(const transport_options *o, transport **out, gradcomp_error *err);
/* Returns this rank's endpoint record: printable text, no newline, at most TRANSPORT_ENDPOINT_MAX with the final
 * 0. Owned by the transport. */
const char *transport_endpoint(const transport *t);
/* Draws random bytes, for rank 0 to make the job's secret. */
gradcomp_status transport_secret(unsigned char secret[TRANSPORT_SECRET_BYTES], gradcomp_error *err);
/* Takes the endpoint records of all ranks (untrusted text), and the secret. Starts the control thread and joins the
 * tree; returns when this rank's parent and children are connected, or fails within `timeout` naming who is
 * missing. */
gradcomp_status transport_start(transport *t, const char *const *endpoints,
                                const unsigned char secret[TRANSPORT_SECRET_BYTES], gradcomp_error *err);
/* Takes no connections any more; those that come wait for the transport that inherits its sockets. */
void transport_suspend(transport *t);
/* Does what transport_listen() does, with the sockets and the endpoint record of `old`, which has been suspended,
 * and between the ranks peers[0..n-1] of it, ascending; o->rank and o->nranks are among those. transport_start() is
 * given no endpoints then. */
gradcomp_status transport_inherit(const transport *old, const transport_options *o, const int *peers, transport **out,
                                  gradcomp_error *err);
/* Waits until every rank has called it, or transport_stop() (at most `wait_timeout`, and not at all after a failure).
 * What is left to be called then is transport_stop(). */
gradcomp_status transport_leave(transport *t, gradcomp_error *err);
/* Does the same, then closes everything and frees t. Channels must have been closed. NULL is fine. */
gradcomp_status transport_stop(transport *t, gradcomp_error *err);

/* Returns true when this process was forked off the rank, which alone can use it. */
bool transport_forked(const transport *t);

/* A key that ranks of this job have and nobody else: one for each label and `info`. For what they prove to each other
 * beside the transport's own connections. Not in a forked process. */
void transport_key(const transport *t, const char *label, const void *info, size_t bytes,
                   unsigned char key[TRANSPORT_SECRET_BYTES]);

const char *transport_host(const transport *t, int rank);
/* Returns the node number of each rank, numbered by first appearance; nnodes of them. */
const int32_t *transport_nodes(const transport *t, int *nnodes);
/* Returns "shm", "tcp" or "verbs" for a pair. */
const char *transport_kind(const transport *t, int rank);

/* Declares the job failed: pending and later waits on all ranks return this
 * error. The first failure wins. `culprit` is a rank, or -1. */
void transport_fail(transport *t, gradcomp_status status, int culprit, const char *text);
/* The same of a rank that lives and takes no part for `wait_timeout`: TIMEOUT, also where the job may outlive
 * ranks, since that one is not lost and would be in the way of the next epoch, too. */
void transport_overdue(transport *t, int culprit, const char *text);
/* GRADCOMP_OK, or the failure the job has had. */
gradcomp_status transport_failure(const transport *t, gradcomp_error *err);

/* Opens this rank's end of a channel between ranks[0..n-1] (world ranks; `me` is
 * the index of this one). `id` must be the same on all of them and not used
 * twice at a time. Local, makes no connection. A channel is used by one thread
 * at a time; different channels are independent. */
gradcomp_status channel_open(transport *t, uint64_t id, const int *ranks, int n, int me, channel **out,
                             gradcomp_error *err);
const gradcomp_links *channel_links(const channel *c);
/* A message to, or from, rank `peer` of the channel; returns when `buf` may be used again, or holds it. */
gradcomp_status channel_put(channel *c, int peer, const void *buf, size_t bytes, gradcomp_error *err);
gradcomp_status channel_get(channel *c, int peer, void *buf, size_t bytes, gradcomp_error *err);
void channel_close(channel *c);
/* Returns the payload bytes sent on the channel so far; any thread. */
uint64_t channel_sent(const channel *c);

/* For a thread that serves several peers, and so waits for no one transfer: moves what
 * can be moved, and when nothing could, sleeps until something can, `fd` is readable (-1: none) or
 * `seconds` have passed. Fails when the job has. channel_done() says whether a transfer
 * is complete, and moves nothing. */
gradcomp_status channel_pause(channel *c, int fd, double seconds, gradcomp_error *err);
bool channel_done(const gradcomp_request *req);
/* Does the same, but looks for as long as a wait does before it sleeps: where what is waited for comes soon. */
gradcomp_status channel_linger(channel *c, int fd, double seconds, gradcomp_error *err);

/* From now on, what is wrong on the channel's links (a peer that has closed its end, messages that do not match) ends
 * the channel (apart) or the job, and so does a wait that has taken so many seconds from now; 0: waits have the job's
 * limit, which ends the job. On the channel's thread. What ends the job ends all channels in any case. */
void channel_apart(channel *c, bool apart, double seconds);
/* Ends a channel, and not the job: pending and later calls on it return this error. The first one counts. What is left
 * to do with it is channel_close(). Any thread. */
void transport_end_channel(channel *c, gradcomp_status status, const char *text);

/* For a channel whose ranks post nothing before one needs the other: a lower rank that needs a higher one asks it to
 * connect. All ranks of the channel say so before they use it. */
void channel_on_demand(channel *c);
/* A rank of the channel that has connected to this one, or asks for a connection, and for which nothing may be posted
 * yet; -1: there is none. To be called again until then, after every pause. The caller posts a receive. */
int channel_caller(channel *c);

/* For a channel that this rank has closed for good, or has never opened: ranks that have connected to this one on it, or
 * have asked it to connect, are told that nothing comes, and so are those that do later; with `all` also the lower ranks,
 * who may wait for this one to connect. */
void channel_dismiss(transport *t, uint64_t id, const int *ranks, int n, int me, bool all);

/* For a peer and this rank that have agreed to have no connection until one of them needs the other again, with
 * nothing on its way between them. One hangs up: what it waits to receive is forgotten. The other says before that
 * it may, and hangs up too when it has. The next message goes over another connection. */
void channel_hang_up(channel *c, int peer);
void channel_may_end(channel *c, int peer);
bool channel_ended(const channel *c, int peer);

/* Each rank may tell rank 0 of itself again and again, up to TALLY_BYTES_MAX bytes a time, up the control tree; what is
 * told later takes the place of what was told before. What does not go at once is lost: what counts is to be told as
 * totals. `last`: it tells no more. Any thread. */
#define TALLY_BYTES_MAX 256
void transport_tally(transport *t, const void *data, size_t bytes, bool last);
/* On rank 0: copies what a rank has told last, and returns its bytes; 0: nothing. */
size_t transport_told(transport *t, int rank, unsigned char out[TALLY_BYTES_MAX]);
/* On rank 0: waits until all ranks have told their last, the job has failed, or so many seconds have passed. */
void transport_await_tallies(transport *t, double seconds);

typedef struct link_load {
	int rank;       /* the peer's */
	uint64_t bytes; /* that it has taken */
	double busy_s;  /* in which some of them were on their way, and the peer had room for more */
	double rate;    /* bytes a second of the latest that were measured by themselves; 0: not known */
	bool full;      /* there was more to send all that time: the link carries no more */
} link_load;
/* Tells of the link of the channel that has been busy for longest; false: of none is it known. On the channel's thread. */
bool channel_busiest(channel *c, link_load *out);

typedef struct transport_counts {
	const char *transport;
	uint64_t pairs, sent, received;
} transport_counts;
/* One row per kind of link that was used; returns how many (at most 4). */
int transport_stats(const transport *t, transport_counts out[4]);

/* Returns what transport_kind() does, for any two ranks. */
const char *transport_pair(const transport *t, int a, int b);

typedef struct link_map_row {
	const char *transport;
	uint64_t pairs;      /* pairs of ranks that use it between them */
	const char *why_not; /* if there are none */
} link_map_row;
/* A subnet in which several nodes of the job have an address. */
typedef struct network_row {
	char name[64];          /* 10.1.0.0/24 */
	char interface[16];     /* this machine's; "": it has none there */
	uint32_t claimed, rate; /* Mbit/s: what drivers state, and what was measured; 0: not known */
	bool measured;          /* all were: then a rate of 0 is a network that carries nothing */
	bool chosen;            /* the first that this rank tries */
} network_row;
#define NETWORKS_MAX 64
/* Best first; returns how many. */
int transport_networks(const transport *t, network_row out[NETWORKS_MAX]);

/* Measures the Mbit/s to a rank of another node, with packets of full size, over the network that messages to it
 * take; 0: they do not get through. Sends for so many seconds. */
gradcomp_status transport_rate(transport *t, int rank, double seconds, double *mbit, gradcomp_error *err);

/* Counting pairs takes a while: with more ranks there are no rows. */
#define LINK_MAP_RANKS_MAX 4096
/* One row per kind of link there is; returns how many (at most 4). */
int transport_link_map(const transport *t, link_map_row out[4]);

#endif
