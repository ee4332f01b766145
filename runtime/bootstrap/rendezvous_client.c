/* Connecting to the rendezvous server: connection, greeting, and what reads and writes. */
#include "bootstrap/rendezvous_client_internal.h"
#include "config/config.h"
#include "transport/wire/network.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>

#define TICK_MS 100
#define HEAD_START 0.25 /* s of an address before the next one is tried beside it */
#define ATTEMPTS (4 * ADDRESS_MAX)
#define NAMED 8 /* missing ranks in a message */
#define MISSING_TEXT (NAMED * 8 + 160)
#define PATIENCE 5.0 /* s for others to come, before it is told that they have not */

static bool stopped(const rendezvous_client *cl)
{
	return cl->o.stop && cl->o.stop(cl->o.ctx);
}

/* 1: ready; 0: time is up; -1: the caller wants to stop. */
static int client_wait(const rendezvous_client *cl, int fd, short events, double until)
{
	struct pollfd p = {fd, events, 0};
	for (;;) {
		double left = (until - clock_now()) * 1e3;
		int n = poll(&p, 1, left < 0 ? 0 : left < TICK_MS ? (int)left + 1 : TICK_MS);

		if (n > 0)
			return 1;
		if (stopped(cl))
			return -1;
		if (left <= 0)
			return 0;
	}
}

/* Reads or writes all of it; NULL, or what went wrong. */
static const char *client_transfer(const rendezvous_client *cl, int fd, void *buf, size_t bytes, bool out, double until)
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
			if (client_wait(cl, fd, out ? POLLOUT : POLLIN, until) <= 0)
				return "it does not answer";
		} else if (errno != EINTR) {
			return strerror(errno);
		}
	}
	return NULL;
}

/* Returns the end of an attempt that begins now; at most `deadline`. */
static double attempt_end(double deadline)
{
	double until = clock_now() + CLIENT_ATTEMPT;
	return until < deadline ? until : deadline;
}

/* A try at one address and port: it connects, greets, and waits for the CHALLENGE. All that have begun go on side
 * by side, so one that leads nowhere, or to somebody who does not answer, holds up the next for HEAD_START only. */
typedef struct attempt {
	int fd; /* -1: over */
	bool greeted;
	double until;
	address at;
	size_t have;
	unsigned char hello[RENDEZVOUS_HELLO_BYTES], challenge[CHALLENGE_BYTES];
} attempt;

static const char no_token[] = "what answers there does not have the step's token";

