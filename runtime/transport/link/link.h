/* Channels and their links, as the transports see them.
 *
 * A link connects one channel to one peer. Its requests are in two queues, in
 * the order they were posted. Sends may finish out of order, receives do not
 * start before the ones posted earlier have been matched. Everything here runs
 * on the thread that uses the channel. */
#ifndef TRANSPORT_LINK_LINK_H
#define TRANSPORT_LINK_LINK_H

#include "transport/link/link_kind.h"

typedef struct peer_link peer_link;

/* The content of a gradcomp_request. */
typedef struct request {
	struct request *next, *prev;
	peer_link *link;
	unsigned char *buf; /* a send only reads it */
	size_t bytes;
	size_t left; /* bytes not moved yet; tcp counts the header */
	/* tcp: number of its first chunk; shm: its ticket, or of a multicast its first piece; verbs: bytes with a
	 * CTS */
	uint64_t first;
	uint64_t nchunks; /* tcp; 0: not posted to the transport yet */
	uint32_t seq;
	uint8_t sending, done, checked, reduce;
	int8_t region; /* verbs: number of its registration; 0: not tried, -1: none */
	gradcomp_dtype dtype;
	gradcomp_op op;
	uint32_t in_kernel; /* tcp: zero-copy calls for it that the kernel has not finished */
	int receivers;      /* shm: of the multicast that this send is part of; 0: it is part of none */
} request;
_Static_assert(sizeof(request) <= sizeof(gradcomp_request), "a request must fit");

typedef struct queue {
	request *head, *tail;
	uint32_t seq;
} queue;

typedef struct link_ops {
	/* A request was put at the end of its queue. Moves nothing. */
	void (*posted)(peer_link *l, request *r);
	/* Moves what can be moved; 1 when something moved. */
	int (*progress)(peer_link *l);
	/* Before sleeping: asks the peer for a wake-up, and fills p[] with what to poll;
	 * returns how many (at most `streams`; verbs: 2). */
	int (*sleep)(peer_link *l, struct pollfd *p);
	void (*wake)(peer_link *l, const struct pollfd *p, int n);
	/* The job has failed: the caller's buffers are free from now on. */
	void (*revoke)(peer_link *l);
	/* `goodbye`: in good order; the peer is told so. */
	void (*close)(peer_link *l, int goodbye);
} link_ops;

/* A link is in one of these; link.c has the table of what may follow what. */
typedef enum link_phase {
	PEER_NEW,
	PEER_CALLED,     /* the peer has been asked to connect */
	PEER_JOINING,    /* some of its connections are there */
	PEER_SETTING_UP, /* its kind negotiates; from here on it has operations */
	PEER_OPEN,
	PEER_LEAVING, /* the peer has closed in good order; what it sent before that may still be on its way */
	PEER_LEFT,    /* ... and the connection is at its end */
	PEER_LOST     /* the connection is at its end without a goodbye */
} link_phase;

struct peer_link {
	channel *c;
	int world;     /* rank of the peer */
	link_use *use; /* its kind; NULL: none reaches the peer, and the job fails */
	link_phase state;
	const link_ops *ops; /* NULL before PEER_SETTING_UP */
	void *impl;          /* the kind's own */
	queue send, recv;
	peer_link *next, *prev; /* active links */
	peer_link *sleeper;     /* the links armed for this sleep */
	int slot, nslots;       /* its entries in c->poll */
	bool active;
	bool unread;         /* the peer has not read all of what this rank keeps for several */
	bool bulk;           /* amid a long message: spinning does not pay */
	bool may_end;        /* a goodbye is no failure, though a receive is posted */
	size_t polls;        /* number of descriptors in c->npoll that are this link's */
	unsigned multicasts; /* c->multicasts when this link was last part of one */
	double eof;          /* when its connection ended */
	hello h;             /* HELLO of the connections */
	int fd[STREAMS_MAX], passed, nfd;
	record_crypto *crypto[STREAMS_MAX]; /* if h.frames asks for records */
};

/* Every sleep polls these beside the links: a failure, an inbound connection, the caller's descriptor. */
#define CHANNEL_POLLS 3

