#include "service.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "job.h"
#include "thread.h"

#define SWEEP_NS 1000000000u
#define STARVED_SECONDS 0.002

void service_failed(service *s, gradcomp_status st, const gradcomp_error *err)
{
	if (s->status)
		return;
	s->status = st;
	if (err) {
		s->error = *err;
		return;
	}
	/* What this rank lacks ends the job for all. */
	job_fail(s->ds->group->job, st, "no memory to serve a dataset");
	transport_failure(s->ds->group->job->transport, &s->error);
}

void service_wrong(service *s, const peer *p, const char *what)
{
	gradcomp_dataset *ds = s->ds;
	int world = ds->group->ranks[p->rank];
	gradcomp_error err;

	error_set(&err, GRADCOMP_ERR_MISMATCH, "rank %d on %s %s, says rank %d", world,
	          transport_host(ds->group->job->transport, world), what, ds->group->ranks[ds->rank]);
	transport_fail(ds->group->job->transport, GRADCOMP_ERR_MISMATCH, world, err.text);
	service_failed(s, GRADCOMP_ERR_MISMATCH, &err);
}

/* ---- tickets ---- */

static peer *peer_for(const service *s, uint64_t index)
{
	place at;

	owner_of(s->ds, index, &at);
	return &s->peers[s->peer_of[s->ds->node_of[at.rank]]];
}

