/* The receiving side of verbs. Short messages stay in the receives they arrived in until
 * they are matched, in order. For long ones this side sends a CTS per piece, with memory
 * of the caller or of the pool. */
#include "transport/verbs/verbs_internal.h"

#include "transport/wire/wire.h"

#include <string.h>

int verbs_post_receive(verbs *v, unsigned i)
{
	return v->d->f->receive(v->queue, (uint64_t)ID_RECEIVE << 8 | i, verbs_receive_buf(v, i), RECEIVE_BYTES,
	                        v->block->memory.local);
}

int verbs_repost(peer_link *l, verbs *v, unsigned i)
{
	int rc = verbs_usable(v) ? verbs_post_receive(v, i) : 0;
	return rc ? verbs_refused(l, rc) : 0;
}

int verbs_message_arrived(peer_link *l, verbs *v, unsigned receive, uint32_t bytes)
{
	const unsigned char *p = receive < RECEIVES ? verbs_receive_buf(v, receive) : NULL;
	uint32_t kind;
	if (!p || bytes < VERBS_HEAD || bytes > RECEIVE_BYTES)
		return verbs_corrupt(l);
	kind = get32(p);
	if (verbs_take_credit(l, v, get32(p + 16)))
		return -1;
	if (kind == MESSAGE_EAGER || kind == MESSAGE_RTS) {
		unsigned at = (v->rx_first + v->nrx) % CREDITS;

		if (v->nrx == CREDITS)
			return verbs_corrupt(l);
		v->rx_queue[at] = (uint8_t)receive;
		v->rx_bytes[at] = bytes;
		v->nrx++;
		return 0;
	}
	if (kind == MESSAGE_CTS) {
		if (verbs_cts_arrived(l, v, p))
			return -1;
	} else if (kind != MESSAGE_CREDIT && kind != MESSAGE_PROBE) {
		return verbs_corrupt(l);
	}
	return verbs_repost(l, v, receive);
}

/* Matches arrived messages with posted receives. */
static int verbs_match(peer_link *l, verbs *v)
{
	int moved = 0;
	while (v->nrx && v->next_match) {
		unsigned receive = v->rx_queue[v->rx_first];
		uint32_t came = v->rx_bytes[v->rx_first] - VERBS_HEAD;
		const unsigned char *p = verbs_receive_buf(v, receive);
		request *r = v->next_match;
		uint64_t bytes = get64(p + 8);
		int eager = get32(p) == MESSAGE_EAGER;

		if (link_check(l, r, get32(p + 4), bytes))
			return -1;
		if (eager != (bytes <= EAGER_BYTES) || came != (eager ? bytes : 0))
			return verbs_corrupt(l);
		r->checked = 1;
		v->next_match = r->next;
		if (r->reduce && bytes)
			link_reduce(l, r, 0, p + VERBS_HEAD, came);
		else if (came)
			memcpy(r->buf, p + VERBS_HEAD, came);
		v->rx_first = (v->rx_first + 1) % CREDITS;
		v->nrx--;
		v->matched++;
		if (verbs_repost(l, v, receive))
			return -1;
		if (eager)
			link_done(r);
		moved = 1;
	}
	return moved;
}

static request *verbs_next_long(request *r)
{
	while (r && r->bytes <= EAGER_BYTES)
		r = r->next;
	return r;
}

/* Sends the peer a CTS for the next pieces. */
static int verbs_send_cts(peer_link *l, verbs *v)
{
	int moved = 0;
	for (unsigned i = 0; i < WINDOW && v->next_cts; i++) {
		request *r = v->next_cts;
		const fabric_memory *m;
		int matched_sent;
		cts d = {.seq = r->seq, .slot = i, .total = r->bytes, .at = r->first, .bytes = r->bytes - r->first};
		size_t most;

		if (v->inbound[i].r)
			continue;
		m = verbs_register(l, v, r);
		most = !m ? PIECE_BYTES : v->d->info.most < DIRECT_BYTES ? (size_t)v->d->info.most : DIRECT_BYTES;
		if (d.bytes > most)
			d.bytes = most;
		d.key = m ? m->remote : v->block->memory.remote;
		d.to = (uintptr_t)(m ? r->buf + d.at : verbs_piece(v, 0, i));
		matched_sent = verbs_control(l, v, MESSAGE_CTS, &d);
		if (matched_sent <= 0)
			return matched_sent < 0 ? -1 : moved;
		v->inbound[i] = (inbound_piece){r, d.at, d.bytes, !m};
		r->first += d.bytes;
		if (r->first == r->bytes)
			v->next_cts = verbs_next_long(r->next);
		moved = 1;
	}
	return moved;
}

int verbs_piece_arrived(peer_link *l, verbs *v, const fabric_event *e)
{
	unsigned i = e->value & 0xff;
	request *r = i < WINDOW ? v->inbound[i].r : NULL;
	inbound_piece g;
	/* The RTS was sent before the write, and so is matched before. */
	if (!r || r->seq << 8 != (e->value & ~0xffu) || verbs_match(l, v) < 0 || !r->checked)
		return channel_failed(l->c) ? -1 : verbs_corrupt(l);
	g = v->inbound[i];
	v->inbound[i].r = NULL;
	if (g.staged && r->reduce)
		link_reduce(l, r, g.at, verbs_piece(v, 0, i), g.bytes);
	else if (g.staged)
		memcpy(r->buf + g.at, verbs_piece(v, 0, i), g.bytes);
	r->left -= g.bytes;
	if (!r->left) {
		verbs_unregister(v, r);
		link_done(r);
	}
	return 0;
}

int verbs_pull(peer_link *l, verbs *v)
{
	int moved = verbs_match(l, v), gave = moved < 0 ? -1 : verbs_send_cts(l, v);
	return gave < 0 ? -1 : moved | gave;
}
