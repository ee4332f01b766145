/* A guest of the meeting place: comes in, reads the log as it grows, and keeps what
 * it has read. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "address.h"
#include "config.h"
#include "meet.h"

#define ATTEMPT_SECONDS 3.0 /* for a connection and the greeting */
#define TICK_MS 100
#define NAMED 8 /* missing ranks in a message */
#define INPUT_BYTES (8 * MEET_ENTRY_MAX)

typedef struct fact {
	char *key;
	unsigned char *value;
	size_t bytes;
} fact;

struct gradcomp_guest {
	gradcomp_store store;
	gradcomp_guest_options o;
	meet_keys keys;
	address at[ADDRESS_MAX];
	int nat, fd;
	char place[ADDRESS_TEXT]; /* the address that answered, or was tried last */
	fact *facts;
	size_t nfacts, capacity, have;
	int come; /* guests, this one too */
	char why[200]; /* the place is lost or a guest died; "" */
	unsigned char in[INPUT_BYTES];
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool stopped(const gradcomp_guest *g)
{
	return g->o.stop && g->o.stop(g->o.ctx);
}

/* 1 ready, 0 too late, -1 to be stopped. */
static int wait_for(const gradcomp_guest *g, int fd, short events, double until)
{
	struct pollfd p = {fd, events, 0};

	for (;;) {
		double left = (until - now()) * 1e3;
		int n = poll(&p, 1, left < 0 ? 0 : left < TICK_MS ? (int)left + 1 : TICK_MS);

		if (n > 0)
			return 1;
		if (stopped(g))
			return -1;
		if (left <= 0)
			return 0;
	}
}

/* NULL, or what went wrong. */
static const char *all_of(const gradcomp_guest *g, int fd, void *buf, size_t bytes, bool out, double until)
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
			if (wait_for(g, fd, out ? POLLOUT : POLLIN, until) <= 0)
				return "it does not answer";
		} else if (errno != EINTR) {
			return strerror(errno);
		}
	}
	return NULL;
}

static const char *greet(gradcomp_guest *g, int fd, double until, bool *stranger)
{
	unsigned char text[MEET_HELLO_BYTES], challenge[CHALLENGE_BYTES], mac[SECRET_BYTES],
		welcome[WELCOME_BYTES];
	meet_hello h = {(uint32_t)g->o.rank, (uint32_t)g->o.nranks, {0}};
	const char *why;

	if (secret_random(h.nonce, sizeof h.nonce, NULL))
		return "no random bytes";
	meet_hello_write(&h, text);
	why = all_of(g, fd, text, sizeof text, true, until);
	if (!why)
		why = all_of(g, fd, challenge, sizeof challenge, false, until);
	if (why)
		return why;
	meet_proof(&g->keys, ROLE_ACCEPT, text, challenge, mac);
	*stranger = !secret_equal(mac, challenge + NONCE_BYTES, sizeof mac);
	if (*stranger)
		return "who answers there does not have the step's token";
	meet_proof(&g->keys, ROLE_CONNECT, text, challenge, mac);
	why = all_of(g, fd, mac, sizeof mac, true, until);
	return why ? why : all_of(g, fd, welcome, sizeof welcome, false, until);
}

/* A connection to one address; NULL and g->fd, or what went wrong. */
static const char *attempt(gradcomp_guest *g, const address *a, double deadline, bool *stranger)
{
	struct sockaddr_storage sa;
	socklen_t bytes = address_sockaddr(a, &sa);
	double until = now() + ATTEMPT_SECONDS;
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
	else if (wait_for(g, fd, POLLOUT, until) <= 0)
		why = "it does not answer";
	else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &code_bytes) || code)
		why = strerror(code ? code : errno);
	if (!why)
		why = greet(g, fd, until, stranger);
	if (why)
		close(fd);
	else
		g->fd = fd;
	return why;
}

static gradcomp_status addresses(gradcomp_guest *g, const char *where, gradcomp_error *err)
{
	address peer[ADDRESS_MAX], own[ADDRESS_MAX];
	int order[ADDRESS_MAX], nown = 0;

	for (const char *p = where; *p && g->nat < ADDRESS_MAX; p += strspn(p, ",")) {
		size_t n = strcspn(p, ",");
		if (address_parse(p, n, &peer[g->nat++]))
			return error_set(err, GRADCOMP_ERR_INVALID, "the address of the meeting place is malformed");
		p += n;
	}
	if (!g->nat)
		return error_set(err, GRADCOMP_ERR_INVALID, "the meeting place has no address");
	(void)address_own("", own, &nown, NULL);
	/* On the node of srun itself every address is an own one: they come last, not never. */
	address_order(own, nown, 0, peer, g->nat, order);
	for (int i = 0; i < g->nat; i++)
		g->at[i] = peer[order[i]];
	return GRADCOMP_OK;
}

