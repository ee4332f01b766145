#define _GNU_SOURCE
#include "transport/control/listener.h"

#include "base/clock.h"
#include "base/fd_pass.h"
#include "security/secret.h"
#include "transport/wire/address.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* At a time: else a crowd of ranks would push each other out before any of them can answer its CHALLENGE. */
#define ACCEPT_BATCH (PENDING_MAX / 4)
#define SEND_TRIES 16
#define SHUT_SECONDS 0.2
#define LOG_LINES 5 /* dropped connections that are logged in LOG_SECONDS */
#define LOG_SECONDS 10.0

/* Guards the list, for the fork handlers, and the descriptors of listeners. Held for moments: nothing that sleeps
 * or logs. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t open_once = PTHREAD_ONCE_INIT;
static listener *open_listeners; /* that children have nothing of */

static void fork_prepare(void)
{
	pthread_mutex_lock(&open_lock);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&open_lock);
}

static void pending_close(pending_conn *p)
{
	if (p->fd >= 0)
		close(p->fd);
	if (p->passed >= 0)
		close(p->passed);
	p->fd = p->passed = -1;
}

static void close_all(listener *l)
{
	for (int i = 0; i < l->n; i++)
		close(l->fd[i]);
	l->n = 0;
	for (int i = 0; i < PENDING_MAX; i++)
		pending_close(&l->pending[i]);
}

/* A data loader's worker may outlive its rank: then whoever calls the rank is to be refused, not to wait. */
static void fork_child(void)
{
	for (listener *l = open_listeners; l; l = l->next)
		close_all(l);
	pthread_mutex_unlock(&open_lock);
}

static void fork_watch(void)
{
	pthread_atfork(fork_prepare, fork_parent, fork_child);
}

void listener_init(listener *l, const listener_ops *ops, void *ctx, const log_sink *log)
{
	memset(l, 0, sizeof *l);
	l->ops = ops;
	l->ctx = ctx;
	l->log = log;
	for (int i = 0; i < PENDING_MAX; i++)
		l->pending[i].fd = l->pending[i].passed = -1;
}

void listener_close_in_forks(listener *l)
{
	pthread_once(&open_once, fork_watch);
	pthread_mutex_lock(&open_lock);
	l->next = open_listeners;
	open_listeners = l;
	pthread_mutex_unlock(&open_lock);
}

void listener_add(listener *l, int fd, bool local)
{
	pthread_mutex_lock(&open_lock);
	l->local[l->n] = local;
	l->fd[l->n++] = fd;
	pthread_mutex_unlock(&open_lock);
}

/* Says how many dropped connections were not logged so far. */
static void log_hidden(listener *l)
{
	if (l->log_hidden && l->log)
		log_line(l->log, GRADCOMP_LOG_WARN, "dropped %u more unauthenticated connections", l->log_hidden);
	l->log_lines = l->log_hidden = 0;
}

void listener_close(listener *l)
{
	log_hidden(l);
	pthread_mutex_lock(&open_lock);
	for (listener **at = &open_listeners; *at; at = &(*at)->next)
		if (*at == l) {
			*at = l->next;
			break;
		}
	close_all(l);
	pthread_mutex_unlock(&open_lock);
}

void listener_pending_free(pending_conn *p)
{
	pthread_mutex_lock(&open_lock);
	pending_close(p);
	pthread_mutex_unlock(&open_lock);
}

/* Logs why, unless that is NULL, but not so often that a flood fills the log. */
static void pending_drop(listener *l, pending_conn *p, const char *why)
{
	double now = clock_now();
	if (why && now >= l->log_window) {
		log_hidden(l);
		l->log_window = now + LOG_SECONDS;
	}
	if (why && l->log_lines++ < LOG_LINES) {
		char from[ADDRESS_TEXT];

		address_text(&p->from, from);
		if (l->log)
			log_line(l->log, GRADCOMP_LOG_WARN, "dropped a connection from %s: %s", from, why);
	} else if (why) {
		l->log_hidden++;
	}
	listener_pending_free(p);
}

