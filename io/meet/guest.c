/* A guest of the meeting place: reads the log as it grows, and keeps what it has read. */
#include "guest.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"

#define NAMED 8 /* missing ranks in a message */

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

	return n && !guest_all(g, g->fd, entry, n, true, clock_now() + GUEST_ATTEMPT);
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
		int ready = guest_wait(g, g->fd, POLLIN, deadline);
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
	double until = clock_now() + timeout_ms * 1e-3;
	const fact *f;

	while (!(f = find(g, key))) {
		if (g->why[0] || guest_wait(g, g->fd, POLLIN, until) <= 0)
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
		st = guest_addresses(g, o->where, err);
	if (!st) {
		meet_keys_make(&g->keys, token);
		timeout = timeout > 0 ? timeout : config_float(c, "stage.meet_timeout");
		deadline = clock_now() + timeout;
		st = guest_come(g, deadline, err);
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