static gradcomp_status come_in(gradcomp_guest *g, double deadline, gradcomp_error *err)
{
	const char *why = "";
	bool stranger = false;
	double pause = 0.05;

	for (;;) {
		for (int i = 0; i < g->nat; i++) {
			why = attempt(g, &g->at[i], deadline, &stranger);
			if (!why)
				return GRADCOMP_OK;
			if (stopped(g))
				return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		}
		/* A flood there may have pushed us out, and the place has just been opened. */
		if (now() + pause > deadline)
			break;
		(void)poll(NULL, 0, (int)(pause * 1e3));
		pause = pause < 1 ? 2 * pause : pause;
	}
	return error_set(err, stranger ? GRADCOMP_ERR_AUTH : GRADCOMP_ERR_IO,
	                 "cannot reach the meeting place of the step at %s, beside srun: %s", g->place, why);
}

static const fact *find(const gradcomp_guest *g, const char *key)
{
	for (size_t i = 0; i < g->nfacts; i++)
		if (!strcmp(g->facts[i].key, key))
			return &g->facts[i];
	return NULL;
}

/* What an entry says; the first value of a key stays. */
static bool learn(gradcomp_guest *g, const char *key, const unsigned char *value, size_t bytes)
{
	if (find(g, key))
		return true;
	if (g->nfacts == g->capacity) {
		size_t more = g->capacity ? 2 * g->capacity : 64;
		fact *f = realloc(g->facts, more * sizeof *f);
		if (!f)
			return false;
		g->facts = f;
		g->capacity = more;
	}
	fact *f = &g->facts[g->nfacts];
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
	g->nfacts++;
	g->come += !strncmp(key, MEET_COME, sizeof MEET_COME - 1);
	if (!strncmp(key, MEET_DIED, sizeof MEET_DIED - 1) && !g->why[0])
		snprintf(g->why, sizeof g->why, "%.64s (node %.10s of the step) died before all had met", f->value,
		         key + sizeof MEET_DIED - 1);
	return true;
}

/* Reads what has arrived. */
static void listen_in(gradcomp_guest *g)
{
	ssize_t n = recv(g->fd, g->in + g->have, sizeof g->in - g->have, MSG_DONTWAIT);
	size_t at = 0, bytes;
	uint32_t rank;
	long entry = 0;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		snprintf(g->why, sizeof g->why, "the meeting place of the step at %s is gone: srun has ended", g->place);
		return;
	}
	g->have += (size_t)n;
	while ((entry = meet_entry_check(&g->keys, g->in + at, g->have - at, &rank)) > 0) {
		unsigned char *value = meet_entry_open(&g->keys, g->in + at, (size_t)entry, &bytes);
		if (!value || !learn(g, (char *)g->in + at + MEET_HEAD, value, bytes)) {
			entry = -1;
			break;
		}
		at += (size_t)entry;
	}
	if (entry < 0)
		snprintf(g->why, sizeof g->why, "what the meeting place at %s says is damaged", g->place);
	g->have -= at;
	memmove(g->in, g->in + at, g->have);
}

static bool tell(gradcomp_guest *g, const char *key, const void *value, size_t bytes)
{
	unsigned char entry[MEET_ENTRY_MAX];
	size_t n = meet_entry_seal(&g->keys, (uint32_t)g->o.rank, key, value, bytes, entry);

	return n && !all_of(g, g->fd, entry, n, true, now() + ATTEMPT_SECONDS);
}

static void missing(const gradcomp_guest *g, double timeout, gradcomp_error *err)
{
	char list[NAMED * 8] = "", key[MEET_KEY_MAX];
	int n = 0;

	for (int r = 0; r < g->o.nranks; r++) {
		snprintf(key, sizeof key, MEET_COME "%d", r);
		if (!find(g, key) && n++ < NAMED)
			snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", n > 1 ? ", " : "", r);
	}
	error_set(err, GRADCOMP_ERR_TIMEOUT,
	          "%d of the step's %d nodes did not come to the meeting within %.0f s (stage.meet_timeout): "
	          "node%s %s%s, counted from 0",
	          n, g->o.nranks, timeout, n > 1 ? "s" : "", list, n > NAMED ? " ..." : "");
}

