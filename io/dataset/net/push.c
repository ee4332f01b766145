/* A value that another node loaded instead of its owner: offered, taken or not, and pushed. */
#include <stdlib.h>
#include <xxhash.h>

#include "io/dataset/net/service.h"

void push_receive_offer(service *s, peer *p)
{
	gradcomp_dataset *ds = s->ds;
	slot *at = message_slot(s, p, p->in.index);
	uint32_t answer = MSG_LEAVE;
	take *t = malloc(sizeof *t);
	slot_value seen;
	unsigned state;
	if (!at || !t) {
		if (at)
			message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		free(t);
		return;
	}
	state = slot_look(at, &seen);
	if ((state == SLOT_EMPTY || state == SLOT_DAMAGED) && !atomic_load(&s->draining) &&
	    slot_claim(ds, at, seen.word)) {
		*t = (take){.next = s->takes,
		            .from = p,
		            .id = p->in.id,
		            .index = p->in.index,
		            .bytes = p->in.bytes,
		            .sum = p->in.sum,
		            .offset = load_arena_alloc(ds, at, p->in.bytes)};
		if (t->offset || (ds->spill_fd >= 0 && p->in.bytes <= PUSH_MOST)) {
			answer = MSG_TAKE;
			p->ntakes++;
			s->takes = t;
			t = NULL;
		} else {
			slot_refuse(at);
		}
	}
	free(t);
	message_header(s, p, (header){.type = answer, .id = p->in.id, .index = p->in.index});
	message_receive_header(s, p);
}

void push_receive(service *s, peer *p)
{
	gradcomp_dataset *ds = s->ds;
	slot *at = message_slot(s, p, p->in.index);
	take **link = &s->takes, *t;
	if (!at)
		return;
	while ((t = *link) && (t->from != p || t->id != p->in.id || t->index != p->in.index))
		link = &t->next;
	if (!t) {
		message_wrong(s, p, "pushed a value that was not accepted");
		return;
	}
	if (t->bytes != p->in.bytes || t->sum != p->in.sum) {
		message_wrong(s, p, "pushed a value that is not the one it offered");
		return;
	}
	p->pushed_slot = (uint64_t)(at - ds->slots);
	p->pushed = (value){.bytes = t->bytes, .offset = t->offset};
	*link = t->next;
	free(t);
	p->ntakes--;
	if (p->pushed.offset) {
		p->pushed.data = (unsigned char *)ds->head + p->pushed.offset;
	} else if (!load_value_alloc(&p->pushed, p->in.bytes)) {
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		return;
	}
	p->state = IN_PUSH;
	message_receive(s, p, p->pushed.data, p->in.bytes, &p->req);
}

void push_receive_done(service *s, peer *p)
{
	slot *at = &s->ds->slots[p->pushed_slot];
	if (XXH64(p->pushed.data, p->pushed.bytes, p->in.index) == p->in.sum) {
		slot_keep(s->ds, p->in.index, at, &p->pushed);
	} else {
		count(&s->ds->area->counts.damaged, 1);
		slot_abandon(at);
	}
	free(p->pushed.base);
	p->pushed = (value){0};
	message_receive_header(s, p);
}

/* Receives the owner's answer to an offer. */
void push_receive_answer(service *s, peer *p)
{
	offer **at = &s->offers, *f;
	out *o;
	while (*at && ((*at)->id != p->in.id || (*at)->to != p))
		at = &(*at)->next;
	f = *at;
	if (!f || f->index != p->in.index) {
		message_wrong(s, p, "answered an offer that was not made");
		return;
	}
	*at = f->next;
	p->noffers--;
	if (p->in.type == MSG_TAKE && (o = message_new(s, 2))) {
		o->h = (header){.type = MSG_PUSH, .id = f->id, .index = f->index, .bytes = f->bytes, .sum = f->sum};
		o->block = (int)f->block;
		message_add(p, o);
		message_post(s, p, o, &o->h, sizeof o->h);
		message_post(s, p, o, (unsigned char *)s->ds->head + f->offset, f->bytes);
	} else {
		rx_buffer_unref(s, f->block);
	}
	free(f);
	message_receive_header(s, p);
}
