/* Asking other ranks: a connection, the proof of the secret, one question, one answer. One thread
 * has many calls under way.
 *
 * When many are to be asked, a call goes to the first of a group, which asks the rest of it. When that one is
 * gone, or slow, the rest is asked from here: to be asked twice changes nothing. */
#define _GNU_SOURCE
#include "survivors/roster_internal.h"

#include "transport/wire/network.h"
#include "transport/wire/wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALLS 128           /* under way at most */
#define CONNECT_SECONDS 0.4 /* for one address, before the next one, or the same again */
#define RELAY_SECONDS 0.25  /* for the first of a group to be there, before the others are asked from here, too */
#define RELAY_SHARE 0.7     /* part of the time there is, for its answer */

/* 0 when fd is ready. */
static int ready(int fd, short events, double until)
{
	for (;;) {
		struct pollfd p = {fd, events, 0};
		double left = until - clock_now();
		int n;

		if (left <= 0)
			return -1;
		n = poll(&p, 1, (int)(left * 1e3) + 1);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -1;
	}
}

static int put(int fd, const void *buf, size_t bytes, double until)
{
	const char *p = buf;
	while (bytes) {
		ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n > 0) {
			p += n;
			bytes -= (size_t)n;
		} else if (errno == EAGAIN ? ready(fd, POLLOUT, until) : errno != EINTR) {
			return -1;
		}
	}
	return 0;
}

static int take(int fd, void *buf, size_t bytes, double until)
{
	char *p = buf;
	while (bytes) {
		ssize_t n = recv(fd, p, bytes, MSG_DONTWAIT);

		if (!n)
			return -1;
		if (n > 0) {
			p += n;
			bytes -= (size_t)n;
		} else if (errno == EAGAIN ? ready(fd, POLLIN, until) : errno != EINTR) {
			return -1;
		}
	}
	return 0;
}

int roster_send(int fd, const roster_blob *b, double until)
{
	unsigned char length[4];
	put32(length, (uint32_t)b->bytes);
	return put(fd, length, sizeof length, until) || put(fd, b->p, b->bytes, until) ? -1 : 0;
}

int roster_receive(int fd, roster_blob *b, double until)
{
	unsigned char length[4];
	*b = (roster_blob){0};
	if (take(fd, length, sizeof length, until))
		return -1;
	b->bytes = get32(length);
	if (b->bytes > ROSTER_MESSAGE_MAX)
		return -1;
	b->p = malloc(b->bytes + 1);
	return !b->p || take(fd, b->p, b->bytes, until) ? -1 : 0;
}

enum { CALL_FREE, CALL_CONNECT, CALL_CHALLENGE, CALL_WELCOME, CALL_LENGTH, CALL_ANSWER };

/* Says what is to be asked of one rank, and of the rest of its group by it. */
typedef struct order {
	int first, count; /* in batch.list */
} order;

typedef struct call {
	order to;
	int state, fd, tries; /* tries: of addresses */
	double limit;         /* end of the connection attempt */
	double direct;        /* then the rest of the group is asked from here; 1e18: never */
	unsigned char hello[HELLO_BYTES], in[CHALLENGE_BYTES];
	roster_blob question, answer;
	const unsigned char *out;
	size_t unsent, have, want;
	unsigned char *to_read; /* `want` bytes, of which `have` are there */
} call;

typedef struct batch {
	roster *m;
	const roster_view *members;
	const roster_message *question;
	double until;
	int *list, n; /* members to be asked, by their place in the view */
	order *orders;
	int norders, next; /* room for one a member and one a group */
	roster_blob alone; /* the question to one rank, as bytes */
	call calls[CALLS];
	roster_message *tally;
} batch;

static void order_direct(batch *b, const order *group)
{
	for (int i = 1; i < group->count; i++)
		b->orders[b->norders++] = (order){group->first + i, 1};
}

/* Whoever has answered may be asked again by then: what it says is the same. */
static void call_end(batch *b, call *c)
{
	if (c->fd >= 0)
		close(c->fd);
	if (c->direct < 1e18)
		order_direct(b, &c->to);
	free(c->question.p);
	free(c->answer.p);
	c->state = CALL_FREE;
	c->fd = -1;
}

static int call_rank(const batch *b, const call *c)
{
	return b->members->ranks[b->list[c->to.first]];
}

static void write_hello(const roster *m, int to, const unsigned char nonce[NONCE_BYTES], unsigned char out[HELLO_BYTES])
{
	memset(out, 0, HELLO_BYTES);
	memcpy(out, "GCS1", 4);
	put32(out + 8, (uint32_t)m->rank);
	put32(out + 12, (uint32_t)to);
	put32(out + 16, (uint32_t)m->n);
	memcpy(out + HELLO_BYTES - NONCE_BYTES, nonce, NONCE_BYTES);
}

