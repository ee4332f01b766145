/* Handling the tickets of this rank's processes. */
#include <stdlib.h>
#include <string.h>

#include "io/dataset/net/service.h"

static peer *peer_for(const service *s, uint64_t index)
{
	sample_owner at;
	owner_of(s->ds, index, &at);
	return &s->peers[s->peer_of[at.node]];
}

void ticket_want(service *s, uint32_t n, bool again)
{
	peer *p = peer_for(s, atomic_load(&s->ds->tickets[n].index));
	if (again && p->first) {
		p->wanted[--p->first] = n;
		return;
	}
	if (p->nwanted == p->room) {
		size_t left = p->nwanted - p->first, room = left >= p->room / 2 ? 2 * p->room + 64 : p->room;
		uint32_t *more = malloc(room * sizeof *more);

		if (!more) {
			message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
			return;
		}
		if (left)
			memcpy(more, p->wanted + p->first, left * sizeof *more);
		free(p->wanted);
		p->wanted = more;
		p->room = room;
		p->first = 0;
		p->nwanted = left;
	}
	p->wanted[p->nwanted++] = n;
}

/* Takes over the ticket's reference to its block. */
static void offer_make(service *s, const ticket *t)
{
	offer *f = malloc(sizeof *f);
	if (!f) {
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		return;
	}
	*f = (offer){.next = s->offers,
	             .id = ++s->offered,
	             .index = atomic_load(&t->index),
	             .offset = t->offset,
	             .bytes = t->bytes,
	             .sum = t->sum,
	             .block = t->block};
	f->to = peer_for(s, f->index);
	s->offers = f;
	f->to->noffers++;
	links_say(s, f->to,
	          (header){.type = MSG_OFFER, .id = f->id, .index = f->index, .bytes = f->bytes, .sum = f->sum});
}

/* Since the node that owned it is lost. */
static bool is_here(const service *s, const ticket *t)
{
	sample_owner at;
	owner_of(s->ds, atomic_load(&t->index), &at);
	return at.node == s->ds->node;
}

static void ticket_free(ticket *t)
{
	ticket_become(t, TICKET_FREE);
	process_wake(&t->word);
}

static void ticket_serve(service *s, uint32_t n)
{
	ticket *t = &s->ds->tickets[n];
	uint32_t word = atomic_load_explicit(&t->word, memory_order_acquire), whose = word & ~WORD_STATE;
	int b;
	switch (word & WORD_STATE) {
	case TICKET_WANTED:
		if (is_here(s, t)) {
			/* Whoever waits for it looks again. */
			if (ticket_move(t, word, TICKET_FREE))
				process_wake(&t->word);
			break;
		}
		/* If it cannot be requested (any more), the process that wants it loads it. */
		if (!atomic_load(&s->draining) && s->ds->head->rx_buffer_bytes) {
			ticket_want(s, n, false);
		} else if (ticket_move(t, word, TICKET_FLYING | whose)) {
			atomic_fetch_or(&t->flags, TICKET_FINAL);
			ticket_become(t, TICKET_ABSENT);
			process_wake(&t->word);
		}
		break;
	case TICKET_ALLOC:
		b = atomic_load(&s->draining) ? -1 : rx_buffer_alloc(s, t->bytes);
		t->block = b < 0 ? 0 : (uint32_t)b;
		t->offset = b < 0 ? 0 : s->blocks[b].offset;
		ticket_become(t, TICKET_LOADING);
		process_wake(&t->word);
		break;
	case TICKET_OFFERED:
		if (!is_here(s, t)) {
			atomic_fetch_add(&s->ds->fetch->refs[t->block], 1);
			offer_make(s, t);
		}
		if (!ticket_move(t, word, TICKET_HELD | whose)) {
			rx_buffer_unref(s, t->block);
			ticket_free(t);
		}
		break;
	case TICKET_LEFT:
		if (is_here(s, t))
			rx_buffer_unref(s, t->block);
		else
			offer_make(s, t);
		ticket_free(t);
		break;
	case TICKET_DAMAGED:
		if (!is_here(s, t))
			links_say(s, peer_for(s, atomic_load(&t->index)),
			          (header){.type = MSG_DAMAGED, .index = atomic_load(&t->index)});
		rx_buffer_unref(s, t->block);
		ticket_free(t);
		break;
	}
}

void tickets_detach(service *s)
{
	gradcomp_dataset *ds = s->ds;
	for (uint32_t i = 0; i < ds->head->ntickets; i++) {
		ticket *t = &ds->tickets[i];
		uint32_t word = atomic_load(&t->word);

		switch (word & WORD_STATE) {
		case TICKET_WANTED:
			/* next() expects anew what it wants. */
			if (atomic_load(&t->flags) & TICKET_ORDERED)
				ticket_move(t, word, TICKET_FREE);
			break;
		case TICKET_FLYING:
			/* Nobody else changes it. Who waited for it waits no more, nor does next(). */
			if (atomic_load(&t->flags) & (TICKET_URGENT | TICKET_ORDERED))
				ticket_free(t);
			else
				ticket_become(t, TICKET_WANTED);
			break;
		case TICKET_ALLOC:
			t->offset = 0;
			ticket_become(t, TICKET_LOADING);
			break;
		default:
			break;
		}
		process_wake(&t->word);
	}
}

void tickets_attach(service *s)
{
	gradcomp_dataset *ds = s->ds;
	/* Its lists of what is wanted are empty. */
	for (uint32_t i = 0; i < ds->head->ntickets; i++)
		if ((atomic_load(&ds->tickets[i].word) & WORD_STATE) == TICKET_WANTED)
			atomic_fetch_or(&ds->fetch->attention[i / 64], (uint64_t)1 << i % 64);
}

void tickets_sweep(service *s)
{
	gradcomp_dataset *ds = s->ds;
	uint32_t alive = atomic_load(&ds->self);
	for (uint32_t i = 0; i < ds->head->ntickets; i++) {
		ticket *t = &ds->tickets[i];
		uint32_t word = atomic_load_explicit(&t->word, memory_order_acquire), state = word & WORD_STATE;

		if (state == TICKET_FREE || state == TICKET_FLYING || (word & ~WORD_STATE) == alive)
			continue;
		if (process_alive(ds, word)) {
			alive = word & ~WORD_STATE;
			continue;
		}
		/* Another process may take over a value that is on its way. */
		if (!ticket_move(t, word, TICKET_SETUP | atomic_load(&ds->self)))
			continue;
		if (state == TICKET_READY || state == TICKET_HELD || state == TICKET_OFFERED || state == TICKET_LEFT ||
		    state == TICKET_DAMAGED || (state == TICKET_LOADING && t->offset))
			rx_buffer_unref(s, t->block);
		ticket_free(t);
	}
}

void tickets_attend(service *s)
{
	fetch_area *f = s->ds->fetch;
	for (uint32_t i = 0; i < s->ds->head->ntickets / 64; i++) {
		uint64_t bits = atomic_load_explicit(&f->attention[i], memory_order_relaxed)
		                        ? atomic_exchange(&f->attention[i], 0)
		                        : 0;

		for (; bits; bits &= bits - 1)
			ticket_serve(s, i * 64 + (uint32_t)__builtin_ctzll(bits));
	}
}
