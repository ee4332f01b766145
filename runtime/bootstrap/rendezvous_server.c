/* Strangers at the meeting place: a bounded number of them for a few seconds each, as in
 * runtime/transport/control/pending.c, until they have proved the token. */
#include "bootstrap/rendezvous_server_internal.h"
#include "config/config.h"
#include "transport/core/ports.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <stdio.h>
#include <sys/resource.h>

#define PENDING_SECONDS 3.0
#define ACCEPT_BATCH 64

void pending_close(pending *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

/* A free place, or that of one of those who crowd. */
static pending *backlog_slot(rendezvous_server *m)
{
	const struct sockaddr_storage *from[BACKLOG];
	uint64_t arrival[BACKLOG];

	for (int i = 0; i < BACKLOG; i++) {
		if (m->backlog[i].fd < 0)
			return &m->backlog[i];
		from[i] = &m->backlog[i].from;
		arrival[i] = m->backlog[i].order;
	}
	pending *worst = &m->backlog[address_most_crowded(from, arrival, BACKLOG)];
	pending_close(worst);
	return worst;
}

void accept_some(rendezvous_server *m)
{
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		struct sockaddr_storage from = {0};
		socklen_t bytes = sizeof from;
		int on = 1, fd = accept4(m->listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
				m->shut_until = clock_now() + 0.2;
			return;
		}
		pending *s = backlog_slot(m);
		*s = (pending){.fd = fd, .from = from, .order = m->arrivals++, .deadline = clock_now() + PENDING_SECONDS};
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	}
}

/* It has proved the token and takes its seat, if that is free. */
static bool take_slot(rendezvous_server *m, pending *s)
{
	slot *to = &m->slots[get32(s->hello + 4)];
	unsigned char *in = to->fd < 0 && !to->left ? malloc(RENDEZVOUS_ENTRY_MAX) : NULL;

	if (!in || send(s->fd, handshake_welcome, WELCOME_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) != WELCOME_BYTES) {
		free(in);
		return false;
	}
	*to = (slot){.fd = s->fd, .in = in};
	s->fd = -1;
	return true;
}

