/* Values as load() returns them: in the arena of the node, or in memory of this
 * process alone. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gradcomp/gradcomp.h"
#include "io/dataset/dataset_internal.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif

typedef struct loading {
	gradcomp_value_buffer buffer;
	gradcomp_dataset *ds;
	void *(*alloc)(void *ctx, uint64_t bytes);
	void *ctx;
	value v;
	int calls;
} loading;

bool load_value_alloc(value *v, uint64_t bytes)
{
	*v = (value){0};
	if (bytes > VALUE_MOST || posix_memalign(&v->base, 64, value_rounded(bytes)))
		return false;
	v->data = v->base;
	v->bytes = bytes;
	return true;
}

/* Has the kernel take a huge page wherever one begins in what is about to be filled: a copy of values that stand on
 * small ones takes a quarter longer. Asked before anything is written there, it has nothing to move. Where it
 * cannot (before Linux 6.1, no such page free, a limit of memory) small pages follow as ever. */
static void arena_widen(const shared_head *h, uint64_t begin, uint64_t end)
{
	uint64_t at = (begin + HUGE_PAGE - 1) & ~(uint64_t)(HUGE_PAGE - 1);
	for (; at < end && at + HUGE_PAGE <= h->bytes; at += HUGE_PAGE) {
		unsigned char *page = (unsigned char *)h + at;

		/* The huge page comes from the NUMA node of the pages that are there: that of this thread. */
		(void)*(volatile unsigned char *)page;
		if (madvise(page, HUGE_PAGE, MADV_COLLAPSE))
			return;
	}
}

uint64_t load_arena_alloc(gradcomp_dataset *ds, slot *s, uint64_t bytes)
{
	shared_head *h = ds->head;
	uint64_t need = value_rounded(bytes), used = atomic_load(&h->arena_used), left = atomic_load(&s->offset);
	if (bytes > VALUE_MOST)
		return 0;
	/* An attempt before this one has left space. */
	if (left && need <= value_rounded(atomic_load(&s->bytes)))
		return left;
	do {
		if (need > h->arena_limit - used)
			return 0;
	} while (!atomic_compare_exchange_weak(&h->arena_used, &used, used + need));
	atomic_store(&s->bytes, bytes);
	atomic_store(&s->offset, h->arena + used);
	arena_widen(h, h->arena + used, h->arena + used + need);
	return h->arena + used;
}

#define COST_WEIGHT 16 /* a call is one part in so many of the mean */

static void cost_note(atomic_uint_fast64_t *mean, uint64_t one)
{
	uint64_t was = atomic_load_explicit(mean, memory_order_relaxed);
	atomic_store_explicit(mean, (was ? was - was / COST_WEIGHT + one / COST_WEIGHT : one) + !one,
	                      memory_order_relaxed);
}

uint64_t load_ns_expected(const gradcomp_dataset *ds, uint64_t bytes)
{
	const rank_area *a = ds->area;
	const load_cost *c = atomic_load_explicit(&a->again.ns, memory_order_relaxed) ? &a->again : &a->first;
	uint64_t ns = atomic_load_explicit(&c->ns, memory_order_relaxed),
		 mean = atomic_load_explicit(&c->bytes, memory_order_relaxed);
	return bytes > mean && mean ? (uint64_t)((double)ns * (double)bytes / (double)mean) : ns;
}

static void *buffer_alloc(gradcomp_value_buffer *buffer, uint64_t bytes)
{
	loading *m = buffer->ctx;
	if (m->calls++)
		return NULL;
	if (m->alloc && bytes <= VALUE_MOST && (m->v.data = m->alloc(m->ctx, bytes))) {
		m->v.offset = (uint64_t)((unsigned char *)m->v.data - (unsigned char *)m->ds->head);
		m->v.bytes = bytes;
		return m->v.data;
	}
	return load_value_alloc(&m->v, bytes) ? m->v.data : NULL;
}

gradcomp_status load_value_at(gradcomp_dataset *ds, uint64_t index, void *(*alloc)(void *ctx, uint64_t bytes),
                              void *ctx, value *out, gradcomp_error *err)
{
	loading m = {.buffer = {.struct_size = sizeof m.buffer, .alloc = buffer_alloc},
	             .ds = ds,
	             .alloc = alloc,
	             .ctx = ctx};
	gradcomp_error why = {0};
	uint64_t begin = process_clock_ns(), took;
	gradcomp_status st;
	m.buffer.ctx = &m;
	st = ds->o.load(ds->o.ctx, index, &m.buffer, &why);
	took = process_clock_ns() - begin;
	count(&ds->area->counts.load_ns, took);
	if (!st && m.calls == 1 && m.v.data) {
		load_cost *cost = alloc ? &ds->area->first : &ds->area->again;

		cost_note(&cost->ns, took);
		cost_note(&cost->bytes, m.v.bytes);
		*out = m.v;
		return GRADCOMP_OK;
	}
	free(m.v.base);
	if (st > 0 || (!st && m.calls != 1))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "sample %llu: its load() returned %d and called alloc() %d times; it must return "
		                 "0 and call it once, or return a negative status",
		                 (unsigned long long)index, (int)st, m.calls);
	if (!st)
		return error_set(err, GRADCOMP_ERR_NOMEM,
		                 "sample %llu: no memory for it, which its load() did not notice",
		                 (unsigned long long)index);
	return error_set(err, st, "sample %llu: %s", (unsigned long long)index,
	                 why.text[0] ? why.text : gradcomp_strerror(st));
}

void load_value_lend(gradcomp_dataset *ds, value *v, uint64_t index, uint32_t source, gradcomp_value_view *view)
{
	counters *c = &ds->area->counts;
	count(source == GRADCOMP_VALUE_LOCAL    ? &c->local
	      : source == GRADCOMP_VALUE_REMOTE ? &c->remote
	      : source == GRADCOMP_VALUE_SPILL  ? &c->spilled
	                                        : &c->loaded,
	      1);
	atomic_fetch_add(&ds->users, 1);
	view->source = source;
	view->index = index;
	view->data = v->data;
	view->bytes = v->bytes;
	view->hold = v->base;
}
