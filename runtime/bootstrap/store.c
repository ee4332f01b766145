/* Bootstrap through the key-value store of a framework. */
#include "bootstrap/bootstrap.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gradcomp_status open_store(void **ctx, const gradcomp_store *store, int *rank, int *nranks,
                                  gradcomp_error *err)
{
	if (!GRADCOMP_HAS(store, get) || !store->set || !store->get)
		return error_set(err, GRADCOMP_ERR_INVALID, "store: set and get must both be given");
	if (store->nranks < 1 || store->rank < 0 || store->rank >= store->nranks)
		return error_set(err, GRADCOMP_ERR_INVALID, "store: rank %d of %d ranks: must be 0..%d", store->rank,
		                 store->nranks, store->nranks - 1);
	*ctx = (void *)store;
	*rank = store->rank;
	*nranks = store->nranks;
	return GRADCOMP_OK;
}

static gradcomp_status exchange(void *ctx, const char *mine, double timeout, char **all, gradcomp_error *err)
{
	const gradcomp_store *s = ctx;
	double deadline = clock_now() + timeout;
	char key[32], value[BOOTSTRAP_MAX];
	snprintf(key, sizeof key, "gradcomp/%d", s->rank);
	if (s->set(s->ctx, key, mine, strlen(mine)))
		return error_set(err, GRADCOMP_ERR_IO, "store: could not set key '%s'", key);
	for (int r = 0; r < s->nranks; r++) {
		double left = deadline - clock_now();
		snprintf(key, sizeof key, "gradcomp/%d", r);
		long n = s->get(s->ctx, key, value, sizeof value - 1, left > 0 ? (int)(left * 1e3) : 0);
		if (n < 0)
			return error_set(err, GRADCOMP_ERR_TIMEOUT,
			                 "store: rank %d did not join within %.0f s (key '%s' never came)", r, timeout, key);
		if (n >= (long)sizeof value || memchr(value, 0, (size_t)n))
			return error_set(err, GRADCOMP_ERR_INVALID, "store: key '%s' is no endpoint record of a rank (%ld bytes)", key, n);
		value[n] = 0;
		all[r] = strdup(value);
		explicit_bzero(value, (size_t)n);
		if (!all[r])
			return error_set(err, GRADCOMP_ERR_NOMEM, "store: no memory");
	}
	return GRADCOMP_OK;
}

static void close_store(void *ctx)
{
	(void)ctx;
}

const bootstrap_method bootstrap_store = {.struct_size = sizeof bootstrap_store, .version = BOOTSTRAP_VERSION, .name = "store",
                                 .open = open_store, .exchange = exchange, .close = close_store};
