/* Messages in, from each peer one at a time. A message is checked before anything is done with
 * it. */
#include <stdlib.h>

#include "job/job.h"
#include "io/dataset/net/service.h"

static void receive_request(service *s, peer *p)
{
	const request_item *items = p->items;
	for (uint32_t i = 0; i < p->in.n; i++) {
		if (!message_slot(s, p, items[i].index))
			return;
		if (items[i].ticket >= TICKETS_MOST || items[i].flags & ~TICKET_ORDERED) {
			message_wrong(s, p, "sent an invalid request");
			return;
		}
	}
	if (p->nreplies >= REPLIES_MAX || p->nloads + p->in.n > TICKETS_MOST) {
		message_wrong(s, p, "requested more than it receives");
		return;
	}
	reply_send(s, p);
	message_receive_header(s, p);
}

static void ticket_end(service *s, uint32_t number, enum ticket_state state, unsigned flags)
{
	ticket *t = &s->ds->tickets[number];
	uint32_t whose = atomic_load(&t->word) & ~WORD_STATE;
	bool dropped;
	s->flights[number] = (flight){0};
	atomic_fetch_or(&t->flags, flags);
	ticket_become(t, state);
	dropped = fetch_dropped(s->ds, t, whose);
	process_wake(&t->word);
	if (state == TICKET_WANTED && !dropped)
		ticket_want(s, number, true);
}

/* All that belongs to the answer is there. */
static void receive_reply(service *s, peer *p)
{
	block *b = &s->blocks[p->in.id];
	const reply_item *items = p->items;
	uint64_t at = 0;
	for (uint32_t i = 0; i < b->n; i++) {
		ticket *t = &s->ds->tickets[b->tickets[i]];

		switch (items[i].status) {
		case REPLY_SENT:
			t->offset = b->offset + at;
			t->bytes = items[i].bytes;
			t->sum = items[i].sum;
			t->block = (uint32_t)p->in.id;
			t->arrived = ++s->arrivals;
			at += value_rounded(t->bytes);
			s->bytes += t->bytes;
			s->mean = s->bytes / s->arrivals + 1;
			atomic_store_explicit(&s->ds->fetch->mean, s->mean, memory_order_relaxed);
			atomic_fetch_add(&s->ds->fetch->refs[p->in.id], 1);
			ticket_end(s, b->tickets[i], TICKET_READY, 0);
			break;
		case REPLY_LATER: /* a NOTIFY follows */
			s->flights[b->tickets[i]].block = BLOCKS;
			p->nlater++;
			break;
		case REPLY_LARGE:
			t->bytes = items[i].bytes;
			if (value_rounded(t->bytes) > s->ds->head->rx_buffer_bytes)
				ticket_end(s, b->tickets[i], TICKET_ABSENT, TICKET_FINAL);
			else
				ticket_end(s, b->tickets[i], TICKET_WANTED, 0);
			break;
		default:
			ticket_end(s, b->tickets[i], TICKET_ABSENT, items[i].status == REPLY_UNKEPT ? TICKET_FINAL : 0);
		}
	}
	free(b->tickets);
	b->tickets = NULL;
	b->asked = NULL;
	p->nrequests--;
	rx_buffer_trim(s, (int)p->in.id, at);
	rx_buffer_unref(s, (uint32_t)p->in.id);
	free(p->values);
	p->values = NULL;
	p->nvalues = 0;
	message_receive_header(s, p);
}

/* The table has arrived: the values follow. */
static void receive_values(service *s, peer *p)
{
	const block *b = &s->blocks[p->in.id];
	const reply_item *items = p->items;
	uint64_t bytes = 0;
	uint32_t carried;
	for (uint32_t i = 0; i < b->n; i++) {
		uint64_t need = value_rounded(items[i].bytes);

		/* Large is what there is no space for behind those before it. */
		if (items[i].status > REPLY_LARGE || items[i].bytes > VALUE_MOST ||
		    (items[i].status == REPLY_LARGE && need <= b->bytes - bytes)) {
			message_wrong(s, p, "sent an invalid reply");
			return;
		}
		if (items[i].status != REPLY_SENT)
			continue;
		if (need > b->bytes - bytes) {
			message_wrong(s, p, "sent more than was requested");
			return;
		}
		bytes += need;
	}
	p->values = calloc(b->n, sizeof *p->values);
	if (!p->values) {
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		return;
	}
	p->state = IN_VALUES;
	bytes = 0;
	for (uint32_t i = 0; i < b->n; i += carried) {
		uint64_t run;

		carried = 1;
		if (items[i].status != REPLY_SENT)
			continue;
		run = reply_run(items, b->n, i, &carried);
		message_receive(s, p, (unsigned char *)s->ds->head + b->offset + bytes, run, &p->values[p->nvalues++]);
		bytes += value_rounded(run);
	}
}

