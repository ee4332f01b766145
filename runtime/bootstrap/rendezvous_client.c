/* Connecting to the rendezvous server: connection, greeting, and what reads and writes. */
#include "bootstrap/rendezvous_client_internal.h"
#include "config/config.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>

#define TICK_MS 100

static bool stopped(const rendezvous_client *g)
{
	return g->o.stop && g->o.stop(g->o.ctx);
}

int client_wait(const rendezvous_client *g, int fd, short events, double until)
{
	struct pollfd p = {fd, events, 0};

	for (;;) {
		double left = (until - clock_now()) * 1e3;
		int n = poll(&p, 1, left < 0 ? 0 : left < TICK_MS ? (int)left + 1 : TICK_MS);

		if (n > 0)
			return 1;
		if (stopped(g))
			return -1;
		if (left <= 0)
			return 0;
	}
}

const char *client_transfer(const rendezvous_client *g, int fd, void *buf, size_t bytes, bool out, double until)
{
	unsigned char *p = buf;

	while (bytes) {
		ssize_t n = out ? send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, p, bytes, MSG_DONTWAIT);

		if (n > 0) {
			p += n;
			bytes -= (size_t)n;
		} else if (!n) {
			return "it closed the connection";
		} else if (errno == EAGAIN) {
			if (client_wait(g, fd, out ? POLLOUT : POLLIN, until) <= 0)
				return "it does not answer";
		} else if (errno != EINTR) {
			return strerror(errno);
		}
	}
	return NULL;
}

static const char *greet(rendezvous_client *g, int fd, double until, bool *unproved)
{
	unsigned char text[RENDEZVOUS_HELLO_BYTES], challenge[CHALLENGE_BYTES], mac[SECRET_BYTES],
		welcome[WELCOME_BYTES];
	rendezvous_hello h = {(uint32_t)g->o.rank, (uint32_t)g->o.nranks, {0}};
	const char *why;

	if (secret_random(h.nonce, sizeof h.nonce, NULL))
		return "no random bytes";
	rendezvous_hello_write(&h, text);
	why = client_transfer(g, fd, text, sizeof text, true, until);
	if (!why)
		why = client_transfer(g, fd, challenge, sizeof challenge, false, until);
	if (why)
		return why;
	rendezvous_proof(&g->keys, ROLE_ACCEPT, text, challenge, mac);
	*unproved = !secret_equal(mac, challenge + NONCE_BYTES, sizeof mac);
	if (*unproved)
		return "who answers there does not have the step's token";
	rendezvous_proof(&g->keys, ROLE_CONNECT, text, challenge, mac);
	why = client_transfer(g, fd, mac, sizeof mac, true, until);
	return why ? why : client_transfer(g, fd, welcome, sizeof welcome, false, until);
}

/* A connection to one address; NULL and g->fd, or what went wrong. */
static const char *attempt(rendezvous_client *g, const address *a, double deadline, bool *unproved)
{
	struct sockaddr_storage sa;
	socklen_t bytes = address_sockaddr(a, &sa);
	double until = clock_now() + CLIENT_ATTEMPT;
	int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, code = 0;
	socklen_t code_bytes = sizeof code;
	const char *why = NULL;

	until = until < deadline ? until : deadline;
	address_text(&sa, g->place);
	if (fd < 0)
		return strerror(errno);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	if (connect(fd, (struct sockaddr *)&sa, bytes) && errno != EINPROGRESS)
		why = strerror(errno);
	else if (client_wait(g, fd, POLLOUT, until) <= 0)
		why = "it does not answer";
	else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &code_bytes) || code)
		why = strerror(code ? code : errno);
	if (!why)
		why = greet(g, fd, until, unproved);
	if (why)
		close(fd);
	else
		g->fd = fd;
	return why;
}

gradcomp_status client_addresses(rendezvous_client *g, const char *where, gradcomp_error *err)
{
	address peer[ADDRESS_MAX], own[ADDRESS_MAX];
	int order[ADDRESS_MAX], nown = 0;

	for (const char *p = where; *p && g->nat < ADDRESS_MAX; p += strspn(p, ",")) {
		size_t n = strcspn(p, ",");
		if (address_parse(p, n, &peer[g->nat++]))
			return error_set(err, GRADCOMP_ERR_INVALID, "the address of the rendezvous server is malformed");
		p += n;
	}
	if (!g->nat)
		return error_set(err, GRADCOMP_ERR_INVALID, "the rendezvous server has no address");
	(void)address_own("", own, &nown, NULL);
	/* On the node of srun itself every address is an own one: they come last, not never. */
	address_order(own, nown, 0, peer, g->nat, order);
	for (int i = 0; i < g->nat; i++)
		g->at[i] = peer[order[i]];
	return GRADCOMP_OK;
}

