#define _GNU_SOURCE
#include "transport/link/link.h"

#include "base/error.h"
#include "transport/control/connect.h"
#include "transport/wire/keepalive.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A rank that dies is told of along the tree at once; one that closes because of a failure has told of that before. So
 * another cause is given this time to come. */
#define EOF_GRACE_SECONDS 3.0

#define TO(state) (1u << PEER_##state)

static const struct {
	const char *name;
	unsigned next;
} states[] = {
	[PEER_NEW] = {"new", TO(CALLED) | TO(JOINING)},
	[PEER_CALLED] = {"called", TO(JOINING)},
	/* Again, where connecting fails or a kind has refused. */
	[PEER_JOINING] = {"joining", TO(NEW) | TO(SETTING_UP) | TO(OPEN)},
	[PEER_SETTING_UP] = {"setting up", TO(JOINING) | TO(OPEN) | TO(LOST)},
	[PEER_OPEN] = {"open", TO(LEAVING) | TO(LOST)},
	[PEER_LEAVING] = {"leaving", TO(LEFT)},
	[PEER_LEFT] = {"left", 0},
	/* A send may fail before the goodbye is read. */
	[PEER_LOST] = {"lost", TO(LEFT)},
};

void link_enter(peer_link *l, link_phase to)
{
	if (l->state == to)
		return;
	if (states[l->state].next & 1u << to)
		l->state = to;
	else
		link_fail_local(l, GRADCOMP_ERR_INTERNAL, "its link to rank %d is %s and cannot become %s", l->world,
		                states[l->state].name, states[to].name);
}

peer_link *link_get(channel *c, int peer)
{
	peer_link *l = c->links[peer];
	if (l)
		return l;
	l = calloc(1, sizeof *l);
	if (!l)
		return NULL;
	l->c = c;
	l->world = c->ranks[peer];
	l->use = link_use_to(c->t, l->world);
	l->passed = -1;
	for (int i = 0; i < STREAMS_MAX; i++)
		l->fd[i] = -1;
	c->links[peer] = l;
	return l;
}

static void link_drop_fds(peer_link *l)
{
	for (int i = 0; i < STREAMS_MAX; i++) {
		if (l->fd[i] >= 0)
			close(l->fd[i]);
		l->fd[i] = -1;
		record_crypto_free(l->crypto[i]);
		l->crypto[i] = NULL;
	}
	if (l->passed >= 0)
		close(l->passed);
	l->passed = -1;
	l->nfd = 0;
}

void link_begin(peer_link *l)
{
	link_enter(l, PEER_OPEN);
	atomic_fetch_add_explicit(&l->use->pairs, 1, memory_order_relaxed);
	for (request *r = l->send.head; r; r = r->next)
		l->ops->posted(l, r);
	for (request *r = l->recv.head; r; r = r->next)
		l->ops->posted(l, r);
	l->ops->progress(l);
}

static void link_open(peer_link *l)
{
	switch (l->use->kind->open(l)) {
	case LINK_OPENED:
		link_begin(l);
		break;
	case LINK_NEGOTIATES:
		link_enter(l, PEER_SETTING_UP);
		l->ops->progress(l);
		break;
	case LINK_REFUSED:
		break;
	}
}

/* All connections are made. */
static void link_ready(peer_link *l)
{
	channel *c = l->c;
	size_t polls = l->use->kind->polls ? (size_t)l->use->kind->polls : l->h.streams;
	struct pollfd *p = realloc(c->poll, (c->npoll + polls) * sizeof *p);
	if (!p) {
		link_fail_local(l, GRADCOMP_ERR_NOMEM, "no memory for a link to rank %d", l->world);
		return;
	}
	c->poll = p;
	c->npoll += polls;
	l->polls += polls;
	link_open(l);
}

void link_turn(peer_link *l, link_use *u)
{
	link_enter(l, PEER_JOINING);
	l->ops = NULL;
	l->use = u;
	link_open(l);
}

/* The higher rank connects, the lower one accepts; on demand it asks for that. */
static void link_call(peer_link *l)
{
	hello h = {.kind = HELLO_CALL,
	           .to = (uint32_t)l->world,
	           .channel = l->c->inbound.id,
	           .streams = 1,
	           .chunk = CHUNK_MIN};
	gradcomp_error err;
	int fd = -1;
	link_enter(l, PEER_CALLED);
	if (connect_peer(l->c->t, &h, -1, clock_now() + l->c->t->o.timeout, &fd, &err))
		link_fail(l, err.status, "%s", err.text);
	else
		close(fd);
}

