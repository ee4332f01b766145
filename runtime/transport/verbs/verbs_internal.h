/* Links over verbs. verbs_setup.c connects two queue pairs or falls back to tcp, verbs.c
 * is the link after that, verbs_send.c and verbs_receive.c move messages, verbs_device.c
 * has the device and the pool. The messages are in doc/dev/wire-format.md.
 *
 * A link has space for all that it may have in flight from the beginning. So a peer
 * never sends what there is no receive for, and nothing is allocated while messages
 * move. */
#ifndef TRANSPORT_VERBS_VERBS_INTERNAL_H
#define TRANSPORT_VERBS_VERBS_INTERNAL_H

#include "transport/link/link.h"
#include "transport/verbs/fabric.h"

#define RECEIVE_BYTES 4096 /* room of one receive */
#define VERBS_HEAD 48
#define EAGER_BYTES (RECEIVE_BYTES - VERBS_HEAD) /* longer messages are written by RDMA */
#define PIECE_BYTES (32u << 10)                  /* largest piece that is copied through the pool */
#define DIRECT_BYTES (1u << 20)                  /* largest piece of registered memory that one CTS asks for */
#define REGISTER_BYTES (128u << 10)              /* shorter messages are copied */

#define CREDITS 16        /* messages the peer may send ahead of their receives being posted */
#define WINDOW 4          /* pieces with a CTS that are not written yet, each way */
#define CREDIT_MESSAGES 4 /* messages that only return credits */
/* For the peer's messages, CTS and CREDIT, and its writes, each of which takes one. */
#define RECEIVES (CREDITS + 2 * WINDOW + CREDIT_MESSAGES)
#define SENDS (CREDITS + WINDOW + CREDIT_MESSAGES)
#define BLOCK_BYTES ((RECEIVES + SENDS) * RECEIVE_BYTES + 2 * WINDOW * PIECE_BYTES)

/* Messages whose memory may be registered at a time: those with a CTS or a write in
 * flight, and one more each way. */
#define REGIONS (2 * (2 * WINDOW + 1))

#define SETUP_BYTES 256 /* room of a setup message */
#define SETUP_REASON 208

enum { MESSAGE_EAGER = 1, MESSAGE_RTS, MESSAGE_CTS, MESSAGE_CREDIT, MESSAGE_PROBE };
/* A completion says what it was posted for: the upper bits of its id, above the index. */
enum { ID_RECEIVE = 1, ID_DATA, ID_CONTROL, ID_WRITE };

/* Registered memory of one link. */
typedef struct verbs_block {
	struct verbs_block *next;
	unsigned char *base;
	fabric_memory memory;
} verbs_block;

typedef struct verbs_device {
	const fabric_ops *f;
	void *device;
	fabric_info info;
	pthread_mutex_t lock; /* guards what follows */
	verbs_block *spare;
	size_t used, limit;
	atomic_int copies; /* the caller's memory could not be registered once */
} verbs_device;

/* A piece of a message for which this side has sent a CTS. */
typedef struct inbound_piece {
	request *r; /* NULL: free */
	size_t at, bytes;
	int staged; /* it arrives in the pool */
} inbound_piece;

/* A CTS: where the peer wants a piece written. */
typedef struct cts {
	uint32_t seq, slot, key;
	uint64_t total, at, bytes, to;
	uint64_t done; /* bytes whose write is posted */
} cts;

/* A write in flight. */
typedef struct outbound_piece {
	request *r; /* NULL: free */
	size_t bytes;
} outbound_piece;