gradcomp_status client_connect(rendezvous_client *g, double deadline, gradcomp_error *err)
{
	const char *why = "";
	bool unproved = false;
	double pause = 0.05;

	for (;;) {
		for (int i = 0; i < g->nat; i++) {
			why = attempt(g, &g->at[i], deadline, &unproved);
			if (!why)
				return GRADCOMP_OK;
			if (stopped(g))
				return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		}
		/* A flood there may have pushed us out, and the place has just been opened. */
		if (clock_now() + pause > deadline)
			break;
		(void)poll(NULL, 0, (int)(pause * 1e3));
		pause = pause < 1 ? 2 * pause : pause;
	}
	return error_set(err, unproved ? GRADCOMP_ERR_AUTH : GRADCOMP_ERR_IO,
	                 "cannot reach the rendezvous server of the step at %s, beside srun: %s", g->place, why);
}

/* A client of the rendezvous server: reads the log as it grows, and keeps what it has read. */



#define NAMED 8 /* missing ranks in a message */

static const kv_pair *find(const rendezvous_client *g, const char *key)
{
	for (size_t i = 0; i < g->npairs; i++)
		if (!strcmp(g->pairs[i].key, key))
			return &g->pairs[i];
	return NULL;
}

/* What an entry says; the first value of a key stays. */
static bool keep_pair(rendezvous_client *g, const char *key, const unsigned char *value, size_t bytes)
{
	if (find(g, key))
		return true;
	if (g->npairs == g->capacity) {
		size_t more = g->capacity ? 2 * g->capacity : 64;
		kv_pair *f = realloc(g->pairs, more * sizeof *f);
		if (!f)
			return false;
		g->pairs = f;
		g->capacity = more;
	}
	kv_pair *f = &g->pairs[g->npairs];
	f->key = strdup(key);
	f->value = malloc(bytes + 1);
	f->bytes = bytes;
	if (!f->key || !f->value) {
		free(f->key);
		free(f->value);
		return false;
	}
	memcpy(f->value, value, bytes);
	f->value[bytes] = 0;
	g->npairs++;
	g->njoined += !strncmp(key, RENDEZVOUS_JOINED, sizeof RENDEZVOUS_JOINED - 1);
	if (!strncmp(key, RENDEZVOUS_DIED, sizeof RENDEZVOUS_DIED - 1) && !g->why[0])
		snprintf(g->why, sizeof g->why, "%.64s (node %.10s of the step) died before all had met", f->value,
		         key + sizeof RENDEZVOUS_DIED - 1);
	return true;
}

/* Reads what has arrived. */
static void receive_log(rendezvous_client *g)
{
	ssize_t n = recv(g->fd, g->in + g->have, sizeof g->in - g->have, MSG_DONTWAIT);
	size_t at = 0, bytes;
	uint32_t rank;
	long entry = 0;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		snprintf(g->why, sizeof g->why, "the rendezvous server of the step at %s is gone: srun has ended", g->place);
		return;
	}
	g->have += (size_t)n;
	while ((entry = rendezvous_entry_check(&g->keys, g->in + at, g->have - at, &rank)) > 0) {
		unsigned char *value = rendezvous_entry_open(&g->keys, g->in + at, (size_t)entry, &bytes);
		if (!value || !keep_pair(g, (char *)g->in + at + RENDEZVOUS_HEAD, value, bytes)) {
			entry = -1;
			break;
		}
		at += (size_t)entry;
	}
	if (entry < 0)
		snprintf(g->why, sizeof g->why, "what the rendezvous server at %s says is damaged", g->place);
	g->have -= at;
	memmove(g->in, g->in + at, g->have);
}

static bool send_entry(rendezvous_client *g, const char *key, const void *value, size_t bytes)
{
	unsigned char entry[RENDEZVOUS_ENTRY_MAX];
	size_t n = rendezvous_entry_seal(&g->keys, (uint32_t)g->o.rank, key, value, bytes, entry);

	return n && !client_transfer(g, g->fd, entry, n, true, clock_now() + CLIENT_ATTEMPT);
}

static void missing(const rendezvous_client *g, double timeout, gradcomp_error *err)
{
	char list[NAMED * 8] = "", key[RENDEZVOUS_KEY_MAX];
	int n = 0;

	for (int r = 0; r < g->o.nranks; r++) {
		snprintf(key, sizeof key, RENDEZVOUS_JOINED "%d", r);
		if (!find(g, key) && n++ < NAMED)
			snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", n > 1 ? ", " : "", r);
	}
	error_set(err, GRADCOMP_ERR_TIMEOUT,
	          "%d of the step's %d nodes did not connect within %.0f s (stage.rendezvous_timeout): "
	          "node%s %s%s, counted from 0",
	          n, g->o.nranks, timeout, n > 1 ? "s" : "", list, n > NAMED ? " ..." : "");
}

