/* A link over verbs once it is set up: its events, sleeping, and the end. */
#define _GNU_SOURCE
#include "transport/verbs/verbs_internal.h"

#include "transport/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 16
#define DRAIN_SECONDS 2.0
#define GOODBYE_MAGIC 0x42434731u /* "1GCB" */
#define GOODBYE_BYTES 8

/* A completion with an error is the last. If the peer is gone, its connection says so
 * first and more exactly. */
static int verbs_error(peer_link *l, verbs *v, const fabric_event *e)
{
	const transport *t = l->c->t;
	const char *host = transport_host(t, l->world), *here = transport_host(t, t->rank);
	char byte;
	ssize_t matched_sent;
	if (v->broken++)
		return 0;
	matched_sent = recv(l->fd[0], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	if (matched_sent >= 0 || link_leaves(l)) {
		if (!matched_sent && !link_leaves(l))
			link_eof(l);
		return 0;
	}
	if (e->result == FABRIC_DENIED)
		link_fail(l, GRADCOMP_ERR_INTERNAL,
		          "memory was touched between rank %d on %s and rank %d on %s that its key does not open (%s)",
		          t->rank, here, l->world, host, e->why);
	else if (e->result == FABRIC_SILENT)
		link_fail(l, GRADCOMP_ERR_PEER,
		          "the adapter of rank %d on %s does not answer rank %d on %s any more (%s)", l->world, host,
		          t->rank, here, e->why);
	else
		link_fail(l, GRADCOMP_ERR_IO, "the connected pair of rank %d on %s and rank %d on %s broke (%s)",
		          t->rank, here, l->world, host, e->why);
	return -1;
}

static int verbs_event(peer_link *l, verbs *v, const fabric_event *e)
{
	unsigned i = (unsigned)(e->id & 0xff);
	if (e->result != FABRIC_DONE)
		return verbs_error(l, v, e);
	switch (e->id >> 8) {
	case ID_DATA:
		v->data_slots--;
		/* fall through */
	case ID_CONTROL:
		v->slot[v->free_slots++] = (uint8_t)i;
		return 0;
	case ID_WRITE:
		return verbs_written(l, v, i);
	default:
		break;
	}
	if (!e->written)
		return verbs_message_arrived(l, v, i, e->bytes);
	return verbs_repost(l, v, i) ? -1 : verbs_piece_arrived(l, v, e);
}

/* Handles all completions; returns how many, or -1 with the job failed. */
static int verbs_events(peer_link *l, verbs *v)
{
	fabric_event e[EVENTS];
	int n, all = 0;
	do {
		n = v->d->f->poll(v->queue, e, EVENTS);
		if (n < 0)
			return verbs_refused(l, EIO);
		for (int i = 0; i < n; i++)
			if (verbs_event(l, v, &e[i]))
				return -1;
		all += n;
	} while (n == EVENTS);
	return all;
}

static void verbs_posted(peer_link *l, request *r)
{
	verbs *v = l->impl;
	r->left = r->bytes;
	r->first = 0;
	r->region = 0;
	if (r->sending) {
		if (!v->next_send)
			v->next_send = r;
		return;
	}
	if (!v->next_match)
		v->next_match = r;
	if (!v->next_cts && r->bytes > EAGER_BYTES)
		v->next_cts = r;
}

/* The queue goes first, so that nothing touches the memory that is given back. */
static void verbs_revoke(peer_link *l)
{
	verbs *v = l->impl;
	/* In a fork the device belongs to the rank. */
	if (l->c->t->forked)
		return;
	if (v->queue)
		v->d->f->unqueue(v->queue);
	v->queue = NULL;
	for (int i = 0; i < REGIONS; i++)
		if (v->region[i].handle)
			v->d->f->unreg(v->d->device, &v->region[i]);
}

/* The peer has left in good order, and its adapter may not have acknowledged the last
 * messages it received. Its goodbye says how many those are. */
static void verbs_left(peer_link *l, verbs *v)
{
	request *next;
	verbs_revoke(l);
	for (request *r = l->send.head; r && (int32_t)(r->seq - v->received) < 0; r = next) {
		next = r->next;
		link_done(r);
	}
	link_eof(l);
}

static int verbs_progress(peer_link *l)
{
	verbs *v = l->impl;
	int moved = v->queue ? verbs_events(l, v) : 0, more;
	if (moved < 0)
		return 0;
	more = verbs_pull(l, v);
	if (more < 0)
		return 0;
	moved |= more;
	more = verbs_push(l, v);
	if (more < 0)
		return 0;
	moved |= more;
	/* All that the peer sent before its goodbye has arrived by now. */
	if (!moved && l->state == PEER_LEAVING)
		verbs_left(l, v);
	return moved > 0;
}

int verbs_sleep(peer_link *l, struct pollfd *p)
{
	verbs *v = l->impl;
	p[0] = (struct pollfd){l->fd[0], POLLIN, 0};
	if (!v->queue)
		return 1;
	if (!v->armed) {
		v->armed = 1;
		v->d->f->arm(v->queue);
	}
	p[1] = (struct pollfd){v->fd, POLLIN, 0};
	return 2;
}

/* All that still comes over the connection is the goodbye, or its end. */
static void verbs_wake(peer_link *l, const struct pollfd *p, int n)
{
	verbs *v = l->impl;
	ssize_t got;
	if (n > 1 && p[1].revents && v->queue) {
		v->armed = 0;
		v->d->f->ack(v->queue);
	}
	if (!p[0].revents)
		return;
	got = recv(l->fd[0], v->in + v->have, GOODBYE_BYTES - v->have, MSG_DONTWAIT);
	if (got > 0) {
		v->have += (unsigned)got;
		if (v->have < GOODBYE_BYTES)
			return;
		v->received = get32(v->in + 4);
		if (get32(v->in) == GOODBYE_MAGIC)
			link_goodbye(l);
	}
	/* A goodbye counts when nothing is left to be read. */
	if (!link_leaves(l) && (got >= 0 || (errno != EAGAIN && errno != EINTR)))
		link_eof(l);
}

/* Waits until all that was sent has left the pool. The peer's adapter acknowledges it, unless the peer has left. */
static void verbs_flush(peer_link *l, verbs *v)
{
	double until = clock_now() + DRAIN_SECONDS;
	fabric_event e[EVENTS];
	char byte;
	while (v->queue && !v->broken && v->free_slots < SENDS && clock_now() < until) {
		int n = v->d->f->poll(v->queue, e, EVENTS);

		for (int i = 0; i < n; i++) {
			v->broken |= e[i].result != FABRIC_DONE;
			v->free_slots += e[i].id >> 8 == ID_DATA || e[i].id >> 8 == ID_CONTROL;
		}
		if (n < 0 || (!n && recv(l->fd[0], &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0))
			return;
	}
}

static void verbs_close(peer_link *l, int goodbye)
{
	verbs *v = l->impl;
	if (goodbye && !l->send.head && !l->c->t->forked) {
		unsigned char bye[GOODBYE_BYTES];

		verbs_flush(l, v);
		put32(bye, GOODBYE_MAGIC);
		put32(bye + 4, l->recv.head ? l->recv.head->seq : l->recv.seq);
		send(l->fd[0], bye, sizeof bye, MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	verbs_revoke(l);
	verbs_free(l, v);
}

void verbs_free(peer_link *l, verbs *v)
{
	if (v->d && !l->c->t->forked)
		verbs_block_give(v->d, v->block);
	free(v);
}

static const link_ops verbs_ops = {.posted = verbs_posted,
                                   .progress = verbs_progress,
                                   .sleep = verbs_sleep,
                                   .wake = verbs_wake,
                                   .revoke = verbs_revoke,
                                   .close = verbs_close};

void verbs_begin(peer_link *l, verbs *v)
{
	l->impl = v;
	l->ops = &verbs_ops;
}