/* Returns NULL, or what went wrong; so with those below. */
static const char *begin_attempt(const rendezvous_client *cl, attempt *t, double deadline)
{
	struct sockaddr_storage sa;
	socklen_t bytes = address_sockaddr(&t->at, &sa);
	rendezvous_hello h = {(uint32_t)cl->o.rank, (uint32_t)cl->o.nranks, t->at.port, {0}};
	int on = 1;
	t->fd = -1;
	if (secret_random(h.nonce, sizeof h.nonce, NULL))
		return "no random bytes";
	rendezvous_hello_write(&h, t->hello);
	t->fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (t->fd < 0)
		return strerror(errno);
	setsockopt(t->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(t->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	t->until = attempt_end(deadline);
	return connect(t->fd, (struct sockaddr *)&sa, bytes) && errno != EINPROGRESS ? strerror(errno) : NULL;
}

static const char *send_greeting(attempt *t, double deadline)
{
	int code = 0;
	socklen_t code_bytes = sizeof code;
	if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &code, &code_bytes) || code)
		return strerror(code ? code : errno);
	t->greeted = true;
	t->until = attempt_end(deadline);
	/* A fresh socket's buffer takes these few bytes. */
	return send(t->fd, t->hello, sizeof t->hello, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof t->hello
	               ? NULL
	               : "it does not read";
}

/* The server has the token, and is given the proof. */
static const char *prove(const rendezvous_client *cl, attempt *t, double deadline)
{
	unsigned char mac[SECRET_BYTES], welcome[WELCOME_BYTES];
	const char *why;
	rendezvous_proof(&cl->keys, ROLE_CONNECT, t->hello, t->challenge, mac);
	why = client_transfer(cl, t->fd, mac, sizeof mac, true, attempt_end(deadline));
	/* After the proof this rank may have its slot: to close the connection now would be its death. */
	return why ? why : client_transfer(cl, t->fd, welcome, sizeof welcome, false, deadline);
}

static const char *read_challenge(const rendezvous_client *cl, attempt *t, double deadline)
{
	unsigned char mac[SECRET_BYTES];
	ssize_t n = recv(t->fd, t->challenge + t->have, sizeof t->challenge - t->have, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return NULL;
	if (n <= 0)
		return n ? strerror(errno) : "it closed the connection";
	t->have += (size_t)n;
	if (t->have < sizeof t->challenge)
		return NULL;
	rendezvous_proof(&cl->keys, ROLE_ACCEPT, t->hello, t->challenge, mac);
	return secret_equal(mac, t->challenge + NONCE_BYTES, sizeof mac) ? prove(cl, t, deadline) : no_token;
}

/* Tells the user of a server that answers without the token, rather than that others do not answer. */
static void end_attempt(rendezvous_client *cl, attempt *t, const char *wrong, const char **why)
{
	struct sockaddr_storage sa;
	(void)address_sockaddr(&t->at, &sa);
	if (!wrong || *why != no_token)
		address_text(&sa, cl->server);
	if (wrong && *why != no_token)
		*why = wrong;
	if (wrong && t->fd >= 0)
		close(t->fd);
	t->fd = wrong ? -1 : t->fd;
}

/* Moves an attempt on that is ready, or whose time is up. */
static void serve_attempt(rendezvous_client *cl, attempt *t, bool ready, double deadline, const char **why)
{
	const char *wrong = !ready       ? "it does not answer"
	                    : t->greeted ? read_challenge(cl, t, deadline)
	                                 : send_greeting(t, deadline);
	if (wrong || t->have == sizeof t->challenge)
		end_attempt(cl, t, wrong, why);
	if (!wrong && t->have == sizeof t->challenge) {
		cl->fd = t->fd;
		t->fd = -1;
	}
}

gradcomp_status client_addresses(rendezvous_client *cl, const char *where, gradcomp_error *err)
{
	address peer[ADDRESS_MAX], own[ADDRESS_MAX];
	int order[ADDRESS_MAX], nown = 0;
	for (const char *p = where; *p && cl->nat < ADDRESS_MAX; p += strspn(p, ",")) {
		size_t n = strcspn(p, ",");
		if (address_parse(p, n, &peer[cl->nat++]))
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "the address of the rendezvous server is malformed");
		p += n;
	}
	if (!cl->nat)
		return error_set(err, GRADCOMP_ERR_INVALID, "the rendezvous server has no address");
	(void)address_own("", own, &nown, NULL);
	/* On the node of srun itself every address is an own one: they come last, not never. */
	network_address_order(NULL, own, nown, 0, peer, cl->nat, order);
	for (int i = 0; i < cl->nat; i++)
		cl->at[i] = peer[order[i]];
	return GRADCOMP_OK;
}

static attempt attempt_at(const rendezvous_client *cl, int i)
{
	attempt t = {.fd = -1, .at = cl->at[i % cl->nat]};
	if (cl->o.ports)
		t.at.port = cl->o.ports[i / cl->nat];
	return t;
}

/* Waits for one of them, and moves on all that are ready or late. Returns how many are not over. */
static int serve_attempts(rendezvous_client *cl, attempt *t, int n, double next, double deadline, const char **why)
{
	struct pollfd p[ATTEMPTS];
	double now = clock_now(), end = now + TICK_MS * 1e-3;
	int flying = 0;
	end = next < end ? next : end;
	for (int i = 0; i < n; i++) {
		p[i] = (struct pollfd){t[i].fd, t[i].greeted ? POLLIN : POLLOUT, 0};
		end = t[i].fd >= 0 && t[i].until < end ? t[i].until : end;
	}
	(void)poll(p, (nfds_t)n, end > now ? (int)((end - now) * 1e3) + 1 : 0);
	now = clock_now();
	for (int i = 0; i < n && cl->fd < 0; i++) {
		if (t[i].fd >= 0 && (p[i].revents || now >= t[i].until))
			serve_attempt(cl, &t[i], p[i].revents, deadline, why);
		flying += t[i].fd >= 0;
	}
	return flying;
}

static void close_attempts(const attempt *t, int n)
{
	for (int i = 0; i < n; i++)
		if (t[i].fd >= 0)
			close(t[i].fd);
}

const char *client_try(rendezvous_client *cl, double deadline, bool *unproved)
{
	attempt t[ATTEMPTS];
	const char *why = "";
	double next = 0;
	int begun = 0, flying = 0, all = cl->nat;
	for (const uint16_t *port = cl->o.ports; port && *port && *++port && all + cl->nat <= ATTEMPTS;)
		all += cl->nat;
	while (cl->fd < 0 && (begun < all || flying) && !stopped(cl)) {
		if (begun < all && (!flying || clock_now() >= next)) {
			const char *wrong;

			t[begun] = attempt_at(cl, begun);
			wrong = begin_attempt(cl, &t[begun], deadline);
			if (wrong)
				end_attempt(cl, &t[begun], wrong, &why);
			flying += !wrong;
			begun++;
			next = clock_now() + HEAD_START;
			continue;
		}
		flying = serve_attempts(cl, t, begun, begun < all ? next : deadline, deadline, &why);
	}
	close_attempts(t, begun);
	*unproved = why == no_token;
	return cl->fd < 0 ? why : NULL;
}

/* Connects and proves the token, again and again until the deadline. */
static gradcomp_status client_connect(rendezvous_client *cl, double deadline, gradcomp_error *err)
{
	const char *why;
	bool unproved = false;
	double pause = 0.05;
	for (;;) {
		why = client_try(cl, deadline, &unproved);
		if (!why)
			return GRADCOMP_OK;
		if (stopped(cl))
			return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		/* The server has just been started, or a flood of connections pushed this one out. */
		if (clock_now() + pause > deadline)
			break;
		(void)poll(NULL, 0, (int)(pause * 1e3));
		pause = pause < (client_of_ranks(cl) ? 0.2 : 1) ? 2 * pause : pause;
	}
	return error_set(err, unproved ? GRADCOMP_ERR_AUTH : GRADCOMP_ERR_IO,
	                 "cannot reach the rendezvous server of the step at %s, %s: %s", cl->server,
	                 client_of_ranks(cl) ? "of rank 0" : "beside srun", why);
}

/* Where the key is in the index, or the free place for it. The capacity is a power of 2; keys are of
 * ranks of this job, so any hash will do (FNV-1a). */
static size_t index_of(const rendezvous_client *cl, const char *key)
{
	size_t mask = 2 * cl->capacity - 1;
	uint32_t hash = 2166136261u;
	for (const char *c = key; *c; c++)
		hash = (hash ^ (unsigned char)*c) * 16777619u;
	for (size_t i = hash & mask;; i = (i + 1) & mask)
		if (!cl->index[i] || !strcmp(cl->pairs[cl->index[i] - 1].key, key))
			return i;
}

static const kv_pair *find(const rendezvous_client *cl, const char *key)
{
	uint32_t at = cl->capacity ? cl->index[index_of(cl, key)] : 0;
	return at ? &cl->pairs[at - 1] : NULL;
}

/* Makes space for another pair. */
static bool grow(rendezvous_client *cl)
{
	size_t more = cl->capacity ? 2 * cl->capacity : 64;
	kv_pair *f = realloc(cl->pairs, more * sizeof *f);
	uint32_t *index = calloc(2 * more, sizeof *index);
	if (f)
		cl->pairs = f;
	if (!f || !index) {
		free(index);
		return false;
	}
	free(cl->index);
	cl->index = index;
	cl->capacity = more;
	for (size_t i = 0; i < cl->npairs; i++)
		/* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): there are none before the first realloc() */
		index[index_of(cl, f[i].key)] = (uint32_t)i + 1;
	return true;
}

/* Keeps the key and value of an entry; the first value of a key stays. */
static bool keep_pair(rendezvous_client *cl, const char *key, const unsigned char *value, size_t bytes)
{
	if (find(cl, key))
		return true;
	if (cl->npairs == cl->capacity && !grow(cl))
		return false;
	kv_pair *f = &cl->pairs[cl->npairs];
	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is space */
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
	cl->index[index_of(cl, key)] = (uint32_t)++cl->npairs;
	bool died = !strncmp(key, RENDEZVOUS_DIED, sizeof RENDEZVOUS_DIED - 1);
	cl->njoined += !strncmp(key, RENDEZVOUS_JOINED, sizeof RENDEZVOUS_JOINED - 1);
	cl->nleft += died || !strncmp(key, RENDEZVOUS_LEFT, sizeof RENDEZVOUS_LEFT - 1);
	const char *what = client_of_ranks(cl) ? "rank" : "node";
	if (died && !cl->why[0])
		snprintf(cl->why, sizeof cl->why, "%.64s (%s %.10s of the step) died before all %ss had connected",
		         f->value, what, key + sizeof RENDEZVOUS_DIED - 1, what);
	return true;
}

/* Reads what the relay has handed on. False: no more comes, and cl->why says so. */
static bool receive_log(rendezvous_client *cl)
{
	ssize_t n = recv(cl->log_fd, cl->in + cl->have, sizeof cl->in - cl->have, MSG_DONTWAIT);
	size_t at = 0, bytes;
	uint32_t rank;
	long entry = 0;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0) {
		memcpy(cl->why, cl->ended, sizeof cl->why);
		return false;
	}
	cl->have += (size_t)n;
	while ((entry = rendezvous_entry_check(&cl->keys, cl->in + at, cl->have - at, &rank)) > 0) {
		unsigned char *value = rendezvous_entry_open(&cl->keys, cl->in + at, (size_t)entry, &bytes);
		if (!value || !keep_pair(cl, (char *)cl->in + at + RENDEZVOUS_HEAD, value, bytes)) {
			entry = -1;
			break;
		}
		at += (size_t)entry;
	}
	if (entry < 0)
		snprintf(cl->why, sizeof cl->why, "what the rendezvous server at %s sent is damaged", cl->server);
	cl->have -= at;
	memmove(cl->in, cl->in + at, cl->have);
	return entry >= 0;
}