static gradcomp_status all_joined(rendezvous_client *g, double timeout, double deadline, gradcomp_error *err)
{
	while (!g->why[0] && g->njoined < g->o.nranks) {
		int ready = client_wait(g, g->fd, POLLIN, deadline);
		if (ready < 0)
			return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		if (!ready) {
			missing(g, timeout, err);
			return GRADCOMP_ERR_TIMEOUT;
		}
		receive_log(g);
	}
	return g->why[0] ? error_set(err, GRADCOMP_ERR_PEER, "%s", g->why) : GRADCOMP_OK;
}

static int store_set(void *ctx, const char *key, const void *value, size_t bytes)
{
	return send_entry(ctx, key, value, bytes) ? 0 : -1;
}

static long store_get(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms)
{
	rendezvous_client *g = ctx;
	double until = clock_now() + timeout_ms * 1e-3;
	const kv_pair *f;

	while (!(f = find(g, key))) {
		if (g->why[0] || client_wait(g, g->fd, POLLIN, until) <= 0)
			return -1;
		receive_log(g);
	}
	memcpy(value, f->value, f->bytes < capacity ? f->bytes : capacity);
	return (long)f->bytes;
}

gradcomp_status rendezvous_connect(const rendezvous_client_options *o, rendezvous_client **out, gradcomp_error *err)
{
	rendezvous_client *g = calloc(1, sizeof *g);
	config *c = NULL;
	unsigned char token[SECRET_BYTES];
	char host[65] = "", key[RENDEZVOUS_KEY_MAX];
	double timeout = o->timeout, deadline;
	gradcomp_status st;

	*out = NULL;
	if (!g)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a rendezvous with the other nodes");
	g->o = *o;
	g->fd = -1;
	g->store = (gradcomp_store){.struct_size = sizeof g->store, .rank = o->rank, .nranks = o->nranks, .ctx = g,
	                            .set = store_set, .get = store_get};
	st = o->nranks < 1 || o->nranks > RENDEZVOUS_RANKS_MAX || o->rank < 0 || o->rank >= o->nranks
	             ? error_set(err, GRADCOMP_ERR_INVALID, "node %d of %d cannot be one of the step", o->rank, o->nranks)
	             : config_load(NULL, &c, err);
	if (!st)
		st = rendezvous_token_read(c, o->token, token, err);
	if (!st)
		st = client_addresses(g, o->where, err);
	if (!st) {
		rendezvous_keys_make(&g->keys, token);
		timeout = timeout > 0 ? timeout : config_float(c, "stage.rendezvous_timeout");
		deadline = clock_now() + timeout;
		st = client_connect(g, deadline, err);
	}
	if (!st) {
		gethostname(host, sizeof host - 1);
		snprintf(key, sizeof key, RENDEZVOUS_JOINED "%d", o->rank);
		if (!send_entry(g, key, host, strlen(host)))
			st = error_set(err, GRADCOMP_ERR_IO, "the rendezvous server of the step at %s does not listen", g->place);
	}
	if (!st)
		st = all_joined(g, timeout, deadline, err);
	secret_wipe(token, sizeof token);
	config_free(c);
	if (st) {
		/* Without a good-bye: to the others this is a death. */
		if (g->fd >= 0)
			close(g->fd);
		g->fd = -1;
		rendezvous_disconnect(g);
	} else {
		*out = g;
	}
	return st;
}

const gradcomp_store *rendezvous_store(const rendezvous_client *g)
{
	return &g->store;
}

void rendezvous_disconnect(rendezvous_client *g)
{
	char key[RENDEZVOUS_KEY_MAX];

	if (!g)
		return;
	snprintf(key, sizeof key, RENDEZVOUS_LEFT "%d", g->o.rank);
	if (g->fd >= 0)
		(void)send_entry(g, key, "", 0);
	if (g->fd >= 0)
		close(g->fd);
	for (size_t i = 0; i < g->npairs; i++) {
		secret_wipe(g->pairs[i].value, g->pairs[i].bytes);
		free(g->pairs[i].value);
		free(g->pairs[i].key);
	}
	free(g->pairs);
	secret_wipe(&g->keys, sizeof g->keys);
	secret_wipe(g->in, sizeof g->in);
	free(g);
}
