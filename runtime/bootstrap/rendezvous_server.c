/* The rendezvous server: its clients and its log. One thread, one poll(). What a client
 * sends is appended to the log. The first clients are sent the log, and pass it on to the others
 * (rendezvous_relay.c), which ask for it here only when their relay is lost. */
#include "base/clock.h"
#include "bootstrap/rendezvous_msg.h"
#include "config/config.h"
#include "transport/control/listener.h"
#include "transport/wire/address.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define WHERE_TEXT ADDRESS_LIST_TEXT
#define IDLE_SECONDS 60.0
#define FILES_BESIDE 256 /* descriptors that the process may need beside those of clients */

typedef struct slot { /* a rank's connection */
	int fd;       /* -1: not there */
	bool left;    /* has said goodbye */
	char host[65];
	unsigned entries;
	bool direct;        /* is sent the log from here */
	bool told;          /* has been told where its relay is */
	size_t sent;        /* bytes of the log */
	char *relay;        /* where it passes the log on; NULL: not known */
	unsigned char *out; /* entries for it alone, sent before the log */
	size_t out_bytes, out_sent;
	size_t have;
	unsigned char *in; /* RENDEZVOUS_ENTRY_MAX bytes */
} slot;

struct rendezvous_server {
	int nranks, njoined, nleft;
	char where[WHERE_TEXT], token[RENDEZVOUS_TOKEN_TEXT];
	rendezvous_keys keys;
	listener listener;
	slot *slots;
	struct pollfd *polls; /* those of what ends the server, of the slots, and of the listener */
	unsigned char *log;
	size_t bytes, capacity;
	uint64_t total; /* sent to clients */
};

/* The functions below tell one client what it has not heard. */

/* False: there is no memory. */
static bool tell(rendezvous_server *srv, slot *s, const char *key, const void *value, size_t bytes)
{
	unsigned char *out = realloc(s->out, s->out_bytes + RENDEZVOUS_ENTRY_MAX);
	size_t n = 0;
	if (out) {
		s->out = out;
		n = rendezvous_entry_seal(&srv->keys, (uint32_t)(s - srv->slots), key, value, bytes,
		                          out + s->out_bytes);
		s->out_bytes += n;
	}
	return n > 0;
}

/* Makes the server send it the log from here on, from this byte. */
static bool begin_log(rendezvous_server *srv, slot *s, uint64_t offset)
{
	unsigned char value[8];
	put64(value, offset);
	s->direct = true;
	s->sent = (size_t)offset;
	return tell(srv, s, RENDEZVOUS_LOG, value, sizeof value);
}

/* Tells a client where it can read the log, once that is known. */
static bool tell_way(rendezvous_server *srv, int rank)
{
	slot *s = &srv->slots[rank];
	const slot *relay = rank < RENDEZVOUS_FANOUT ? NULL : &srv->slots[rendezvous_relay_of(rank)];
	if (s->fd < 0 || s->direct || s->told)
		return true;
	if (!relay || relay->left)
		return begin_log(srv, s, 0);
	if (!relay->relay)
		return true;
	s->told = true;
	return tell(srv, s, RENDEZVOUS_RELAY, relay->relay, strlen(relay->relay));
}

/* Does the same for the clients of a relay. One that there is no memory for asks when it is quiet for long. */
static void tell_readers(rendezvous_server *srv, int relay)
{
	int64_t first = rendezvous_first_of(relay);
	for (int64_t r = first; r < first + RENDEZVOUS_FANOUT && r < srv->nranks; r++)
		(void)tell_way(srv, (int)r);
}

static const char *check_hello(void *ctx, const pending_conn *p)
{
	const rendezvous_server *srv = ctx;
	rendezvous_hello h;
	const char *why = rendezvous_hello_read(p->in, &h);
	if (!why && !rendezvous_hello_direct(&h, p->fd))
		why = "its greeting was meant for another port";
	return why || h.nranks == (uint32_t)srv->nranks ? why : "it is of a step with another number of nodes";
}

