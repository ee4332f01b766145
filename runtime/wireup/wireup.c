/* Chooses the way: the application's store, then PMIx, then a job of one. */
#include "wireup.h"

#include "error.h"
#include "registry.h"

#include <stdlib.h>
#include <string.h>

static gradcomp_status single_open(void **ctx, const gradcomp_store *store, int *rank, int *nranks,
                                   gradcomp_error *err)
{
	(void)store, (void)err;
	*ctx = NULL;
	*rank = 0;
	*nranks = 1;
	return GRADCOMP_OK;
}

static gradcomp_status single_exchange(void *ctx, const char *mine, double timeout, char **all,
                                       gradcomp_error *err)
{
	(void)ctx, (void)timeout;
	all[0] = strdup(mine);
	return all[0] ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "wire-up: no memory");
}

static void single_close(void *ctx)
{
	(void)ctx;
}

const wireup_way wireup_single = {.struct_size = sizeof wireup_single, .version = WIREUP_VERSION, .name = "single",
                                  .open = single_open, .exchange = single_exchange, .close = single_close};

/* srun starts tasks without PMIx unless told; each would then be a job of its
 * own, silently training apart. */
static gradcomp_status refuse_lonely_task(gradcomp_error *err)
{
	const char *tasks = getenv("SLURM_STEP_NUM_TASKS"), *proc = getenv("SLURM_PROCID");
	if (!tasks || !proc || atoi(tasks) < 2)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_STATE,
	                 "this task is one of %d of a Slurm step, but srun gave it no PMIx: type srun --mpi=pmix ... "
	                 "(or ask for MpiDefault=pmix in slurm.conf)",
	                 atoi(tasks));
}

gradcomp_status wireup_open(const config *c, const gradcomp_store *store, wireup *w, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	memset(w, 0, sizeof *w);
	if (store) {
		w->way = &wireup_store;
	} else if (getenv("PMIX_NAMESPACE")) {
		const void *symbol;
		st = registry_module(c, "wireup/pmix.so", WIREUP_PMIX_SYMBOL, &symbol, err);
		if (st)
			return st;
		w->way = symbol;
		if (w->way->version != WIREUP_VERSION || w->way->struct_size != sizeof *w->way)
			return error_set(err, GRADCOMP_ERR_ABI,
			                 "wire-up: the PMIx module is version %u, this library wants %u: install both from one build",
			                 w->way->version, WIREUP_VERSION);
	} else {
		st = refuse_lonely_task(err);
		w->way = &wireup_single;
	}
	if (!st)
		st = w->way->open(&w->ctx, store, &w->rank, &w->nranks, err);
	if (st)
		memset(w, 0, sizeof *w);
	return st;
}

gradcomp_status wireup_exchange(wireup *w, const char *mine, double timeout, char **all, gradcomp_error *err)
{
	if (strlen(mine) >= WIREUP_MAX)
		return error_set(err, GRADCOMP_ERR_INTERNAL, "wire-up: card of %zu bytes, the limit is %d", strlen(mine),
		                 WIREUP_MAX - 1);
	return w->way->exchange(w->ctx, mine, timeout, all, err);
}

void wireup_close(wireup *w)
{
	if (w->way)
		w->way->close(w->ctx);
	memset(w, 0, sizeof *w);
}
