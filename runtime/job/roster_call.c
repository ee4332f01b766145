/* Asking other ranks: a connection, the proof of the secret, one question, one answer. */
#define _GNU_SOURCE
#include "job/roster_internal.h"

#include "base/thread.h"
#include "transport/core/wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALLERS 64          /* threads at most */
#define CONNECT_SECONDS 0.4 /* for one address */

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

static void write_hello(const roster *m, int to, const unsigned char nonce[NONCE_BYTES], unsigned char out[HELLO_BYTES])
{
	memset(out, 0, HELLO_BYTES);
	memcpy(out, "GCS1", 4);
	put32(out + 8, (uint32_t)m->rank);
	put32(out + 12, (uint32_t)to);
	put32(out + 16, (uint32_t)m->n);
	memcpy(out + HELLO_BYTES - NONCE_BYTES, nonce, NONCE_BYTES);
}

static int handshake(const roster *m, int to, int fd, double until)
{
	unsigned char hello[HELLO_BYTES], nonce[NONCE_BYTES], challenge[CHALLENGE_BYTES], mac[SHA256_BYTES], welcome[WELCOME_BYTES];

	if (secret_random(nonce, sizeof nonce, NULL))
		return -1;
	write_hello(m, to, nonce, hello);
	if (put(fd, hello, sizeof hello, until) || take(fd, challenge, sizeof challenge, until))
		return -1;
	handshake_mac(m->key, ROLE_ACCEPT, hello, challenge, mac);
	if (!secret_equal(mac, challenge + NONCE_BYTES, sizeof mac))
		return -1;
	handshake_mac(m->key, ROLE_CONNECT, hello, challenge, mac);
	return put(fd, mac, sizeof mac, until) || take(fd, welcome, sizeof welcome, until) ||
	       memcmp(welcome, handshake_welcome, WELCOME_BYTES) ? -1 : 0;
}

static int connect_address(const address *a, double until)
{
	struct sockaddr_storage sa;
	socklen_t bytes = address_sockaddr(a, &sa), len = sizeof(int);
	int on = 1, error = 0, fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	double limit = clock_now() + CONNECT_SECONDS;

	if (fd < 0)
		return -1;
	if ((connect(fd, (struct sockaddr *)&sa, bytes) && errno != EINPROGRESS && errno != EINTR) ||
	    ready(fd, POLLOUT, limit < until ? limit : until) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) || error) {
		close(fd);
		return -1;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	return fd;
}

static int call(const roster *m, int to, const roster_blob *question, roster_message *answer)
{
	double until = clock_now() + ROSTER_CALL_SECONDS;
	const endpoint *c = &m->endpoints[to];
	int order[ADDRESS_MAX], rc = -1;
	roster_blob in = {0};

	address_order(m->own, m->nown, m->node[to] == m->node[m->rank], c->addr, c->naddr, order);
	for (int i = 0; i < c->naddr && rc && clock_now() < until; i++) {
		int fd = connect_address(&c->addr[order[i]], until);

		if (fd < 0)
			continue;
		if (!handshake(m, to, fd, until) && !roster_send(fd, question, until) && !roster_receive(fd, &in, until))
			rc = roster_message_read(&in, answer);
		free(in.p);
		in.p = NULL;
		close(fd);
	}
	return rc;
}

typedef struct calls {
	roster *m;
	const int *ranks;
	int n;
	const roster_message *question;
	roster_blob bytes;
	roster_message *answers;
	atomic_int next;
} calls;

static void *caller_main(void *arg)
{
	calls *c = arg;

	for (int i; (i = atomic_fetch_add(&c->next, 1)) < c->n;) {
		if (c->ranks[i] == c->m->rank)
			roster_answer(c->m, c->question, &c->answers[i]);
		else if (call(c->m, c->ranks[i], &c->bytes, &c->answers[i]))
			roster_message_clear(&c->answers[i]);
	}
	return NULL;
}

void roster_ask(roster *m, const int *ranks, int n, const roster_message *question, roster_message *answers)
{
	calls c = {.m = m, .ranks = ranks, .n = n, .question = question, .answers = answers};
	pthread_t threads[CALLERS];
	int started = 0;

	memset(answers, 0, (size_t)n * sizeof *answers);
	if (roster_message_write(question, &c.bytes))
		return;
	while (started < CALLERS && started < n - 1 && !thread_start(&threads[started], caller_main, &c))
		started++;
	caller_main(&c);
	for (int i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	free(c.bytes.p);
}