bool client_send(rendezvous_client *cl, const char *key, const void *value, size_t bytes)
{
	unsigned char entry[RENDEZVOUS_ENTRY_MAX];
	size_t n = rendezvous_entry_seal(&cl->keys, (uint32_t)cl->o.rank, key, value, bytes, entry);
	bool sent;
	pthread_mutex_lock(&cl->sending);
	sent = n && !client_transfer(cl, cl->fd, entry, n, true, clock_now() + CLIENT_ATTEMPT);
	pthread_mutex_unlock(&cl->sending);
	return sent;
}

/* Lists those that are not there: "node 2 of n[1-4], counted from 0"; returns how many. */
static int missing(const rendezvous_client *cl, char list[MISSING_TEXT])
{
	const char *nodes = getenv("SLURM_STEP_NODELIST");
	char key[RENDEZVOUS_KEY_MAX], numbers[NAMED * 8] = "";
	int n = 0;
	for (int r = 0; r < cl->o.nranks; r++) {
		snprintf(key, sizeof key, RENDEZVOUS_JOINED "%d", r);
		if (!find(cl, key) && n++ < NAMED)
			snprintf(numbers + strlen(numbers), sizeof numbers - strlen(numbers), "%s%d", n > 1 ? ", " : "",
			         r);
	}
	snprintf(list, MISSING_TEXT, "node%s %s%s%s%.100s, counted from 0", n > 1 ? "s" : "", numbers,
	         n > NAMED ? " ..." : "", nodes ? " of " : "", nodes ? nodes : "");
	return n;
}

