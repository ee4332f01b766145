/* A man in the middle: every connection to one of two ranks goes through here, and
 * what it carries may be changed. A thread. */
#ifndef TESTS_SUPPORT_RELAY_H
#define TESTS_SUPPORT_RELAY_H

#include "transport/wire/handshake.h"
#include "transport/wire/record_crypto.h"
#include "transport/wire/wire.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RELAY_PASS, RELAY_FLIP, RELAY_REPEAT, RELAY_DROP, RELAY_SWAP, RELAY_CUT };

typedef struct relay_dir {
	int from, to;
	size_t handshake; /* bytes that are no records yet */
	size_t have;
	unsigned char in[2 * RECORD_MAX];
	int records, ended;
} relay_dir;

typedef struct relay {
	int port, target, fd; /* the relay's, the rank's, and the relay's socket */
	int what, kind;       /* says what to do to connections of which hello_kind */
	int back;             /* to what the accepting side says */
	int record;           /* to which record */
	atomic_int done;      /* it has been done */
	atomic_int stop;
	atomic_int open; /* connections */
	const char *needle;
	atomic_int seen; /* the needle, in passing */
	pthread_t thread;
} relay;

typedef struct relay_pair {
	relay *r;
	relay_dir dir[2];
	int kind;
} relay_pair;

static inline int relay_put(int fd, const unsigned char *p, size_t n)
{
	while (n) {
		ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

		if (k <= 0)
			return -1;
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

/* The records that are whole are sent on, but for the one. */
static inline int relay_pass(relay_pair *c, int back)
{
	relay *r = c->r;
	relay_dir *w = &c->dir[back];
	int mine = r->what && back == r->back && c->kind == r->kind;
	if (r->needle && memmem(w->in, w->have, r->needle, strlen(r->needle)))
		atomic_store(&r->seen, 1);
	if (w->handshake) {
		size_t n = w->have < w->handshake ? w->have : w->handshake;

		if (!back && c->kind < 0 && w->have >= 6)
			c->kind = w->in[5];
		if (!back && c->kind < 0)
			return 0;
		if (relay_put(w->to, w->in, n))
			return -1;
		w->handshake -= n;
		w->have -= n;
		memmove(w->in, w->in + n, w->have);
		return w->have ? relay_pass(c, back) : 0;
	}
	if (!mine) {
		int rc = relay_put(w->to, w->in, w->have);

		w->have = 0;
		return rc;
	}
	while (w->have >= RECORD_HEAD && w->have >= get32(w->in) + (size_t)RECORD_OVERHEAD) {
		size_t n = get32(w->in) + RECORD_OVERHEAD, next = 0;

		if (w->records == r->record) {
			if (r->what == RELAY_SWAP) {
				if (w->have < n + RECORD_HEAD ||
				    w->have < n + (next = get32(w->in + n) + RECORD_OVERHEAD))
					return 0;
				if (relay_put(w->to, w->in + n, next))
					return -1;
			}
			atomic_store(&r->done, 1);
			if (r->what == RELAY_FLIP)
				w->in[RECORD_HEAD + n / 2 - RECORD_OVERHEAD / 2] ^= 4;
			if (r->what == RELAY_REPEAT && relay_put(w->to, w->in, n))
				return -1;
			if (r->what == RELAY_CUT)
				return relay_put(w->to, w->in, n / 2), -1;
		}
		if ((r->what != RELAY_DROP || w->records != r->record) && relay_put(w->to, w->in, n))
			return -1;
		w->records += next ? 2 : 1;
		w->have -= n + next;
		memmove(w->in, w->in + n + next, w->have);
	}
	return 0;
}

static inline void *relay_connection(void *arg)
{
	relay_pair *c = arg;
	struct sockaddr_in in = {.sin_family = AF_INET,
	                         .sin_port = htons((uint16_t)c->r->target),
	                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int a = c->dir[0].from, b = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	c->dir[0].to = c->dir[1].from = b;
	c->dir[1].to = a;
	c->dir[0].handshake = HELLO_BYTES + PROOF_BYTES;
	c->dir[1].handshake = CHALLENGE_BYTES + WELCOME_BYTES;
	c->kind = -1;
	if (!connect(b, (struct sockaddr *)&in, sizeof in))
		while (!atomic_load(&c->r->stop) && !(c->dir[0].ended && c->dir[1].ended)) {
			struct pollfd p[2] = {{c->dir[0].ended ? -1 : a, POLLIN, 0},
			                      {c->dir[1].ended ? -1 : b, POLLIN, 0}};
			int bad = 0;

			poll(p, 2, 100);
			for (int i = 0; i < 2 && !bad; i++) {
				relay_dir *w = &c->dir[i];
				ssize_t n;

				if (!p[i].revents)
					continue;
				n = recv(w->from, w->in + w->have, sizeof w->in - w->have, MSG_DONTWAIT);
				if (n <= 0) {
					w->ended = 1;
					shutdown(w->to, SHUT_WR);
					continue;
				}
				w->have += (size_t)n;
				bad = relay_pass(c, i);
			}
			if (bad)
				break;
		}
	close(a);
	close(b);
	relay *r = c->r;
	free(c);
	atomic_fetch_sub(&r->open, 1);
	return NULL;
}

static inline void *relay_main(void *arg)
{
	relay *r = arg;
	while (!atomic_load(&r->stop)) {
		struct pollfd p = {r->fd, POLLIN, 0};
		relay_pair *c;
		pthread_t thread;
		int fd;

		if (poll(&p, 1, 50) < 1 || (fd = accept4(r->fd, NULL, NULL, SOCK_CLOEXEC)) < 0)
			continue;
		c = calloc(1, sizeof *c);
		c->r = r;
		c->dir[0].from = fd;
		atomic_fetch_add(&r->open, 1);
		pthread_create(&thread, NULL, relay_connection, c);
		pthread_detach(thread);
	}
	close(r->fd);
	return NULL;
}

/* Leads to `target` from now on; the port is in r->port. */
static inline void relay_start(relay *r, int target)
{
	struct sockaddr_in6 in = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
	struct sockaddr_in in4 = {.sin_family = AF_INET};
	socklen_t bytes = sizeof in;
	int off = 0;
	r->target = target;
	r->fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (r->fd >= 0)
		setsockopt(r->fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	if (r->fd < 0 || bind(r->fd, (struct sockaddr *)&in, sizeof in)) {
		r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		bind(r->fd, (struct sockaddr *)&in4, sizeof in4);
	}
	listen(r->fd, 64);
	getsockname(r->fd, (struct sockaddr *)&in, &bytes);
	r->port = ntohs(in.sin6_port); /* where an IPv4 address has it too */
	pthread_create(&r->thread, NULL, relay_main, r);
}

static inline void relay_stop(relay *r)
{
	atomic_store(&r->stop, 1);
	pthread_join(r->thread, NULL);
	/* The connections' threads look every 100 ms. */
	while (atomic_load(&r->open))
		usleep(1000);
}

/* All ports of an endpoint record become `port`; returns the one they were. */
static inline int relay_endpoint(char *text, size_t capacity, int port)
{
	char out[4096] = "";
	size_t used = 0;
	int was = 0;
	for (const char *p = text; *p && used + 8 < sizeof out;) {
		if (*p != '@') {
			out[used++] = *p++;
			continue;
		}
		was = atoi(p + 1);
		used += (size_t)snprintf(out + used, sizeof out - used, "@%d", port);
		p += 1 + strspn(p + 1, "0123456789");
	}
	out[used] = '\0';
	if (port && used < capacity)
		memcpy(text, out, used + 1);
	return was;
}

#endif