/* One machine, whatever the ports; local sockets are of one. */
static bool same_machine(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET6)
		return !memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
		               &((const struct sockaddr_in6 *)b)->sin6_addr, 16);
	if (a->ss_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return true;
}

/* Finds a free slot. When there is none, that of the oldest connection of the machine with the most, so that one
 * that floods only pushes itself out. */
static pending_conn *pending_slot(listener *l)
{
	pending_conn *all = l->pending;
	int worst = 0, most = 0;
	for (int i = 0; i < PENDING_MAX; i++) {
		int count = 0;

		if (all[i].fd < 0)
			return &all[i];
		for (int j = 0; j < PENDING_MAX; j++)
			count += all[j].fd >= 0 && same_machine(&all[i].from, &all[j].from);
		if (count > most || (count == most && all[i].arrival < all[worst].arrival)) {
			most = count;
			worst = i;
		}
	}
	return &all[worst];
}

static void listener_accept(listener *l, int listening, bool local)
{
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		struct sockaddr_storage from = {0};
		socklen_t bytes = sizeof from;
		struct ucred cred;
		socklen_t cred_bytes = sizeof cred;
		pending_conn *p = NULL, pushed_out = {.fd = -1, .passed = -1};
		int on = 1, fd, error;

		pthread_mutex_lock(&open_lock);
		fd = accept4(listening, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
		error = errno;
		if (fd >= 0) {
			p = pending_slot(l);
			pushed_out = *p;
			*p = (pending_conn){.fd = fd,
			                    .passed = -1,
			                    .local = local,
			                    .from = from,
			                    .arrival = l->arrivals++,
			                    .deadline = clock_now() + PENDING_SECONDS};
		}
		pthread_mutex_unlock(&open_lock);
		if (fd < 0 && (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS)) {
			if (l->log)
				log_line(l->log, GRADCOMP_LOG_WARN,
				         "cannot accept connections of other ranks (%s); raise the limit of open files",
				         strerror(error));
			l->shut_until = clock_now() + SHUT_SECONDS;
		}
		if (fd < 0)
			return;
		if (pushed_out.fd >= 0)
			pending_drop(l, &pushed_out, "too many connections are unauthenticated");
		if (!local)
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_bytes) || cred.uid != geteuid())
			pending_drop(l, p, "it belongs to another user");
		/* The HELLO has mostly come with it; the next turn may be late. */
		if (p->fd >= 0)
			listener_pending_serve(l, p);
	}
}

/* Reads into p->in. The descriptor that comes with the proof of a local peer is
 * kept. 1 when `want` bytes are there, 0 when not yet, -1 when it has closed. */
static int pending_read(pending_conn *p, unsigned want)
{
	unsigned char *at = p->in + p->have;
	int error, fd = FD_NONE;
	ssize_t n;
	pthread_mutex_lock(&open_lock);
	n = p->local && p->challenged ? fd_take(p->fd, at, want - p->have, &fd)
	                              : recv(p->fd, at, want - p->have, MSG_DONTWAIT);
	error = errno;
	if (fd >= 0) {
		if (p->passed >= 0)
			close(p->passed);
		p->passed = fd;
	}
	pthread_mutex_unlock(&open_lock);
	if (n < 0)
		return error == EAGAIN || error == EINTR ? 0 : -1;
	if (!n)
		return -1;
	p->have += (unsigned)n;
	return p->have == want;
}

