/* The meeting place: its door, its guests and its log. One thread, one poll(); what a
 * guest says is added to the log, and every guest is sent all of it. Strangers have a
 * bounded number of places for a few seconds each, as in runtime/transport/stranger.c. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "address.h"
#include "config.h"
#include "meet.h"
#include "ports.h"

#define STRANGERS 64
#define STRANGER_SECONDS 3.0
#define ACCEPT_BATCH 64
#define WHERE_TEXT (ADDRESS_MAX * ADDRESS_TEXT)

typedef struct stranger {
	int fd;
	bool greeted; /* the challenge is out */
	size_t have;
	uint64_t order;
	double deadline;
	struct sockaddr_storage from;
	unsigned char in[MEET_HELLO_BYTES], hello[MEET_HELLO_BYTES], nonce[NONCE_BYTES];
} stranger;

typedef struct seat { /* of a rank */
	int fd;           /* -1: not there */
	bool gone;        /* has said good-bye */
	char host[65];
	unsigned entries;
	size_t sent; /* bytes of the log */
	size_t have;
	unsigned char *in; /* MEET_ENTRY_MAX bytes */
} seat;

struct gradcomp_meet {
	int door, nranks, ngone;
	char where[WHERE_TEXT], token[MEET_TOKEN_TEXT];
	meet_keys keys;
	stranger strangers[STRANGERS];
	uint64_t arrivals;
	double shut_until; /* no descriptor was left */
	seat *seats;
	struct pollfd *polls;
	unsigned char *log;
	size_t bytes, capacity;
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the log ---------------------------------------------------------------- */

static bool add(gradcomp_meet *m, const unsigned char *entry, size_t bytes)
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

static void drop(gradcomp_meet *m, int rank)
{
	seat *s = &m->seats[rank];
	unsigned char entry[MEET_ENTRY_MAX];
	char key[MEET_KEY_MAX];

	close(s->fd);
	s->fd = -1;
	free(s->in);
	s->in = NULL;
	if (s->gone)
		return;
	/* Those who wait for it need not wait for the time limit. */
	s->gone = true;
	m->ngone++;
	snprintf(key, sizeof key, MEET_DIED "%d", rank);
	size_t n = meet_entry_seal(&m->keys, (uint32_t)rank, key, s->host, strlen(s->host), entry);
	if (n)
		(void)add(m, entry, n);
}

/* ---- strangers ---------------------------------------------------------------- */

static void forget(stranger *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

/* A free place, or that of one of those who crowd. */
static stranger *place_for(gradcomp_meet *m)
{
	const struct sockaddr_storage *from[STRANGERS];
	uint64_t arrival[STRANGERS];

	for (int i = 0; i < STRANGERS; i++) {
		if (m->strangers[i].fd < 0)
			return &m->strangers[i];
		from[i] = &m->strangers[i].from;
		arrival[i] = m->strangers[i].order;
	}
	stranger *worst = &m->strangers[address_crowd(from, arrival, STRANGERS)];
	forget(worst);
	return worst;
}

static void accept_some(gradcomp_meet *m)
{
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		struct sockaddr_storage from = {0};
		socklen_t bytes = sizeof from;
		int on = 1, fd = accept4(m->door, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
				m->shut_until = now() + 0.2;
			return;
		}
		stranger *s = place_for(m);
		*s = (stranger){.fd = fd, .from = from, .order = m->arrivals++, .deadline = now() + STRANGER_SECONDS};
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	}
}

/* It has proved the token and takes its seat, if that is free. */
static bool take_seat(gradcomp_meet *m, stranger *s)
{
	seat *to = &m->seats[get32(s->hello + 4)];
	unsigned char *in = to->fd < 0 && !to->gone ? malloc(MEET_ENTRY_MAX) : NULL;

	if (!in || send(s->fd, handshake_welcome, WELCOME_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) != WELCOME_BYTES) {
		free(in);
		return false;
	}
	*to = (seat){.fd = s->fd, .in = in};
	s->fd = -1;
	return true;
}

/* False: it is no guest. */
static bool hear(gradcomp_meet *m, stranger *s)
{
	size_t want = s->greeted ? SECRET_BYTES : MEET_HELLO_BYTES;
	ssize_t n = recv(s->fd, s->in + s->have, want - s->have, MSG_DONTWAIT);
	unsigned char answer[CHALLENGE_BYTES], mac[SECRET_BYTES];
	meet_hello h;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	s->have += (size_t)n;
	if (s->have < want)
		return true;
	if (s->greeted) {
		meet_proof(&m->keys, ROLE_CONNECT, s->hello, s->nonce, mac);
		return secret_equal(mac, s->in, sizeof mac) && take_seat(m, s);
	}
	if (meet_hello_read(s->in, &h) || h.nranks != (uint32_t)m->nranks || secret_random(s->nonce, NONCE_BYTES, NULL))
		return false;
	memcpy(s->hello, s->in, MEET_HELLO_BYTES);
	memcpy(answer, s->nonce, NONCE_BYTES);
	meet_proof(&m->keys, ROLE_ACCEPT, s->hello, s->nonce, answer + NONCE_BYTES);
	s->greeted = true;
	s->have = 0;
	/* A fresh socket's buffer takes these few bytes, or something is wrong. */
	return send(s->fd, answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof answer;
}

/* ---- guests -------------------------------------------------------------------- */

/* False: it has gone, or broke the rules. */
static bool listen_to(gradcomp_meet *m, int rank)
{
	seat *s = &m->seats[rank];
	unsigned char copy[MEET_ENTRY_MAX], *value;
	uint32_t from;
	size_t bytes;
	long entry;
	ssize_t n = recv(s->fd, s->in + s->have, MEET_ENTRY_MAX - s->have, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	s->have += (size_t)n;
	while ((entry = meet_entry_check(&m->keys, s->in, s->have, &from)) > 0) {
		if (from != (uint32_t)rank || s->gone || ++s->entries > MEET_ENTRIES)
			return false;
		memcpy(copy, s->in, (size_t)entry);
		value = meet_entry_open(&m->keys, copy, (size_t)entry, &bytes);
		if (!value || !add(m, s->in, (size_t)entry))
			return false;
		if (!strncmp((char *)copy + MEET_HEAD, MEET_COME, sizeof MEET_COME - 1))
			snprintf(s->host, sizeof s->host, "%.*s", (int)bytes, (char *)value);
		if (!strncmp((char *)copy + MEET_HEAD, MEET_GONE, sizeof MEET_GONE - 1)) {
			s->gone = true;
			m->ngone++;
		}
		s->have -= (size_t)entry;
		memmove(s->in, s->in + entry, s->have);
	}
	secret_wipe(copy, sizeof copy);
	return entry == 0;
}

static bool talk_to(gradcomp_meet *m, seat *s)
{
	ssize_t n = send(s->fd, m->log + s->sent, m->bytes - s->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (n > 0)
		s->sent += (size_t)n;
	return n >= 0 || errno == EAGAIN || errno == EINTR;
}

/* ---- the rounds ------------------------------------------------------------------ */

static int prepare(gradcomp_meet *m, int until, double t)
{
	int n = 0;

	m->polls[n++] = (struct pollfd){t < m->shut_until ? -1 : m->door, POLLIN, 0};
	m->polls[n++] = (struct pollfd){until, POLLIN, 0};
	for (int i = 0; i < STRANGERS; i++)
		m->polls[n++] = (struct pollfd){m->strangers[i].fd, POLLIN, 0};
	for (int r = 0; r < m->nranks; r++) {
		short more = m->seats[r].sent < m->bytes ? POLLOUT : 0;
		m->polls[n++] = (struct pollfd){m->seats[r].fd, (short)(POLLIN | more), 0};
	}
	return n;
}

static int pause_ms(const gradcomp_meet *m, double t)
{
	double first = m->shut_until > t ? m->shut_until : t + 60;

	for (int i = 0; i < STRANGERS; i++)
		if (m->strangers[i].fd >= 0 && m->strangers[i].deadline < first)
			first = m->strangers[i].deadline;
	return first > t ? (int)((first - t) * 1e3) + 1 : 0;
}

/* The other end of `until` is closed; what is written there does not matter. */
static bool ended(int until)
{
	char some[64];
	ssize_t n = read(until, some, sizeof some);

	return n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
}

static void serve_strangers(gradcomp_meet *m, const struct pollfd *p)
{
	double t = now();

	for (int i = 0; i < STRANGERS; i++) {
		stranger *s = &m->strangers[i];
		if (s->fd >= 0 && ((p[i].revents && !hear(m, s)) || t >= s->deadline))
			forget(s);
	}
}

gradcomp_status gradcomp_meet_serve(gradcomp_meet *m, int until, gradcomp_error *err)
{
	while (m->ngone < m->nranks) {
		double t = now();
		int n = prepare(m, until, t);

		if (poll(m->polls, (nfds_t)n, pause_ms(m, t)) < 0 && errno != EINTR)
			return error_errno(err, GRADCOMP_ERR_IO, "the meeting place cannot wait for its guests");
		if (m->polls[1].revents && ended(until))
			break;
		for (int r = 0; r < m->nranks; r++) {
			const struct pollfd *p = &m->polls[2 + STRANGERS + r];
			if (p->fd < 0 || !p->revents)
				continue;
			if ((p->revents & ~POLLOUT && !listen_to(m, r)) ||
			    (p->revents & POLLOUT && !talk_to(m, &m->seats[r])))
				drop(m, r);
		}
		/* Those who are halfway first: accepting may push some of them out. */
		serve_strangers(m, m->polls + 2);
		if (m->polls[0].revents)
			accept_some(m);
	}
	return GRADCOMP_OK;
}

/* ---- opening ----------------------------------------------------------------------- */

static gradcomp_status where(gradcomp_meet *m, uint16_t port, gradcomp_error *err)
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

gradcomp_status gradcomp_meet_open(const char *const *settings, int nranks, gradcomp_meet **out, gradcomp_error *err)
{
	gradcomp_meet *m = NULL;
	unsigned char token[SECRET_BYTES];
	struct rlimit files;
	config *c = NULL;
	uint16_t port = 0;
	gradcomp_status st;

	*out = NULL;
	if (nranks < 1 || nranks > MEET_RANKS_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "%d nodes cannot meet; 1 to %d can", nranks, MEET_RANKS_MAX);
	m = calloc(1, sizeof *m);
	if (m) {
		m->door = -1;
		m->nranks = nranks;
		for (int i = 0; i < STRANGERS; i++)
			m->strangers[i].fd = -1;
		m->seats = calloc((size_t)nranks, sizeof *m->seats);
		m->polls = calloc((size_t)nranks + STRANGERS + 2, sizeof *m->polls);
		for (int r = 0; m->seats && r < nranks; r++)
			m->seats[r].fd = -1;
	}
	if (!m || !m->seats || !m->polls) {
		gradcomp_meet_close(m);
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
		st = ports_listen(config_str(c, "stage.meet_ports"), &m->door, &port, err);
	if (!st)
		st = where(m, port, err);
	if (!st)
		st = secret_random(token, sizeof token, err);
	if (!st) {
		meet_keys_make(&m->keys, token);
		st = meet_token_write(c, token, m->token, err);
	}
	secret_wipe(token, sizeof token);
	config_free(c);
	if (st)
		gradcomp_meet_close(m);
	else
		*out = m;
	return st;
}

const char *gradcomp_meet_where(const gradcomp_meet *m)
{
	return m->where;
}

const char *gradcomp_meet_token(const gradcomp_meet *m)
{
	return m->token;
}

void gradcomp_meet_close(gradcomp_meet *m)
{
	if (!m)
		return;
	if (m->door >= 0)
		close(m->door);
	for (int i = 0; i < STRANGERS; i++)
		forget(&m->strangers[i]);
	for (int r = 0; m->seats && r < m->nranks; r++) {
		if (m->seats[r].fd >= 0)
			close(m->seats[r].fd);
		free(m->seats[r].in);
	}
	free(m->seats);
	free(m->polls);
	if (m->log)
		secret_wipe(m->log, m->bytes);
	free(m->log);
	secret_wipe(&m->keys, sizeof m->keys);
	secret_wipe(m->token, sizeof m->token);
	free(m);
}
