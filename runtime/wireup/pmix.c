/* Wire-up through PMIx: a module of its own, opened when the process has a PMIx
 * server. Slurm's server knows Put, Commit, Fence with data and Get; nothing more
 * is used. */
#include "wireup.h"

#include "error.h"

#include <errno.h>
#include <pmix.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CARD_KEY "gradcomp.card"

typedef struct client {
	pmix_proc_t self;
	int nranks;
} client;

typedef struct fence {
	pthread_mutex_t lock;
	pthread_cond_t done_cond;
	int done, abandoned;
	pmix_status_t status;
} fence;

static gradcomp_status open_pmix(void **ctx, const gradcomp_store *store, int *rank, int *nranks,
                                 gradcomp_error *err)
{
	(void)store;
	client *c = calloc(1, sizeof *c);
	pmix_value_t *value = NULL;
	pmix_proc_t job;
	pmix_status_t rc;
	if (!c)
		return error_set(err, GRADCOMP_ERR_NOMEM, "pmix: no memory");
	rc = PMIx_Init(&c->self, NULL, 0);
	if (rc != PMIX_SUCCESS) {
		free(c);
		return error_set(err, GRADCOMP_ERR_STATE,
		                 "pmix: no answer from the PMIx server (%s): start tasks with srun --mpi=pmix",
		                 PMIx_Error_string(rc));
	}
	PMIX_PROC_LOAD(&job, c->self.nspace, PMIX_RANK_WILDCARD);
	rc = PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &value);
	if (rc != PMIX_SUCCESS || value->type != PMIX_UINT32) {
		PMIx_Finalize(NULL, 0);
		free(c);
		return error_set(err, GRADCOMP_ERR_STATE, "pmix: the server does not tell the size of the job (%s)",
		                 PMIx_Error_string(rc));
	}
	c->nranks = (int)value->data.uint32;
	PMIX_VALUE_RELEASE(value);
	*rank = (int)c->self.rank;
	*nranks = c->nranks;
	*ctx = c;
	return GRADCOMP_OK;
}

static void fence_free(fence *f)
{
	pthread_cond_destroy(&f->done_cond);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

/* On PMIx's thread. The waiter may have given up; the last one frees. */
static void fence_done(pmix_status_t status, void *cbdata)
{
	fence *f = cbdata;
	pthread_mutex_lock(&f->lock);
	int abandoned = f->abandoned;
	f->status = status;
	f->done = 1;
	pthread_cond_signal(&f->done_cond);
	pthread_mutex_unlock(&f->lock);
	if (abandoned)
		fence_free(f);
}

/* PMIx_Fence without an end would hang the job when a task never comes. */
static gradcomp_status timed_fence(client *c, double timeout, gradcomp_error *err)
{
	fence *f = calloc(1, sizeof *f);
	struct timespec until;
	pmix_info_t collect;
	bool yes = true;
	pmix_status_t rc;
	int waited = 0;
	if (!f)
		return error_set(err, GRADCOMP_ERR_NOMEM, "pmix: no memory");
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->done_cond, NULL);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)timeout + 1;

	PMIX_INFO_CONSTRUCT(&collect);
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	rc = PMIx_Fence_nb(NULL, 0, &collect, 1, fence_done, f);
	if (rc != PMIX_SUCCESS) {
		fence_free(f);
		return error_set(err, GRADCOMP_ERR_IO, "pmix: fence refused (%s)", PMIx_Error_string(rc));
	}
	pthread_mutex_lock(&f->lock);
	while (!f->done && waited != ETIMEDOUT)
		waited = pthread_cond_timedwait(&f->done_cond, &f->lock, &until);
	rc = f->status;
	if (!f->done) {
		f->abandoned = 1;
		pthread_mutex_unlock(&f->lock);
		return error_set(err, GRADCOMP_ERR_TIMEOUT,
		                 "pmix: not all %d ranks joined within %.0f s; every task of the step must join the job",
		                 c->nranks, timeout);
	}
	pthread_mutex_unlock(&f->lock);
	fence_free(f);
	if (rc != PMIX_SUCCESS)
		return error_set(err, GRADCOMP_ERR_PEER, "pmix: fence failed (%s)", PMIx_Error_string(rc));
	return GRADCOMP_OK;
}

static gradcomp_status get_card(client *c, int r, char **card, gradcomp_error *err)
{
	pmix_value_t *value = NULL;
	pmix_proc_t peer;
	PMIX_PROC_LOAD(&peer, c->self.nspace, (pmix_rank_t)r);
	pmix_status_t rc = PMIx_Get(&peer, CARD_KEY, NULL, 0, &value);
	if (rc != PMIX_SUCCESS)
		return error_set(err, GRADCOMP_ERR_PEER, "pmix: no card of rank %d (%s)", r, PMIx_Error_string(rc));
	if (value->type == PMIX_STRING && value->data.string && strlen(value->data.string) < WIREUP_MAX)
		*card = strdup(value->data.string);
	/* Rank 0's has the job's secret in it. */
	if (value->type == PMIX_STRING && value->data.string)
		explicit_bzero(value->data.string, strlen(value->data.string));
	PMIX_VALUE_RELEASE(value);
	return *card ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_INVALID, "pmix: the card of rank %d is no text", r);
}

static gradcomp_status exchange(void *ctx, const char *mine, double timeout, char **all, gradcomp_error *err)
{
	client *c = ctx;
	pmix_value_t value;
	gradcomp_status st;
	PMIX_VALUE_CONSTRUCT(&value);
	value.type = PMIX_STRING;
	value.data.string = (char *)mine;
	pmix_status_t rc = PMIx_Put(PMIX_GLOBAL, CARD_KEY, &value);
	if (rc == PMIX_SUCCESS)
		rc = PMIx_Commit();
	if (rc != PMIX_SUCCESS)
		return error_set(err, GRADCOMP_ERR_IO, "pmix: could not publish this rank's card (%s)", PMIx_Error_string(rc));
	st = timed_fence(c, timeout, err);
	for (int r = 0; !st && r < c->nranks; r++)
		st = get_card(c, r, &all[r], err);
	return st;
}

static void close_pmix(void *ctx)
{
	PMIx_Finalize(NULL, 0);
	free(ctx);
}

GRADCOMP_EXPORT const wireup_way gradcomp_wireup_pmix = {
	.struct_size = sizeof gradcomp_wireup_pmix, .version = WIREUP_VERSION, .name = "pmix",
	.open = open_pmix, .exchange = exchange, .close = close_pmix};
