/* Requests for what is wanted: several samples at a time, with space for the answer taken
 * in the receive buffer first. */
#include <stdlib.h>
#include <string.h>

#include "io/dataset/net/service.h"

#define MEAN_AT_FIRST (64u << 10)
#define LEAST 4096u       /* bytes that are worth a request for a value that may be longer */
#define RX_BUFFER_SHARE 8 /* one part in so many of the receive buffer is the most that one answer may take */
/* An answer is there when all of it is: short values do not wait for many others, or for a long one, which is
 * requested alone as soon as its length is known. */
#define ANSWER_BYTES (2u << 20)

/* The next samples to request of p, in order, as many as there is likely space for. */
static uint32_t choose(service *s, peer *p, uint64_t longest, request_item *items, uint32_t *tickets, uint64_t *budget)
{
	gradcomp_dataset *ds = s->ds;
	uint64_t mean = s->mean ? s->mean + s->mean / 4 : MEAN_AT_FIRST,
		 most = ds->head->rx_buffer_bytes / RX_BUFFER_SHARE;
	uint32_t n = 0;
	*budget = 0;
	most = most < longest ? most : longest;
	most = most < ANSWER_BYTES ? most : ANSWER_BYTES;
	while (n < REQUEST_ITEMS_MAX && p->first < p->nwanted) {
		uint32_t number = p->wanted[p->first];
		ticket *t = &ds->tickets[number];
		uint32_t word = atomic_load(&t->word);
		/* An earlier answer had its length. */
		uint64_t need = value_rounded(t->bytes ? t->bytes : mean), index = atomic_load(&t->index);
		sample_owner at;

		if (!n && !t->bytes && need > longest && longest >= LEAST)
			need = longest;

		owner_of(ds, index, &at);
		if ((word & WORD_STATE) != TICKET_WANTED || s->peer_of[at.node] != p - s->peers) {
			p->first++;
			continue;
		}
		if (*budget + need > most && (n || need > longest))
			break;
		p->first++;
		if (!ticket_move(t, word, (word & ~WORD_STATE) | TICKET_FLYING))
			continue;
		*budget += need;
		items[n] = (request_item){
			.index = index, .ticket = number, .flags = atomic_load(&t->flags) & TICKET_ORDERED};
		tickets[n++] = number;
	}
	if (p->first == p->nwanted)
		p->first = p->nwanted = 0;
	return n;
}

/* Drops the prefetched value that arrived first. */
static bool evict(service *s)
{
	const gradcomp_dataset *ds = s->ds;
	ticket *oldest = NULL;
	uint32_t seen = 0;
	for (uint32_t i = 0; i < ds->head->ntickets; i++) {
		ticket *t = &ds->tickets[i];
		uint32_t word = atomic_load(&t->word);

		if ((word & WORD_STATE) == TICKET_READY && (!oldest || t->arrived < oldest->arrived)) {
			oldest = t;
			seen = word;
		}
	}
	if (!oldest || !ticket_move(oldest, seen, (seen & ~WORD_STATE) | TICKET_HELD))
		return false;
	rx_buffer_unref(s, oldest->block);
	ticket_become(oldest, TICKET_FREE);
	return true;
}

/* A process waits for one of these. */
static bool urgent(const service *s, const peer *p)
{
	for (size_t i = p->first; i < p->nwanted; i++)
		if (atomic_load(&s->ds->tickets[p->wanted[i]].flags) & TICKET_URGENT)
			return true;
	return false;
}

static void request_once(service *s, peer *p)
{
	out *o = message_new(s, 2);
	uint32_t *tickets = malloc(REQUEST_ITEMS_MAX * sizeof *tickets), n;
	uint64_t budget, longest = rx_buffer_longest(s);
	int b = -1;
	if (o)
		o->table = malloc(REQUEST_ITEMS_MAX * sizeof(request_item));
	if (!o || !tickets || !o->table) {
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		goto drop;
	}
	n = choose(s, p, longest, o->table, tickets, &budget);
	if (!n)
		goto drop;
	b = rx_buffer_alloc(s, budget);
	s->blocks[b].asked = p;
	s->blocks[b].tickets = tickets;
	s->blocks[b].n = n;
	o->h = (header){.type = MSG_REQUEST, .n = n, .id = (uint64_t)b, .bytes = s->blocks[b].bytes};
	for (uint32_t i = 0; i < n; i++)
		s->flights[tickets[i]] = (flight){.asked = p, .block = (uint32_t)b};
	message_add(p, o);
	p->nrequests++;
	message_post(s, p, o, &o->h, sizeof o->h);
	message_post(s, p, o, o->table, n * sizeof(request_item));
	return;
drop:
	free(tickets);
	if (o)
		message_free(o);
}

void request_send(service *s, peer *p)
{
	if (p->first == p->nwanted || p->drains || !links_ready(s, p))
		return;
	while (p->first < p->nwanted && p->nrequests < REQUESTS_MAX && !s->status) {
		size_t before = p->nwanted - p->first;

		request_once(s, p);
		if (p->nwanted - p->first < before || (urgent(s, p) && evict(s)))
			continue;
		/* There is no event when the program releases values. */
		s->starved = true;
		return;
	}
}
