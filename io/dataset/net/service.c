#include "io/dataset/net/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "job/job.h"
#include "base/thread.h"
#include "config/config.h"

#define STARVED_SECONDS 0.002
#define SWEEP_NS 1000000000u /* between looks at who is dead, and who is silent */

static bool ends(const peer *p)
{
	return p->link == LINK_LEAVING || p->link == LINK_LEFT;
}

/* Something is to come from it. While offers are held it has not been told of them. */
static bool is_due(const peer *p)
{
	return ends(p) || p->nrequests || p->nlater || p->ntakes || (p->noffers && !p->nheld);
}

/* A peer that owes answers or values and sends nothing at all would keep processes waiting for ever.
 * Time in which this process was stopped does not count. */
static void peers_watch(service *s, uint64_t passed)
{
	double limit = config_float(s->ds->group->job->config, SET_TRANSPORT_WAIT_TIMEOUT);
	char what[128];
	passed = passed < 2 * SWEEP_NS ? passed : SWEEP_NS;
	for (int i = 0; i < s->npeers && !s->status; i++) {
		peer *p = &s->peers[i];

		p->silent = is_due(p) && !p->heard ? p->silent + passed : 0;
		p->heard = false;
		if ((double)p->silent < limit * 1e9)
			continue;
		snprintf(what, sizeof what,
		         "has been silent for %.3g s (transport.wait_timeout) and owes %s of a dataset", limit,
		         ends(p) ? "the end of a connection" : "values");
		message_blame(s, p, GRADCOMP_ERR_TIMEOUT, what);
	}
}

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
			rx_buffer_unref(s, (uint32_t)o->block);
		p->nouts--;
		p->nreplies -= o->reply;
		p->spilled -= o->owned_bytes;
		message_free(o);
	}
}

/* Finds the rank that this one sends requests to on each node, and the ranks that send it some. */
static gradcomp_status peers_find(service *s, gradcomp_error *err)
{
	gradcomp_dataset *ds = s->ds;
	int32_t *here = calloc((size_t)ds->nnodes, sizeof *here);
	s->npeers = 0;
	s->peer_of = calloc((size_t)ds->nnodes, sizeof *s->peer_of);
	s->peers = calloc((size_t)ds->nranks, sizeof *s->peers);
	if (!here || !s->peer_of || !s->peers) {
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
	/* A ticket may be of a sample that this node has come to own since it was wanted. */
	s->peer_of[ds->node] = -1;
	free(here);
	return GRADCOMP_OK;
}

static bool quiet(const service *s)
{
	for (int i = 0; i < s->npeers; i++)
		if (s->peers[i].nrequests || s->peers[i].outs || s->peers[i].nheld)
			return false;
	return !s->offers;
}

/* Hears the ranks that need this one for the first time. */
static void callers_hear(service *s)
{
	for (int rank; !s->status && (rank = channel_caller(s->ds->channel)) >= 0;) {
		int i = 0;

		while (i < s->npeers && s->peers[i].rank != rank)
			i++;
		if (i < s->npeers)
			links_called(s, &s->peers[i]);
		else
			message_blame(s, &(peer){.rank = rank}, GRADCOMP_ERR_MISMATCH,
			              "connects to the service of a dataset that it has nothing to do with");
	}
}

void service_turn(service *s)
{
	uint64_t passed;
	s->starved = s->posted = false;
	s->nwaiting = 0;
	if (s->ds->channel)
		callers_hear(s);
	tickets_attend(s);
	load_worker_notify(s);
	for (int i = 0, first = s->turn; i < s->npeers && !s->status; i++) {
		peer *p = &s->peers[(first + i) % s->npeers];

		if (p->link != LINK_CLOSED)
			receive_poll(s, p);
		links_flush(s, p);
		request_send(s, p);
		collect(s, p);
	}
	if (!s->status)
		links_turn(s);
	passed = process_clock_ns() - s->swept;
	if (passed < SWEEP_NS)
		return;
	s->swept += passed;
	tickets_sweep(s);
	if (!s->status)
		peers_watch(s, passed);
}

static void serve(service *s)
{
	gradcomp_dataset *ds = s->ds;
	eventfd_t events;
	gradcomp_error err;
	gradcomp_status st;
	atomic_store(&ds->fetch->asleep, 1);
	service_turn(s);
	if (atomic_load(&s->draining) && !atomic_load(&s->drained) && quiet(s)) {
		atomic_store(&s->drained, 1);
		process_wake(&s->drained);
	}
	atomic_store(&ds->fetch->starved, s->starved);
	if (s->status)
		return;
	st = channel_pause(ds->channel, ds->wake_fd, s->posted ? 0 : s->starved ? STARVED_SECONDS : 1, &err);
	if (st)
		message_failed(s, st, &err);
	eventfd_read(ds->wake_fd, &events);
}

/* Slots that were being filled by others' values are to be filled by anybody: nothing is received any more. */
static void abandon_pushes(service *s)
{
	sample_owner at;
	for (take *t; (t = s->takes);) {
		owner_of(s->ds, t->index, &at);
		slot_abandon(&s->ds->slots[at.slot]);
		s->takes = t->next;
		t->from->ntakes--;
		free(t);
	}
	for (int i = 0; i < s->npeers; i++)
		if (s->peers[i].state == IN_PUSH) {
			slot_abandon(&s->ds->slots[s->peers[i].pushed_slot]);
			s->peers[i].state = IN_HEAD;
		}
}

static void *service_main(void *arg)
{
	service *s = arg;
	gradcomp_dataset *ds = s->ds;
	while (!s->status && !atomic_load(&s->quit))
		if (ds->tickets) {
			serve(s);
		} else {
			gradcomp_error err;
			gradcomp_status st = channel_pause(ds->channel, ds->wake_fd, 1, &err);

			if (st)
				message_failed(s, st, &err);
		}
	if (s->status) {
		process_failed(ds, &s->error);
		/* Else who wants them would wait for a shrink that may be its own to call. Over sockets, as these
		 * jobs are, nothing comes to where it was posted once this thread has ended. */
		if (ds->endures)
			abandon_pushes(s);
		for (uint32_t i = 0; i < ds->head->ntickets; i++)
			process_wake(&ds->tickets[i].word);
	}
	atomic_store(&s->drained, 1);
	process_wake(&s->drained);
	return NULL;
}

gradcomp_status service_new(gradcomp_dataset *ds, const gradcomp_links *links, gradcomp_error *err)
{
	service *s = calloc(1, sizeof *s);
	gradcomp_status st = GRADCOMP_OK;
	if (!s)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to serve a dataset");
	s->ds = ds;
	s->links = links;
	s->nlinks_limit = (unsigned)config_int(ds->group->job->config, SET_DATASET_CONNECTIONS);
	ds->service = s;
	ds->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ds->wake_fd < 0)
		return error_errno(err, GRADCOMP_ERR_IO, "no descriptor to wake the service of a dataset");
	s->sorted = calloc(BLOCKS, sizeof *s->sorted);
	s->flights = calloc((size_t)ds->head->ntickets + 1, sizeof *s->flights);
	if (!s->sorted || !s->flights)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to serve a dataset");
	if (!st && ds->tickets)
		st = peers_find(s, err);
	if (!st && ds->tickets)
		st = load_worker_start(s, err);
	return st;
}

