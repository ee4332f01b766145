/* Links between ranks of one node: short messages go through a ring in shared
 * memory, long ones are read by the receiver straight out of the sender's
 * buffer where the kernel allows it. The local socket they were set up over
 * carries wake-ups of one byte, and closes when the peer is gone. */
#define _GNU_SOURCE
#include "transport/shm/shm.h"

#include "base/copy.h"
#include "base/error.h"
#include "base/fd_pass.h"
#include "transport/link/link.h"
#include "transport/shm/multicast.h"
#include "transport/shm/shm_memory.h"
#include "transport/shm/shm_ring.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define RING_MAX (1u << 20)
#define RING_MIN (64u << 10)
#define RINGS_BYTES (16u << 20) /* bytes of one rank's outgoing rings to all others of the node */
#define INLINE_BYTES (8u << 10) /* longer messages are read by the peer where that works */
#define READ_BLOCK (1u << 20)   /* read before it is the turn of other links */

#define MESSAGE_INLINE 0x49434731u    /* "1GCI": the payload follows in the ring */
#define MESSAGE_READ 0x52434731u      /* "1GCR": the payload's address follows */
#define MESSAGE_MULTICAST 0x4d434731u /* "1GCM": slots of the sender's multicast buffer follow */
#define HEAD_BYTES 16
#define COPY_BLOCK (64u << 10) /* copied before the peer is notified */
/* Messages of this length, and pieces of them, are received past the caches. */
#define STREAM_BYTES (1u << 20)
#define STREAM_PIECE (256u << 10)

/* In a transport. */
typedef struct shm_room {
	unsigned char cookie[16]; /* read by a peer to test whether it can */
	bool numa;                /* this machine has several memory nodes */
} shm_room;

/* In a channel. */
typedef struct shm_group {
	peer_link *links;     /* those that are open */
	multicast *multicast; /* made on first use */
} shm_group;

typedef struct head {
	uint32_t magic, seq;
	uint64_t bytes;
} head;

typedef struct shm {
	ring_page *page;
	ring_side *mine, *theirs;
	unsigned char *out, *in;
	uint64_t ring;                  /* bytes of a ring */
	uint64_t head, tail;            /* this side's own indices */
	uint64_t seen_head, seen_tail;  /* the peer's, when last checked */
	uint64_t tickets;               /* messages offered for reading */
	uint64_t taken;                 /* messages read */
	request *cur;                   /* the first send not wholly in the ring */
	size_t put, got;                /* payload bytes of the current send and receive */
	const unsigned char *end;       /* end of the last message's buffer */
	uint64_t from;                  /* address of the message being read; 0: none */
	bool passed;                    /* the peer has been given the channel's multicast buffer */
	bool slots;                     /* the message being received is in the peer's multicast buffer */
	const unsigned char *buffer;    /* that buffer; NULL: not here yet */
	uint64_t told[MULTICAST_SLOTS]; /* `head` behind the last piece in a slot that the peer was told of */
	unsigned char *staging;
	shm_group *group;
	peer_link *next; /* the next of group->links */
	pid_t pid;
	int reading; /* this side can read the peer's memory */
	int probed;
} shm;

/* A chunk of a collective fits in a ring, so that neither side waits for the other
 * within one. On a big node the rings are smaller, so that a rank that talks to all
 * others does not need more than RINGS_BYTES. */
uint32_t shm_ring_bytes(const transport *t)
{
	uint32_t ring = RING_MAX;
	while (ring > RING_MIN && (uint64_t)ring * (unsigned)t->peers.nlocal > RINGS_BYTES)
		ring /= 2;
	return ring;
}

/* The peer wrote what is not valid: fails the job; returns -1. */
static int shm_corrupt(peer_link *l)
{
	link_fail(l, GRADCOMP_ERR_INTERNAL, "rank %d on %s has corrupted the memory it shares with rank %d", l->world,
	          transport_host(l->c->t, l->world), l->c->t->rank);
	return -1;
}