struct channel {
	transport *t;
	int n, me;
	int *ranks;
	int32_t *node;
	peer_link **links; /* made on first use */
	peer_link *active;
	void *group[LINK_KINDS_MAX]; /* link_group() */
	unsigned multicasts;         /* calls */
	unsigned yields, shared;     /* while waiting, and looks in a row that found a lower rank on this CPU */
	unsigned leave_after;        /* it leaves the CPU after so many `shared`; 0: never */
	backlog_channel inbound;     /* connections that peers have made for it */
	unsigned adopted;
	atomic_uint_fast64_t sent; /* payload bytes */
	struct pollfd *poll;
	size_t npoll;
	double spin, idle;
	bool apart;             /* what its links find wrong ends the channel, not the job */
	double limit, deadline; /* seconds that a wait may take, and the clock then; 0: none */
	atomic_int broken;      /* the channel has ended: `why` does not change any more */
	gradcomp_error why;
	double last_peer_check; /* when the hosts of silent peers were last checked */
	bool revoked;
	bool on_demand;
	unsigned heard; /* inbound.came when the callers were last looked for */
	gradcomp_links api;
};

static inline bool link_up(const peer_link *l)
{
	return l->state >= PEER_SETTING_UP;
}
/* Pending and later waits on the channel fail. */
static inline bool channel_failed(const channel *c)
{
	return transport_failed(c->t) || atomic_load_explicit(&c->broken, memory_order_acquire);
}
/* The peer has said goodbye. */
static inline bool link_leaves(const peer_link *l)
{
	return l->state == PEER_LEAVING || l->state == PEER_LEFT;
}
static inline bool link_ended(const peer_link *l)
{
	return l->state >= PEER_LEFT;
}

/* link.c */
/* Fails the job when `to` does not follow the state that the link has. */
void link_enter(peer_link *l, link_phase to);
peer_link *link_get(channel *c, int peer);
/* Connects, or takes the connection that the peer has made. */
void link_connect(peer_link *l);
void link_adopt(peer_link *l);
/* The kind of link is set up: it gets what was posted so far. */
void link_begin(peer_link *l);
void link_post(peer_link *l, request *r);
void link_done(request *r);
void link_free(peer_link *l);
/* Takes it off the list of active links if nothing is left to do. */
void link_settle(peer_link *l);
/* Takes it off the list of active links, whatever was posted. */
void link_forget(peer_link *l);
/* The connection is closed. The tree gets a moment to report why. */
void link_eof(peer_link *l);
/* The peer has closed in good order. */
void link_goodbye(peer_link *l);
/* Fails the job when that moment is over, or the peer has left in good order. */
void link_check_eof(peer_link *l, double now);
/* Fails the job, or the channel that is apart; `culprit` is the link's peer. */
void link_fail(peer_link *l, gradcomp_status status, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);
/* Does the same for a failure of this rank; the text follows its name. */
void link_fail_local(peer_link *l, gradcomp_status status, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);
/* Another kind has the link from now on. */
void link_turn(peer_link *l, link_use *u);
/* Links of one kind share this in a channel: it is that kind's own, and NULL at first. */
static inline void **link_group(channel *c, const link_use *u)
{
	return &c->group[u - c->t->links->use];
}
/* Checks a message's header against what was posted. 0 when it fits. */
int link_check(peer_link *l, const request *r, uint32_t seq, uint64_t bytes);
/* acc OP= in, on `bytes` bytes at offset `at` of a receive that reduces. */
void link_reduce(peer_link *l, request *r, size_t at, const void *in, size_t bytes);

static inline void queue_add(queue *q, request *r)
{
	r->next = NULL;
	r->prev = q->tail;
	*(q->tail ? &q->tail->next : &q->head) = r;
	q->tail = r;
}

static inline void queue_remove(queue *q, request *r)
{
	*(r->prev ? &r->prev->next : &q->head) = r->next;
	*(r->next ? &r->next->prev : &q->tail) = r->prev;
}

#define REDUCE_BLOCK (64u << 10)

#endif