void link_connect(peer_link *l)
{
	transport *t = l->c->t;
	double deadline;
	gradcomp_error err;
	if (!l->use) {
		link_fail(l, GRADCOMP_ERR_UNSUPPORTED,
		          "no transport connects rank %d on %s to rank %d on %s: transport.allow=%s", t->rank,
		          transport_host(t, t->rank), l->world, transport_host(t, l->world), t->allow);
		return;
	}
	if (t->rank < l->world) {
		link_adopt(l);
		if (l->c->on_demand && l->state == PEER_NEW)
			link_call(l);
		return;
	}
	l->h = (hello){.kind = l->use->kind->hello,
	               .to = (uint32_t)l->world,
	               .channel = l->c->inbound.id,
	               .streams = 1,
	               .chunk = (uint32_t)t->o.chunk};
	if (l->use->kind->offer && l->use->kind->offer(l, &err)) {
		link_fail_local(l, err.status, "%s", err.text);
		return;
	}
	deadline = clock_now() + t->o.timeout;
	for (int i = 0; i < l->h.streams; i++) {
		l->h.stream = (uint8_t)i;
		if (connect_peer(t, &l->h, l->passed, deadline, &l->fd[i], &err)) {
			link_drop_fds(l);
			link_enter(l, PEER_NEW);
			link_fail(l, err.status, "%s", err.text);
			return;
		}
		l->nfd++;
		link_enter(l, PEER_JOINING);
		if (!l->use->kind->near)
			keepalive_start(l->fd[i], t->o.timeout);
		l->crypto[i] = l->h.frames ? record_crypto_new(t->secret, &l->h, 1) : NULL;
	}
	link_ready(l);
}

void link_adopt(peer_link *l)
{
	transport *t = l->c->t;
	link_use *other;
	pthread_mutex_lock(&t->lock);
	for (backlog_conn **at = &t->backlog.first, *p; (p = *at);) {
		if (p->h.channel != l->c->inbound.id || p->h.from != (uint32_t)l->world || p->h.kind == HELLO_CALL) {
			at = &p->next;
			continue;
		}
		backlog_pull(&t->backlog, at);
		/* A connection made again replaces the one that was given up. */
		if (l->nfd && (l->h.kind != p->h.kind || l->h.streams != p->h.streams || l->h.chunk != p->h.chunk))
			link_drop_fds(l);
		link_enter(l, PEER_JOINING);
		l->h = p->h;
		if (l->fd[p->h.stream] >= 0)
			close(l->fd[p->h.stream]);
		else
			l->nfd++;
		l->fd[p->h.stream] = p->fd;
		record_crypto_free(l->crypto[p->h.stream]);
		l->crypto[p->h.stream] = p->h.frames ? record_crypto_new(t->secret, &p->h, 0) : NULL;
		if (l->passed >= 0)
			close(l->passed);
		l->passed = p->passed;
		free(p);
	}
	pthread_mutex_unlock(&t->lock);
	if (!l->nfd)
		return;
	/* The peer may have found out whether a kind works that may refuse. */
	other = link_use_of(t, (hello_kind)l->h.kind);
	if (!l->use->kind->near && !other->kind->near && (other->allowed || other->kind->may_refuse))
		l->use = other;
	if (l->use != other)
		link_fail(l, GRADCOMP_ERR_MISMATCH, "rank %d on %s connects over %s, this rank expects %s", l->world,
		          transport_host(t, l->world), other->kind->name, l->use->kind->name);
	else if (l->nfd == l->h.streams)
		link_ready(l);
}

void link_post(peer_link *l, request *r)
{
	queue *q = r->sending ? &l->send : &l->recv;
	channel *c = l->c;
	r->link = l;
	r->seq = q->seq++;
	r->done = r->checked = 0;
	r->nchunks = 0;
	queue_add(q, r);
	if (!l->active) {
		l->active = true;
		l->prev = NULL;
		l->next = c->active;
		if (c->active)
			c->active->prev = l;
		c->active = l;
	}
	if (!link_up(l))
		return;
	l->ops->posted(l, r);
	/* So that a short message leaves before the caller does anything else. */
	if (r->sending)
		l->ops->progress(l);
}

