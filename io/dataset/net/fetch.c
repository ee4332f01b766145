#include "io/dataset/net/fetch.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <xxhash.h>

/* A ticket that the receive buffer has no space for is given up after this time: the values that
 * the program has on loan may fill it. */
#define PATIENCE_NS 100000000u

/* Times `prefetch`, at most: values of very different sizes keep links busy only when many are requested. */
#define FURTHER 16u

uint32_t fetch_tickets(uint32_t prefetch)
{
	uint32_t n = TICKETS_LEAST;
	while (n < TICKETS_MOST && n / 4 < (uint64_t)FURTHER * prefetch)
		n *= 2;
	return n;
}

uint64_t fetch_reach(const gradcomp_dataset *ds, uint32_t prefetch)
{
	uint64_t mean = ds->tickets ? atomic_load_explicit(&ds->fetch->mean, memory_order_relaxed) : 0, fit, most;
	if (!mean)
		return prefetch;
	fit = ds->head->rx_buffer_bytes / 2 / mean;
	most = (uint64_t)FURTHER * prefetch < ds->head->ntickets / 4 ? (uint64_t)FURTHER * prefetch
	                                                             : ds->head->ntickets / 4;
	fit = fit < most ? fit : most;
	return fit > prefetch ? fit : prefetch;
}

bool fetch_holds(const gradcomp_dataset *ds, const void *hold)
{
	return ds->tickets && (const ticket *)hold >= ds->tickets &&
	       (const ticket *)hold < ds->tickets + ds->head->ntickets;
}

void fetch_notify(gradcomp_dataset *ds, const ticket *t)
{
	uint64_t n = (uint64_t)(t - ds->tickets);
	atomic_fetch_or(&ds->fetch->attention[n / 64], (uint64_t)1 << n % 64);
	if (atomic_exchange(&ds->fetch->asleep, 0))
		eventfd_write(ds->wake_fd, 1);
}

static ticket *bucket(const gradcomp_dataset *ds, uint64_t index, uint32_t i)
{
	uint64_t hash = index * 0x9e3779b97f4a7c15u >> 32;
	return &ds->tickets[(hash * BUCKET + i) % ds->head->ntickets];
}

/* A ticket for `index` whose value is on its way or ready; *word is the word it had. */
static ticket *find(const gradcomp_dataset *ds, uint64_t index, uint32_t *word)
{
	for (uint32_t i = 0; i < 2 * BUCKET; i++) {
		ticket *t = bucket(ds, index, i);

		*word = atomic_load_explicit(&t->word, memory_order_acquire);
		if (atomic_load_explicit(&t->index, memory_order_relaxed) != index)
			continue;
		switch (*word & WORD_STATE) {
		case TICKET_WANTED:
		case TICKET_FLYING:
		case TICKET_READY:
		case TICKET_ABSENT:
			return t;
		}
	}
	return NULL;
}

static ticket *claim(gradcomp_dataset *ds, uint64_t index, unsigned flags)
{
	uint32_t self = atomic_load(&ds->self);
	for (uint32_t i = 0; i < 2 * BUCKET; i++) {
		ticket *t = bucket(ds, index, i);

		if (atomic_load_explicit(&t->word, memory_order_relaxed) != TICKET_FREE ||
		    !ticket_move(t, TICKET_FREE, TICKET_SETUP | self))
			continue;
		atomic_store_explicit(&t->index, index, memory_order_relaxed);
		atomic_store_explicit(&t->flags, flags, memory_order_relaxed);
		t->bytes = t->offset = 0;
		ticket_become(t, TICKET_WANTED);
		fetch_notify(ds, t);
		return t;
	}
	return NULL;
}

void fetch_expect(gradcomp_dataset *ds, uint64_t index, unsigned flags)
{
	uint32_t word;
	ticket *t = find(ds, index, &word);
	if (t)
		atomic_fetch_and(&t->flags, ~TICKET_DROPPED);
	else
		claim(ds, index, flags);
}

static void put_back(gradcomp_dataset *ds, ticket *t)
{
	atomic_fetch_sub(&ds->fetch->refs[t->block], 1);
	ticket_become(t, TICKET_FREE);
}

void fetch_release(gradcomp_dataset *ds, ticket *t)
{
	uint32_t word = atomic_load(&t->word);
	/* The service changes OFFERED to HELD while this looks. */
	if ((word & WORD_STATE) == TICKET_OFFERED && ticket_move(t, word, (word & ~WORD_STATE) | TICKET_LEFT))
		return;
	put_back(ds, t);
}

/* Frees a ticket whose value nobody has taken; false when there is none to free. */
static bool discard(gradcomp_dataset *ds, ticket *t, uint32_t whose)
{
	if (!ticket_move(t, TICKET_READY | whose, TICKET_HELD | whose))
		return ticket_move(t, TICKET_WANTED | whose, TICKET_FREE) ||
		       ticket_move(t, TICKET_ABSENT | whose, TICKET_FREE);
	put_back(ds, t);
	return true;
}

