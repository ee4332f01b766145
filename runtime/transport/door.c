/* The sockets others knock at: opening them, accepting, and what the control
 * thread polls and serves. Who came in is stranger.c's until the proof. */
#define _GNU_SOURCE
#include "state.h"

#include "error.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPT_BATCH 64

static gradcomp_status door_listen(doors *d, const struct sockaddr *sa, socklen_t bytes, gradcomp_error *err)
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

static uint16_t door_port(int fd)
{
	struct sockaddr_storage sa;
	socklen_t bytes = sizeof sa;

	if (getsockname(fd, (struct sockaddr *)&sa, &bytes))
		return 0;
	/* NOLINTNEXTLINE(clang-analyzer-core*): getsockname has filled it */
	return ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
	                                      : ((struct sockaddr_in *)&sa)->sin_port);
}

static gradcomp_status door_open_tcp(transport *t, gradcomp_error *err)
{
	doors *d = &t->doors;
	struct sockaddr_storage sa;
	gradcomp_status st = address_own(t->interface, t->own, &t->nown, err);
	int kept = 0;

	if (st)
		return st;
	if (!*t->interface) {
		struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
		struct sockaddr_in any4 = {.sin_family = AF_INET};

		/* Without IPv6 in the kernel the first fails. */
		if (door_listen(d, (struct sockaddr *)&any6, sizeof any6, NULL) &&
		    (st = door_listen(d, (struct sockaddr *)&any4, sizeof any4, err)))
			return st;
		for (int i = 0; i < t->nown; i++)
			t->own[i].port = door_port(d->fd[d->n - 1]);
		return GRADCOMP_OK;
	}
	for (int i = 0; i < t->nown && d->n < DOORS_MAX; i++) {
		socklen_t bytes = address_sockaddr(&t->own[i], &sa);

		st = door_listen(d, (struct sockaddr *)&sa, bytes, err);
		if (st)
			continue;
		t->own[kept] = t->own[i];
		t->own[kept++].port = door_port(d->fd[d->n - 1]);
	}
	t->nown = kept;
	return kept ? GRADCOMP_OK : st;
}

gradcomp_status door_open(transport *t, char unix_name[CARD_UNIX], size_t *unix_bytes, gradcomp_error *err)
{
	struct sockaddr_un un;
	socklen_t bytes = sizeof un;

	*unix_bytes = 0;
	if (t->allow_shm) {
		memset(&un, 0, sizeof un);
		un.sun_family = AF_UNIX;
		/* An address of the family alone: the kernel picks a free abstract
		 * name, which needs no file and vanishes with the process. */
		gradcomp_status st = door_listen(&t->doors, (struct sockaddr *)&un, sizeof un.sun_family, err);

		if (st)
			return st;
		if (getsockname(t->doors.fd[0], (struct sockaddr *)&un, &bytes) ||
		    bytes <= offsetof(struct sockaddr_un, sun_path) + 1 ||
		    bytes > offsetof(struct sockaddr_un, sun_path) + 1 + CARD_UNIX)
			return error_errno(err, GRADCOMP_ERR_IO, "cannot name the local socket");
		*unix_bytes = bytes - offsetof(struct sockaddr_un, sun_path) - 1;
		memcpy(unix_name, un.sun_path + 1, *unix_bytes);
	}
	/* Verbs begins over tcp, and is watched over it. */
	return t->allow_tcp || t->allow_verbs ? door_open_tcp(t, err) : GRADCOMP_OK;
}

void door_close(transport *t)
{
	stranger_sum(t);
	for (int i = 0; i < t->doors.n; i++)
		close(t->doors.fd[i]);
	t->doors.n = 0;
	for (int i = 0; i < STRANGERS_MAX; i++)
		stranger_free(&t->doors.strangers[i]);
}

static void door_accept(transport *t, int fd, int local)
{
	doors *d = &t->doors;

	for (int i = 0; i < ACCEPT_BATCH; i++) {
		struct sockaddr_storage from = {0};
		socklen_t bytes = sizeof from;
		struct ucred cred;
		socklen_t cred_bytes = sizeof cred;
		int on = 1, got = accept4(fd, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
		stranger *s;

		if (got < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
			log_line(t->o.log, GRADCOMP_LOG_WARN,
			         "cannot accept connections of other ranks (%s); raise the limit of open files",
			         strerror(errno));
			d->shut_until = clock_now() + 0.2;
		}
		if (got < 0)
			return;
		s = stranger_place(t);
		memset(s, 0, sizeof *s);
		s->fd = got;
		s->passed = -1;
		s->local = local;
		s->from = from;
		s->order = d->arrivals++;
		s->deadline = clock_now() + STRANGER_SECONDS;
		if (!local)
			setsockopt(got, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		else if (getsockopt(got, SOL_SOCKET, SO_PEERCRED, &cred, &cred_bytes) || cred.uid != geteuid())
			stranger_drop(t, s, "it belongs to another user");
	}
}

int door_poll(transport *t, struct pollfd *p, double now)
{
	doors *d = &t->doors;
	int n = 0;

	for (int i = 0; i < d->n; i++, n++)
		p[n] = (struct pollfd){now < d->shut_until ? -1 : d->fd[i], POLLIN, 0};
	for (int i = 0; i < STRANGERS_MAX; i++)
		if (d->strangers[i].fd >= 0)
			p[n++] = (struct pollfd){d->strangers[i].fd, POLLIN, 0};
	return n;
}

double door_deadline(const transport *t)
{
	double first = t->doors.shut_until > 0 ? t->doors.shut_until : 1e18;

	for (int i = 0; i < STRANGERS_MAX; i++)
		if (t->doors.strangers[i].fd >= 0 && t->doors.strangers[i].deadline < first)
			first = t->doors.strangers[i].deadline;
	return first;
}

void door_serve(transport *t, const struct pollfd *p, int n)
{
	doors *d = &t->doors;
	double now = clock_now();

	if (d->shut_until > 0 && now >= d->shut_until)
		d->shut_until = 0;
	/* Those who are halfway first: accepting may push some of them out. */
	for (int i = 0; i < STRANGERS_MAX; i++) {
		stranger *s = &d->strangers[i];

		for (int j = d->n; j < n && s->fd >= 0; j++)
			if (p[j].fd == s->fd) {
				if (p[j].revents)
					stranger_serve(t, s);
				break;
			}
		if (s->fd >= 0 && now >= s->deadline)
			stranger_drop(t, s, "it gave no proof in time");
	}
	for (int i = 0; i < d->n; i++)
		if (p[i].revents)
			door_accept(t, d->fd[i], d->local[i]);
}