static void proof(void *ctx, handshake_role role, const pending_conn *p, unsigned char mac[SHA256_BYTES])
{
	const rendezvous_server *srv = ctx;
	rendezvous_proof(&srv->keys, role, p->hello, p->nonce, mac);
}

/* The client has proved the token: it gets the slot of its rank, if that is free. */
static const char *take_slot(void *ctx, pending_conn *p)
{
	rendezvous_server *srv = ctx;
	slot *to = &srv->slots[get32(p->hello + 4)];
	int on = 1;
	if (to->fd >= 0 || to->left)
		return "its rank is connected already";
	to->in = malloc(RENDEZVOUS_ENTRY_MAX);
	if (!to->in)
		return "there is no memory for it";
	if (listener_pending_welcome(p)) {
		free(to->in);
		to->in = NULL;
		return "it does not read";
	}
	*to = (slot){.fd = p->fd, .in = to->in};
	p->fd = -1;
	setsockopt(to->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	srv->njoined++;
	(void)tell_way(srv, (int)get32(p->hello + 4));
	return NULL;
}

static const listener_ops server_ops = {RENDEZVOUS_HELLO_BYTES, check_hello, proof, take_slot};

static bool append(rendezvous_server *srv, const unsigned char *entry, size_t bytes)
{
	if (srv->bytes + bytes > srv->capacity) {
		size_t more = 2 * srv->capacity + bytes + 4096;
		unsigned char *log = realloc(srv->log, more);
		if (!log)
			return false;
		srv->log = log;
		srv->capacity = more;
	}
	memcpy(srv->log + srv->bytes, entry, bytes);
	srv->bytes += bytes;
	return true;
}

static void drop(rendezvous_server *srv, int rank)
{
	slot *s = &srv->slots[rank];
	unsigned char entry[RENDEZVOUS_ENTRY_MAX];
	char key[RENDEZVOUS_KEY_MAX];
	close(s->fd);
	s->fd = -1;
	free(s->in);
	s->in = NULL;
	free(s->out);
	s->out = NULL;
	s->out_bytes = s->out_sent = 0;
	if (s->left)
		return;
	/* The others learn of it at once and not at the time limit. */
	s->left = true;
	srv->nleft++;
	snprintf(key, sizeof key, RENDEZVOUS_DIED "%d", rank);
	size_t n = rendezvous_entry_seal(&srv->keys, (uint32_t)rank, key, s->host, strlen(s->host), entry);
	if (n)
		(void)append(srv, entry, n);
	tell_readers(srv, rank);
}

/* An entry for the server alone: 1; 0: it is one of the log; -1: it is malformed. */
static int take_private(rendezvous_server *srv, int rank, const char *key, const unsigned char *value, size_t bytes)
{
	slot *s = &srv->slots[rank];
	uint64_t offset;
	if (!strcmp(key, RENDEZVOUS_RELAY)) {
		if (s->relay || !bytes || bytes >= WHERE_TEXT || memchr(value, 0, bytes))
			return -1;
		s->relay = strndup((const char *)value, bytes);
		tell_readers(srv, rank);
		return s->relay ? 1 : -1;
	}
	if (strcmp(key, RENDEZVOUS_ASK))
		return 0;
	if (bytes != 9 || (offset = get64(value)) > srv->bytes)
		return -1;
	if (!s->direct && (value[8] || offset < srv->bytes) && !begin_log(srv, s, offset))
		return -1;
	return 1;
}

/* False: it has disconnected, or broke the protocol. */
static bool receive_from(rendezvous_server *srv, int rank)
{
	slot *s = &srv->slots[rank];
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
	while ((entry = rendezvous_entry_check(&srv->keys, s->in, s->have, &from)) > 0) {
		int private;

		if (from != (uint32_t)rank || s->left)
			return false;
		memcpy(copy, s->in, (size_t)entry);
		value = rendezvous_entry_open(&srv->keys, copy, (size_t)entry, &bytes);
		private = value ? take_private(srv, rank, (char *)copy + RENDEZVOUS_HEAD, value, bytes) : -1;
		if (private < 0 ||
		    (!private && (++s->entries > RENDEZVOUS_ENTRIES || !append(srv, s->in, (size_t)entry))))
			return false;
		if (!strncmp((char *)copy + RENDEZVOUS_HEAD, RENDEZVOUS_JOINED, sizeof RENDEZVOUS_JOINED - 1))
			snprintf(s->host, sizeof s->host, "%.*s", (int)bytes, (char *)value);
		if (!strncmp((char *)copy + RENDEZVOUS_HEAD, RENDEZVOUS_LEFT, sizeof RENDEZVOUS_LEFT - 1)) {
			s->left = true;
			srv->nleft++;
			tell_readers(srv, rank);
		}
		s->have -= (size_t)entry;
		memmove(s->in, s->in + entry, s->have);
	}
	secret_wipe(copy, sizeof copy);
	return entry == 0;
}

static bool has_more(const rendezvous_server *srv, const slot *s)
{
	return s->out_sent < s->out_bytes || (s->direct && s->sent < srv->bytes);
}

static bool send_more(rendezvous_server *srv, slot *s)
{
	bool own = s->out_sent < s->out_bytes;
	const unsigned char *from = own ? s->out + s->out_sent : srv->log + s->sent;
	ssize_t n =
		send(s->fd, from, own ? s->out_bytes - s->out_sent : srv->bytes - s->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n > 0) {
		*(own ? &s->out_sent : &s->sent) += (size_t)n;
		srv->total += (uint64_t)n;
	}
	return n >= 0 || errno == EAGAIN || errno == EINTR;
}

/* Fills polls; returns how many of them are the listener's. */
static int prepare(rendezvous_server *srv, int until, double now)
{
	srv->polls[0] = (struct pollfd){until, POLLIN, 0};
	for (int r = 0; r < srv->nranks; r++) {
		short more = has_more(srv, &srv->slots[r]) ? POLLOUT : 0;
		srv->polls[1 + r] = (struct pollfd){srv->slots[r].fd, (short)(POLLIN | more), 0};
	}
	return listener_poll(&srv->listener, srv->polls + 1 + srv->nranks, now);
}

static int pause_ms(const rendezvous_server *srv, double now)
{
	double first = listener_deadline(&srv->listener);
	first = first < now + IDLE_SECONDS ? first : now + IDLE_SECONDS;
	return first > now ? (int)((first - now) * 1e3) + 1 : 0;
}

/* The other end of `until` is closed; what is written there does not matter. */
static bool ended(int until)
{
	char some[64];
	ssize_t n = read(until, some, sizeof some);
	return n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
}

gradcomp_status rendezvous_server_run(rendezvous_server *srv, int until, gradcomp_error *err)
{
	while (srv->nleft < srv->nranks) {
		double now = clock_now();
		int n = prepare(srv, until, now);

		if (poll(srv->polls, (nfds_t)(1 + srv->nranks + n), pause_ms(srv, now)) < 0 && errno != EINTR)
			return error_errno(err, GRADCOMP_ERR_IO, "the rendezvous server cannot wait for its clients");
		if (srv->polls[0].revents && ended(until))
			break;
		for (int r = 0; r < srv->nranks; r++) {
			const struct pollfd *p = &srv->polls[1 + r];
			if (p->fd < 0 || !p->revents)
				continue;
			if ((p->revents & ~POLLOUT && !receive_from(srv, r)) ||
			    (p->revents & POLLOUT && has_more(srv, &srv->slots[r]) && !send_more(srv, &srv->slots[r])))
				drop(srv, r);
		}
		listener_serve(&srv->listener, srv->polls + 1 + srv->nranks, n);
		/* A rank that comes from now on is refused: it knocks again, and comes to the next server at this
		 * place. */
		if (srv->njoined == srv->nranks)
			listener_close(&srv->listener);
	}
	/* A rank that waits for the last to leave has to hear that it has left. */
	for (int r = 0; r < srv->nranks; r++)
		for (int part = 0; part < 2 && srv->slots[r].fd >= 0 && has_more(srv, &srv->slots[r]); part++)
			(void)send_more(srv, &srv->slots[r]);
	return GRADCOMP_OK;
}

static gradcomp_status listen_for_nodes(rendezvous_server *srv, const char *range, uint16_t *port, gradcomp_error *err)
{
	int fd = address_listen(range, port);
	if (fd < 0)
		return error_errno(err, GRADCOMP_ERR_IO,
		                   "cannot listen for the nodes of the step%s%s (stage.rendezvous_ports)",
		                   *range ? " on ports " : "", range);
	listener_add(&srv->listener, fd, false);
	return GRADCOMP_OK;
}

static gradcomp_status server_new(int nranks, rendezvous_server **out, gradcomp_error *err)
{
	rendezvous_server *srv = NULL;
	struct rlimit files;
	*out = NULL;
	if (nranks < 1 || nranks > RENDEZVOUS_RANKS_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "%d nodes cannot connect to one rendezvous server; 1 to %d can", nranks,
		                 RENDEZVOUS_RANKS_MAX);
	srv = calloc(1, sizeof *srv);
	if (srv) {
		listener_init(&srv->listener, &server_ops, srv, NULL);
		srv->nranks = nranks;
		srv->slots = calloc((size_t)nranks, sizeof *srv->slots);
		srv->polls = calloc((size_t)nranks + 1 + LISTENER_POLLS, sizeof *srv->polls);
		for (int r = 0; srv->slots && r < nranks; r++)
			srv->slots[r].fd = -1;
	}
	if (!srv || !srv->slots || !srv->polls) {
		rendezvous_server_close(srv);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a rendezvous of %d nodes", nranks);
	}
	if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < (rlim_t)nranks + FILES_BESIDE) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	*out = srv;
	return GRADCOMP_OK;
}

