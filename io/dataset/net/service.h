/* The service of a rank: a thread that fetches for the rank and its children what other
 * nodes own, and answers what ranks of other nodes ask for. doc/dev/wire-format.md has the
 * messages.
 *
 * A rank sends its requests to its counterpart on each other node: the rank with the same local
 * number there, modulo how many there are. So each has few peers. Everything here belongs to the
 * service thread; other threads write to tickets or to the load worker's lists. */
#ifndef IO_DATASET_NET_SERVICE_H
#define IO_DATASET_NET_SERVICE_H

#include "io/dataset/net/fetch.h"
#include "gradcomp/collective.h"

#define REQUEST_ITEMS_MAX 256u         /* samples in one request */
#define REQUESTS_MAX 8u                /* requests to one peer that wait for their answer */
#define PACKED_BYTES (16u << 10)       /* shorter values are packed into one message */
#define PUSH_MOST ((uint64_t)64 << 20) /* longer values are not taken from others without space for them */
/* A peer may leave at most so much lying here that it asked for: a sound one never has as much under way. */
#define REPLIES_MAX (8 * REQUESTS_MAX)
#define OUTS_MAX (2 * TICKETS_MOST)

enum message {
	MSG_REQUEST = 1,
	MSG_REPLY,
	MSG_NOTIFY,
	MSG_OFFER,
	MSG_TAKE,
	MSG_LEAVE,
	MSG_PUSH,
	MSG_DAMAGED,
	MSG_BYE,
	MSG_BYE_OK,
	MSG_STAY
};

/* Begins every message. */
typedef struct header {
	uint32_t type, n;
	uint64_t id; /* the request's */
	uint64_t index, bytes, sum;
} header;

typedef struct request_item {
	uint64_t index;
	uint32_t ticket, flags;
} request_item;

enum { REPLY_SENT, REPLY_ABSENT, REPLY_UNKEPT, REPLY_LATER, REPLY_LARGE };

typedef struct reply_item {
	uint64_t bytes, sum;
	uint32_t status, reserved;
} reply_item;

/* A message on its way out, and what its sends read. */
typedef struct out {
	struct out *next;
	header h;
	void *table;
	unsigned char *pack;
	void **owned; /* values read for it */
	unsigned nowned;
	uint64_t owned_bytes;
	bool reply;
	int block; /* whose reference goes with it; -1: none */
	unsigned n;
	gradcomp_request req[];
} out;

typedef enum peer_state { IN_HEAD, IN_REQUEST, IN_REPLY, IN_VALUES, IN_PUSH } peer_state;

/* LEAVING: it has been asked to close, and has not answered. LEFT: it has asked, and closes. CLOSING: both have
 * agreed. */
typedef enum link_state { LINK_CLOSED, LINK_OPEN, LINK_LEAVING, LINK_LEFT, LINK_CLOSING } link_state;

typedef struct peer {
	int rank;
	link_state link; /* but when it is CLOSED a header is received, over a connection that is there or is made */
	peer_state state;
	header in;
	gradcomp_request req;
	void *items;              /* a REQUEST's or a REPLY's */
	gradcomp_request *values; /* a REPLY's */
	unsigned nvalues;
	value pushed;                     /* the value of a PUSH, */
	uint64_t pushed_slot;             /* and where it belongs */
	uint32_t nouts, nreplies, nloads; /* messages on their way to it, answers among them; values loaded for it */
	uint32_t nlater, noffers, ntakes; /* values it loads for this rank, is offered, and is to push */
	uint64_t spilled;                 /* bytes read for it from the spill file */
	uint32_t *wanted;                 /* tickets, from `first` on */
	size_t first, nwanted, room;
	unsigned nrequests; /* not answered */
	header *held;       /* the messages to be sent when it has a connection again */
	uint32_t nheld;
	uint64_t used;   /* when, by service.uses */
	uint64_t stays;  /* ns: until then it is not asked to close */
	bool drains;     /* it is requested nothing, so that its connection may be closed */
	bool crossed;    /* its BYE crossed this rank's, which counts */
	bool called;     /* it needs a connection, and the one it had is not closed yet */
	bool heard;      /* something came */
	uint64_t silent; /* ns in which something was to come and nothing came */
	out *outs;
} peer;

/* A block of the rank's receive buffer. */
typedef struct block {
	uint64_t offset, bytes;
	peer *asked; /* NULL: not waiting for an answer */
	uint32_t *tickets, n;
} block;

/* Says what a ticket that is FLYING waits for. The ticket stands in memory that others write to; this does not. */
typedef struct flight {
	peer *asked;    /* NULL: it waits for nothing */
	uint32_t block; /* the answer's; BLOCKS: the owner said LATER, and notifies */
} flight;

/* Keeps what this rank offered to a sample's owner. */
typedef struct offer {
	struct offer *next;
	uint64_t id, index, offset, bytes, sum;
	uint32_t block;
	peer *to;
	int taken;
} offer;

/* Keeps what this node takes of an offer: the PUSH has to be the value that was offered. */
typedef struct take {
	struct take *next;
	peer *from;
	uint64_t id, index, bytes, sum;
	uint64_t offset; /* in the arena; 0: there is no space in it */
} take;

typedef struct load_worker load_worker;

struct service {
	gradcomp_dataset *ds;
	const gradcomp_links *links;
	pthread_t thread;
	bool started;
	atomic_uint quit, draining, drained;
	gradcomp_status status; /* the first thing's that went wrong */
	gradcomp_error error;

	peer *peers;
	int npeers;
	int32_t *peer_of; /* for every node: the rank that this one sends requests to */

