/* The sending side of verbs. A short message goes whole into one of the peer's receives.
 * A long one sends an RTS there; its bytes are written where the peer's CTS says. */
#include "transport/verbs/verbs_internal.h"

#include "transport/wire/wire.h"

#include <string.h>

#define CREDIT_DUE (CREDITS / 2)

int verbs_corrupt(peer_link *l)
{
	link_fail(l, GRADCOMP_ERR_INTERNAL, "rank %d on %s sends over verbs what is not a message", l->world,
	          transport_host(l->c->t, l->world));
	return -1;
}

int verbs_refused(peer_link *l, int error)
{
	link_fail(l, GRADCOMP_ERR_IO, "the queue pair to rank %d on %s takes no more: %s", l->world,
	          transport_host(l->c->t, l->world), strerror(error));
	return -1;
}

int verbs_take_credit(peer_link *l, verbs *v, uint32_t matched)
{
	if (matched - v->peer_matched > v->sent - v->peer_matched)
		return verbs_corrupt(l);
	v->peer_matched = matched;
	return 0;
}

static void verbs_head(verbs *v, unsigned char *p, uint32_t kind, uint32_t seq, uint64_t bytes)
{
	put32(p, kind);
	put32(p + 4, seq);
	put64(p + 8, bytes);
	put32(p + 16, v->matched);
	memset(p + 20, 0, VERBS_HEAD - 20);
	v->matched_sent = v->matched;
}

static int verbs_post(peer_link *l, verbs *v, int id, size_t payload)
{
	unsigned i = v->slot[v->free_slots - 1];
	int rc = v->d->f->send(v->queue, (uint64_t)id << 8 | i, verbs_send_buf(v, i), (uint32_t)(VERBS_HEAD + payload),
	                       v->block->memory.local);
	if (rc)
		return verbs_refused(l, rc);
	v->free_slots--;
	v->data_slots += id == ID_DATA;
	return 1;
}

int verbs_control(peer_link *l, verbs *v, uint32_t kind, const cts *d)
{
	unsigned char *p;
	if (!verbs_usable(v) || v->free_slots <= CREDITS - v->data_slots)
		return 0;
	p = verbs_send_buf(v, v->slot[v->free_slots - 1]);
	verbs_head(v, p, kind, d ? d->seq : 0, d ? d->total : 0);
	if (d) {
		put32(p + 20, d->slot);
		put64(p + 24, d->at);
		put32(p + 32, (uint32_t)d->bytes);
		put32(p + 36, d->key);
		put64(p + 40, d->to);
	}
	return verbs_post(l, v, ID_CONTROL, 0);
}

/* Sends EAGER and RTS messages as long as there are credits. */
static int verbs_push_heads(peer_link *l, verbs *v)
{
	int moved = 0;
	while (v->next_send && v->sent - v->peer_matched < CREDITS && v->data_slots < CREDITS) {
		request *r = v->next_send;
		int eager = r->bytes <= EAGER_BYTES;
		unsigned char *p = verbs_send_buf(v, v->slot[v->free_slots - 1]);

		verbs_head(v, p, eager ? MESSAGE_EAGER : MESSAGE_RTS, r->seq, r->bytes);
		if (eager && r->bytes)
			memcpy(p + VERBS_HEAD, r->buf, r->bytes);
		if (verbs_post(l, v, ID_DATA, eager ? r->bytes : 0) < 0)
			return -1;
		v->sent++;
		v->next_send = r->next;
		r->checked = 1;
		if (eager)
			link_done(r);
		moved = 1;
	}
	return moved;
}

int verbs_cts_arrived(peer_link *l, verbs *v, const unsigned char *head)
{
	cts d = {.seq = get32(head + 4),
	         .slot = get32(head + 20),
	         .key = get32(head + 36),
	         .total = get64(head + 8),
	         .at = get64(head + 24),
	         .bytes = get32(head + 32),
	         .to = get64(head + 40)};
	if (v->ncts == WINDOW || d.slot >= WINDOW || !d.bytes || d.total <= EAGER_BYTES || d.at > d.total ||
	    d.bytes > d.total - d.at)
		return verbs_corrupt(l);
	v->cts_queue[v->ncts++] = d;
	return 0;
}