typedef struct verbs {
	verbs_device *d;
	void *queue; /* NULL: there is none, or none any more */
	verbs_block *block;
	int fd, armed, broken;

	/* Sending. */
	request *next_send;          /* the first whose header was not sent */
	uint32_t sent, peer_matched; /* messages that took a credit; those the peer has matched */
	unsigned free_slots, data_slots;
	uint8_t slot[SENDS];
	cts cts_queue[WINDOW];
	unsigned ncts;
	outbound_piece outbound[WINDOW];
	unsigned noutbound;

	/* Receiving. */
	request *next_match; /* the first whose header has not arrived */
	request *next_cts;   /* the first long one without a CTS for all of it */
	uint8_t rx_queue[CREDITS];
	uint32_t rx_bytes[CREDITS];
	unsigned rx_first, nrx;
	uint32_t matched, matched_sent;
	inbound_piece inbound[WINDOW];

	fabric_memory region[REGIONS]; /* handle NULL: free */

	/* Setting up. */
	fabric_address mine;
	int sent_kind, got_kind, probed;
	double deadline;
	unsigned have, unsent; /* have: later, of a goodbye */
	uint32_t received;     /* messages that a peer received before its goodbye */
	unsigned char in[SETUP_BYTES], out[4 * SETUP_BYTES];
	char why[SETUP_REASON];
} verbs;

static inline unsigned char *verbs_receive_buf(const verbs *v, unsigned receive)
{
	return v->block->base + (size_t)receive * RECEIVE_BYTES;
}

static inline unsigned char *verbs_send_buf(const verbs *v, unsigned send)
{
	return v->block->base + (size_t)(RECEIVES + send) * RECEIVE_BYTES;
}

/* Returns the pool memory of piece i that arrives (0) or leaves (1). */
static inline unsigned char *verbs_piece(const verbs *v, int leaving, unsigned i)
{
	return v->block->base + (size_t)(RECEIVES + SENDS) * RECEIVE_BYTES +
	       (size_t)(leaving ? WINDOW + i : i) * PIECE_BYTES;
}

/* verbs.c: takes over the link after its setup. */
void verbs_begin(peer_link *l, verbs *v);
static inline int verbs_usable(const verbs *v)
{
	return v->queue && !v->broken;
}

int verbs_sleep(peer_link *l, struct pollfd *p);
void verbs_free(peer_link *l, verbs *v);

/* verbs_send.c */
/* The queue takes no more, or the peer sent what is not valid. -1 with the job failed. */
int verbs_refused(peer_link *l, int error);
int verbs_corrupt(peer_link *l);
int verbs_push(peer_link *l, verbs *v);
/* A message without payload: 1 when it was sent, 0 when there is no slot now. */
int verbs_control(peer_link *l, verbs *v, uint32_t kind, const cts *d);
int verbs_cts_arrived(peer_link *l, verbs *v, const unsigned char *head);
int verbs_written(peer_link *l, verbs *v, unsigned i);
/* The peer has matched so many messages since the beginning: the others hold credits. */
int verbs_take_credit(peer_link *l, verbs *v, uint32_t matched);

/* verbs_receive.c */
/* 0 or an errno; verbs_repost() fails the job then. */
int verbs_post_receive(verbs *v, unsigned i);
int verbs_repost(peer_link *l, verbs *v, unsigned i);
int verbs_pull(peer_link *l, verbs *v);
int verbs_message_arrived(peer_link *l, verbs *v, unsigned receive, uint32_t bytes);
int verbs_piece_arrived(peer_link *l, verbs *v, const fabric_event *e);

/* verbs_setup.c */
extern const link_kind verbs_kind;

/* verbs_device.c, as in link_kind: err says why there is no device, and the log too. */
gradcomp_status verbs_device_open(link_use *u, transport *t, gradcomp_error *err);
void verbs_device_close(link_use *u, const transport *t);
/* Logs ranks that verbs could reach and does not. */
void verbs_log_unreachable(const link_use *u, const transport *t);
/* Takes a block for a link, from the pool; NULL with the reason. */
verbs_block *verbs_block_take(verbs_device *d, gradcomp_error *err);
void verbs_block_give(verbs_device *d, verbs_block *b);
/* The registration of a long message's memory; NULL when it must be copied. */
const fabric_memory *verbs_register(peer_link *l, verbs *v, request *r);
void verbs_unregister(verbs *v, request *r);

#endif