/* After this side has published something that the peer may sleep for. The fence and
 * the one in shm_sleep() ensure that either the sleeper sees the change or
 * this side sees the sleeper. */
static void shm_notify(peer_link *l, shm *m, uint32_t bit)
{
	char byte = 0;
	atomic_thread_fence(memory_order_seq_cst);
	if (!(atomic_load_explicit(&m->theirs->want, memory_order_relaxed) & bit))
		return;
	if (atomic_exchange_explicit(&m->theirs->want, 0, memory_order_relaxed))
		send(l->fd[0], &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Sending: a short message is copied into the ring. For a long one the ring holds its
 * address, and the peer reports when it has read it. */

static void shm_copy_in(shm *m, const void *src, size_t n)
{
	size_t at = m->head & (m->ring - 1), first = n < m->ring - at ? n : m->ring - at;
	memcpy(m->out + at, src, first);
	memcpy(m->out, (const unsigned char *)src + first, n - first);
}

static void shm_publish(peer_link *l, shm *m, size_t bytes)
{
	m->head += (bytes + 15) & ~(size_t)15;
	atomic_store_explicit(&m->mine->head, m->head, memory_order_release);
	shm_notify(l, m, WANT_DATA);
}

/* Returns the free bytes of the outgoing ring, or -1. */
static int64_t shm_space(peer_link *l, shm *m, uint64_t need)
{
	int64_t used = ring_used(m->head, m->seen_tail, m->ring);
	if ((int64_t)m->ring - used >= (int64_t)need)
		return (int64_t)m->ring - used;
	m->seen_tail = atomic_load_explicit(&m->theirs->tail, memory_order_acquire);
	used = ring_used(m->head, m->seen_tail, m->ring);
	return used < 0 ? shm_corrupt(l) : (int64_t)m->ring - used;
}

/* Sends whose buffers the peer has read. */
static int shm_acks(peer_link *l, shm *m)
{
	uint64_t taken = atomic_load_explicit(&m->theirs->taken, memory_order_acquire);
	int moved = 0;
	if (taken > m->tickets)
		return shm_corrupt(l);
	while (l->send.head && l->send.head != m->cur && l->send.head->first <= taken) {
		link_done(l->send.head);
		moved = 1;
	}
	return moved;
}

/* Returns 1 when all who were told of what is in a slot have read it; -1: the job has failed. */
static int shm_slot_read(const shm_group *g, unsigned slot)
{
	shm *m;
	for (peer_link *l = g->links; l; l = m->next) {
		m = l->impl;
		if (m->told[slot] > m->seen_tail && shm_space(l, m, m->ring) < 0)
			return -1;
		if (m->told[slot] > m->seen_tail)
			return 0;
	}
	return 1;
}

/* Pieces of a multicast are copied by the link that comes to them first, in their order. */
static int shm_push_multicast(peer_link *l, shm *m, request *r)
{
	multicast *s = m->group->multicast;
	uint64_t p = r->first + m->put / MULTICAST_SLOT;
	unsigned slot = p % MULTICAST_SLOTS;
	size_t n = r->bytes - m->put < MULTICAST_SLOT ? r->bytes - m->put : MULTICAST_SLOT;
	uint32_t piece[4] = {slot, (uint32_t)n};
	int64_t room;
	if (p > s->copied || (p == s->copied && s->unannounced[slot]))
		return 0;
	if (p == s->copied) {
		int read = shm_slot_read(m->group, slot);

		if (read <= 0)
			return read;
	}
	if (!m->passed && fd_pass(l->fd[0], "", 1, s->fd) != 1)
		return 0;
	m->passed = true;
	room = shm_space(l, m, 2 * HEAD_BYTES);
	if (room < 2 * HEAD_BYTES)
		return room < 0 ? -1 : 0;
	if (p == s->copied) {
		memcpy(s->mem + (size_t)slot * MULTICAST_SLOT, r->buf + m->put, n);
		s->unannounced[slot] = r->receivers;
		s->copied++;
	}
	if (!r->checked) {
		head h = {MESSAGE_MULTICAST, r->seq, r->bytes};

		shm_copy_in(m, &h, sizeof h);
		m->head += HEAD_BYTES;
		r->checked = 1;
	}
	shm_copy_in(m, piece, sizeof piece);
	s->unannounced[slot]--;
	m->told[slot] = m->head + sizeof piece;
	m->put += n;
	shm_publish(l, m, sizeof piece);
	l->unread = true;
	if (m->put == r->bytes) {
		m->cur = r->next;
		m->put = 0;
		link_done(r);
	}
	return 1;
}

static int shm_push(peer_link *l, shm *m)
{
	int moved = l->send.head != m->cur ? shm_acks(l, m) : 0;
	while (moved >= 0 && m->cur) {
		request *r = m->cur;
		int offer = r->bytes > INLINE_BYTES && atomic_load_explicit(&m->theirs->reads, memory_order_acquire);
		head h = {MESSAGE_INLINE, r->seq, r->bytes};
		int64_t room;
		size_t n;

		if (r->receivers) {
			int put = shm_push_multicast(l, m, r);

			if (put <= 0)
				return put < 0 ? -1 : moved;
			moved = 1;
			continue;
		}
		if (!m->put && !r->checked) {
			room = shm_space(l, m, 2 * HEAD_BYTES);
			if (room < 2 * HEAD_BYTES)
				return room < 0 ? -1 : moved;
			if (offer) {
				uint64_t at[4] = {0, 0, (uintptr_t)r->buf, 0};

				h.magic = MESSAGE_READ;
				memcpy(at, &h, sizeof h);
				shm_copy_in(m, at, sizeof at);
				r->first = ++m->tickets;
				m->cur = r->next;
				shm_publish(l, m, sizeof at);
				moved = 1;
				continue;
			}
			shm_copy_in(m, &h, sizeof h);
			r->checked = 1;
			/* Header and a short payload become visible together. */
			m->head += HEAD_BYTES;
			n = r->bytes < (size_t)room - HEAD_BYTES ? r->bytes : (size_t)room - HEAD_BYTES;
			if (n > COPY_BLOCK)
				n = COPY_BLOCK;
		} else {
			n = r->bytes - m->put < COPY_BLOCK ? r->bytes - m->put : COPY_BLOCK;
			room = shm_space(l, m, n);
			if (room <= 0)
				return room < 0 ? -1 : moved;
			n = n < (size_t)room ? n : (size_t)room;
		}
		shm_copy_in(m, r->buf + m->put, n);
		m->put += n;
		if (m->put == r->bytes) {
			m->cur = r->next;
			m->put = 0;
		}
		shm_publish(l, m, n);
		moved = 1;
		if (m->cur != r)
			link_done(r);
	}
	return moved;
}

/* Receiving: the header of a message says whether its bytes follow in the ring or are
 * read out of the sender's buffer. */

static void shm_consume(peer_link *l, shm *m, size_t bytes)
{
	m->tail += (bytes + 15) & ~(size_t)15;
	atomic_store_explicit(&m->mine->tail, m->tail, memory_order_release);
	shm_notify(l, m, WANT_SPACE);
}

/* Bytes that can be taken out of the incoming ring, or -1. */
static int64_t shm_data(peer_link *l, shm *m, uint64_t need)
{
	if (m->seen_head - m->tail < need) {
		m->seen_head = atomic_load_explicit(&m->theirs->head, memory_order_acquire);
		if (ring_used(m->seen_head, m->tail, m->ring) < 0)
			return shm_corrupt(l);
	}
	return (int64_t)(m->seen_head - m->tail);
}

/* Returns true when a message is part of more than stays in the caches until it is read: a long one, or a piece
 * that continues the last. */
static bool shm_streams(const shm *m, const request *r)
{
	return r->bytes >= STREAM_BYTES || (r->bytes >= STREAM_PIECE && r->buf == m->end);
}

static void shm_deliver(peer_link *l, request *r, size_t at, const void *src, size_t n)
{
	if (r->reduce)
		link_reduce(l, r, at, src, n);
	else if (shm_streams(l->impl, r))
		copy_nontemporal(r->buf + at, src, n);
	else
		memcpy(r->buf + at, src, n);
}

/* Reads the header of the next message. 1, 0 (not there yet), or -1. */
static int shm_open_message(peer_link *l, shm *m, request *r)
{
	const uint64_t mask = m->ring - 1;
	int64_t data = shm_data(l, m, HEAD_BYTES);
	head h;
	if (data < HEAD_BYTES)
		return data < 0 ? -1 : 0;
	memcpy(&h, m->in + (m->tail & mask), sizeof h);
	if (h.magic != MESSAGE_INLINE && h.magic != MESSAGE_READ && h.magic != MESSAGE_MULTICAST)
		return shm_corrupt(l);
	if (link_check(l, r, h.seq, h.bytes))
		return -1;
	m->from = 0;
	m->slots = h.magic == MESSAGE_MULTICAST;
	m->got = 0;
	if (h.magic == MESSAGE_READ) {
		data = shm_data(l, m, 2 * HEAD_BYTES);
		if (data < 2 * HEAD_BYTES)
			return data < 0 ? -1 : 0;
		memcpy(&m->from, m->in + ((m->tail + HEAD_BYTES) & mask), sizeof m->from);
		if (!m->from || !m->reading)
			return shm_corrupt(l);
		shm_consume(l, m, 2 * HEAD_BYTES);
	} else {
		/* Published to the producer with the payload. */
		m->tail += HEAD_BYTES;
		if (!r->bytes)
			shm_consume(l, m, 0);
	}
	r->checked = 1;
	return 1;
}

static int shm_pull_inline(peer_link *l, shm *m, request *r)
{
	size_t left = r->bytes - m->got, at = m->tail & (m->ring - 1), first, n;
	int64_t data = shm_data(l, m, left < COPY_BLOCK ? left : COPY_BLOCK);
	if (data <= 0)
		return (int)data;
	n = left < (size_t)data ? left : (size_t)data;
	if (n > COPY_BLOCK)
		n = COPY_BLOCK;
	first = n < m->ring - at ? n : m->ring - at;
	shm_deliver(l, r, m->got, m->in + at, first);
	if (n > first)
		shm_deliver(l, r, m->got + first, m->in, n - first);
	m->got += n;
	shm_consume(l, m, n);
	return 1;
}

/* Reads the socket: wake-ups, and perhaps the descriptor of the peer's multicast buffer. 1, 0 (nothing
 * there), or -1 when the peer is gone or the job has failed. */
static int shm_hear(peer_link *l, shm *m)
{
	char bytes[64];
	int fd;
	ssize_t got = fd_take(l->fd[0], bytes, sizeof bytes, &fd);
	if (!got || (got < 0 && errno != EAGAIN && errno != EINTR)) {
		link_eof(l);
		return -1;
	}
	if (fd == FD_LOST) {
		link_fail_local(l, GRADCOMP_ERR_NOMEM, "too many open files for the memory that rank %d shares",
		                l->world);
		return -1;
	}
	if (fd == FD_NONE)
		return got > 0;
	if (m->buffer) {
		close(fd);
		return shm_corrupt(l);
	}
	m->buffer = multicast_map(fd);
	return m->buffer ? 1 : shm_corrupt(l);
}

/* Takes a piece in a slot of the peer's multicast buffer. */
static int shm_pull_slot(peer_link *l, shm *m, request *r)
{
	size_t left = r->bytes - m->got;
	int64_t data = shm_data(l, m, HEAD_BYTES);
	uint32_t piece[4];
	int heard = 1;
	if (data < HEAD_BYTES)
		return data < 0 ? -1 : 0;
	memcpy(piece, m->in + (m->tail & (m->ring - 1)), sizeof piece);
	if (piece[0] >= MULTICAST_SLOTS || piece[1] != (left < MULTICAST_SLOT ? left : MULTICAST_SLOT))
		return shm_corrupt(l);
	/* Its descriptor was sent before. */
	while (!m->buffer && heard > 0)
		heard = shm_hear(l, m);
	if (!m->buffer)
		return heard;
	shm_deliver(l, r, m->got, m->buffer + (size_t)piece[0] * MULTICAST_SLOT, piece[1]);
	m->got += piece[1];
	shm_consume(l, m, HEAD_BYTES);
	return 1;
}

static int shm_pull_read(peer_link *l, shm *m, request *r)
{
	size_t left = r->bytes - m->got, n = r->reduce ? REDUCE_BLOCK : READ_BLOCK;
	struct iovec local, remote = {(void *)(uintptr_t)(m->from + m->got), left < n ? left : n};
	ssize_t got;
	if (r->reduce && !m->staging && !(m->staging = aligned_alloc(64, REDUCE_BLOCK))) {
		link_fail_local(l, GRADCOMP_ERR_NOMEM, "no memory to receive from rank %d", l->world);
		return -1;
	}
	local = (struct iovec){r->reduce ? m->staging : r->buf + m->got, remote.iov_len};
	got = process_vm_readv(m->pid, &local, 1, &remote, 1, 0);
	/* The sender first publishes that its buffers are revoked, then reuses them. */
	atomic_thread_fence(memory_order_seq_cst);
	if ((got < 0 && errno == ESRCH) || atomic_load_explicit(&m->theirs->revoked, memory_order_acquire)) {
		link_eof(l);
		return -1;
	}
	if (got == (ssize_t)remote.iov_len) {
		if (r->reduce)
			link_reduce(l, r, m->got, m->staging, (size_t)got);
		m->got += (size_t)got;
		return 1;
	}
	link_fail(l, GRADCOMP_ERR_IO, "cannot read %zu bytes of rank %d on %s: %s", remote.iov_len, l->world,
	          transport_host(l->c->t, l->world), got < 0 ? strerror(errno) : "short read");
	return -1;
}

static int shm_pull(peer_link *l, shm *m)
{
	int moved = 0, got = 1;
	size_t turn = 0;
	while (got > 0 && l->recv.head && turn < READ_BLOCK) {
		request *r = l->recv.head;

		if (!r->checked) {
			got = shm_open_message(l, m, r);
		} else {
			size_t before = m->got;

			got = m->from    ? shm_pull_read(l, m, r)
			      : m->slots ? shm_pull_slot(l, m, r)
			                 : shm_pull_inline(l, m, r);
			turn += m->got - before;
		}
		moved |= got > 0;
		if (got <= 0 || m->got < r->bytes)
			continue;
		if (m->from) {
			atomic_store_explicit(&m->mine->taken, ++m->taken, memory_order_release);
			shm_notify(l, m, WANT_SPACE);
			m->from = 0;
		}
		m->end = r->buf + r->bytes;
		link_done(r);
	}
	return moved;
}

/* Reading the peer's memory may be forbidden, or its process id may be another process
 * here. The process that has the cookie at the given address is the peer. */
static void shm_probe(peer_link *l, shm *m)
{
	unsigned char want[16], found[16];
	struct iovec local = {found, sizeof found}, remote = {NULL, sizeof found};
	struct ucred cred;
	socklen_t bytes = sizeof cred;
	if (!atomic_load_explicit(&m->theirs->cookie_set, memory_order_acquire))
		return;
	m->probed = 1;
	memcpy(want, m->theirs->cookie, sizeof want);
	remote.iov_base = (void *)(uintptr_t)m->theirs->cookie_at;
	if (!l->c->t->o.cma || getsockopt(l->fd[0], SOL_SOCKET, SO_PEERCRED, &cred, &bytes) || cred.pid <= 0)
		return;
	m->pid = cred.pid;
	if (process_vm_readv(m->pid, &local, 1, &remote, 1, 0) != sizeof found || memcmp(want, found, sizeof want))
		return;
	m->reading = 1;
	atomic_store_explicit(&m->mine->reads, 1, memory_order_release);
}

static int shm_move(peer_link *l, shm *m)
{
	int moved = l->send.head ? shm_push(l, m) : 0;
	if (l->recv.head)
		moved |= shm_pull(l, m);
	return moved > 0;
}

/* Returns 1 when the peer has read all pieces of multicasts since the last look. */
static int shm_read(peer_link *l, shm *m)
{
	if (shm_space(l, m, m->ring) < (int64_t)m->ring)
		return 0;
	l->unread = false;
	link_settle(l);
	return 1;
}

static int shm_progress(peer_link *l)
{
	shm *m = l->impl;
	if (!m->probed)
		shm_probe(l, m);
	if (shm_move(l, m) || (l->unread && shm_read(l, m)))
		return 1;
	if (link_leaves(l) || !atomic_load_explicit(&m->theirs->goodbye, memory_order_acquire))
		return 0;
	/* All that it sent before the goodbye has arrived by now. */
	if (shm_move(l, m))
		return 1;
	link_goodbye(l);
	link_eof(l);
	return 0;
}

/* Tells the peer on which CPU this side waits; the same of the peer, 0 where it is not known. The peer may lie. */
static uint32_t shm_waits_on(shm *m, uint32_t cpu)
{
	/* The peer reads this line in every look: it is written only when it changes. */
	if (cpu != atomic_load_explicit(&m->mine->cpu, memory_order_relaxed))
		atomic_store_explicit(&m->mine->cpu, cpu, memory_order_relaxed);
	return atomic_load_explicit(&m->theirs->cpu, memory_order_relaxed);
}

static int shm_sleep(peer_link *l, struct pollfd *p)
{
	shm *m = l->impl;
	atomic_store_explicit(&m->mine->want,
	                      (l->recv.head ? WANT_DATA : 0) | (l->send.head || l->unread ? WANT_SPACE : 0),
	                      memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	*p = (struct pollfd){l->fd[0], POLLIN, 0};
	return 1;
}

static void shm_wake(peer_link *l, const struct pollfd *p, int n)
{
	shm *m = l->impl;
	(void)n;
	atomic_store_explicit(&m->mine->want, 0, memory_order_relaxed);
	if (p->revents)
		shm_hear(l, m);
}

static void shm_revoke(peer_link *l)
{
	shm *m = l->impl;
	/* A fork shares the page with the rank. */
	if (l->c->t->forked)
		return;
	atomic_store_explicit(&m->mine->revoked, 1, memory_order_seq_cst);
}

static void shm_close(peer_link *l, int goodbye)
{
	shm *m = l->impl;
	shm_revoke(l);
	if (goodbye)
		atomic_store_explicit(&m->mine->goodbye, 1, memory_order_release);
	for (peer_link **at = &m->group->links; *at; at = &((shm *)(*at)->impl)->next)
		if (*at == l) {
			*at = m->next;
			break;
		}
	munmap(m->page, RING_PAGE + 2 * m->ring);
	multicast_unmap(m->buffer);
	free(m->staging);
	free(m);
}

static void shm_posted(peer_link *l, request *r)
{
	shm *m = l->impl;
	if (r->sending && !m->cur)
		m->cur = r;
}

static const link_ops shm_ops = {.posted = shm_posted,
                                 .progress = shm_progress,
                                 .sleep = shm_sleep,
                                 .wake = shm_wake,
                                 .revoke = shm_revoke,
                                 .close = shm_close};

/* NULL: no memory. */
static shm_group *shm_group_of(channel *c, const link_use *u)
{
	void **at = link_group(c, u);
	if (!*at)
		*at = calloc(1, sizeof(shm_group));
	return *at;
}

static link_opened shm_open_link(peer_link *l)
{
	const transport *t = l->c->t;
	shm_room *room = l->use->part;
	shm_group *group = shm_group_of(l->c, l->use);
	size_t bytes = RING_PAGE + 2 * (size_t)l->h.chunk;
	int side = t->rank < l->world; /* 0: this rank connected */
	void *map = MAP_FAILED;
	shm *m;
	/* The peer made it. */
	if (!shm_valid(l->passed, bytes)) {
		link_fail(l, GRADCOMP_ERR_INTERNAL, "rank %d on %s offers shared memory that is not valid", l->world,
		          transport_host(t, l->world));
		return LINK_REFUSED;
	}
	m = group ? calloc(1, sizeof *m) : NULL;
	if (m)
		map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, l->passed, 0);
	if (map == MAP_FAILED) {
		free(m);
		link_fail_local(l, GRADCOMP_ERR_NOMEM, "cannot map %zu bytes shared with rank %d", bytes, l->world);
		return LINK_REFUSED;
	}
	close(l->passed);
	l->passed = -1;
	m->page = map;
	m->ring = l->h.chunk;
	m->mine = &m->page->side[side];
	m->theirs = &m->page->side[!side];
	m->out = (unsigned char *)map + RING_PAGE + (side ? m->ring : 0);
	m->in = (unsigned char *)map + RING_PAGE + (side ? 0 : m->ring);
	/* The reader waits for memory, the writer does not. */
	if (room->numa)
		shm_numa_near(m->in, m->ring);
	memcpy(m->mine->cookie, room->cookie, sizeof room->cookie);
	m->mine->cookie_at = (uintptr_t)room->cookie;
	atomic_store_explicit(&m->mine->cookie_set, 1, memory_order_release);
	l->impl = m;
	l->ops = &shm_ops;
	m->group = group;
	m->next = group->links;
	group->links = l;
	return LINK_OPENED;
}

static gradcomp_status shm_offer(peer_link *l, gradcomp_error *err)
{
	size_t bytes;
	l->h.chunk = shm_ring_bytes(l->c->t);
	bytes = RING_PAGE + 2 * (size_t)l->h.chunk;
	l->passed = shm_memory(bytes);
	return l->passed >= 0 ? GRADCOMP_OK
	                      : error_errno(err, GRADCOMP_ERR_IO, "cannot make %zu bytes of shared memory", bytes);
}

static bool shm_multicast(channel *c, link_use *u, size_t bytes, uint64_t *first)
{
	shm_group *g = bytes < MULTICAST_LEAST || c->t->o.cma ? NULL : shm_group_of(c, u);
	if (!g || (!g->multicast && !(g->multicast = multicast_create())))
		return false;
	*first = multicast_reserve(g->multicast, bytes);
	return true;
}

static bool shm_crowded(channel *c, link_use *u, uint32_t cpu)
{
	const shm_group *g = *link_group(c, u);
	bool crowded = false;
	shm *m;
	for (peer_link *l = g ? g->links : NULL; l; l = m->next) {
		m = l->impl;
		crowded |= shm_waits_on(m, cpu) == cpu && l->world < c->t->rank;
	}
	return crowded;
}

static void shm_leave(void *group)
{
	shm_group *g = group;
	multicast_free(g->multicast);
	free(g);
}

static gradcomp_status shm_start(link_use *u, transport *t, gradcomp_error *err)
{
	shm_room *room = calloc(1, sizeof *room);
	(void)t;
	if (!room)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the transport");
	room->numa = shm_numa_nodes() > 1;
	u->part = room;
	return secret_random(room->cookie, sizeof room->cookie, err);
}

static void shm_stop(link_use *u, const transport *t)
{
	(void)t;
	free(u->part);
}

static bool shm_reaches(const link_use *u, const transport *t, int a, int b)
{
	(void)u;
	return peer_share(t, a, b);
}

static const char *shm_why_not(const link_use *u)
{
	(void)u;
	return "no two ranks can share memory: each is on a node, or in a network namespace or of a user, of its own";
}

const link_kind shm_kind = {.name = "shm",
                            .hello = HELLO_SHM,
                            .worth = 3,
                            .near = true,
                            .inherits = true,
                            .start = shm_start,
                            .stop = shm_stop,
                            .reaches = shm_reaches,
                            .why_not = shm_why_not,
                            .offer = shm_offer,
                            .open = shm_open_link,
                            .multicast = shm_multicast,
                            .crowded = shm_crowded,
                            .leave = shm_leave};