void link_forget(peer_link *l)
{
	if (!l->active)
		return;
	*(l->prev ? &l->prev->next : &l->c->active) = l->next;
	if (l->next)
		l->next->prev = l->prev;
	l->active = l->bulk = false;
}

void link_settle(peer_link *l)
{
	if (!l->send.head && !l->recv.head && !l->unread)
		link_forget(l);
}

static void link_count(peer_link *l, int sent, uint64_t bytes)
{
	if (sent)
		atomic_fetch_add_explicit(&l->c->sent, bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(sent ? &l->use->sent : &l->use->received, bytes, memory_order_relaxed);
}

void link_done(request *r)
{
	peer_link *l = r->link;
	queue_remove(r->sending ? &l->send : &l->recv, r);
	link_count(l, r->sending, r->bytes);
	r->done = 1;
	link_settle(l);
}

void link_free(peer_link *l)
{
	if (!l)
		return;
	if (link_up(l))
		l->ops->close(l, !transport_failed(l->c->t));
	link_drop_fds(l);
	free(l);
}

void link_eof(peer_link *l)
{
	if (link_ended(l))
		return;
	l->eof = clock_now();
	link_enter(l, l->state == PEER_LEAVING ? PEER_LEFT : PEER_LOST);
}

void link_goodbye(peer_link *l)
{
	if (!link_leaves(l))
		link_enter(l, l->state == PEER_LOST ? PEER_LEFT : PEER_LEAVING);
}

void link_check_eof(peer_link *l, double now)
{
	const char *host = transport_host(l->c->t, l->world);
	if (!link_ended(l) || (link_leaves(l) && l->may_end) || (!link_leaves(l) && now - l->eof < EOF_GRACE_SECONDS))
		return;
	if (link_leaves(l))
		link_fail(l, GRADCOMP_ERR_PEER, "rank %d on %s left the %s", l->world, host,
		          l->c->apart ? "group" : "job");
	else
		link_fail(l, GRADCOMP_ERR_PEER, "rank %d on %s closed its connection", l->world, host);
}

void transport_end_channel(channel *c, gradcomp_status status, const char *text)
{
	pthread_mutex_lock(&c->t->lock);
	if (!atomic_load(&c->broken)) {
		error_set(&c->why, status, "%s", text);
		atomic_store(&c->broken, 1);
		eventfd_write(c->inbound.fd, 1);
	}
	pthread_mutex_unlock(&c->t->lock);
}

void link_fail(peer_link *l, gradcomp_status status, const char *fmt, ...)
{
	char text[CULPRIT_TEXT];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (l->c->apart)
		transport_end_channel(l->c, status, text);
	else
		transport_fail(l->c->t, status, l->world, text);
}

void link_fail_local(peer_link *l, gradcomp_status status, const char *fmt, ...)
{
	transport *t = l->c->t;
	char text[CULPRIT_TEXT];
	int n = snprintf(text, sizeof text, "rank %d on %s: ", t->rank, transport_host(t, t->rank));
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
	va_end(ap);
	transport_fail(t, status, t->rank, text);
}

int link_check(peer_link *l, const request *r, uint32_t seq, uint64_t bytes)
{
	const transport *t = l->c->t;
	if (seq == r->seq && bytes == r->bytes)
		return 0;
	if (seq != r->seq)
		link_fail(l, GRADCOMP_ERR_INTERNAL, "rank %d on %s sent message %u where rank %d on %s expects %u",
		          l->world, transport_host(t, l->world), seq, t->rank, transport_host(t, t->rank), r->seq);
	else
		link_fail(l, GRADCOMP_ERR_MISMATCH,
		          "rank %d on %s sent %llu bytes where rank %d on %s expects %zu: the ranks do not do the same",
		          l->world, transport_host(t, l->world), (unsigned long long)bytes, t->rank,
		          transport_host(t, t->rank), r->bytes);
	return -1;
}

void link_reduce(peer_link *l, request *r, size_t at, const void *in, size_t bytes)
{
	l->c->t->o.operators->reduce(NULL, r->buf + at, in, bytes / gradcomp_dtype_bytes(r->dtype), r->dtype, r->op);
}
