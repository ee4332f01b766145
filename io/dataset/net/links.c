/* The connections of a service: at most dataset.connections of them to nodes that it wants something of. When
 * another node is wanted, the one that was used least recently is closed.
 *
 * The end is agreed upon. Who closes says BYE, and holds what would begin another exchange until the answer is
 * there: BYE_OK, or STAY when the other waits for something or wants something. Answers go on meanwhile. After
 * BYE_OK the other says nothing more, and waits for the end of the connection. So nothing is on its way when that
 * comes. When both say BYE, that of the lower rank counts. */
#include <stdlib.h>

#include "job/job.h"
#include "io/dataset/net/service.h"

#define CLOSINGS 8u        /* connections that are closed at a time */
#define STAYS_NS 10000000u /* a peer that has said STAY is not asked again before */

void links_called(service *s, peer *p)
{
	/* Its end is closed, which has not been seen here yet. */
	if (p->link == LINK_LEFT || p->link == LINK_CLOSING)
		p->called = true;
	else
		message_open_peer(s, p);
}

static void closed(service *s, peer *p)
{
	if (s->ds->channel)
		channel_hang_up(s->ds->channel, p->rank);
	p->link = LINK_CLOSED;
	p->drains = false;
	p->state = IN_HEAD;
	s->nlinks--;
	s->posted = true;
	if (p->called)
		message_open_peer(s, p);
}

/* Something of the peer is waited for. */
static bool awaits(const peer *p)
{
	return p->nrequests || p->nlater || p->noffers;
}

/* The peer waits for something of this rank. */
static bool owes(const peer *p)
{
	return p->nloads || p->ntakes || p->nreplies;
}

static bool wants(const peer *p)
{
	return p->first < p->nwanted || p->nheld;
}

static bool idle(const peer *p, uint64_t now)
{
	return p->link == LINK_OPEN && p->state == IN_HEAD && !awaits(p) && !owes(p) && !p->outs &&
	       (p->drains || !wants(p)) && now >= p->stays;
}

bool links_ready(service *s, const peer *p)
{
	if (p->link == LINK_OPEN)
		return true;
	if (p->link != LINK_CLOSED)
		return false;
	if (s->nlinks >= s->nlinks_limit && !s->spare) {
		s->nwaiting++;
		return false;
	}
	s->spare -= s->nlinks >= s->nlinks_limit;
	s->turn = (int)(p - s->peers) + 1;
	return true;
}

void links_say(service *s, peer *p, header h)
{
	header *more;
	if (!p->nheld && links_ready(s, p)) {
		message_header(s, p, h);
		return;
	}
	more = realloc(p->held, (p->nheld + 1) * sizeof *more);
	if (!more) {
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		return;
	}
	p->held = more;
	p->held[p->nheld++] = h;
}

void links_flush(service *s, peer *p)
{
	uint32_t n = p->nheld;
	if (!n || !links_ready(s, p))
		return;
	for (uint32_t i = 0; i < n; i++)
		message_header(s, p, p->held[i]);
	p->nheld = 0;
}

static void answer_bye(service *s, peer *p)
{
	bool stays = awaits(p) || (wants(p) && !p->drains);
	message_header(s, p, (header){.type = stays ? MSG_STAY : MSG_BYE_OK});
	if (!stays) {
		p->link = LINK_LEFT;
		if (s->ds->channel)
			channel_may_end(s->ds->channel, p->rank);
	}
	message_receive_header(s, p);
}

static void receive_bye(service *s, peer *p)
{
	if (p->nloads || p->ntakes) {
		message_wrong(s, p, "closes a connection over which something of it is due");
		return;
	}
	if (p->link == LINK_LEAVING && s->ds->rank < p->rank) {
		if (p->crossed) {
			message_wrong(s, p, "closes a connection twice");
			return;
		}
		p->crossed = true;
		message_receive_header(s, p);
		return;
	}
	p->link = LINK_OPEN;
	answer_bye(s, p);
}

void links_receive_ending(service *s, peer *p)
{
	if (p->in.n || p->in.id || p->in.index || p->in.bytes || p->in.sum) {
		message_wrong(s, p, "sent an invalid end of a connection");
	} else if (p->in.type == MSG_BYE) {
		receive_bye(s, p);
	} else if (p->link != LINK_LEAVING) {
		message_wrong(s, p, "answered a request to close its connection that was not made");
	} else if (p->in.type == MSG_STAY) {
		p->link = LINK_OPEN;
		p->crossed = p->drains = false;
		p->stays = process_clock_ns() + STAYS_NS;
		message_receive_header(s, p);
	} else if (owes(p)) {
		message_wrong(s, p, "closes a connection over which something is due");
	} else {
		p->link = LINK_CLOSING;
	}
}

static peer *least_used(service *s, bool only_idle)
{
	uint64_t now = process_clock_ns();
	peer *least = NULL;
	for (int i = 0; i < s->npeers; i++) {
		peer *p = &s->peers[i];

		if (p->link == LINK_OPEN && (only_idle ? idle(p, now) : !p->drains) &&
		    (!least || p->used < least->used))
			least = p;
	}
	return least;
}

void links_turn(service *s)
{
	uint64_t need, closing = 0, own = 0, draining = 0;
	peer *p;
	for (int i = 0; i < s->npeers; i++) {
		p = &s->peers[i];
		if (((p->link == LINK_LEFT &&
		      (p->called || (s->ds->channel && channel_ended(s->ds->channel, p->rank)))) ||
		     p->link == LINK_CLOSING) &&
		    !p->outs)
			closed(s, p);
		closing += p->link != LINK_OPEN && p->link != LINK_CLOSED;
		draining += p->link == LINK_OPEN && p->drains;
		own += p->link == LINK_OPEN && awaits(p);
	}
	need = s->nlinks + (s->nwaiting < CLOSINGS ? s->nwaiting : CLOSINGS);
	need = need > s->nlinks_limit ? need - s->nlinks_limit : 0;
	for (; closing < need && closing < CLOSINGS && (p = least_used(s, true)); closing++) {
		draining -= p->drains;
		p->drains = false;
		p->link = LINK_LEAVING;
		message_header(s, p, (header){.type = MSG_BYE});
	}
	s->spare = 0;
	if (!s->nwaiting) {
		for (int i = 0; draining && i < s->npeers; i++)
			s->peers[i].drains = false;
		s->posted |= draining > 0;
	} else if (closing || s->nlinks < s->nlinks_limit) {
		return;
	} else if (own < s->nlinks_limit) {
		/* All others are in use by the nodes that they lead to: that may last. */
		s->spare = (uint32_t)(s->nlinks_limit - own);
		s->posted = true;
	} else if (!draining) {
		p = least_used(s, false);
		if (p)
			p->drains = true;
	}
}
