/* The meeting place: its guests and its log. One thread, one poll(); what a guest says
 * is added to the log, and every guest is sent all of it. */
#include "place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config.h"
#include "ports.h"

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

gradcomp_status gradcomp_meet_serve(gradcomp_meet *m, int until, gradcomp_error *err)
{
	while (m->ngone < m->nranks) {
		double t = clock_now();
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
		place_serve_strangers(m, m->polls + 2);
		if (m->polls[0].revents)
			place_accept_some(m);
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
		place_forget(&m->strangers[i]);
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