/* Tries the next address. Silence may be a packet that was lost: then all are tried again. -1: none is left. */
static int call_connect(batch *b, call *c, bool silent)
{
	int to = call_rank(b, c), order[ADDRESS_MAX], on = 1;
	const roster *m = b->m;
	const endpoint *e = &m->endpoints[to];
	struct sockaddr_storage sa;
	socklen_t bytes;
	network_address_order(NULL, m->own, m->nown, m->node[to] == m->node[m->rank], e->addr, e->naddr, order);
	for (;;) {
		if (c->fd >= 0)
			close(c->fd);
		c->fd = -1;
		if (c->tries >= e->naddr && !silent)
			return -1;
		bytes = address_sockaddr(&e->addr[order[c->tries++ % e->naddr]], &sa);
		c->fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (c->fd < 0)
			return -1;
		atomic_fetch_add(&b->m->calls, 1);
		if (!connect(c->fd, (struct sockaddr *)&sa, bytes) || errno == EINPROGRESS || errno == EINTR)
			break;
		silent = false;
	}
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	c->state = CALL_CONNECT;
	c->limit = clock_now() + CONNECT_SECONDS;
	return 0;
}

/* Writes the question with the rest of the group in it. */
static int call_write(const batch *b, call *c)
{
	roster_message q = *b->question;
	int rc = 0;
	if (c->to.count == 1)
		return 0;
	q.set = (roster_blob){0};
	q.budget = (uint32_t)((b->until - clock_now()) * 1e3);
	for (int i = 0; !rc && i < c->to.count; i++)
		rc = roster_bit_set(&q.set, b->members->n, b->list[c->to.first + i]);
	if (!rc)
		rc = roster_message_write(&q, &c->question);
	free(q.set.p);
	return rc;
}

static void call_begin(batch *b, call *c, const order *to)
{
	double now = clock_now();
	*c = (call){.to = *to, .fd = -1, .direct = to->count > 1 ? now + RELAY_SECONDS : 1e18};
	if (now >= b->until || call_write(b, c) || call_connect(b, c, false))
		call_end(b, c);
}

static void call_read(call *c, int state, void *p, size_t bytes)
{
	c->state = state;
	c->to_read = p;
	c->have = 0;
	c->want = bytes;
}

static void call_send(call *c, const void *p, size_t bytes)
{
	c->out = p;
	c->unsent = bytes;
}

/* Goes on with a call for which all that was awaited is there. 1: the answer is whole, -1: the call has failed. */
static int call_step(batch *b, call *c)
{
	roster *m = b->m;
	const roster_blob *q = c->question.p ? &c->question : &b->alone;
	unsigned char nonce[NONCE_BYTES], mac[SHA256_BYTES];
	switch (c->state) {
	case CALL_CONNECT:
		if (secret_random(nonce, sizeof nonce, NULL))
			return -1;
		write_hello(m, call_rank(b, c), nonce, c->hello);
		call_send(c, c->hello, sizeof c->hello);
		call_read(c, CALL_CHALLENGE, c->in, CHALLENGE_BYTES);
		return 0;
	case CALL_CHALLENGE:
		handshake_mac(m->key, ROLE_ACCEPT, c->hello, c->in, mac);
		if (!secret_equal(mac, c->in + NONCE_BYTES, sizeof mac))
			return -1;
		handshake_mac(m->key, ROLE_CONNECT, c->hello, c->in, mac);
		memcpy(c->hello, mac, sizeof mac);
		call_send(c, c->hello, sizeof mac);
		call_read(c, CALL_WELCOME, c->in, WELCOME_BYTES);
		return 0;
	case CALL_WELCOME:
		if (memcmp(c->in, handshake_welcome, WELCOME_BYTES))
			return -1;
		if (c->direct < 1e18)
			c->direct = clock_now() + RELAY_SHARE * (b->until - clock_now());
		put32(c->hello, (uint32_t)q->bytes);
		if (send(c->fd, c->hello, 4, MSG_NOSIGNAL | MSG_DONTWAIT) != 4)
			return -1;
		call_send(c, q->p, q->bytes);
		atomic_fetch_add(&m->bytes, q->bytes);
		call_read(c, CALL_LENGTH, c->in, 4);
		return 0;
	case CALL_LENGTH:
		c->answer.bytes = get32(c->in);
		if (c->answer.bytes > ROSTER_MESSAGE_MAX || !(c->answer.p = malloc(c->answer.bytes + 1)))
			return -1;
		call_read(c, CALL_ANSWER, c->answer.p, c->answer.bytes);
		return 0;
	default:
		return 1;
	}
}