	uint32_t *sorted; /* blocks in use, by offset */
	uint32_t nsorted, next_block;
	block blocks[BLOCKS];
	flight *flights;      /* one for every ticket */
	uint64_t bytes, mean; /* lengths of the values that have come: of all of them, and on average */
	uint64_t arrivals;
	bool posted;  /* a transfer: with it others may have become complete */
	bool starved; /* something waits for space in the receive buffer */

	offer *offers;
	uint64_t offered;
	take *takes;
	atomic_uint nlinks, nlinks_most; /* connections: now, and at most so far; written here alone */
	unsigned nlinks_limit;           /* their limit, set by dataset.connections */
	uint64_t uses;                   /* counts the uses of connections */
	uint32_t nwaiting;               /* nodes that are wanted and have none, in this turn */
	uint32_t spare;                  /* connections beside the limit that may be made in the next turn */
	int turn;       /* the peer behind the last that was given one: is first, so that all have their turn */
	uint64_t swept; /* ns: when tickets of dead processes and silent peers were last looked for */
	load_worker *load_worker;
};

/* rx_buffer.c */

/* Returns a block with one reference, or -1. */
int rx_buffer_alloc(service *s, uint64_t bytes);
/* Gives back what a block needs no more: all behind so many bytes. */
void rx_buffer_trim(service *s, int block, uint64_t bytes);
void rx_buffer_unref(service *s, uint32_t block);
/* Returns the longest block that rx_buffer_alloc() would find now. */
uint64_t rx_buffer_longest(service *s);

/* messages.c */

out *message_new(service *s, unsigned sends);
/* Is kept until its sends are done. */
void message_add(peer *p, out *o);
void message_post(service *s, peer *p, out *o, const void *buf, uint64_t bytes);
/* Sends a header alone. */
void message_header(service *s, peer *p, header h);
void message_free(out *o);
/* Called at the first message to a peer, or from it: receives its headers from now on. */
void message_open_peer(service *s, peer *p);
void message_receive_header(service *s, peer *p);
void message_receive(service *s, peer *p, void *buf, uint64_t bytes, gradcomp_request *req);
/* The slot of a sample this node owns; NULL with the job failed when it is another's. */
slot *message_slot(service *s, const peer *p, uint64_t index);

/* The first failure ends the service. Without `err` it is a want of memory here, and ends the job for all. */
void message_failed(service *s, gradcomp_status st, const gradcomp_error *err);
/* Fails the job: a peer did `what`. TIMEOUT: it may only be slow. */
void message_blame(service *s, const peer *p, gradcomp_status st, const char *what);
/* The same: it sent an invalid message. */
void message_wrong(service *s, const peer *p, const char *what);

/* request.c, reply.c */

/* A value's messages: bytes of the next, and how many of the items from i on it carries. Values
 * stand in their block one after another; short ones that follow each other are one message. */
uint64_t reply_run(const reply_item *items, uint32_t n, uint32_t i, uint32_t *carried);

/* Answers what came: p->items are p->in.n. */
void reply_send(service *s, peer *p);
/* Sends p a request for the samples that are wanted of it. */
void request_send(service *s, peer *p);

/* receive.c */

/* Receives on as long as something is there. */
void receive_poll(service *s, peer *p);

/* Values loaded elsewhere (push.c): offered to this node, pushed to it, and the owner's answer to an
 * offer. */
void push_receive_offer(service *s, peer *p);
void push_receive(service *s, peer *p);
void push_receive_done(service *s, peer *p);
void push_receive_answer(service *s, peer *p);

/* tickets.c */

/* Handles the tickets that processes have changed. */
void tickets_attend(service *s);
/* While the service does not run: what is under way is so no more; and what is wanted is attended to anew. */
void tickets_detach(service *s);
void tickets_attach(service *s);
/* Now and then frees those of processes that have died. */
void tickets_sweep(service *s);
/* Its sample is to be requested: `again`, before all others. */
void ticket_want(service *s, uint32_t n, bool again);

/* load_worker.c */

/* A thread that loads, or waits for, values of this node that others want. */
gradcomp_status load_worker_start(service *s, gradcomp_error *err);
void load_worker_stop(load_worker *k);
/* Waits for a load() that is running; a stopped dataset starts no other. */
void load_worker_halt(load_worker *k);
/* Nothing that was added is sent a NOTIFY for any more. Does not wait for a load() that is running. */
void load_worker_forget(load_worker *k);
/* A NOTIFY follows when it is there. */
void load_worker_add(service *s, peer *p, uint32_t ticket, uint64_t index);
/* Sends the NOTIFYs that are due. */
void load_worker_notify(service *s);

/* links.c */

/* Called when the peer needs a connection. */
void links_called(service *s, peer *p);
/* Returns true when a message that begins an exchange may be sent to it now. If not, it is to be asked again in
 * every turn. */
bool links_ready(service *s, const peer *p);
/* Sends an OFFER or DAMAGED as soon as it is ready; and those that were not. */
void links_say(service *s, peer *p, header h);
void links_flush(service *s, peer *p);
/* Receives BYE, BYE_OK and STAY. */
void links_receive_ending(service *s, peer *p);
/* Called last in a turn: closes connections. */
void links_turn(service *s);

/* service.c */

/* Makes ds->service, all but its thread. */
gradcomp_status service_new(gradcomp_dataset *ds, const gradcomp_links *links, gradcomp_error *err);
/* One turn: what is written on tickets, what has come, what has gone. */
void service_turn(service *s);

#endif
