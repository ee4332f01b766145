/* How two ranks connect their queue pairs, over an authenticated connection: each sends
 * the address of its own, connects to the other's, and sends one message through it to
 * test the path. When anything fails on either side, both go on over tcp on that same
 * connection. It stays open in any case, because its end shows at once that a peer has
 * died. The messages are in doc/dev/wire-format.md. */
#define _GNU_SOURCE
#include "transport/verbs/verbs_internal.h"

#include "base/error.h"
#include "transport/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define SETUP_MAGIC 0x56434731u /* "1GCV" */
#define PATH_SECONDS 5.0
#define REASON_AT 48
_Static_assert(REASON_AT + SETUP_REASON == SETUP_BYTES, "as in doc/dev/wire-format.md");

enum { SETUP_NOTHING, SETUP_INFO, SETUP_UP, SETUP_GO, SETUP_NO };

static void setup_send(verbs *v, int kind)
{
	unsigned char *p = v->out + v->unsent;
	memset(p, 0, SETUP_BYTES);
	put32(p, SETUP_MAGIC);
	p[4] = (unsigned char)kind;
	if (kind == SETUP_INFO) {
		p[5] = v->mine.mtu;
		p[6] = (unsigned char)(v->mine.lid & 0xff);
		p[7] = (unsigned char)(v->mine.lid >> 8);
		put32(p + 8, v->mine.number);
		put32(p + 12, v->mine.first);
		memcpy(p + 16, v->mine.gid, 16);
		put32(p + 32, RECEIVE_BYTES);
		put32(p + 36, CREDITS);
		put32(p + 40, WINDOW);
		put32(p + 44, EAGER_BYTES);
	} else if (kind == SETUP_NO) {
		memcpy(p + REASON_AT, v->why, SETUP_REASON);
	}
	v->unsent += SETUP_BYTES;
	v->sent_kind = kind;
}

/* Sends NO with this side's reason, once. */
static void setup_refuse(verbs *v, const char *why)
{
	if (v->sent_kind == SETUP_NO)
		return;
	snprintf(v->why, sizeof v->why, "%.*s", SETUP_REASON - 1, why);
	setup_send(v, SETUP_NO);
}

static void setup_probe(peer_link *l, verbs *v)
{
	if (verbs_control(l, v, MESSAGE_PROBE, NULL) != 1)
		return;
	v->probed = 1;
	v->deadline = clock_now() + PATH_SECONDS;
}

/* -1 when the message is not valid. */
static int setup_message(peer_link *l, verbs *v)
{
	const unsigned char *p = v->in;
	fabric_address peer = {
		.mtu = p[5], .lid = (uint16_t)(p[6] | p[7] << 8), .number = get32(p + 8), .first = get32(p + 12)};
	int kind = p[4], refused = v->sent_kind == SETUP_NO;
	gradcomp_error err;
	if (get32(p) != SETUP_MAGIC || (kind != SETUP_NO && kind != v->got_kind + 1) || kind > SETUP_NO)
		return -1;
	v->got_kind = kind;
	if (refused)
		return 0;
	if (kind == SETUP_INFO) {
		memcpy(peer.gid, p + 16, sizeof peer.gid);
		if (get32(p + 32) != RECEIVE_BYTES || get32(p + 36) != CREDITS || get32(p + 40) != WINDOW ||
		    get32(p + 44) != EAGER_BYTES || peer.mtu < 1 || peer.mtu > 5 || peer.first >> 24)
			setup_refuse(v, "the two sides have different sizes");
		else if (v->d->f->connect(v->queue, &peer, l->c->t->o.timeout, &err))
			setup_refuse(v, err.text);
		else
			setup_send(v, SETUP_UP);
	} else if (kind == SETUP_UP) {
		setup_probe(l, v);
	} else if (kind == SETUP_NO) {
		char why[SETUP_REASON];

		memcpy(why, p + REASON_AT, sizeof why);
		why[sizeof why - 1] = '\0';
		for (char *c = why; *c; c++)
			if (*c < ' ' || *c > '~')
				*c = '?';
		setup_refuse(v, why[0] ? why : "the other side does not use it");
	}
	return 0;
}

