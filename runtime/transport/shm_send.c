/* The sending side of shared memory: a short message is copied into the ring, of
 * a long one the ring holds the address, and the peer says when it has read it. */
#include "shm.h"

#include <string.h>

#define INLINE_BYTES (8u << 10)  /* longer ones are read where that works */

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
	shm_bell(l, m, WANT_DATA);
}

/* Free bytes of the outgoing ring, or -1. */
static int64_t shm_room(peer_link *l, shm *m, uint64_t need)
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

int shm_push(peer_link *l, shm *m)
{
	int moved = l->send.head != m->cur ? shm_acks(l, m) : 0;

	while (moved >= 0 && m->cur) {
		request *r = m->cur;
		int offer = r->bytes > INLINE_BYTES && atomic_load_explicit(&m->theirs->reads, memory_order_acquire);
		head h = {MESSAGE_INLINE, r->seq, r->bytes};
		int64_t room;
		size_t n;

		if (!m->put && !r->checked) {
			room = shm_room(l, m, 2 * HEAD_BYTES);
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
			if (n > COPY_PIECE)
				n = COPY_PIECE;
		} else {
			n = r->bytes - m->put < COPY_PIECE ? r->bytes - m->put : COPY_PIECE;
			room = shm_room(l, m, n);
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