/* The send that a CTS is for: 1, 0 when it was not posted yet, -1 with the job failed. */
static int verbs_find_send(peer_link *l, const cts *d, request **out)
{
	const transport *t = l->c->t;
	request *r = l->send.head;
	if ((int32_t)(d->seq - l->send.seq) >= 0)
		return 0;
	while (r && r->seq != d->seq)
		r = r->next;
	/* A short one was sent, and is not in the queue any more. */
	if (!r || r->bytes != d->total) {
		link_fail(
			l, GRADCOMP_ERR_MISMATCH,
			"rank %d on %s expects %llu bytes where rank %d on %s sends %s%zu: the ranks do not do the same",
			l->world, transport_host(t, l->world), (unsigned long long)d->total, t->rank,
			transport_host(t, t->rank), r ? "" : "at most ", r ? r->bytes : (size_t)EAGER_BYTES);
		return -1;
	}
	/* There is one CTS per piece, in order. */
	if (d->at + d->done != r->first)
		return verbs_corrupt(l);
	*out = r;
	return r->checked;
}

static int verbs_write(peer_link *l, verbs *v, cts *d, request *r)
{
	const fabric_ops *f = v->d->f;
	size_t at = d->at + d->done, n = d->bytes - d->done;
	const fabric_memory *m = verbs_register(l, v, r);
	const unsigned char *from = r->buf + at;
	unsigned i = 0;
	int rc;
	while (v->outbound[i].r)
		i++;
	if (!m) {
		unsigned char *piece = verbs_piece(v, 1, i);

		n = n < PIECE_BYTES ? n : PIECE_BYTES;
		memcpy(piece, from, n);
		from = piece;
		m = &v->block->memory;
	}
	rc = f->write(v->queue, (uint64_t)ID_WRITE << 8 | i, from, (uint32_t)n, m->local, d->to + d->done, d->key,
	              d->done + n == d->bytes, d->slot | d->seq << 8);
	if (rc)
		return verbs_refused(l, rc);
	v->outbound[i] = (outbound_piece){r, n};
	v->noutbound++;
	d->done += n;
	r->first += n;
	return 1;
}

int verbs_written(peer_link *l, verbs *v, unsigned i)
{
	request *r = i < WINDOW ? v->outbound[i].r : NULL;
	if (!r)
		return verbs_corrupt(l);
	v->noutbound--;
	v->outbound[i].r = NULL;
	r->left -= v->outbound[i].bytes;
	if (!r->left) {
		verbs_unregister(v, r);
		link_done(r);
	}
	return 0;
}

int verbs_push(peer_link *l, verbs *v)
{
	int moved = verbs_usable(v) ? verbs_push_heads(l, v) : 0, found;
	request *r = NULL;
	while (moved >= 0 && verbs_usable(v) && v->ncts && v->noutbound < WINDOW) {
		found = verbs_find_send(l, &v->cts_queue[0], &r);
		if (found <= 0)
			return found < 0 ? -1 : moved;
		if (verbs_write(l, v, &v->cts_queue[0], r) < 0)
			return -1;
		moved = 1;
		if (v->cts_queue[0].done < v->cts_queue[0].bytes)
			continue;
		v->ncts--;
		memmove(v->cts_queue, v->cts_queue + 1, v->ncts * sizeof v->cts_queue[0]);
	}
	if (moved >= 0 && v->matched - v->matched_sent >= CREDIT_DUE) {
		found = verbs_control(l, v, MESSAGE_CREDIT, NULL);
		moved = found < 0 ? -1 : moved | found;
	}
	return moved;
}
