/* The accepting side of a rank: its listening sockets, and which connections it takes.
 * connect.c is the other side. */
#define _GNU_SOURCE
#include "transport/core/transport_internal.h"
#include "transport/wire/keepalive.h"

#include "base/error.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_BACKLOG 1024
#define PROBE_BUFFER (4 << 20)

static gradcomp_status accept_listen(listener *l, const struct sockaddr *sa, socklen_t bytes, gradcomp_error *err)
{
	int off = 0, fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_errno(err, GRADCOMP_ERR_IO, "cannot make a listening socket");
	if (sa->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	if (bind(fd, sa, bytes) || listen(fd, LISTEN_BACKLOG)) {
		error_errno(err, GRADCOMP_ERR_IO, "cannot listen for other ranks");
		close(fd);
		return GRADCOMP_ERR_IO;
	}
	listener_add(l, fd, sa->sa_family == AF_UNIX);
	return GRADCOMP_OK;
}

static gradcomp_status accept_open_tcp(transport *t, gradcomp_error *err)
{
	listener *l = &t->sockets.listener;
	struct sockaddr_storage sa;
	gradcomp_status st = address_own(t->interface, t->sockets.own, &t->sockets.nown, err);
	int kept = 0;
	if (st)
		return st;
	if (!*t->interface) {
		struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
		struct sockaddr_in any4 = {.sin_family = AF_INET};

		/* Without IPv6 in the kernel the first fails. */
		if (accept_listen(l, (struct sockaddr *)&any6, sizeof any6, NULL) &&
		    (st = accept_listen(l, (struct sockaddr *)&any4, sizeof any4, err)))
			return st;
		for (int i = 0; i < t->sockets.nown; i++)
			t->sockets.own[i].port = address_local_port(l->fd[l->n - 1]);
		return GRADCOMP_OK;
	}
	for (int i = 0; i < t->sockets.nown && l->n < LISTENER_SOCKETS; i++) {
		socklen_t bytes = address_sockaddr(&t->sockets.own[i], &sa);

		st = accept_listen(l, (struct sockaddr *)&sa, bytes, err);
		if (st)
			continue;
		t->sockets.own[kept] = t->sockets.own[i];
		t->sockets.own[kept++].port = address_local_port(l->fd[l->n - 1]);
	}
	t->sockets.nown = kept;
	return kept ? GRADCOMP_OK : st;
}

gradcomp_status accept_open(transport *t, bool local, bool network, char unix_name[ENDPOINT_UNIX_MAX],
                            size_t *unix_bytes, gradcomp_error *err)
{
	struct sockaddr_un un;
	socklen_t bytes = sizeof un;
	*unix_bytes = 0;
	if (local) {
		memset(&un, 0, sizeof un);
		un.sun_family = AF_UNIX;
		/* An address of the family alone: the kernel picks a free abstract
		 * name, which needs no file and vanishes with the process. */
		gradcomp_status st =
			accept_listen(&t->sockets.listener, (struct sockaddr *)&un, sizeof un.sun_family, err);

		if (st)
			return st;
		if (getsockname(t->sockets.listener.fd[0], (struct sockaddr *)&un, &bytes) ||
		    bytes <= offsetof(struct sockaddr_un, sun_path) + 1 ||
		    bytes > offsetof(struct sockaddr_un, sun_path) + 1 + ENDPOINT_UNIX_MAX)
			return error_errno(err, GRADCOMP_ERR_IO, "cannot name the local socket");
		*unix_bytes = bytes - offsetof(struct sockaddr_un, sun_path) - 1;
		memcpy(unix_name, un.sun_path + 1, *unix_bytes);
	}
	return network ? accept_open_tcp(t, err) : GRADCOMP_OK;
}

gradcomp_status accept_inherit(transport *t, const transport *old, gradcomp_error *err)
{
	for (int i = 0; i < old->sockets.listener.n; i++) {
		int fd = fcntl(old->sockets.listener.fd[i], F_DUPFD_CLOEXEC, 0);

		if (fd < 0)
			return error_errno(err, GRADCOMP_ERR_IO, "cannot take over a listening socket");
		listener_add(&t->sockets.listener, fd, old->sockets.listener.local[i]);
	}
	/* Connections that were on their way to the other transport are no attack. */
	t->sockets.listener.log = NULL;
	memcpy(t->sockets.own, old->sockets.own, sizeof t->sockets.own);
	t->sockets.nown = old->sockets.nown;
	return GRADCOMP_OK;
}

static const char *accept_hello(void *ctx, const pending_conn *p)
{
	const transport *t = ctx;
	hello h;
	const char *why = handshake_read(p->in, &h);
	if (why)
		return why;
	if (h.nranks != (uint32_t)t->nranks || h.to != (uint32_t)t->rank)
		return "it wants another rank or job";
	if ((h.kind == HELLO_SHM) != p->local && h.kind != HELLO_CONTROL && h.kind != HELLO_CALL)
		return "its HELLO is malformed";
	if (!record_crypto_fits(p->local ? FRAMES_NONE : t->o.frames, h.frames))
		return "it has another security.frames, or a cipher that this CPU does not have";
	return NULL;
}

static void accept_proof(void *ctx, handshake_role role, const pending_conn *p, unsigned char mac[SHA256_BYTES])
{
	const transport *t = ctx;
	handshake_mac(t->secret, role, p->hello, p->nonce, mac);
}

/* Returns why it cannot wait for its channel, or NULL. */
static const char *accept_keep(transport *t, const hello *h, int fd, int passed)
{
	gradcomp_status st = backlog_put(t, h, fd, passed);
	char text[CULPRIT_TEXT];
	if (st == GRADCOMP_ERR_NOMEM) {
		/* The peer has its WELCOME, and would wait. */
		snprintf(text, sizeof text, "rank %d on %s: no memory for a connection of rank %u", t->rank,
		         transport_host(t, t->rank), h->from);
		transport_fail(t, st, t->rank, text);
	}
	return st ? "too many connections wait in the backlog" : NULL;
}

static const char *accept_rank(void *ctx, pending_conn *p)
{
	transport *t = ctx;
	const char *why;
	hello h;
	handshake_read(p->hello, &h);
	memcpy(h.answer, p->nonce, NONCE_BYTES);
	if ((h.kind == HELLO_SHM) != (p->passed >= 0))
		return "its HELLO is malformed";
	if (h.kind != HELLO_CONTROL && h.kind != HELLO_PROBE && backlog_is_gone(t, h.channel)) {
		listener_pending_gone(p);
		close(p->fd);
		if (p->passed >= 0)
			close(p->passed);
		p->fd = p->passed = -1;
		return NULL;
	}
	if (h.kind == HELLO_CALL) {
		/* Without a WELCOME the rank calls again; with one it waits for this rank to connect. */
		why = accept_keep(t, &h, -1, -1);
		if (why)
			return why;
		if (listener_pending_welcome(p))
			return "it does not read";
		/* Its connection has no other use. */
		close(p->fd);
		p->fd = -1;
		return NULL;
	}
	if (h.kind == HELLO_PROBE) {
		int *place = t->sockets.probe;

		while (place < t->sockets.probe + PROBES_MAX && *place >= 0)
			place++;
		if (place == t->sockets.probe + PROBES_MAX)
			return "too many connections measure the network";
		if (listener_pending_welcome(p))
			return "it does not read";
		/* The buffer is made as large as the system lets it be: this thread may not get to read for a
		 * while. */
		setsockopt(p->fd, SOL_SOCKET, SO_RCVBUF, &(int){PROBE_BUFFER}, sizeof(int));
		*place = p->fd;
		p->fd = -1;
		return NULL;
	}
	/* WELCOME goes out before the connection is handed over, so that nothing precedes it. */
	if (listener_pending_welcome(p))
		return "it does not read";
	/* It may wait long for its channel. */
	if (h.kind == HELLO_TCP || h.kind == HELLO_VERBS)
		keepalive_start(p->fd, t->o.timeout);
	if (h.kind == HELLO_CONTROL)
		why = tree_attach(t, (int)h.from, p->fd, &h) ? "it is connected already" : NULL;
	else
		why = accept_keep(t, &h, p->fd, p->passed);
	if (why)
		return why;
	p->fd = p->passed = -1;
	return NULL;
}

static const listener_ops accept_ops = {
	.hello_bytes = HELLO_BYTES, .hello = accept_hello, .proof = accept_proof, .accept = accept_rank};

void accept_init(transport *t)
{
	listener_init(&t->sockets.listener, &accept_ops, t, t->o.log);
	listener_close_in_forks(&t->sockets.listener);
	for (int i = 0; i < PROBES_MAX; i++)
		t->sockets.probe[i] = -1;
}

void accept_close(transport *t)
{
	listener_close(&t->sockets.listener);
	for (int i = 0; i < PROBES_MAX; i++)
		if (t->sockets.probe[i] >= 0)
			close(t->sockets.probe[i]);
}
