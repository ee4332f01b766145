/* How a message over tcp is striped: chunks go round the streams and are numbered
 * through all messages, so that short messages use all streams too. Both ends compute
 * from the posted lengths which chunk goes where. tcp.c moves the bytes in the clear,
 * tcp_secure.c in records. */
#ifndef TRANSPORT_TCP_STRIPING_H
#define TRANSPORT_TCP_STRIPING_H

#include "transport/link/link.h"
#include "transport/wire/wire.h"

#define HEAD_BYTES 16
#define MESSAGE_MAGIC 0x4d434731u /* "1GCM" */
#define GOODBYE_MAGIC 0x42434731u /* "1GCB" */
#define TURN_BYTES (1u << 20)     /* moved on a stream before others have their turn */
#define BULK_BYTES (32u << 10)

typedef struct cursor {
	request *r; /* NULL: at the end of the queue */
	uint64_t chunk;
	size_t off; /* bytes of the chunk moved so far; chunk 0 counts the header */
} cursor;

typedef struct stream {
	cursor out, in;
	unsigned char head[HEAD_BYTES];
	struct secure_stream *secure; /* tcp_secure.c owns it; NULL: no records */
	struct zerocopy *zero;        /* NULL: the kernel copies what is sent */
	unsigned char *staging;       /* received for a receive that reduces */
	size_t filled;
} stream;

typedef struct tcp {
	int n;
	size_t chunk_bytes;
	uint64_t out_chunks, in_chunks; /* chunks of all messages posted so far */
	stream s[];
} tcp;

/* Puts the cursor on the first chunk for stream i at or after request r. */
static inline void tcp_seek(const tcp *t, cursor *c, unsigned i, request *r)
{
	unsigned n = (unsigned)t->n;
	c->off = 0;
	for (c->r = r; c->r; c->r = c->r->next) {
		c->chunk = (i + n - c->r->first % n) % n;
		if (c->chunk < c->r->nchunks)
			return;
	}
}

static inline void tcp_advance(const tcp *t, cursor *c, unsigned i)
{
	c->chunk += (unsigned)t->n;
	c->off = 0;
	if (c->chunk >= c->r->nchunks)
		tcp_seek(t, c, i, c->r->next);
}

/* The cursor's chunk: returns its offset in the message, and its length. */
static inline size_t tcp_chunk(const tcp *t, const cursor *c, size_t *bytes)
{
	size_t at = c->chunk * t->chunk_bytes;
	*bytes = c->r->bytes - at < t->chunk_bytes ? c->r->bytes - at : t->chunk_bytes;
	return at;
}

static inline void tcp_head(unsigned char head[HEAD_BYTES], uint32_t magic, uint32_t seq, uint64_t bytes)
{
	put32(head, magic);
	put32(head + 4, seq);
	put64(head + 8, bytes);
}

extern const link_kind tcp_kind;

/* tcp.c, tcp_secure.c: take over the link's descriptors; -1 with the job failed. */
int tcp_open(peer_link *l);
int tcp_secure_open(peer_link *l);

/* tcp.c */
/* Makes the streams of the link, idle; NULL with the job failed. */
tcp *tcp_new(peer_link *l);
/* Moves what can be moved on one stream; tcp_turn() on all. */
typedef int tcp_move(peer_link *l, tcp *t, unsigned i);
int tcp_turn(peer_link *l, tcp_move *push, tcp_move *pull);
/* These are functions of link_ops. */
void tcp_posted(peer_link *l, request *r);
int tcp_sleep(peer_link *l, struct pollfd *p);
void tcp_revoke(peer_link *l);
/* The header of the message at the cursor is whole. 0 when it fits. */
int tcp_accept(peer_link *l, request *r, const unsigned char head[HEAD_BYTES]);

#endif