bool fetch_dropped(gradcomp_dataset *ds, ticket *t, uint32_t whose)
{
	return (atomic_load(&t->flags) & (TICKET_DROPPED | TICKET_URGENT)) == TICKET_DROPPED && discard(ds, t, whose);
}

void fetch_drop(gradcomp_dataset *ds)
{
	uint32_t self = atomic_load(&ds->self);
	for (uint32_t i = 0; i < ds->head->ntickets; i++) {
		ticket *t = &ds->tickets[i];

		if (!(atomic_load(&t->flags) & TICKET_ORDERED) || discard(ds, t, self) ||
		    atomic_load(&t->word) != (TICKET_FLYING | self))
			continue;
		/* The service looks for the mark when it has come, which may have been just now. */
		atomic_fetch_or(&t->flags, TICKET_DROPPED);
		fetch_dropped(ds, t, self);
	}
}

/* next() waits for a value no longer than load() would take, if it may load it as well: so it takes at most twice
 * as long as with the faster of the two, whichever that is. */
static uint64_t patience(const gradcomp_dataset *ds, const ticket *t, unsigned flags)
{
	if (flags & FETCH_RELOAD)
		return 0;
	return ds->o.reload && (flags & (TICKET_ORDERED | FETCH_PATIENT)) == TICKET_ORDERED
	               ? load_ns_expected(ds, t->bytes)
	               : UINT64_MAX;
}

/* Waits on a ticket until there is something to take on it: its word then, this process's own; TICKET_FREE when it
 * has become another's or the receive buffer has had no space for too long; or as it is, WANTED or FLYING, when
 * patience() has run out. */
static gradcomp_status await(gradcomp_dataset *ds, ticket *t, uint64_t index, unsigned flags, uint64_t begin,
                             uint32_t *taken, gradcomp_error *err)
{
	uint32_t self = atomic_load(&ds->self);
	for (;;) {
		uint32_t word = atomic_load_explicit(&t->word, memory_order_acquire), state = word & WORD_STATE;
		uint64_t most = patience(ds, t, flags), waited;
		gradcomp_status st;

		*taken = TICKET_FREE;
		if (atomic_load(&t->index) != index)
			return GRADCOMP_OK;
		if (state == TICKET_READY || state == TICKET_ABSENT) {
			uint32_t to = (state == TICKET_READY ? TICKET_HELD : TICKET_LOADING) | self;

			if (!ticket_move(t, word, to))
				continue;
			if (atomic_load(&t->index) == index) {
				*taken = to;
				return GRADCOMP_OK;
			}
			/* It had become another's in between. */
			ticket_move(t, to, word);
			process_wake(&t->word);
			return GRADCOMP_OK;
		}
		if (state != TICKET_WANTED && state != TICKET_FLYING && state != TICKET_SETUP)
			return GRADCOMP_OK;
		waited = process_clock_ns() - begin;
		if (waited >= most && state != TICKET_SETUP) {
			*taken = word;
			return GRADCOMP_OK;
		}
		if (!(atomic_fetch_or(&t->flags, TICKET_URGENT) & TICKET_URGENT))
			fetch_notify(ds, t);
		if (state == TICKET_WANTED && atomic_load(&ds->fetch->starved) && waited > PATIENCE_NS &&
		    ticket_move(t, word, TICKET_LOADING | self)) {
			atomic_fetch_or(&t->flags, TICKET_FINAL);
			*taken = TICKET_LOADING | self;
			return GRADCOMP_OK;
		}
		st = process_wait_ns(ds, &t->word, word, most > waited ? most - waited : most, err);
		if (st)
			return st;
	}
}

/* Space in the receive buffer for a value this process loads instead of its owner. */
typedef struct rx_space {
	ticket *t;
	gradcomp_dataset *ds;
} rx_space;

static void *request_space(void *ctx, uint64_t bytes)
{
	rx_space *w = ctx;
	ticket *t = w->t;
	uint32_t self = atomic_load(&w->ds->self);
	t->bytes = bytes;
	t->offset = 0;
	ticket_become(t, TICKET_ALLOC);
	fetch_notify(w->ds, t);
	while (atomic_load_explicit(&t->word, memory_order_acquire) == (TICKET_ALLOC | self))
		if (process_wait(w->ds, &t->word, TICKET_ALLOC | self, NULL) &&
		    ticket_move(t, TICKET_ALLOC | self, TICKET_LOADING | self))
			return NULL;
	return t->offset ? (unsigned char *)w->ds->head + t->offset : NULL;
}

/* Loads a value that its owner does not have, to where the service can offer it to the owner, if
 * there is space. */