void ticket_want(service *s, uint32_t n)
{
	peer *p = peer_for(s, atomic_load(&s->ds->tickets[n].index));

	if (p->nwanted == p->room) {
		size_t left = p->nwanted - p->first, room = left >= p->room / 2 ? 2 * p->room + 64 : p->room;
		uint32_t *more = malloc(room * sizeof *more);

		if (!more) {
			service_failed(s, GRADCOMP_ERR_NOMEM, NULL);
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
		service_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		return;
	}
	*f = (offer){.next = s->offers, .id = ++s->offered, .index = atomic_load(&t->index), .offset = t->offset,
	             .bytes = t->bytes, .sum = t->sum, .block = t->block};
	f->to = peer_for(s, f->index);
	s->offers = f;
	out_header(s, f->to, (header){.type = MSG_OFFER, .id = f->id, .index = f->index, .bytes = f->bytes, .sum = f->sum});
}

static void ticket_free(ticket *t)
{
	atomic_store_explicit(&t->word, TICKET_FREE, memory_order_release);
	process_wake(&t->word);
}

void ticket_serve(service *s, uint32_t n)
{
	ticket *t = &s->ds->tickets[n];
	uint32_t word = atomic_load_explicit(&t->word, memory_order_acquire), whose = word & ~WORD_STATE;
	int b;

	switch (word & WORD_STATE) {
	case TICKET_WANTED:
		if (!atomic_load(&s->draining)) {
			ticket_want(s, n);
		} else if (ticket_move(t, word, TICKET_FLYING | whose)) {
			atomic_fetch_or(&t->flags, TICKET_FINAL);
			atomic_store_explicit(&t->word, TICKET_ABSENT | whose, memory_order_release);
			process_wake(&t->word);
		}
		break;
	case TICKET_ROOM:
		b = atomic_load(&s->draining) ? -1 : window_alloc(s, t->bytes);
		t->block = b < 0 ? 0 : (uint32_t)b;
		t->offset = b < 0 ? 0 : s->blocks[b].offset;
		atomic_store_explicit(&t->word, TICKET_MAKING | whose, memory_order_release);
		process_wake(&t->word);
		break;
	case TICKET_OFFERED:
		atomic_fetch_add(&s->ds->fetch->refs[t->block], 1);
		offer_make(s, t);
		if (!ticket_move(t, word, TICKET_HELD | whose)) {
			window_unref(s, t->block);
			ticket_free(t);
		}
		break;
	case TICKET_LEFT:
		offer_make(s, t);
		ticket_free(t);
		break;
	case TICKET_DAMAGED:
		out_header(s, peer_for(s, atomic_load(&t->index)), (header){.type = MSG_DAMAGED, .index = atomic_load(&t->index)});
		window_unref(s, t->block);
		ticket_free(t);
		break;
	}
}

/* Frees the tickets of processes that have died. */
static void sweep(service *s)
{
	gradcomp_dataset *ds = s->ds;
	uint32_t alive = atomic_load(&ds->self);

	s->swept = clock_ns();
	for (uint32_t i = 0; i < ds->head->ntickets; i++) {
		ticket *t = &ds->tickets[i];
		uint32_t word = atomic_load_explicit(&t->word, memory_order_acquire), state = word & WORD_STATE;

		if (state == TICKET_FREE || state == TICKET_FLYING || (word & ~WORD_STATE) == alive)
			continue;
		if (process_alive(ds, word)) {
			alive = word & ~WORD_STATE;
			continue;
		}
		/* Somebody alive may take over what is on its way. */
		if (!ticket_move(t, word, TICKET_SETUP | atomic_load(&ds->self)))
			continue;
		if (state == TICKET_READY || state == TICKET_HELD || state == TICKET_OFFERED || state == TICKET_LEFT ||
		    state == TICKET_DAMAGED || (state == TICKET_MAKING && t->offset))
			window_unref(s, t->block);
		ticket_free(t);
	}
}

static void attend(service *s)
{
	fetch_area *f = s->ds->fetch;

	for (uint32_t i = 0; i < s->ds->head->ntickets / 64; i++) {
		uint64_t bits = atomic_load_explicit(&f->attention[i], memory_order_relaxed) ? atomic_exchange(&f->attention[i], 0) : 0;

		for (; bits; bits &= bits - 1)
			ticket_serve(s, i * 64 + (uint32_t)__builtin_ctzll(bits));
	}
}

/* ---- peers ---- */

static void collect(service *s, peer *p)
{
	for (out **at = &p->outs, *o; (o = *at);) {
		unsigned done = 0;

		while (done < o->n && channel_done(&o->req[done]))
			done++;
		if (done < o->n) {
			at = &o->next;
			continue;
		}
		*at = o->next;
		if (o->block >= 0)
			window_unref(s, (uint32_t)o->block);
		out_free(o);
	}
}

/* Whom this rank asks on each node, and who asks it. */
static gradcomp_status peers_find(service *s, gradcomp_error *err)
{
	gradcomp_dataset *ds = s->ds;
	int32_t *here = calloc((size_t)ds->nnodes, sizeof *here);

	s->peer_of = calloc((size_t)ds->nnodes, sizeof *s->peer_of);
	s->peers = calloc((size_t)ds->nranks, sizeof *s->peers);
	s->sorted = calloc(BLOCKS, sizeof *s->sorted);
	if (!here || !s->peer_of || !s->peers || !s->sorted) {
		free(here);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to serve a dataset of %d ranks", ds->nranks);
	}
	for (int r = 0; r < ds->nranks; r++)
		here[ds->node_of[r]]++;
	for (int r = 0; r < ds->nranks; r++) {
		int node = ds->node_of[r], asks = ds->local % here[node] == ds->local_of[r];

		if (node == ds->node || (!asks && ds->local_of[r] % ds->nlocal != ds->local))
			continue;
		if (asks)
			s->peer_of[node] = s->npeers;
		s->peers[s->npeers++].rank = r;
	}
	free(here);
	return GRADCOMP_OK;
}

static bool quiet(const service *s)
{
	for (int i = 0; i < s->npeers; i++)
		if (s->peers[i].asks || s->peers[i].outs)
			return false;
	return !s->offers;
}

static void serve(service *s)
{
	gradcomp_dataset *ds = s->ds;
	eventfd_t events;
	gradcomp_error err;
	gradcomp_status st;

	atomic_store(&ds->fetch->asleep, 1);
	s->starved = s->posted = false;
	attend(s);
	keeper_notes(s);
	for (int i = 0; i < s->npeers && !s->status; i++) {
		hear(s, &s->peers[i]);
		ask(s, &s->peers[i]);
		collect(s, &s->peers[i]);
	}
	if (clock_ns() - s->swept > SWEEP_NS)
		sweep(s);
	if (atomic_load(&s->draining) && !atomic_load(&s->drained) && quiet(s)) {
		atomic_store(&s->drained, 1);
		process_wake(&s->drained);
	}
	atomic_store(&ds->fetch->starved, s->starved);
	if (s->status)
		return;
	st = channel_pause(ds->channel, ds->wake_fd, s->posted ? 0 : s->starved ? STARVED_SECONDS : 1, &err);
	if (st)
		service_failed(s, st, &err);
	eventfd_read(ds->wake_fd, &events);
}

static void *service_main(void *arg)
{
	service *s = arg;
	gradcomp_dataset *ds = s->ds;

	for (int i = 0; i < s->npeers && !s->status; i++)
		hear_header(s, &s->peers[i]);
	while (!s->status && !atomic_load(&s->quit))
		if (ds->tickets) {
			serve(s);
		} else {
			gradcomp_error err;
			gradcomp_status st = channel_pause(ds->channel, ds->wake_fd, 1, &err);

			if (st)
				service_failed(s, st, &err);
		}
	if (s->status) {
		process_failed(ds, &s->error);
		for (uint32_t i = 0; i < ds->head->ntickets; i++)
			process_wake(&ds->tickets[i].word);
	}
	atomic_store(&s->drained, 1);
	process_wake(&s->drained);
	return NULL;
}

gradcomp_status service_start(gradcomp_dataset *ds, gradcomp_error *err)
{
	service *s;
	gradcomp_status st = GRADCOMP_OK;

	if (!ds->channel)
		return GRADCOMP_OK;
	s = calloc(1, sizeof *s);
	if (!s)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to serve a dataset");
	s->ds = ds;
	s->links = channel_links(ds->channel);
	ds->service = s;
	ds->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ds->wake_fd < 0)
		return error_errno(err, GRADCOMP_ERR_IO, "no descriptor to wake the service of a dataset");
	if (ds->tickets)
		st = peers_find(s, err);
	if (!st && ds->tickets)
		st = keeper_start(s, err);
	if (!st && thread_start(&s->thread, service_main, s))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "cannot start a thread to serve a dataset");
	s->started = !st;
	return st;
}