static gradcomp_status start(service *s, gradcomp_error *err)
{
	if (thread_start(&s->thread, service_main, s))
		return error_set(err, GRADCOMP_ERR_NOMEM, "cannot start a thread to serve a dataset");
	s->started = true;
	return GRADCOMP_OK;
}

gradcomp_status service_start(gradcomp_dataset *ds, gradcomp_error *err)
{
	gradcomp_status st;
	if (!ds->channel)
		return GRADCOMP_OK;
	st = service_new(ds, channel_links(ds->channel), err);
	return st ? st : start(ds->service, err);
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

void service_halt(gradcomp_dataset *ds)
{
	if (ds->service && ds->service->load_worker)
		load_worker_halt(ds->service->load_worker);
}

static void thread_stop(service *s)
{
	if (!s->started)
		return;
	atomic_store(&s->quit, 1);
	eventfd_write(s->ds->wake_fd, 1);
	pthread_join(s->thread, NULL);
	s->started = false;
}

void service_stop(gradcomp_dataset *ds)
{
	service *s = ds->service;
	if (!s)
		return;
	thread_stop(s);
	load_worker_stop(s->load_worker);
	s->load_worker = NULL;
}

/* Its connections are closed. What is left of messages, and of what they were about. */
static void clear(service *s)
{
	for (int i = 0; i < s->npeers; i++) {
		peer *p = &s->peers[i];

		for (out *o = p->outs, *next; o; o = next) {
			next = o->next;
			if (o->block >= 0)
				rx_buffer_unref(s, (uint32_t)o->block);
			message_free(o);
		}
		free(p->items);
		free(p->values);
		free(p->pushed.base);
		free(p->wanted);
		free(p->held);
	}
	for (offer *f = s->offers, *next; f; f = next) {
		next = f->next;
		rx_buffer_unref(s, f->block);
		free(f);
	}
	for (take *t = s->takes, *next; t; t = next) {
		next = t->next;
		free(t);
	}
	for (uint32_t b = 0; b < BLOCKS; b++) {
		if (s->blocks[b].asked)
			rx_buffer_unref(s, b);
		free(s->blocks[b].tickets);
		s->blocks[b].tickets = NULL;
		s->blocks[b].asked = NULL;
	}
	s->offers = NULL;
	s->takes = NULL;
	free(s->peers);
	free(s->peer_of);
	s->peers = NULL;
	s->peer_of = NULL;
	s->npeers = 0;
	s->nlinks = 0;
}

void service_detach(gradcomp_dataset *ds)
{
	service *s = ds->service;
	if (!s)
		return;
	thread_stop(s);
	channel_close(ds->channel);
	ds->channel = NULL;
	if (s->load_worker)
		load_worker_forget(s->load_worker);
	if (ds->tickets) {
		abandon_pushes(s);
		tickets_detach(s);
	}
	clear(s);
	memset(s->flights, 0, ds->head->ntickets * sizeof *s->flights);
	s->status = GRADCOMP_OK;
	atomic_store(&s->drained, 1);
}

gradcomp_status service_attach(gradcomp_dataset *ds, gradcomp_error *err)
{
	service *s = ds->service;
	gradcomp_status st = GRADCOMP_OK;
	atomic_store(&s->quit, 0);
	atomic_store(&s->drained, 0);
	s->links = channel_links(ds->channel);
	s->swept = process_clock_ns();
	if (ds->tickets) {
		st = peers_find(s, err);
		tickets_attach(s);
	}
	return st ? st : start(s, err);
}

void service_free(gradcomp_dataset *ds)
{
	service *s = ds->service;
	/* The channel is closed before the memory is freed that its transfers read and write. */
	channel_close(ds->channel);
	ds->channel = NULL;
	if (!s)
		return;
	load_worker_stop(s->load_worker);
	if (ds->fetch)
		clear(s);
	free(s->sorted);
	free(s->flights);
	free(s);
	ds->service = NULL;
}
