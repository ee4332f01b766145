#define _GNU_SOURCE
#include "transport/core/link.h"

#include "base/error.h"
#include "transport/shm/shm.h"
#include "transport/tcp/keepalive.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A rank that dies is told of along the tree at once; one that closes because of a failure has told of that before. So
 * another cause is given this time to come. */
#define EOF_GRACE_SECONDS 3.0
#define ANSWER_SECONDS 1.0 /* for a host to answer */

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
	l->kind = connect_kind(c->t, l->world);
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
	atomic_fetch_add_explicit(&l->c->t->counts[l->kind].pairs, 1, memory_order_relaxed);
	for (request *r = l->send.head; r; r = r->next)
		l->ops->posted(l, r);
	for (request *r = l->recv.head; r; r = r->next)
		l->ops->posted(l, r);
	l->ops->progress(l);
}

/* All connections are made. Verbs has to set up its queue pairs first. */
static void link_ready(peer_link *l)
{
	channel *c = l->c;
	size_t polls = l->kind == KIND_VERBS ? 2 : l->h.streams;
	struct pollfd *p = realloc(c->poll, (c->npoll + polls) * sizeof *p);

	if (!p) {
		link_fail_local(l, GRADCOMP_ERR_NOMEM, "no memory for a link to rank %d", l->world);
		return;
	}
	c->poll = p;
	c->npoll += polls;
	l->polls += polls;
	if (l->kind == KIND_VERBS) {
		if (!verbs_open(l))
			l->ops->progress(l);
		return;
	}
	if (l->kind == KIND_SHM ? shm_link_open(l) : l->h.frames ? tcp_secure_open(l) : tcp_open(l))
		return;
	link_begin(l);
}

static const char *const link_name[] = {[HELLO_TCP] = "tcp", [HELLO_SHM] = "shm", [HELLO_VERBS] = "verbs"};
static const hello_kind link_hello[] = {[KIND_SHM] = HELLO_SHM, [KIND_TCP] = HELLO_TCP, [KIND_VERBS] = HELLO_VERBS};

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

	l->called = true;
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
	int passed = -1;

	if (t->rank < l->world) {
		link_adopt(l);
		if (l->c->on_demand && !l->ops && !l->nfd && !l->called)
			link_call(l);
		return;
	}
	l->h = (hello){.kind = link_hello[l->kind],
	               .to = (uint32_t)l->world,
	               .channel = l->c->inbound.id,
	               .streams = l->kind == KIND_TCP ? (uint8_t)t->o.streams : 1,
	               .chunk = l->kind == KIND_SHM ? shm_ring_bytes(t) : (uint32_t)t->o.chunk};
	if (l->kind == KIND_SHM) {
		passed = l->passed = shm_create(l->h.chunk, &err);
		if (passed < 0) {
			link_fail_local(l, err.status, "%s", err.text);
			return;
		}
	}
	deadline = clock_now() + t->o.timeout;
	for (int i = 0; i < l->h.streams; i++) {
		l->h.stream = (uint8_t)i;
		if (connect_peer(t, &l->h, passed, deadline, &l->fd[i], &err)) {
			link_drop_fds(l);
			link_fail(l, err.status, "%s", err.text);
			return;
		}
		l->nfd++;
		if (l->kind != KIND_SHM)
			keepalive_start(l->fd[i], t->o.timeout);
		l->crypto[i] = l->h.frames ? record_crypto_new(t->secret, &l->h, 1) : NULL;
	}
	link_ready(l);
}

void link_adopt(peer_link *l)
{
	transport *t = l->c->t;
	hello_kind want = link_hello[l->kind];

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
	/* The peer may have found out whether verbs works. */
	if (l->nfd && want != HELLO_SHM && (l->h.kind == HELLO_VERBS || (l->h.kind == HELLO_TCP && t->allow_tcp))) {
		want = (hello_kind)l->h.kind;
		l->kind = want == HELLO_VERBS ? KIND_VERBS : KIND_TCP;
	}
	if (l->nfd && l->h.kind != want)
		link_fail(l, GRADCOMP_ERR_MISMATCH, "rank %d on %s connects over %s, this rank expects %s", l->world,
		          transport_host(t, l->world), link_name[l->h.kind], link_name[want]);
	else if (l->nfd && l->nfd == l->h.streams)
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
	if (!l->ops)
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
	transport *t = l->c->t;

	if (sent)
		atomic_fetch_add_explicit(&l->c->sent, bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(sent ? &t->counts[l->kind].sent : &t->counts[l->kind].received, bytes,
	                          memory_order_relaxed);
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
	if (l->ops)
		l->ops->close(l, !transport_failed(l->c->t));
	link_drop_fds(l);
	free(l);
}

void link_eof(peer_link *l)
{
	if (!l->eof)
		l->eof = clock_now();
}

void link_check_eof(peer_link *l, double now)
{
	const char *host = transport_host(l->c->t, l->world);

	if (!l->eof || (l->goodbye && l->may_end) || (!l->goodbye && now - l->eof < EOF_GRACE_SECONDS))
		return;
	if (l->goodbye)
		link_fail(l, GRADCOMP_ERR_PEER, "rank %d on %s left the job", l->world, host);
	else
		link_fail(l, GRADCOMP_ERR_PEER, "rank %d on %s closed its connection", l->world, host);
}

void link_check_peer(peer_link *l)
{
	transport *t = l->c->t;

	for (int i = 0; l->kind == KIND_TCP && !l->eof && i < l->nfd; i++) {
		unsigned bytes;

		if (!keepalive_lost(l->fd[i], t->o.timeout))
			continue;
		bytes = keepalive_too_large(l->fd[i], ANSWER_SECONDS);
		if (bytes)
			link_fail(
				l, GRADCOMP_ERR_TIMEOUT,
				"packets of %u bytes do not get from rank %d on %s to rank %d on %s, small ones do: an MTU on the "
				"way is smaller than that of the nodes (gradcomp doctor tries all pairs)",
				bytes, t->rank, transport_host(t, t->rank), l->world, transport_host(t, l->world));
		else
			link_fail(l, GRADCOMP_ERR_TIMEOUT,
			          "the host of rank %d on %s has not answered that of rank %d on %s for %.3g s",
			          l->world, transport_host(t, l->world), t->rank, transport_host(t, t->rank),
			          t->o.timeout);
		return;
	}
}

void link_fail(peer_link *l, gradcomp_status status, const char *fmt, ...)
{
	char text[CULPRIT_TEXT];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
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
