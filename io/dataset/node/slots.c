/* Samples this node owns. A slot goes from empty by way of filling, by one process at a
 * time, to one of ready, spilled and unkept; when the process that fills it dies, the next one
 * that wants it takes over. A value that turns out to be damaged is loaded to another place in
 * memory, because a process may be reading the damaged one. */
#include <stdlib.h>
#include <xxhash.h>

#include "io/dataset/dataset_internal.h"

static void slot_set(slot *s, uint32_t word)
{
	atomic_store_explicit(&s->word, word, memory_order_release);
	process_wake(&s->word);
}

bool slot_claim(gradcomp_dataset *ds, slot *s, uint32_t word)
{
	if (!atomic_compare_exchange_strong(&s->word, &word, SLOT_FILLING | atomic_load(&ds->self)))
		return false;
	if ((word & WORD_STATE) == SLOT_DAMAGED) {
		atomic_fetch_add(&s->version, 1);
		atomic_store(&s->offset, 0);
	}
	return true;
}

void slot_keep(gradcomp_dataset *ds, uint64_t index, slot *s, const value *v)
{
	uint64_t offset = v->offset;
	unsigned state = offset ? SLOT_READY : SLOT_UNKEPT;
	if (!offset && spill_write(ds, v->data, v->bytes, &offset))
		state = SLOT_SPILLED;
	if (state == SLOT_UNKEPT)
		count(&ds->area->counts.unkept, 1);
	atomic_store(&s->offset, offset);
	atomic_store(&s->bytes, v->bytes);
	atomic_store(&s->sum, XXH64(v->data, v->bytes, index));
	slot_set(s, state);
}

void slot_abandon(slot *s)
{
	slot_set(s, SLOT_EMPTY);
}

void slot_refuse(slot *s)
{
	slot_set(s, SLOT_UNKEPT);
}

/* Called when the value that was there under this word did not match its checksum. */
static void slot_damaged(gradcomp_dataset *ds, slot *s, uint32_t word)
{
	count(&ds->area->counts.damaged, 1);
	atomic_compare_exchange_strong(&s->word, &word, SLOT_DAMAGED);
}

unsigned slot_look(slot *s, slot_value *out)
{
	for (;;) {
		unsigned version = atomic_load_explicit(&s->version, memory_order_acquire);

		out->word = atomic_load_explicit(&s->word, memory_order_acquire);
		out->offset = atomic_load_explicit(&s->offset, memory_order_relaxed);
		out->bytes = atomic_load_explicit(&s->bytes, memory_order_relaxed);
		out->sum = atomic_load_explicit(&s->sum, memory_order_relaxed);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&s->word, memory_order_relaxed) == out->word &&
		    atomic_load_explicit(&s->version, memory_order_relaxed) == version)
			return out->word & WORD_STATE;
	}
}

/* Reads the value from the spill file into memory of this process. NOTFOUND: it was damaged. */
static gradcomp_status slot_read(gradcomp_dataset *ds, uint64_t index, slot *s, const slot_value *at, value *v,
                                 gradcomp_error *err)
{
	if (!load_value_alloc(v, at->bytes))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to read sample %llu, %llu bytes, from %s",
		                 (unsigned long long)index, (unsigned long long)at->bytes,
		                 ds->spill ? ds->spill : "its file");
	if (spill_read(ds, at->offset, v->data, at->bytes) && XXH64(v->data, at->bytes, index) == at->sum)
		return GRADCOMP_OK;
	free(v->base);
	slot_damaged(ds, s, at->word);
	return GRADCOMP_ERR_NOTFOUND;
}

typedef struct arena_room {
	gradcomp_dataset *ds;
	slot *s;
} arena_room;

static void *arena_place(void *ctx, uint64_t bytes)
{
	arena_room *r = ctx;
	uint64_t offset = load_arena_alloc(r->ds, r->s, bytes);
	return offset ? (unsigned char *)r->ds->head + offset : NULL;
}

void slot_verify(gradcomp_dataset *ds, uint64_t index, slot *s)
{
	slot_value at;
	value v;
	switch (slot_look(s, &at)) {
	case SLOT_READY:
		if (XXH64((unsigned char *)ds->head + at.offset, at.bytes, index) != at.sum)
			slot_damaged(ds, s, at.word);
		break;
	case SLOT_SPILLED:
		if (!slot_read(ds, index, s, &at, &v, NULL))
			free(v.base);
		break;
	}
}

static gradcomp_status slot_fill(gradcomp_dataset *ds, uint64_t index, slot *s, value *v, gradcomp_error *err)
{
	arena_room room = {ds, s};
	gradcomp_status st = load_value_at(ds, index, arena_place, &room, v, err);
	if (st)
		slot_abandon(s);
	else
		slot_keep(ds, index, s, v);
	return st;
}

gradcomp_status slot_obtain(gradcomp_dataset *ds, uint64_t index, uint64_t number, gradcomp_value_view *view,
                            gradcomp_error *err)
{
	slot *s = &ds->slots[number];
	uint64_t begin = 0;
	uint32_t source = GRADCOMP_VALUE_LOADED;
	gradcomp_status st = GRADCOMP_OK;
	slot_value at;
	value v;
	for (;;) {
		unsigned state = slot_look(s, &at);

		if (state == SLOT_READY) {
			v = (value){
				.data = (unsigned char *)ds->head + at.offset, .bytes = at.bytes, .offset = at.offset};
			source = GRADCOMP_VALUE_LOCAL;
			break;
		}
		begin = begin ? begin : process_clock_ns();
		if (state == SLOT_SPILLED) {
			st = slot_read(ds, index, s, &at, &v, err);
			if (st == GRADCOMP_ERR_NOTFOUND)
				continue;
			source = GRADCOMP_VALUE_SPILL;
			break;
		}
		if (state == SLOT_UNKEPT) {
			st = load_value_at(ds, index, NULL, NULL, &v, err);
			count(&ds->area->counts.unkept, !st);
			break;
		}
		if ((state != SLOT_FILLING || !process_alive(ds, at.word)) && slot_claim(ds, s, at.word)) {
			st = slot_fill(ds, index, s, &v, err);
			break;
		}
		if (state == SLOT_FILLING && (st = process_wait(ds, &s->word, at.word, err)) &&
		    !process_outlives(ds, st))
			break;
		st = GRADCOMP_OK;
	}
	if (begin)
		count(&ds->area->counts.wait_ns, process_clock_ns() - begin);
	if (!st && view)
		load_value_lend(ds, &v, index, source, view);
	else if (!st)
		free(v.base);
	return st;
}