static gradcomp_status load_instead(gradcomp_dataset *ds, ticket *t, uint64_t index, gradcomp_value_view *view,
                                    gradcomp_error *err)
{
	bool offer = !(atomic_load(&t->flags) & (TICKET_FINAL | TICKET_ORDERED)) && !process_lost(ds);
	rx_space room = {t, ds};
	gradcomp_status st;
	value v;
	t->offset = 0;
	st = load_value_at(ds, index, offer ? request_space : NULL, &room, &v, err);
	if (st || v.base) {
		/* Loaded in vain, or where only this process sees it. */
		if (t->offset)
			atomic_fetch_sub(&ds->fetch->refs[t->block], 1);
		ticket_become(t, TICKET_FREE);
		if (!st) {
			count(&ds->area->counts.unkept, 1);
			load_value_lend(ds, &v, index, GRADCOMP_VALUE_LOADED, view);
		}
		return st;
	}
	t->sum = XXH64(v.data, v.bytes, index);
	load_value_lend(ds, &v, index, GRADCOMP_VALUE_LOADED, view);
	view->hold = t;
	ticket_become(t, TICKET_OFFERED);
	fetch_notify(ds, t);
	return GRADCOMP_OK;
}

/* Returns true when this node keeps it: since a moment ago, when the node that did is lost. */
static bool is_here(const gradcomp_dataset *ds, uint64_t index, sample_owner *at)
{
	owner_of(ds, index, at);
	return at->node == ds->node;
}

static gradcomp_status load_alone(gradcomp_dataset *ds, uint64_t index, gradcomp_value_view *view, gradcomp_error *err)
{
	gradcomp_status st;
	value v;
	st = load_value_at(ds, index, NULL, NULL, &v, err);
	if (!st)
		load_value_lend(ds, &v, index, GRADCOMP_VALUE_LOADED, view);
	return st;
}

/* The value has arrived; true when it matches its owner's checksum. */
static bool take(gradcomp_dataset *ds, ticket *t, uint64_t index, gradcomp_value_view *view)
{
	value v = {.data = (unsigned char *)ds->head + t->offset, .bytes = t->bytes, .offset = t->offset};
	if (XXH64(v.data, v.bytes, index) != t->sum) {
		count(&ds->area->counts.damaged, 1);
		return false;
	}
	count(&ds->area->counts.remote_bytes, v.bytes);
	load_value_lend(ds, &v, index, GRADCOMP_VALUE_REMOTE, view);
	view->hold = t;
	return true;
}

static bool has_come(uint32_t word)
{
	return (word & WORD_STATE) == TICKET_READY || (word & WORD_STATE) == TICKET_ABSENT;
}

/* Its value is not waited for any more. */
static void give_up(gradcomp_dataset *ds, ticket *t, uint32_t word)
{
	if (!ticket_move(t, TICKET_WANTED | atomic_load(&ds->self), TICKET_FREE) &&
	    (word & WORD_STATE) == TICKET_FLYING)
		atomic_fetch_or(&t->flags, TICKET_URGENT);
}

/* next() has loaded it meanwhile. Others that wait for this ticket look again when it comes. */
static void overtake(gradcomp_dataset *ds, ticket *t)
{
	uint32_t self = atomic_load(&ds->self);
	if (discard(ds, t, self) || atomic_load(&t->word) != (TICKET_FLYING | self))
		return;
	atomic_fetch_and(&t->flags, ~TICKET_URGENT);
	atomic_fetch_or(&t->flags, TICKET_DROPPED);
	fetch_dropped(ds, t, self);
}

gradcomp_status fetch_obtain(gradcomp_dataset *ds, uint64_t index, unsigned flags, gradcomp_value_view *view,
                             gradcomp_error *err)
{
	uint64_t begin = process_clock_ns();
	gradcomp_status st = GRADCOMP_OK;
	uint32_t word;
	for (;;) {
		sample_owner at;
		bool lost = process_lost(ds);
		ticket *t = find(ds, index, &word);

		if (is_here(ds, index, &at))
			return slot_obtain(ds, index, at.slot, view, err);
		if (!t && !lost && flags & FETCH_RELOAD) {
			st = load_alone(ds, index, view, err);
			if (!st)
				break;
			flags ^= FETCH_RELOAD | FETCH_PATIENT;
		}
		if (lost ? !t || !has_come(word)
		         : !t && !(t = claim(ds, index, (flags & TICKET_ORDERED) | TICKET_URGENT))) {
			/* Nothing comes, or all tickets it could have are on loan. */
			if (t)
				give_up(ds, t, word);
			st = load_alone(ds, index, view, err);
			break;
		}
		st = await(ds, t, index, flags, begin, &word, err);
		if (process_outlives(ds, st))
			continue;
		if (st)
			break;
		if ((word & WORD_STATE) == TICKET_WANTED || (word & WORD_STATE) == TICKET_FLYING) {
			st = load_alone(ds, index, view, err);
			if (!st) {
				overtake(ds, t);
				break;
			}
			flags = (flags & ~FETCH_RELOAD) | FETCH_PATIENT;
			continue;
		}
		if ((word & WORD_STATE) == TICKET_LOADING) {
			st = load_instead(ds, t, index, view, err);
			break;
		}
		if ((word & WORD_STATE) == TICKET_HELD) {
			if (take(ds, t, index, view))
				break;
			ticket_become(t, TICKET_DAMAGED);
			fetch_notify(ds, t);
			st = load_alone(ds, index, view, err);
			break;
		}
	}
	count(&ds->area->counts.wait_ns, process_clock_ns() - begin);
	return st;
}