gradcomp_status rendezvous_server_open_at(int fd, const unsigned char *token, int nranks, rendezvous_server **out,
                                          gradcomp_error *err)
{
	gradcomp_status st = server_new(nranks, out, err);
	if (st) {
		close(fd);
		return st;
	}
	listener_add(&(*out)->listener, fd, false);
	rendezvous_keys_make(&(*out)->keys, token);
	return GRADCOMP_OK;
}

gradcomp_status rendezvous_server_open(const char *const *settings, int nranks, rendezvous_server **out,
                                       gradcomp_error *err)
{
	rendezvous_server *srv;
	unsigned char token[SECRET_BYTES];
	config *c = NULL;
	uint16_t port = 0;
	gradcomp_status st = server_new(nranks, &srv, err);
	*out = NULL;
	if (st)
		return st;
	st = config_load(settings, &c, err);
	if (!st)
		st = listen_for_nodes(srv, config_str(c, SET_STAGE_RENDEZVOUS_PORTS), &port, err);
	if (!st)
		st = address_own_text(port, srv->where, err);
	if (!st)
		st = secret_random(token, sizeof token, err);
	if (!st) {
		rendezvous_keys_make(&srv->keys, token);
		st = rendezvous_token_write(c, token, srv->token, err);
	}
	secret_wipe(token, sizeof token);
	config_free(c);
	if (st)
		rendezvous_server_close(srv);
	else
		*out = srv;
	return st;
}

const char *rendezvous_server_where(const rendezvous_server *srv)
{
	return srv->where;
}

const char *rendezvous_server_token(const rendezvous_server *srv)
{
	return srv->token;
}

uint64_t rendezvous_server_sent(const rendezvous_server *srv)
{
	return srv->total;
}

void rendezvous_server_close(rendezvous_server *srv)
{
	if (!srv)
		return;
	listener_close(&srv->listener);
	for (int r = 0; srv->slots && r < srv->nranks; r++) {
		if (srv->slots[r].fd >= 0)
			close(srv->slots[r].fd);
		free(srv->slots[r].in);
		free(srv->slots[r].out);
		free(srv->slots[r].relay);
	}
	free(srv->slots);
	free(srv->polls);
	if (srv->log)
		secret_wipe(srv->log, srv->bytes);
	free(srv->log);
	secret_wipe(&srv->keys, sizeof srv->keys);
	secret_wipe(srv->token, sizeof srv->token);
	free(srv);
}
