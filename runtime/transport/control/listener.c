/* The sockets others knock at: opening them, accepting, and what the control
 * thread polls and serves. Who came in is stranger.c's until the proof. */
#define _GNU_SOURCE
#include "transport/core/transport_internal.h"

#include "base/error.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPT_BATCH 64

static gradcomp_status listener_listen(listener *d, const struct sockaddr *sa, socklen_t bytes, gradcomp_error *err)
{
	int off = 0, fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return error_errno(err, GRADCOMP_ERR_IO, "cannot make a listening socket");
	if (sa->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	if (bind(fd, sa, bytes) || listen(fd, 1024)) {
		error_errno(err, GRADCOMP_ERR_IO, "cannot listen for other ranks");
		close(fd);
		return GRADCOMP_ERR_IO;
	}
	d->local[d->n] = sa->sa_family == AF_UNIX;
	d->fd[d->n++] = fd;
	return GRADCOMP_OK;
}

static uint16_t listener_port(int fd)
{
	struct sockaddr_storage sa;
	socklen_t bytes = sizeof sa;

	if (getsockname(fd, (struct sockaddr *)&sa, &bytes))
		return 0;
	/* NOLINTNEXTLINE(clang-analyzer-core*): getsockname has filled it */
	return ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
	                                      : ((struct sockaddr_in *)&sa)->sin_port);
}

static gradcomp_status listener_open_tcp(transport *t, gradcomp_error *err)
{
	listener *d = &t->listener;
	struct sockaddr_storage sa;
	gradcomp_status st = address_own(t->interface, t->own, &t->nown, err);
	int kept = 0;

	if (st)
		return st;
	if (!*t->interface) {
		struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
		struct sockaddr_in any4 = {.sin_family = AF_INET};

		/* Without IPv6 in the kernel the first fails. */
		if (listener_listen(d, (struct sockaddr *)&any6, sizeof any6, NULL) &&
		    (st = listener_listen(d, (struct sockaddr *)&any4, sizeof any4, err)))
			return st;
		for (int i = 0; i < t->nown; i++)
			t->own[i].port = listener_port(d->fd[d->n - 1]);
		return GRADCOMP_OK;
	}
	for (int i = 0; i < t->nown && d->n < LISTENERS_MAX; i++) {
		socklen_t bytes = address_sockaddr(&t->own[i], &sa);

		st = listener_listen(d, (struct sockaddr *)&sa, bytes, err);
		if (st)
			continue;
		t->own[kept] = t->own[i];
		t->own[kept++].port = listener_port(d->fd[d->n - 1]);
	}
	t->nown = kept;
	return kept ? GRADCOMP_OK : st;
}

gradcomp_status listener_open(transport *t, char unix_name[ENDPOINT_UNIX_MAX], size_t *unix_bytes, gradcomp_error *err)
{
	struct sockaddr_un un;
	socklen_t bytes = sizeof un;

	*unix_bytes = 0;
	if (t->allow_shm) {
		memset(&un, 0, sizeof un);
		un.sun_family = AF_UNIX;
		/* An address of the family alone: the kernel picks a free abstract
		 * name, which needs no file and vanishes with the process. */
		gradcomp_status st = listener_listen(&t->listener, (struct sockaddr *)&un, sizeof un.sun_family, err);

		if (st)
			return st;
		if (getsockname(t->listener.fd[0], (struct sockaddr *)&un, &bytes) ||
		    bytes <= offsetof(struct sockaddr_un, sun_path) + 1 ||
		    bytes > offsetof(struct sockaddr_un, sun_path) + 1 + ENDPOINT_UNIX_MAX)
			return error_errno(err, GRADCOMP_ERR_IO, "cannot name the local socket");
		*unix_bytes = bytes - offsetof(struct sockaddr_un, sun_path) - 1;
		memcpy(unix_name, un.sun_path + 1, *unix_bytes);
	}
	/* Verbs begins over tcp, and is watched over it. */
	return t->allow_tcp || t->allow_verbs ? listener_open_tcp(t, err) : GRADCOMP_OK;
}

void listener_close(transport *t)
{
	pending_log_hidden(t);
	for (int i = 0; i < t->listener.n; i++)
		close(t->listener.fd[i]);
	t->listener.n = 0;
	for (int i = 0; i < PENDING_MAX; i++)
		pending_free(&t->listener.pending[i]);
}

static void listener_accept(transport *t, int fd, int local)
{
	listener *d = &t->listener;

	for (int i = 0; i < ACCEPT_BATCH; i++) {
		struct sockaddr_storage from = {0};
		socklen_t bytes = sizeof from;
		struct ucred cred;
		socklen_t cred_bytes = sizeof cred;
		int on = 1, got = accept4(fd, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
		pending_conn *s;

		if (got < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
			log_line(t->o.log, GRADCOMP_LOG_WARN,
			         "cannot accept connections of other ranks (%s); raise the limit of open files",
			         strerror(errno));
			d->shut_until = clock_now() + 0.2;
		}
		if (got < 0)
			return;
		s = pending_slot(t);
		memset(s, 0, sizeof *s);
		s->fd = got;
		s->passed = -1;
		s->local = local;
		s->from = from;
		s->order = d->arrivals++;
		s->deadline = clock_now() + PENDING_SECONDS;
		if (!local)
			setsockopt(got, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		else if (getsockopt(got, SOL_SOCKET, SO_PEERCRED, &cred, &cred_bytes) || cred.uid != geteuid())
			pending_drop(t, s, "it belongs to another user");
	}
}

int listener_poll(transport *t, struct pollfd *p, double now)
{
	listener *d = &t->listener;
	int n = 0;

	for (int i = 0; i < d->n; i++, n++)
		p[n] = (struct pollfd){now < d->shut_until ? -1 : d->fd[i], POLLIN, 0};
	for (int i = 0; i < PENDING_MAX; i++)
		if (d->pending[i].fd >= 0)
			p[n++] = (struct pollfd){d->pending[i].fd, POLLIN, 0};
	return n;
}

double listener_deadline(const transport *t)
{
	double first = t->listener.shut_until > 0 ? t->listener.shut_until : 1e18;

	for (int i = 0; i < PENDING_MAX; i++)
		if (t->listener.pending[i].fd >= 0 && t->listener.pending[i].deadline < first)
			first = t->listener.pending[i].deadline;
	return first;
}

void listener_serve(transport *t, const struct pollfd *p, int n)
{
	listener *d = &t->listener;
	double now = clock_now();

	if (d->shut_until > 0 && now >= d->shut_until)
		d->shut_until = 0;
	/* Those who are halfway first: accepting may push some of them out. */
	for (int i = 0; i < PENDING_MAX; i++) {
		pending_conn *s = &d->pending[i];

		for (int j = d->n; j < n && s->fd >= 0; j++)
			if (p[j].fd == s->fd) {
				if (p[j].revents)
					pending_serve(t, s);
				break;
			}
		if (s->fd >= 0 && now >= s->deadline)
			pending_drop(t, s, "it gave no proof in time");
	}
	for (int i = 0; i < d->n; i++)
		if (p[i].revents)
			listener_accept(t, d->fd[i], d->local[i]);
}