/* Counts the other end's word for those that were asked through it, and no others. */
static int call_count(batch *b, call *c)
{
	roster_message a;
	roster_blob asked = {0};
	int rc = roster_message_read(&c->answer, &a);
	for (int i = 0; !rc && i < c->to.count; i++)
		rc = roster_bit_set(&asked, b->members->n, b->list[c->to.first + i]);
	if (!rc && (a.type == ROSTER_TALLY || a.type == ROSTER_BUSY))
		rc = roster_tally_add(b->tally, &a, &asked);
	/* It has asked the others. */
	if (!rc && a.type == ROSTER_TALLY)
		c->direct = 1e18;
	free(asked.p);
	roster_message_clear(&a);
	return rc;
}

/* Moves on what can be moved. Its answer has been counted when that is 1. */
static int call_move(batch *b, call *c)
{
	int error = 0, rc = 0;
	socklen_t bytes = sizeof error;
	if (c->state == CALL_CONNECT) {
		if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) || error)
			return call_connect(b, c, false);
		rc = call_step(b, c);
	}
	while (!rc && c->unsent) {
		ssize_t n = send(c->fd, c->out, c->unsent, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n < 0 && errno != EINTR)
			return -1;
		c->out += n > 0 ? n : 0;
		c->unsent -= n > 0 ? (size_t)n : 0;
	}
	while (!rc && !c->unsent) {
		ssize_t n = c->have < c->want ? recv(c->fd, c->to_read + c->have, c->want - c->have, MSG_DONTWAIT) : 0;

		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n < 0 ? errno != EINTR : !n && c->have < c->want)
			return -1;
		c->have += n > 0 ? (size_t)n : 0;
		if (c->have == c->want)
			rc = call_step(b, c);
	}
	return rc > 0 && !call_count(b, c) ? 1 : rc;
}

/* Does what is due of a call by now. */
static void call_due(batch *b, call *c, double now)
{
	if (now >= c->direct) {
		order_direct(b, &c->to);
		c->direct = 1e18;
	}
	if (now >= b->until || (c->state == CALL_CONNECT && now >= c->limit && call_connect(b, c, true)))
		call_end(b, c);
}

/* Runs the batch until nothing is under way and nothing is left to begin. */
static void batch_run(batch *b)
{
	for (;;) {
		struct pollfd p[CALLS];
		double now = clock_now(), when = b->until;
		int busy = 0;

		for (int i = 0; i < CALLS; i++) {
			call *c = &b->calls[i];

			while (c->state == CALL_FREE && b->next < b->norders) {
				order o = b->orders[b->next++];

				call_begin(b, c, &o);
			}
			p[i] = (struct pollfd){-1, 0, 0};
			if (c->state == CALL_FREE)
				continue;
			busy++;
			p[i] = (struct pollfd){c->fd, c->state == CALL_CONNECT || c->unsent ? POLLOUT : POLLIN, 0};
			when = c->direct < when ? c->direct : when;
			when = c->state == CALL_CONNECT && c->limit < when ? c->limit : when;
		}
		if (!busy)
			return;
		poll(p, CALLS, when > now ? (int)((when - now) * 1e3) + 1 : 0);
		now = clock_now();
		for (int i = 0; i < CALLS; i++) {
			call *c = &b->calls[i];

			if (c->state != CALL_FREE && p[i].revents && call_move(b, c))
				call_end(b, c);
			if (c->state != CALL_FREE)
				call_due(b, c, now);
		}
	}
}

/* Groups of about as many as there are groups, so that nobody asks many. */
static void batch_orders(batch *b, bool relayed)
{
	int size = 1;
	while (!relayed && b->n > ROSTER_DIRECT && size * size < b->n)
		size++;
	for (int i = 0; i < b->n; i += size)
		b->orders[b->norders++] = (order){i, size < b->n - i ? size : b->n - i};
}

void roster_ask(roster *m, const roster_view *members, const roster_blob *set, const roster_message *question,
                double seconds, bool relayed, roster_message *tally)
{
	batch *b = calloc(1, sizeof *b);
	roster_message alone = *question;
	bool own = false;
	if (!b)
		return;
	b->m = m;
	b->members = members;
	b->question = question;
	b->until = clock_now() + seconds;
	b->tally = tally;
	b->list = calloc((size_t)members->n, sizeof *b->list);
	b->orders = calloc((size_t)members->n, 2 * sizeof *b->orders);
	for (int i = 0; b->list && i < members->n; i++) {
		own |= members->ranks[i] == m->rank && roster_bit(set, i);
		if (members->ranks[i] != m->rank && roster_bit(set, i))
			b->list[b->n++] = i;
	}
	alone.set = (roster_blob){0};
	if (b->list && b->orders && !roster_message_write(&alone, &b->alone)) {
		if (own)
			roster_answer(m, question, tally);
		batch_orders(b, relayed);
		batch_run(b);
	}
	free(b->alone.p);
	free(b->list);
	free(b->orders);
	free(b);
}