static void receive_notify(service *s, peer *p)
{
	const flight *f;
	if (p->in.id >= s->ds->head->ntickets) {
		message_wrong(s, p, "named a ticket that does not exist");
		return;
	}
	f = &s->flights[p->in.id];
	if (f->asked != p || f->block != BLOCKS || atomic_load(&s->ds->tickets[p->in.id].index) != p->in.index ||
	    p->in.n > 1) {
		message_wrong(s, p, "notified of a value that no reply left for later");
		return;
	}
	p->nlater--;
	ticket_end(s, (uint32_t)p->in.id, p->in.n ? TICKET_WANTED : TICKET_ABSENT, 0);
	message_receive_header(s, p);
}

static void receive_damaged(service *s, peer *p)
{
	slot *at = message_slot(s, p, p->in.index);
	if (!at)
		return;
	slot_verify(s->ds, p->in.index, at);
	message_receive_header(s, p);
}

static void receive_items(service *s, peer *p, peer_state next, uint64_t bytes)
{
	free(p->items);
	p->items = malloc(bytes);
	if (!p->items) {
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		return;
	}
	p->state = next;
	message_receive(s, p, p->items, bytes, &p->req);
}

static void receive_message(service *s, peer *p)
{
	const header *h = &p->in;
	p->used = ++s->uses;
	if (p->link == LINK_LEFT) {
		message_wrong(s, p, "sent a message over a connection that it was to close");
		return;
	}
	if (p->nouts >= OUTS_MAX) {
		message_wrong(s, p, "receives nothing of what it requested");
		return;
	}
	switch (h->type) {
	case MSG_REQUEST:
		if (h->n && h->n <= REQUEST_ITEMS_MAX && h->bytes <= VALUE_MOST * REQUEST_ITEMS_MAX)
			receive_items(s, p, IN_REQUEST, h->n * sizeof(request_item));
		else
			message_wrong(s, p, "requested no samples, or too many samples at once");
		return;
	case MSG_REPLY:
		if (h->id < BLOCKS && s->blocks[h->id].asked == p && s->blocks[h->id].n == h->n)
			receive_items(s, p, IN_REPLY, h->n * sizeof(reply_item));
		else
			message_wrong(s, p, "sent a reply to no request");
		return;
	case MSG_NOTIFY:
		receive_notify(s, p);
		return;
	case MSG_OFFER:
		push_receive_offer(s, p);
		return;
	case MSG_TAKE:
	case MSG_LEAVE:
		push_receive_answer(s, p);
		return;
	case MSG_PUSH:
		push_receive(s, p);
		return;
	case MSG_DAMAGED:
		receive_damaged(s, p);
		return;
	case MSG_BYE:
	case MSG_BYE_OK:
	case MSG_STAY:
		links_receive_ending(s, p);
		return;
	}
	message_wrong(s, p, "sent a message of an unknown type");
}

void receive_poll(service *s, peer *p)
{
	while (!s->status && p->link != LINK_CLOSING) {
		if (p->state == IN_VALUES) {
			for (unsigned i = 0; i < p->nvalues; i++)
				if (!channel_done(&p->values[i]))
					return;
		} else if (!channel_done(&p->req)) {
			return;
		}
		p->heard = true;
		switch (p->state) {
		case IN_HEAD:
			receive_message(s, p);
			break;
		case IN_REQUEST:
			receive_request(s, p);
			break;
		case IN_REPLY:
			receive_values(s, p);
			break;
		case IN_VALUES:
			receive_reply(s, p);
			break;
		case IN_PUSH:
			push_receive_done(s, p);
			break;
		}
	}
	return;
}