static void tell_waiting(const rendezvous_client *cl)
{
	char list[MISSING_TEXT], text[MISSING_TEXT + 120], key[RENDEZVOUS_KEY_MAX];
	for (int r = 0; r < cl->o.rank; r++) {
		snprintf(key, sizeof key, RENDEZVOUS_JOINED "%d", r);
		if (find(cl, key))
			return;
	}
	(void)missing(cl, list);
	snprintf(
		text, sizeof text,
		"waiting for %s: a node whose slurmd has not the SPANK plugin never comes; look at plugstack.conf there",
		list);
	cl->o.waiting(cl->o.ctx, text);
}

static gradcomp_status all_joined(rendezvous_client *cl, double timeout, double deadline, gradcomp_error *err)
{
	double patience = clock_now() + PATIENCE;
	bool told = !cl->o.waiting;
	char list[MISSING_TEXT];
	while (!cl->why[0] && cl->njoined < cl->o.nranks) {
		int ready = client_wait(cl, cl->log_fd, POLLIN, told || deadline < patience ? deadline : patience);
		if (ready < 0)
			return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		if (!ready && !told && clock_now() < deadline) {
			tell_waiting(cl);
			told = true;
			continue;
		}
		if (!ready) {
			int n = missing(cl, list);
			return error_set(
				err, GRADCOMP_ERR_TIMEOUT,
				"%d of the step's %d nodes did not connect within %.0f s (stage.rendezvous_timeout): %s; look at "
				"plugstack.conf there",
				n, cl->o.nranks, timeout, list);
		}
		(void)receive_log(cl);
	}
	return cl->why[0] ? error_set(err, GRADCOMP_ERR_PEER, "%s", cl->why) : GRADCOMP_OK;
}

static int store_set(void *ctx, const char *key, const void *value, size_t bytes)
{
	return client_send(ctx, key, value, bytes) ? 0 : -1;
}