gradcomp_status service_drain(gradcomp_dataset *ds, gradcomp_error *err)
{
	service *s = ds->service;
	gradcomp_status st = GRADCOMP_OK;

	if (!s || !ds->tickets)
		return GRADCOMP_OK;
	atomic_store(&s->draining, 1);
	eventfd_write(ds->wake_fd, 1);
	while (!st && !atomic_load(&s->drained))
		st = process_wait(ds, &s->drained, 0, err);
	return st;
}

void service_stop(gradcomp_dataset *ds)
{
	service *s = ds->service;

	if (s && s->started) {
		atomic_store(&s->quit, 1);
		eventfd_write(ds->wake_fd, 1);
		pthread_join(s->thread, NULL);
		keeper_stop(s->keeper);
		s->keeper = NULL;
		s->started = false;
	}
}

void service_free(gradcomp_dataset *ds)
{
	service *s = ds->service;

	/* Before what its transfers read and write is freed. */
	channel_close(ds->channel);
	ds->channel = NULL;
	if (!s)
		return;
	keeper_stop(s->keeper);
	for (int i = 0; i < s->npeers; i++) {
		peer *p = &s->peers[i];

		for (out *o = p->outs, *next; o; o = next) {
			next = o->next;
			out_free(o);
		}
		free(p->items);
		free(p->values);
		free(p->given.base);
		free(p->wanted);
	}
	for (offer *f = s->offers, *next; f; f = next) {
		next = f->next;
		free(f);
	}
	for (uint32_t b = 0; b < BLOCKS; b++)
		free(s->blocks[b].tickets);
	free(s->peers);
	free(s->peer_of);
	free(s->sorted);
	free(s);
	ds->service = NULL;
}
