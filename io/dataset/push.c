/* A value that another node loaded instead of its owner: offered, taken or not, and pushed. */
#include <stdlib.h>
#include <xxhash.h>

#include "io/dataset/service.h"

void receive_offer(service *s, peer *p)
{
	gradcomp_dataset *ds = s->ds;
	slot *at = receive_slot(s, p, p->in.index);
	uint32_t answer = MSG_LEAVE;
	slot_value seen;
	unsigned state;

	if (!at)
		return;
	state = slot_look(at, &seen);
	if ((state == SLOT_EMPTY || state == SLOT_DAMAGED) && !atomic_load(&s->draining) &&
	    slot_claim(ds, at, seen.word)) {
		if (arena_alloc(ds, at, p->in.bytes) || (ds->spill_fd >= 0 && p->in.bytes <= PUSH_MOST))
			answer = MSG_TAKE;
		else
			slot_refuse(at);
	}
	out_header(s, p, (header){.type = answer, .id = p->in.id, .index = p->in.index});
	receive_header(s, p);
}

void receive_push(service *s, peer *p)
{
	gradcomp_dataset *ds = s->ds;
	slot *at = receive_slot(s, p, p->in.index);

	if (!at)
		return;
	if (atomic_load(&at->word) != (SLOT_FILLING | atomic_load(&ds->self))) {
		service_wrong(s, p, "pushed a value that was not accepted");
		return;
	}
	p->pushed_slot = (uint64_t)(at - ds->slots);
	p->pushed = (value){.bytes = p->in.bytes, .offset = atomic_load(&at->offset)};
	if (p->pushed.offset && p->in.bytes == atomic_load(&at->bytes)) {
		p->pushed.data = (unsigned char *)ds->head + p->pushed.offset;
	} else if (p->in.bytes > PUSH_MOST) {
		service_wrong(s, p, "pushed a value of another length than it had offered");
		return;
	} else if (!value_alloc(&p->pushed, p->in.bytes)) {
		service_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		return;
	}
	p->state = IN_PUSH;
	receive_post(s, p, p->pushed.data, p->in.bytes, &p->req);
}

void receive_pushed(service *s, peer *p)
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
	receive_header(s, p);
}

/* The owner's answer to an offer. */
void receive_answer(service *s, peer *p)
{
	offer **at = &s->offers, *f;
	out *o;

	while (*at && ((*at)->id != p->in.id || (*at)->to != p))
		at = &(*at)->next;
	f = *at;
	if (!f) {
		service_wrong(s, p, "answered an offer that was not made");
		return;
	}
	*at = f->next;
	if (p->in.type == MSG_TAKE && (o = out_new(s, 2))) {
		o->h = (header){.type = MSG_PUSH, .id = f->id, .index = f->index, .bytes = f->bytes, .sum = f->sum};
		o->block = (int)f->block;
		o->next = p->outs;
		p->outs = o;
		out_post(s, p, o, &o->h, sizeof o->h);
		out_post(s, p, o, (unsigned char *)s->ds->head + f->offset, f->bytes);
	} else {
		rx_buffer_unref(s, f->block);
	}
	free(f);
	receive_header(s, p);
}