/* A fresh socket's buffer takes these few bytes, or something is wrong. */
static int pending_send(const pending_conn *p, const unsigned char *buf, size_t bytes)
{
	for (int tries = 0; bytes && tries < SEND_TRIES; tries++) {
		ssize_t n = send(p->fd, buf, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return -1;
		buf += n > 0 ? n : 0;
		bytes -= n > 0 ? (size_t)n : 0;
	}
	return bytes ? -1 : 0;
}

int listener_pending_welcome(const pending_conn *p)
{
	return pending_send(p, handshake_welcome, WELCOME_BYTES);
}

int listener_pending_gone(const pending_conn *p)
{
	return pending_send(p, handshake_gone, WELCOME_BYTES);
}

static const char *pending_challenge(listener *l, pending_conn *p)
{
	unsigned char challenge[CHALLENGE_BYTES];
	const char *why = l->ops->hello(l->ctx, p);
	if (why)
		return why;
	if (secret_random(p->nonce, NONCE_BYTES, NULL))
		return "no random bytes";
	memcpy(p->hello, p->in, l->ops->hello_bytes);
	memcpy(challenge, p->nonce, NONCE_BYTES);
	l->ops->proof(l->ctx, ROLE_ACCEPT, p, challenge + NONCE_BYTES);
	if (pending_send(p, challenge, sizeof challenge))
		return "it does not read";
	p->challenged = true;
	p->have = 0;
	/* From here on it has time again, once: either end may have got no processor for a while. */
	p->deadline = clock_now() + PENDING_SECONDS;
	return NULL;
}

/* Once it has proved the secret it is not pending any more, whatever becomes of it. */
static void pending_proof(listener *l, pending_conn *p)
{
	unsigned char mac[SHA256_BYTES];
	pending_conn proved = *p;
	const char *why;
	l->ops->proof(l->ctx, ROLE_CONNECT, p, mac);
	if (!secret_equal(mac, p->in, sizeof mac)) {
		pending_drop(l, p, "it does not have the job's secret");
		return;
	}
	pthread_mutex_lock(&open_lock);
	p->fd = p->passed = -1;
	pthread_mutex_unlock(&open_lock);
	why = l->ops->accept(l->ctx, &proved);
	if (why)
		pending_drop(l, &proved, why);
}

void listener_pending_serve(listener *l, pending_conn *p)
{
	int got = pending_read(p, p->challenged ? PROOF_BYTES : l->ops->hello_bytes);
	const char *why;
	if (got < 0) {
		/* A connection that closes without a byte is a port scan, or a peer that
		 * tried another address first. */
		pending_drop(l, p, p->have || p->challenged ? "it closed before its proof" : NULL);
		return;
	}
	if (!got)
		return;
	if (p->challenged) {
		pending_proof(l, p);
		return;
	}
	why = pending_challenge(l, p);
	if (why)
		pending_drop(l, p, why);
}

int listener_poll(const listener *l, struct pollfd *p, double now)
{
	int n = 0;
	for (int i = 0; i < l->n; i++, n++)
		p[n] = (struct pollfd){now < l->shut_until ? -1 : l->fd[i], POLLIN, 0};
	for (int i = 0; i < PENDING_MAX; i++)
		if (l->pending[i].fd >= 0)
			p[n++] = (struct pollfd){l->pending[i].fd, POLLIN, 0};
	return n;
}

double listener_deadline(const listener *l)
{
	double first = l->shut_until > 0 ? l->shut_until : 1e18;
	for (int i = 0; i < PENDING_MAX; i++)
		if (l->pending[i].fd >= 0 && l->pending[i].deadline < first)
			first = l->pending[i].deadline;
	return first;
}

void listener_serve(listener *l, const struct pollfd *p, int n)
{
	double now = clock_now();
	if (l->shut_until > 0 && now >= l->shut_until)
		l->shut_until = 0;
	/* Handshakes under way come first: accepting may push some of them out. */
	for (int i = 0; i < PENDING_MAX; i++) {
		pending_conn *s = &l->pending[i];

		/* This thread may be late itself: what has come since the poll counts, too. */
		bool due = now >= s->deadline;

		for (int j = l->n; j < n && !due; j++)
			due = p[j].fd == s->fd && p[j].revents;
		if (s->fd >= 0 && due)
			listener_pending_serve(l, s);
		if (s->fd >= 0 && now >= s->deadline)
			pending_drop(l, s, "it did not prove the secret in time");
	}
	for (int i = 0; i < l->n; i++)
		if (p[i].revents)
			listener_accept(l, l->fd[i], l->local[i]);
}