static gradcomp_status all_come(gradcomp_guest *g, double timeout, double deadline, gradcomp_error *err)
{
	while (!g->why[0] && g->come < g->o.nranks) {
		int ready = wait_for(g, g->fd, POLLIN, deadline);
		if (ready < 0)
			return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		if (!ready) {
			missing(g, timeout, err);
			return GRADCOMP_ERR_TIMEOUT;
		}
		listen_in(g);
	}
	return g->why[0] ? error_set(err, GRADCOMP_ERR_PEER, "%s", g->why) : GRADCOMP_OK;
}

static int store_set(void *ctx, const char *key, const void *value, size_t bytes)
{
	return tell(ctx, key, value, bytes) ? 0 : -1;
}

static long store_get(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms)
{
	gradcomp_guest *g = ctx;
	double until = now() + timeout_ms * 1e-3;
	const fact *f;

	while (!(f = find(g, key))) {
		if (g->why[0] || wait_for(g, g->fd, POLLIN, until) <= 0)
			return -1;
		listen_in(g);
	}
	memcpy(value, f->value, f->bytes < capacity ? f->bytes : capacity);
	return (long)f->bytes;
}

gradcomp_status gradcomp_meet_join(const gradcomp_guest_options *o, gradcomp_guest **out, gradcomp_error *err)
{
	gradcomp_guest *g = calloc(1, sizeof *g);
	config *c = NULL;
	unsigned char token[SECRET_BYTES];
	char host[65] = "", key[MEET_KEY_MAX];
	double timeout = o->timeout, deadline;
	gradcomp_status st;

	*out = NULL;
	if (!g)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to meet the other nodes");
	g->o = *o;
	g->fd = -1;
	g->store = (gradcomp_store){.struct_size = sizeof g->store, .rank = o->rank, .nranks = o->nranks, .ctx = g,
	                            .set = store_set, .get = store_get};
	st = o->nranks < 1 || o->nranks > MEET_RANKS_MAX || o->rank < 0 || o->rank >= o->nranks
	             ? error_set(err, GRADCOMP_ERR_INVALID, "node %d of %d cannot meet others", o->rank, o->nranks)
	             : config_load(NULL, &c, err);
	if (!st)
		st = secret_start(err);
	if (!st)
		st = meet_token_read(c, o->token, token, err);
	if (!st)
		st = addresses(g, o->where, err);
	if (!st) {
		meet_keys_make(&g->keys, token);
		timeout = timeout > 0 ? timeout : config_float(c, "stage.meet_timeout");
		deadline = now() + timeout;
		st = come_in(g, deadline, err);
	}
	if (!st) {
		gethostname(host, sizeof host - 1);
		snprintf(key, sizeof key, MEET_COME "%d", o->rank);
		if (!tell(g, key, host, strlen(host)))
			st = error_set(err, GRADCOMP_ERR_IO, "the meeting place of the step at %s does not listen", g->place);
	}
	if (!st)
		st = all_come(g, timeout, deadline, err);
	secret_wipe(token, sizeof token);
	config_free(c);
	if (st) {
		/* Without a good-bye: to the others this is a death. */
		if (g->fd >= 0)
			close(g->fd);
		g->fd = -1;
		gradcomp_meet_leave(g);
	} else {
		*out = g;
	}
	return st;
}

const gradcomp_store *gradcomp_meet_store(const gradcomp_guest *g)
{
	return &g->store;
}

void gradcomp_meet_leave(gradcomp_guest *g)
{
	char key[MEET_KEY_MAX];

	if (!g)
		return;
	snprintf(key, sizeof key, MEET_GONE "%d", g->o.rank);
	if (g->fd >= 0)
		(void)tell(g, key, "", 0);
	if (g->fd >= 0)
		close(g->fd);
	for (size_t i = 0; i < g->nfacts; i++) {
		secret_wipe(g->facts[i].value, g->facts[i].bytes);
		free(g->facts[i].value);
		free(g->facts[i].key);
	}
	free(g->facts);
	secret_wipe(&g->keys, sizeof g->keys);
	secret_wipe(g->in, sizeof g->in);
	free(g);
}
