/* The receiving side of shared memory: a message's head says whether its bytes
 * follow in the ring or are read out of the sender's buffer. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define READ_PIECE (1u << 20)    /* read before other links have their turn */

static void shm_take(peer_link *l, shm *m, size_t bytes)
{
	m->tail += (bytes + 15) & ~(size_t)15;
	atomic_store_explicit(&m->mine->tail, m->tail, memory_order_release);
	shm_bell(l, m, WANT_ROOM);
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

static void shm_deliver(peer_link *l, request *r, size_t at, const void *src, size_t n)
{
	if (r->reduce)
		link_reduce(l, r, at, src, n);
	else
		memcpy(r->buf + at, src, n);
}

/* The head of the next message. 1, 0 (not there yet), or -1. */
static int shm_open_message(peer_link *l, shm *m, request *r)
{
	const uint64_t mask = m->ring - 1;
	int64_t data = shm_data(l, m, HEAD_BYTES);
	head h;

	if (data < HEAD_BYTES)
		return data < 0 ? -1 : 0;
	memcpy(&h, m->in + (m->tail & mask), sizeof h);
	if (h.magic != MESSAGE_INLINE && h.magic != MESSAGE_READ)
		return shm_corrupt(l);
	if (link_check(l, r, h.seq, h.bytes))
		return -1;
	m->from = 0;
	m->got = 0;
	if (h.magic == MESSAGE_READ) {
		data = shm_data(l, m, 2 * HEAD_BYTES);
		if (data < 2 * HEAD_BYTES)
			return data < 0 ? -1 : 0;
		memcpy(&m->from, m->in + ((m->tail + HEAD_BYTES) & mask), sizeof m->from);
		if (!m->from || !m->reading)
			return shm_corrupt(l);
		shm_take(l, m, 2 * HEAD_BYTES);
	} else {
		/* Made known to the producer with the payload. */
		m->tail += HEAD_BYTES;
		if (!r->bytes)
			shm_take(l, m, 0);
	}
	r->checked = 1;
	return 1;
}

static int shm_pull_inline(peer_link *l, shm *m, request *r)
{
	size_t left = r->bytes - m->got, at = m->tail & (m->ring - 1), first, n;
	int64_t data = shm_data(l, m, left < COPY_PIECE ? left : COPY_PIECE);

	if (data <= 0)
		return (int)data;
	n = left < (size_t)data ? left : (size_t)data;
	if (n > COPY_PIECE)
		n = COPY_PIECE;
	first = n < m->ring - at ? n : m->ring - at;
	shm_deliver(l, r, m->got, m->in + at, first);
	if (n > first)
		shm_deliver(l, r, m->got + first, m->in, n - first);
	m->got += n;
	shm_take(l, m, n);
	return 1;
}

static int shm_pull_read(peer_link *l, shm *m, request *r)
{
	size_t left = r->bytes - m->got, n = r->reduce ? REDUCE_PIECE : READ_PIECE;
	struct iovec local, remote = {(void *)(uintptr_t)(m->from + m->got), left < n ? left : n};
	ssize_t got;

	if (r->reduce && !m->piece && !(m->piece = aligned_alloc(64, REDUCE_PIECE))) {
		link_lack(l, GRADCOMP_ERR_NOMEM, "no memory to receive from rank %d", l->world);
		return -1;
	}
	local = (struct iovec){r->reduce ? m->piece : r->buf + m->got, remote.iov_len};
	got = process_vm_readv(m->pid, &local, 1, &remote, 1, 0);
	/* The sender says first that its buffers are free, then reuses them. */
	atomic_thread_fence(memory_order_seq_cst);
	if ((got < 0 && errno == ESRCH) || atomic_load_explicit(&m->theirs->revoked, memory_order_acquire)) {
		link_eof(l);
		return -1;
	}
	if (got == (ssize_t)remote.iov_len) {
		if (r->reduce)
			link_reduce(l, r, m->got, m->piece, (size_t)got);
		m->got += (size_t)got;
		return 1;
	}
	link_fail(l, GRADCOMP_ERR_IO, "cannot read %zu bytes of rank %d on %s: %s", remote.iov_len, l->world,
	          transport_host(l->c->t, l->world), got < 0 ? strerror(errno) : "short read");
	return -1;
}

int shm_pull(peer_link *l, shm *m)
{
	int moved = 0, got = 1;
	size_t turn = 0;

	while (got > 0 && l->recv.head && turn < READ_PIECE) {
		request *r = l->recv.head;

		if (!r->checked) {
			got = shm_open_message(l, m, r);
		} else {
			size_t before = m->got;

			got = m->from ? shm_pull_read(l, m, r) : shm_pull_inline(l, m, r);
			turn += m->got - before;
		}
		moved |= got > 0;
		if (got <= 0 || m->got < r->bytes)
			continue;
		if (m->from) {
			atomic_store_explicit(&m->mine->taken, ++m->taken, memory_order_release);
			shm_bell(l, m, WANT_ROOM);
			m->from = 0;
		}
		link_done(r);
	}
	return moved;
}
