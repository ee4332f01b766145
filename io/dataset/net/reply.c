/* Answers to requests. */
#include <stdlib.h>
#include <string.h>

#include "job/job.h"
#include "io/dataset/net/service.h"

uint64_t reply_run(const reply_item *items, uint32_t n, uint32_t i, uint32_t *carried)
{
	uint64_t bytes = 0;
	*carried = 1;
	if (items[i].bytes >= PACKED_BYTES)
		return items[i].bytes;
	for (*carried = 0; i < n && (items[i].status != REPLY_SENT || items[i].bytes < PACKED_BYTES); i++, ++*carried)
		if (items[i].status == REPLY_SENT)
			bytes += value_rounded(items[i].bytes);
	return bytes;
}

/* Returns how many bytes are read for one peer at a time from the spill file. */
static uint64_t spill_budget(const gradcomp_dataset *ds)
{
	return ds->head->memory > PUSH_MOST ? ds->head->memory : PUSH_MOST;
}

/* Finds the address of an item's value, or the status to reply instead. */
static const void *look(service *s, peer *p, out *o, const request_item *wanted, reply_item *item, uint64_t left)
{
	gradcomp_dataset *ds = s->ds;
	slot_value at;
	sample_owner where;
	value v;
	owner_of(ds, wanted->index, &where);
	switch (slot_look(&ds->slots[where.slot], &at)) {
	case SLOT_READY:
	case SLOT_SPILLED:
		break;
	case SLOT_UNKEPT:
		item->status = REPLY_UNKEPT;
		return NULL;
	case SLOT_EMPTY:
	case SLOT_DAMAGED:
		if (!(wanted->flags & TICKET_ORDERED)) {
			item->status = REPLY_ABSENT;
			return NULL;
		}
		/* fall through */
	default:
		item->status = REPLY_LATER;
		load_worker_add(s, p, wanted->ticket, wanted->index);
		return NULL;
	}
	item->bytes = at.bytes;
	item->sum = at.sum;
	item->status = REPLY_LARGE;
	if (value_rounded(at.bytes) > left)
		return NULL;
	if ((at.word & WORD_STATE) == SLOT_READY) {
		item->status = REPLY_SENT;
		return (const unsigned char *)ds->head + at.offset;
	}
	item->status = REPLY_UNKEPT;
	if (at.bytes > spill_budget(ds) - p->spilled || !load_value_alloc(&v, at.bytes))
		return NULL;
	/* Whoever gets it compares the checksum. */
	if (!spill_read(ds, at.offset, v.data, v.bytes))
		memset(v.data, 0, v.bytes);
	o->owned[o->nowned++] = v.base;
	o->owned_bytes += at.bytes;
	p->spilled += at.bytes;
	item->status = REPLY_SENT;
	return v.data;
}

/* Short values that follow each other become one message. */
static void post_values(service *s, peer *p, out *o, const reply_item *items, const void *const *at, uint32_t n)
{
	uint64_t packed = 0, used = 0;
	uint32_t carried;
	for (uint32_t i = 0; i < n; i++)
		packed += items[i].status == REPLY_SENT && items[i].bytes < PACKED_BYTES ? value_rounded(items[i].bytes)
		                                                                         : 0;
	/* The gaps between values are sent too. */
	o->pack = packed ? calloc(1, packed) : NULL;
	if (packed && !o->pack) {
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		return;
	}
	for (uint32_t i = 0; i < n; i += carried) {
		uint64_t bytes, begin = used;

		carried = 1;
		if (items[i].status != REPLY_SENT)
			continue;
		bytes = reply_run(items, n, i, &carried);
		if (items[i].bytes >= PACKED_BYTES) {
			message_post(s, p, o, at[i], bytes);
			continue;
		}
		for (uint32_t k = i; k < i + carried; k++) {
			if (items[k].status != REPLY_SENT)
				continue;
			/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): packed has counted this value */
			memcpy(o->pack + used, at[k], items[k].bytes);
			used += value_rounded(items[k].bytes);
		}
		message_post(s, p, o, o->pack + begin, bytes);
	}
}

void reply_send(service *s, peer *p)
{
	uint32_t n = p->in.n;
	uint64_t left = p->in.bytes;
	const request_item *wanted = p->items;
	out *o = message_new(s, n + 2);
	const void **at = calloc(n, sizeof *at);
	reply_item *items = calloc(n, sizeof *items);
	if (o) {
		o->table = items;
		o->owned = calloc(n, sizeof *o->owned);
	}
	if (!o || !at || !items || !o->owned) {
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		free(o ? NULL : items);
		if (o)
			message_free(o);
		free(at);
		return;
	}
	message_add(p, o);
	o->reply = true;
	p->nreplies++;
	o->h = (header){.type = MSG_REPLY, .n = n, .id = p->in.id};
	for (uint32_t i = 0; i < n; i++) {
		at[i] = look(s, p, o, &wanted[i], &items[i], left);
		if (items[i].status == REPLY_SENT)
			left -= value_rounded(items[i].bytes);
	}
	message_post(s, p, o, &o->h, sizeof o->h);
	message_post(s, p, o, items, n * sizeof *items);
	post_values(s, p, o, items, at, n);
	free(at);
}
