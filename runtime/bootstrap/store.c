/* Bootstrap through the key-value store of a framework.
 *
 * The process that has the store may be a rank. Nobody hears why a rank refuses once that
 * process has ended, so all ranks of a job that cannot begin stay until each has heard it. */
#include "bootstrap/bootstrap.h"

#include "base/clock.h"
#include "base/error.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 40
#define REFUSAL_SECONDS 2.0 /* that a rank which refuses waits for others before it writes their records */

typedef struct store_client {
	const gradcomp_store *store;
	/* A get has timed out. Some stores (TCPStore of PyTorch 1.13) answer it later, in the
	 * place of another: nothing is read any more. */
	bool late;
} store_client;

static gradcomp_status open_store(void **ctx, const config *cfg, const gradcomp_store *store, int *rank, int *nranks,
                                  gradcomp_error *err)
{
	store_client *c;
	(void)cfg;
	if (!GRADCOMP_HAS(store, get) || !store->set || !store->get)
		return error_set(err, GRADCOMP_ERR_INVALID, "store: set and get must both be given");
	if (store->nranks < 1 || store->rank < 0 || store->rank >= store->nranks)
		return error_set(err, GRADCOMP_ERR_INVALID, "store: rank %d of %d ranks: must be 0..%d", store->rank,
		                 store->nranks, store->nranks - 1);
	c = calloc(1, sizeof *c);
	if (!c)
		return error_set(err, GRADCOMP_ERR_NOMEM, "store: no memory");
	c->store = store;
	*ctx = c;
	*rank = store->rank;
	*nranks = store->nranks;
	return GRADCOMP_OK;
}

static const char *record_key(int rank, char key[KEY_BYTES])
{
	snprintf(key, KEY_BYTES, "gradcomp/%d", rank);
	return key;
}

static const char *heard_key(int rank, char key[KEY_BYTES])
{
	snprintf(key, KEY_BYTES, "gradcomp/heard/%d", rank);
	return key;
}

static long get(store_client *c, const char *key, char value[BOOTSTRAP_MAX], double deadline)
{
	double left = deadline - clock_now();
	long n = c->late ? -1
	                 : c->store->get(c->store->ctx, key, value, BOOTSTRAP_MAX - 1,
	                                 left > 1e-3 ? (int)(left * 1e3) : 1);
	c->late = n < 0;
	return n;
}

/* Others read the records in order, and may be waiting for a rank that never comes: there they
 * find this refusal. A rank that does come overwrites it. Of several that refuse,
 * the first sees to it. */
static void refuse(store_client *c, const char *mine, double timeout)
{
	const gradcomp_store *s = c->store;
	double deadline = clock_now() + (timeout / 4 < REFUSAL_SECONDS ? timeout / 4 : REFUSAL_SECONDS);
	char key[KEY_BYTES], value[BOOTSTRAP_MAX] = "";
	int r = 0;
	for (; r < s->nranks; r++) {
		if (r == s->rank)
			continue;
		if (get(c, record_key(r, key), value, deadline) < 0)
			break;
		bool first = value[0] == BOOTSTRAP_REFUSAL && r < s->rank;
		explicit_bzero(value, sizeof value);
		if (first)
			return;
	}
	for (; r < s->nranks; r++)
		if (r != s->rank)
			(void)s->set(s->ctx, record_key(r, key), mine, strlen(mine));
}

static gradcomp_status exchange(void *ctx, const char *mine, double timeout, char **all, gradcomp_error *err)
{
	store_client *c = ctx;
	const gradcomp_store *s = c->store;
	double deadline = clock_now() + timeout;
	char key[KEY_BYTES], value[BOOTSTRAP_MAX];
	if (s->set(s->ctx, record_key(s->rank, key), mine, strlen(mine)))
		return error_set(err, GRADCOMP_ERR_IO, "store: could not set key '%s'", key);
	if (mine[0] == BOOTSTRAP_REFUSAL) {
		refuse(c, mine, timeout);
		return GRADCOMP_OK;
	}
	for (int r = 0; r < s->nranks; r++) {
		long n = get(c, record_key(r, key), value, deadline);
		if (n < 0)
			return error_set(err, GRADCOMP_ERR_TIMEOUT,
			                 "store: rank %d did not join within %.0f s (key '%s' never came)", r, timeout,
			                 key);
		if (n >= (long)sizeof value || memchr(value, 0, (size_t)n))
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "store: key '%s' is no endpoint record of a rank (%ld bytes)", key, n);
		value[n] = 0;
		all[r] = strdup(value);
		explicit_bzero(value, (size_t)n);
		if (!all[r])
			return error_set(err, GRADCOMP_ERR_NOMEM, "store: no memory");
		if (all[r][0] == BOOTSTRAP_REFUSAL)
			return GRADCOMP_OK;
	}
	return GRADCOMP_OK;
}

/* Passes the word up a binary tree to rank 0, which tells all. Where a rank is missing nobody learns that all have
 * heard, and where the store is gone there is nobody left to wait for. */
static void heard(void *ctx, double limit)
{
	store_client *c = ctx;
	const gradcomp_store *s = c->store;
	double deadline = clock_now() + limit;
	char key[KEY_BYTES], value[BOOTSTRAP_MAX];
	if (c->late) {
		(void)poll(NULL, 0, (int)(limit * 1e3));
		return;
	}
	for (int child = 2 * s->rank + 1; child <= 2 * s->rank + 2 && child < s->nranks; child++)
		(void)get(c, heard_key(child, key), value, deadline);
	if (!c->late)
		(void)s->set(s->ctx, heard_key(s->rank, key), "1", 1);
	if (s->rank)
		(void)get(c, heard_key(0, key), value, deadline);
}

static void close_store(void *ctx)
{
	free(ctx);
}

const bootstrap_method bootstrap_store = {
	.name = "store", .open = open_store, .exchange = exchange, .heard = heard, .close = close_store};