static int setup_read(peer_link *l, verbs *v)
{
	ssize_t n = recv(l->fd[0], v->in + v->have, SETUP_BYTES - v->have, MSG_DONTWAIT);
	if (n <= 0) {
		if (!n || (errno != EAGAIN && errno != EINTR))
			link_eof(l);
		return 0;
	}
	v->have += (unsigned)n;
	if (v->have == SETUP_BYTES) {
		v->have = 0;
		if (setup_message(l, v)) {
			link_fail(l, GRADCOMP_ERR_INTERNAL,
			          "rank %d on %s sent a setup message for verbs that is not valid", l->world,
			          transport_host(l->c->t, l->world));
			return 0;
		}
	}
	return 1;
}

static int setup_write(peer_link *l, verbs *v)
{
	ssize_t n = v->unsent ? send(l->fd[0], v->out, v->unsent, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		link_eof(l);
	if (n <= 0)
		return 0;
	v->unsent -= (unsigned)n;
	memmove(v->out, v->out + n, v->unsent);
	return 1;
}

/* Does the test of the path. The peer's adapter answers it, whatever its process does. */
static int setup_path(peer_link *l, verbs *v)
{
	fabric_event e;
	char why[80];
	int n = v->d->f->poll(v->queue, &e, 1);
	if (n > 0 && e.result != FABRIC_DONE) {
		snprintf(why, sizeof why, "its path test failed: %.50s", e.why);
		setup_refuse(v, why);
	} else if (n > 0 && e.id >> 8 == ID_CONTROL) {
		v->slot[v->free_slots++] = (uint8_t)(e.id & 0xff);
		v->probed = 0;
		setup_send(v, SETUP_GO);
	} else if (n > 0) {
		/* The peer's own test. */
		if (verbs_message_arrived(l, v, (unsigned)(e.id & 0xff), e.bytes))
			return 0;
	} else if (v->probed && clock_now() > v->deadline) {
		snprintf(why, sizeof why, "its path test got no answer in %g s", PATH_SECONDS);
		setup_refuse(v, why);
	}
	return n > 0;
}

/* Verbs does not work between the two: another kind takes over. */
static void setup_give_up(peer_link *l, verbs *v)
{
	transport *t = l->c->t;
	int known = atomic_exchange(&t->peers.endpoints[l->world].no_verbs, 1);
	link_use *other = link_use_to(t, l->world);
	if (!other) {
		link_fail(
			l, GRADCOMP_ERR_UNSUPPORTED,
			"verbs does not connect rank %d on %s to rank %d on %s (%s), and transport.allow=%s forbids tcp",
			t->rank, transport_host(t, t->rank), l->world, transport_host(t, l->world), v->why, t->allow);
		return;
	}
	/* One side logs it. */
	log_line(t->o.log, known || t->rank < l->world ? GRADCOMP_LOG_DEBUG : GRADCOMP_LOG_WARN,
	         "%s is used between rank %d on %s and rank %d on %s, not verbs: %s", other->kind->name, t->rank,
	         transport_host(t, t->rank), l->world, transport_host(t, l->world), v->why);
	if (v->queue)
		v->d->f->unqueue(v->queue);
	verbs_free(l, v);
	l->impl = NULL;
	link_turn(l, other);
}

static int setup_progress(peer_link *l)
{
	verbs *v = l->impl;
	int moved = setup_read(l, v);
	if (channel_failed(l->c))
		return 0;
	if (v->queue && (v->probed || v->sent_kind >= SETUP_UP) && v->sent_kind != SETUP_NO)
		moved |= setup_path(l, v);
	if (v->unsent)
		moved |= setup_write(l, v);
	if (v->unsent || channel_failed(l->c))
		return moved;
	if (v->sent_kind == SETUP_NO && v->got_kind == SETUP_NO) {
		setup_give_up(l, v);
	} else if (v->sent_kind == SETUP_GO && v->got_kind == SETUP_GO) {
		verbs_begin(l, v);
		link_begin(l);
	} else {
		return moved;
	}
	return 1;
}

static int setup_sleep(peer_link *l, struct pollfd *p)
{
	const verbs *v = l->impl;
	int n = verbs_sleep(l, p);
	if (v->unsent)
		p->events |= POLLOUT;
	return n;
}

static void setup_wake(peer_link *l, const struct pollfd *p, int n)
{
	verbs *v = l->impl;
	/* setup_progress() reads the connection. */
	if (n > 1 && p[1].revents) {
		v->armed = 0;
		v->d->f->ack(v->queue);
	}
}

/* Requests wait in their queues. */
static void setup_posted(peer_link *l, request *r)
{
	(void)l, (void)r;
}

static void setup_revoke(peer_link *l)
{
	(void)l; /* nothing of the caller's is in use */
}

static void setup_close(peer_link *l, int goodbye)
{
	verbs *v = l->impl;
	(void)goodbye;
	if (v->queue && !l->c->t->forked)
		v->d->f->unqueue(v->queue);
	verbs_free(l, v);
}

static const link_ops setup_ops = {.posted = setup_posted,
                                   .progress = setup_progress,
                                   .sleep = setup_sleep,
                                   .wake = setup_wake,
                                   .revoke = setup_revoke,
                                   .close = setup_close};

/* The block and the queue of this side; err says why not. */
static gradcomp_status setup_queue(verbs *v, gradcomp_error *err)
{
	gradcomp_status st;
	if (!v->d)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "this side does not use it any more");
	v->block = verbs_block_take(v->d, err);
	if (!v->block)
		return err->status;
	st = v->d->f->queue(v->d->device, SENDS + WINDOW, RECEIVES, &v->queue, &v->mine, &v->fd, err);
	if (st)
		return st;
	for (unsigned i = 0; i < RECEIVES; i++) {
		int rc = verbs_post_receive(v, i);

		if (rc)
			return error_set(err, GRADCOMP_ERR_IO, "receives cannot be posted: %s", strerror(rc));
	}
	for (unsigned i = 0; i < SENDS; i++)
		v->slot[v->free_slots++] = (uint8_t)i;
	return GRADCOMP_OK;
}