static long store_get(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms)
{
	rendezvous_client *cl = ctx;
	double until = clock_now() + timeout_ms * 1e-3;
	const kv_pair *f;
	while (!(f = find(cl, key))) {
		if (cl->why[0] || client_wait(cl, cl->log_fd, POLLIN, until) <= 0)
			return -1;
		(void)receive_log(cl);
	}
	memcpy(value, f->value, f->bytes < capacity ? f->bytes : capacity);
	return (long)f->bytes;
}

gradcomp_status rendezvous_connect(const rendezvous_client_options *o, rendezvous_client **out, gradcomp_error *err)
{
	rendezvous_client *cl = calloc(1, sizeof *cl);
	config *c = NULL;
	unsigned char token[SECRET_BYTES];
	char host[65] = "", key[RENDEZVOUS_KEY_MAX];
	double timeout = o->timeout, deadline;
	gradcomp_status st;
	*out = NULL;
	if (!cl)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a rendezvous with the other nodes");
	cl->o = *o;
	cl->fd = -1;
	pthread_mutex_init(&cl->sending, NULL);
	cl->store = (gradcomp_store){.struct_size = sizeof cl->store,
	                             .rank = o->rank,
	                             .nranks = o->nranks,
	                             .ctx = cl,
	                             .set = store_set,
	                             .get = store_get};
	st = o->nranks < 1 || o->nranks > RENDEZVOUS_RANKS_MAX || o->rank < 0 || o->rank >= o->nranks
	             ? error_set(err, GRADCOMP_ERR_INVALID, "node %d of %d cannot be one of the step", o->rank,
	                         o->nranks)
	     : o->secret ? GRADCOMP_OK
	                 : config_load(NULL, &c, err);
	if (!st && c && timeout <= 0)
		timeout = config_float(c, SET_STAGE_RENDEZVOUS_TIMEOUT);
	deadline = clock_now() + timeout;
	if (!st && o->secret)
		memcpy(token, o->secret, sizeof token);
	else if (!st)
		st = rendezvous_token_read(c, o->token, timeout / 2, token, err);
	if (!st)
		st = client_addresses(cl, o->where, err);
	if (!st) {
		rendezvous_keys_make(&cl->keys, token);
		st = client_connect(cl, deadline, err);
	}
	if (!st)
		st = relay_start(cl, err);
	if (!st) {
		gethostname(host, sizeof host - 1);
		snprintf(key, sizeof key, RENDEZVOUS_JOINED "%d", o->rank);
		if (!client_send(cl, key, host, strlen(host)))
			st = error_set(err, GRADCOMP_ERR_IO, "the rendezvous server of the step at %s does not read",
			               cl->server);
	}
	if (!st && !o->secret)
		st = all_joined(cl, timeout, deadline, err);
	secret_wipe(token, sizeof token);
	config_free(c);
	if (st) {
		/* Without a goodbye: the server reports this client as died. */
		relay_stop(cl, false);
		if (cl->fd >= 0)
			close(cl->fd);
		cl->fd = -1;
		rendezvous_disconnect(cl);
	} else {
		*out = cl;
	}
	return st;
}

const gradcomp_store *rendezvous_store(const rendezvous_client *cl)
{
	return &cl->store;
}

const char *rendezvous_why(const rendezvous_client *cl)
{
	return cl->why;
}

static void say_goodbye(rendezvous_client *cl)
{
	char key[RENDEZVOUS_KEY_MAX];
	snprintf(key, sizeof key, RENDEZVOUS_LEFT "%d", cl->o.rank);
	if (cl->fd >= 0 && !cl->goodbye)
		(void)client_send(cl, key, "", 0);
	cl->goodbye = true;
}

void rendezvous_leave(rendezvous_client *cl, double limit)
{
	double until = clock_now() + limit;
	say_goodbye(cl);
	while (cl->nleft < cl->o.nranks && client_wait(cl, cl->log_fd, POLLIN, until) > 0 && receive_log(cl))
		;
}

void rendezvous_disconnect(rendezvous_client *cl)
{
	if (!cl)
		return;
	relay_stop(cl, true);
	say_goodbye(cl);
	if (cl->fd >= 0)
		close(cl->fd);
	for (size_t i = 0; i < cl->npairs; i++) {
		secret_wipe(cl->pairs[i].value, cl->pairs[i].bytes);
		free(cl->pairs[i].value);
		free(cl->pairs[i].key);
	}
	free(cl->pairs);
	free(cl->index);
	pthread_mutex_destroy(&cl->sending);
	secret_wipe(&cl->keys, sizeof cl->keys);
	secret_wipe(cl->in, sizeof cl->in);
	free(cl);
}
