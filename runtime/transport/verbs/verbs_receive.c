/* The receiving side of verbs: short messages lie in the receives they came in until
 * they are matched in order; for long ones the peer is granted room, piece by piece,
 * in the caller's memory or in the pool. */
#include "transport/verbs/verbs_internal.h"

#include "transport/core/wire.h"

#include <string.h>

int verbs_message_came(peer_link *l, verbs *v, unsigned receive, uint32_t bytes)
{
	const unsigned char *p = receive < RECEIVES ? verbs_room(v, receive) : NULL;
	uint32_t kind;

	if (!p || bytes < VERBS_HEAD || bytes > ROOM_BYTES)
		return verbs_corrupt(l);
	kind = get32(p);
	if (verbs_credit(l, v, get32(p + 16)))
		return -1;
	if (kind == MESSAGE_EAGER || kind == MESSAGE_OFFER) {
		unsigned at = (v->first_held + v->nheld) % CREDITS;

		if (v->nheld == CREDITS)
			return verbs_corrupt(l);
		v->held[at] = (uint8_t)receive;
		v->held_bytes[at] = bytes;
		v->nheld++;
		return 0;
	}
	if (kind == MESSAGE_GRANT) {
		if (verbs_grant_came(l, v, p))
			return -1;
	} else if (kind != MESSAGE_NEWS && kind != MESSAGE_PROBE) {
		return verbs_corrupt(l);
	}
	return verbs_repost(l, v, receive);
}

/* Matches what is held with what is posted. */
static int verbs_match(peer_link *l, verbs *v)
{
	int moved = 0;

	while (v->nheld && v->next_match) {
		unsigned receive = v->held[v->first_held];
		uint32_t came = v->held_bytes[v->first_held] - VERBS_HEAD;
		const unsigned char *p = verbs_room(v, receive);
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
		v->first_held = (v->first_held + 1) % CREDITS;
		v->nheld--;
		v->freed++;
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

/* Tells the peer where the next pieces go. */
static int verbs_give(peer_link *l, verbs *v)
{
	int moved = 0;

	for (unsigned i = 0; i < WINDOW && v->next_grant; i++) {
		request *r = v->next_grant;
		const fabric_memory *m;
		int told;
		duty d = {.seq = r->seq, .slot = i, .total = r->bytes, .at = r->first, .bytes = r->bytes - r->first};
		size_t most;

		if (v->grants[i].r)
			continue;
		m = verbs_register(l, v, r);
		most = !m ? PIECE_BYTES : v->d->facts.most < DIRECT_BYTES ? (size_t)v->d->facts.most : DIRECT_BYTES;
		if (d.bytes > most)
			d.bytes = most;
		d.key = m ? m->remote : v->block->memory.remote;
		d.to = (uintptr_t)(m ? r->buf + d.at : verbs_piece(v, 0, i));
		told = verbs_control(l, v, MESSAGE_GRANT, &d);
		if (told <= 0)
			return told < 0 ? -1 : moved;
		v->grants[i] = (grant){r, d.at, d.bytes, !m};
		r->first += d.bytes;
		if (r->first == r->bytes)
			v->next_grant = verbs_next_long(r->next);
		moved = 1;
	}
	return moved;
}

int verbs_piece_came(peer_link *l, verbs *v, const fabric_event *e)
{
	unsigned i = e->value & 0xff;
	request *r = i < WINDOW ? v->grants[i].r : NULL;
	grant g;

	/* The offer is matched before: it was sent before. */
	if (!r || r->seq << 8 != (e->value & ~0xffu) || verbs_match(l, v) < 0 || !r->checked)
		return atomic_load(&l->c->t->failed) ? -1 : verbs_corrupt(l);
	g = v->grants[i];
	v->grants[i].r = NULL;
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
	int moved = verbs_match(l, v), gave = moved < 0 ? -1 : verbs_give(l, v);

	return gave < 0 ? -1 : moved | gave;
}