static link_opened verbs_open(peer_link *l)
{
	verbs *v = calloc(1, sizeof *v);
	gradcomp_error err;
	if (!v) {
		link_fail(l, GRADCOMP_ERR_NOMEM, "no memory for a link to rank %d", l->world);
		return LINK_REFUSED;
	}
	v->d = l->use->part;
	l->impl = v;
	l->ops = &setup_ops;
	if (setup_queue(v, &err))
		setup_refuse(v, err.text);
	else
		setup_send(v, SETUP_INFO);
	return LINK_NEGOTIATES;
}

static void verbs_tell(const link_use *u, endpoint_node *own)
{
	const verbs_device *d = u->part;
	if (d)
		memcpy(own->verbs, d->info.key, sizeof own->verbs);
}

/* It begins over TCP, and is watched over it. */
static bool verbs_reaches(const link_use *u, const transport *t, int a, int b)
{
	bool own = a == t->rank || b == t->rank;
	endpoint *x = &t->peers.endpoints[a], *y = &t->peers.endpoints[b];
	if (own && (!u->part || atomic_load_explicit(a == t->rank ? &y->no_verbs : &x->no_verbs, memory_order_relaxed)))
		return false;
	return x->verbs && x->verbs == y->verbs && peer_has_address(t, a) && peer_has_address(t, b);
}

static const char *verbs_why_not(const link_use *u)
{
	return u->part ? "no two ranks of different nodes have devices on one network"
	               : "this rank has no device that can be used";
}

const link_kind verbs_kind = {.name = "verbs",
                              .hello = HELLO_VERBS,
                              .worth = 2,
                              .polls = 2,
                              .may_refuse = true,
                              .start = verbs_device_open,
                              .stop = verbs_device_close,
                              .tell = verbs_tell,
                              .met = verbs_log_unreachable,
                              .reaches = verbs_reaches,
                              .why_not = verbs_why_not,
                              .open = verbs_open};