/* False: it is no guest. */
static bool serve_pending(rendezvous_server *m, pending *s)
{
	size_t want = s->greeted ? SECRET_BYTES : RENDEZVOUS_HELLO_BYTES;
	ssize_t n = recv(s->fd, s->in + s->have, want - s->have, MSG_DONTWAIT);
	unsigned char answer[CHALLENGE_BYTES], mac[SECRET_BYTES];
	rendezvous_hello h;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	s->have += (size_t)n;
	if (s->have < want)
		return true;
	if (s->greeted) {
		rendezvous_proof(&m->keys, ROLE_CONNECT, s->hello, s->nonce, mac);
		return secret_equal(mac, s->in, sizeof mac) && take_slot(m, s);
	}
	if (rendezvous_hello_read(s->in, &h) || h.nranks != (uint32_t)m->nranks || secret_random(s->nonce, NONCE_BYTES, NULL))
		return false;
	memcpy(s->hello, s->in, RENDEZVOUS_HELLO_BYTES);
	memcpy(answer, s->nonce, NONCE_BYTES);
	rendezvous_proof(&m->keys, ROLE_ACCEPT, s->hello, s->nonce, answer + NONCE_BYTES);
	s->greeted = true;
	s->have = 0;
	/* A fresh socket's buffer takes these few bytes, or something is wrong. */
	return send(s->fd, answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof answer;
}

void serve_backlog(rendezvous_server *m, const struct pollfd *p)
{
	double t = clock_now();

	for (int i = 0; i < BACKLOG; i++) {
		pending *s = &m->backlog[i];
		if (s->fd >= 0 && ((p[i].revents && !serve_pending(m, s)) || t >= s->deadline))
			pending_close(s);
	}
}

/* The meeting place: its guests and its log. One thread, one poll(); what a guest says
 * is added to the log, and every guest is sent all of it. */



/* ---- the log ---------------------------------------------------------------- */

static bool add(rendezvous_server *m, const unsigned char *entry, size_t bytes)
{
	if (m->bytes + bytes > m->capacity) {
		size_t more = 2 * m->capacity + bytes + 4096;
		unsigned char *log = realloc(m->log, more);
		if (!log)
			return false;
		m->log = log;
		m->capacity = more;
	}
	memcpy(m->log + m->bytes, entry, bytes);
	m->bytes += bytes;
	return true;
}

static void drop(rendezvous_server *m, int rank)
{
	slot *s = &m->slots[rank];
	unsigned char entry[RENDEZVOUS_ENTRY_MAX];
	char key[RENDEZVOUS_KEY_MAX];

	close(s->fd);
	s->fd = -1;
	free(s->in);
	s->in = NULL;
	if (s->left)
		return;
	/* Those who wait for it need not wait for the time limit. */
	s->left = true;
	m->nleft++;
	snprintf(key, sizeof key, RENDEZVOUS_DIED "%d", rank);
	size_t n = rendezvous_entry_seal(&m->keys, (uint32_t)rank, key, s->host, strlen(s->host), entry);
	if (n)
		(void)add(m, entry, n);
}

/* ---- guests -------------------------------------------------------------------- */

/* False: it has gone, or broke the rules. */
static bool receive_from(rendezvous_server *m, int rank)
{
	slot *s = &m->slots[rank];
	unsigned char copy[RENDEZVOUS_ENTRY_MAX], *value;
	uint32_t from;
	size_t bytes;
	long entry;
	ssize_t n = recv(s->fd, s->in + s->have, RENDEZVOUS_ENTRY_MAX - s->have, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	s->have += (size_t)n;
	while ((entry = rendezvous_entry_check(&m->keys, s->in, s->have, &from)) > 0) {
		if (from != (uint32_t)rank || s->left || ++s->entries > RENDEZVOUS_ENTRIES)
			return false;
		memcpy(copy, s->in, (size_t)entry);
		value = rendezvous_entry_open(&m->keys, copy, (size_t)entry, &bytes);
		if (!value || !add(m, s->in, (size_t)entry))
			return false;
		if (!strncmp((char *)copy + RENDEZVOUS_HEAD, RENDEZVOUS_JOINED, sizeof RENDEZVOUS_JOINED - 1))
			snprintf(s->host, sizeof s->host, "%.*s", (int)bytes, (char *)value);
		if (!strncmp((char *)copy + RENDEZVOUS_HEAD, RENDEZVOUS_LEFT, sizeof RENDEZVOUS_LEFT - 1)) {
			s->left = true;
			m->nleft++;
		}
		s->have -= (size_t)entry;
		memmove(s->in, s->in + entry, s->have);
	}
	secret_wipe(copy, sizeof copy);
	return entry == 0;
}

static bool send_log(rendezvous_server *m, slot *s)
{
	ssize_t n = send(s->fd, m->log + s->sent, m->bytes - s->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (n > 0)
		s->sent += (size_t)n;
	return n >= 0 || errno == EAGAIN || errno == EINTR;
}

/* ---- the rounds ------------------------------------------------------------------ */

static int prepare(rendezvous_server *m, int until, double t)
{
	int n = 0;

	m->polls[n++] = (struct pollfd){t < m->shut_until ? -1 : m->listener, POLLIN, 0};
	m->polls[n++] = (struct pollfd){until, POLLIN, 0};
	for (int i = 0; i < BACKLOG; i++)
		m->polls[n++] = (struct pollfd){m->backlog[i].fd, POLLIN, 0};
	for (int r = 0; r < m->nranks; r++) {
		short more = m->slots[r].sent < m->bytes ? POLLOUT : 0;
		m->polls[n++] = (struct pollfd){m->slots[r].fd, (short)(POLLIN | more), 0};
	}
	return n;
}

static int pause_ms(const rendezvous_server *m, double t)
{
	double first = m->shut_until > t ? m->shut_until : t + 60;

	for (int i = 0; i < BACKLOG; i++)
		if (m->backlog[i].fd >= 0 && m->backlog[i].deadline < first)
			first = m->backlog[i].deadline;
	return first > t ? (int)((first - t) * 1e3) + 1 : 0;
}

/* The other end of `until` is closed; what is written there does not matter. */
static bool ended(int until)
{
	char some[64];
	ssize_t n = read(until, some, sizeof some);

	return n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
}

gradcomp_status rendezvous_server_run(rendezvous_server *m, int until, gradcomp_error *err)
{
	while (m->nleft < m->nranks) {
		double t = clock_now();
		int n = prepare(m, until, t);

		if (poll(m->polls, (nfds_t)n, pause_ms(m, t)) < 0 && errno != EINTR)
			return error_errno(err, GRADCOMP_ERR_IO, "the meeting place cannot wait for its guests");
		if (m->polls[1].revents && ended(until))
			break;
		for (int r = 0; r < m->nranks; r++) {
			const struct pollfd *p = &m->polls[2 + BACKLOG + r];
			if (p->fd < 0 || !p->revents)
				continue;
			if ((p->revents & ~POLLOUT && !receive_from(m, r)) ||
			    (p->revents & POLLOUT && !send_log(m, &m->slots[r])))
				drop(m, r);
		}
		/* Those who are halfway first: accepting may push some of them out. */
		serve_backlog(m, m->polls + 2);
		if (m->polls[0].revents)
			accept_some(m);
	}
	return GRADCOMP_OK;
}

/* ---- opening ----------------------------------------------------------------------- */

static gradcomp_status where(rendezvous_server *m, uint16_t port, gradcomp_error *err)
{
	address own[ADDRESS_MAX];
	int n;
	gradcomp_status st = address_own("", own, &n, err);

	for (int i = 0; !st && i < n; i++) {
		size_t used = strlen(m->where);
		own[i].port = port;
		m->where[used] = ',';
		address_format(&own[i], m->where + used + !!used);
	}
	return st;
}

gradcomp_status rendezvous_server_open(const char *const *settings, int nranks, rendezvous_server **out, gradcomp_error *err)
{
	rendezvous_server *m = NULL;
	unsigned char token[SECRET_BYTES];
	struct rlimit files;
	config *c = NULL;
	uint16_t port = 0;
	gradcomp_status st;

	*out = NULL;
	if (nranks < 1 || nranks > RENDEZVOUS_RANKS_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "%d nodes cannot meet; 1 to %d can", nranks, RENDEZVOUS_RANKS_MAX);
	m = calloc(1, sizeof *m);
	if (m) {
		m->listener = -1;
		m->nranks = nranks;
		for (int i = 0; i < BACKLOG; i++)
			m->backlog[i].fd = -1;
		m->slots = calloc((size_t)nranks, sizeof *m->slots);
		m->polls = calloc((size_t)nranks + BACKLOG + 2, sizeof *m->polls);
		for (int r = 0; m->slots && r < nranks; r++)
			m->slots[r].fd = -1;
	}
	if (!m || !m->slots || !m->polls) {
		rendezvous_server_close(m);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a meeting of %d nodes", nranks);
	}
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	st = config_load(settings, &c, err);
	if (!st)
		st = secret_start(err);
	if (!st)
		st = address_ports_listen(config_str(c, "stage.meet_ports"), &m->listener, &port, err);
	if (!st)
		st = where(m, port, err);
	if (!st)
		st = secret_random(token, sizeof token, err);
	if (!st) {
		rendezvous_keys_make(&m->keys, token);
		st = rendezvous_token_write(c, token, m->token, err);
	}
	secret_wipe(token, sizeof token);
	config_free(c);
	if (st)
		rendezvous_server_close(m);
	else
		*out = m;
	return st;
}

const char *rendezvous_server_where(const rendezvous_server *m)
{
	return m->where;
}

const char *rendezvous_server_token(const rendezvous_server *m)
{
	return m->token;
}

void rendezvous_server_close(rendezvous_server *m)
{
	if (!m)
		return;
	if (m->listener >= 0)
		close(m->listener);
	for (int i = 0; i < BACKLOG; i++)
		pending_close(&m->backlog[i]);
	for (int r = 0; m->slots && r < m->nranks; r++) {
		if (m->slots[r].fd >= 0)
			close(m->slots[r].fd);
		free(m->slots[r].in);
	}
	free(m->slots);
	free(m->polls);
	if (m->log)
		secret_wipe(m->log, m->bytes);
	free(m->log);
	secret_wipe(&m->keys, sizeof m->keys);
	secret_wipe(m->token, sizeof m->token);
	free(m);
}
