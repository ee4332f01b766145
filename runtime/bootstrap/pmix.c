/* Bootstrap through PMIx: a module of its own, opened when the process has a PMIx
 * server. Slurm's server knows Put, Commit, Fence with data and Get; nothing more
 * is used. */
#include "bootstrap/bootstrap.h"

#include "base/error.h"
#include "base/thread.h"

#include <errno.h>
#include <pmix.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RECORD_KEY "gradcomp.endpoint"
#define RANK_NAME 100
#define HEARD_SECONDS 2.0 /* of the process, when its job cannot begin */
#define MISSING_NAMED 4   /* in a message */
#define MISSING_SECONDS 1 /* to answer which records are there */

typedef struct client {
	pmix_proc_t self;
	int nranks;
} client;

/* A call with a time limit: without one, a task that never joins or has died would hang
 * the job. */
typedef struct call {
	pthread_mutex_t lock;
	pthread_cond_t done_cond;
	bool done, abandoned;
	pmix_status_t status;
	char *record; /* what a Get brought, NULL when it is no text */
} call;

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

static void record_free(char *record)
{
	/* Rank 0's has the job's secret in it. */
	if (record)
		explicit_bzero(record, strlen(record));
	free(record);
}

static call *call_new(void)
{
	call *f = calloc(1, sizeof *f);
	if (!f)
		return NULL;
	pthread_mutex_init(&f->lock, NULL);
	thread_condition(&f->done_cond);
	return f;
}

static void call_free(call *f)
{
	record_free(f->record);
	pthread_cond_destroy(&f->done_cond);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

/* On PMIx's thread. The waiter may have given up; the last one frees. */
static void call_done(pmix_status_t status, void *cbdata)
{
	call *f = cbdata;
	pthread_mutex_lock(&f->lock);
	bool abandoned = f->abandoned;
	f->status = status;
	f->done = true;
	pthread_cond_signal(&f->done_cond);
	pthread_mutex_unlock(&f->lock);
	if (abandoned)
		call_free(f);
}

static void record_done(pmix_status_t status, pmix_value_t *value, void *cbdata)
{
	call *f = cbdata;
	if (status == PMIX_SUCCESS && value && value->type == PMIX_STRING && value->data.string &&
	    strlen(value->data.string) < BOOTSTRAP_MAX)
		f->record = strdup(value->data.string);
	call_done(status, f);
}

/* `until` on the clock that nobody sets. True: it has ended, and is the caller's to free. */
static bool call_wait(call *f, const struct timespec *until)
{
	int waited = 0;
	bool done;
	pthread_mutex_lock(&f->lock);
	while (!f->done && waited != ETIMEDOUT)
		waited = pthread_cond_timedwait(&f->done_cond, &f->lock, until);
	done = f->done;
	f->abandoned = !done;
	pthread_mutex_unlock(&f->lock);
	return done;
}

static gradcomp_status timed_fence(client *c, double timeout, const struct timespec *until, gradcomp_error *err)
{
	call *f = call_new();
	pmix_info_t collect;
	bool yes = true;
	pmix_status_t rc;
	if (!f)
		return error_set(err, GRADCOMP_ERR_NOMEM, "pmix: no memory");
	PMIX_INFO_CONSTRUCT(&collect);
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	rc = PMIx_Fence_nb(NULL, 0, &collect, 1, call_done, f);
	if (rc != PMIX_SUCCESS) {
		call_free(f);
		return error_set(err, GRADCOMP_ERR_IO, "pmix: fence refused (%s)", PMIx_Error_string(rc));
	}
	if (!call_wait(f, until))
		return error_set(err, GRADCOMP_ERR_TIMEOUT,
		                 "pmix: not all %d ranks joined within %.0f s; every task of the step must join the job",
		                 c->nranks, timeout);
	rc = f->status;
	call_free(f);
	if (rc != PMIX_SUCCESS)
		return error_set(err, GRADCOMP_ERR_PEER, "pmix: fence failed (%s)", PMIx_Error_string(rc));
	return GRADCOMP_OK;
}

/* "rank 3 on n4"; the host as far as this node's server knows it. */
static void rank_name(client *c, int r, char out[RANK_NAME])
{
	pmix_value_t *value = NULL;
	pmix_info_t local;
	pmix_proc_t peer;
	bool yes = true;

	PMIX_PROC_LOAD(&peer, c->self.nspace, (pmix_rank_t)r);
	PMIX_INFO_CONSTRUCT(&local);
	PMIX_INFO_LOAD(&local, PMIX_OPTIONAL, &yes, PMIX_BOOL);
	if (PMIx_Get(&peer, PMIX_HOSTNAME, &local, 1, &value) != PMIX_SUCCESS)
		value = NULL;
	if (value && value->type == PMIX_STRING && value->data.string)
		snprintf(out, RANK_NAME, "rank %d on %.64s", r, value->data.string);
	else
		snprintf(out, RANK_NAME, "rank %d", r);
	if (value)
		PMIX_VALUE_RELEASE(value);
}

static call *ask_record(client *c, int r, pmix_status_t *rc)
{
	call *f = call_new();
	pmix_proc_t peer;

	*rc = PMIX_ERR_NOMEM;
	if (!f)
		return NULL;
	PMIX_PROC_LOAD(&peer, c->self.nspace, (pmix_rank_t)r);
	*rc = PMIx_Get_nb(&peer, RECORD_KEY, NULL, 0, record_done, f);
	if (*rc == PMIX_SUCCESS)
		return f;
	call_free(f);
	return NULL;
}

/* A fence may end without a task that has died; nobody has its endpoint record then. */
static gradcomp_status get_record(client *c, int r, double timeout, const struct timespec *until, char **record,
                                gradcomp_error *err)
{
	char name[RANK_NAME];
	pmix_status_t rc;
	call *f = ask_record(c, r, &rc);
	bool came = f && call_wait(f, until);
	if (came) {
		rc = f->status;
		*record = f->record;
		f->record = NULL;
		call_free(f);
		if (rc == PMIX_SUCCESS && *record)
			return GRADCOMP_OK;
	}
	rank_name(c, r, name);
	if (f && !came)
		return error_set(err, GRADCOMP_ERR_TIMEOUT, "pmix: %s did not join within %.0f s: it published no endpoint record",
		                 name, timeout);
	if (rc != PMIX_SUCCESS)
		return error_set(err, GRADCOMP_ERR_PEER, "pmix: no endpoint record of %s (%s)", name, PMIx_Error_string(rc));
	return error_set(err, GRADCOMP_ERR_INVALID, "pmix: the endpoint record of %s is no text", name);
}

/* Not all are at the fence in time: whose records are there, and who is missing. The servers of
 * other nodes answer when they have the record; where none comes there is none. */
static gradcomp_status name_missing(client *c, double timeout, char **all, gradcomp_error *err)
{
	call **f = calloc((size_t)c->nranks, sizeof *f);
	struct timespec until;
	char list[MISSING_NAMED * RANK_NAME] = "", name[RANK_NAME];
	size_t used = 0;
	int missing = 0;
	pmix_status_t rc;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += MISSING_SECONDS;
	for (int r = 0; f && r < c->nranks; r++)
		f[r] = ask_record(c, r, &rc);
	for (int r = 0; f && r < c->nranks; r++) {
		if (f[r] && call_wait(f[r], &until)) {
			all[r] = f[r]->record;
			f[r]->record = NULL;
			call_free(f[r]);
		}
		if (!all[r] && missing++ < MISSING_NAMED) {
			rank_name(c, r, name);
			used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", name);
		}
	}
	free(f);
	if (missing)
		error_set(err, GRADCOMP_ERR_TIMEOUT,
		          "pmix: %s%s did not join within %.0f s (of %d ranks); every task of the step must join the job", list,
		          missing > MISSING_NAMED ? ", ..." : "", timeout, c->nranks);
	return GRADCOMP_ERR_TIMEOUT;
}

static gradcomp_status exchange(void *ctx, const char *mine, double timeout, char **all, gradcomp_error *err)
{
	client *c = ctx;
	pmix_value_t value;
	struct timespec until;
	gradcomp_status st;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)timeout + 1;
	PMIX_VALUE_CONSTRUCT(&value);
	value.type = PMIX_STRING;
	value.data.string = (char *)mine;
	pmix_status_t rc = PMIx_Put(PMIX_GLOBAL, RECORD_KEY, &value);
	if (rc == PMIX_SUCCESS)
		rc = PMIx_Commit();
	if (rc != PMIX_SUCCESS)
		return error_set(err, GRADCOMP_ERR_IO, "pmix: could not publish this rank's endpoint record (%s)", PMIx_Error_string(rc));
	st = timed_fence(c, timeout, &until, err);
	if (st == GRADCOMP_ERR_TIMEOUT) {
		st = name_missing(c, timeout, all, err);
	} else if (!st) {
		/* The reason of one that refuses counts more than that another has died. */
		gradcomp_error none;
		for (int r = 0; r < c->nranks; r++) {
			gradcomp_status got = get_record(c, r, timeout, &until, &all[r], st ? &none : err);
			st = st ? st : got;
		}
	}
	for (int r = 0; r < c->nranks; r++)
		if (all[r] && all[r][0] == BOOTSTRAP_REFUSAL)
			return GRADCOMP_OK;
	return st;
}

/* Slurm's servers may still have to pass on a part of the fence, or to answer for a record, and
 * end with their last task; they do not say when they are done. */
static void heard(void *ctx, double limit)
{
	(void)ctx;
	(void)poll(NULL, 0, (int)((limit < HEARD_SECONDS ? limit : HEARD_SECONDS) * 1e3));
}

static void close_pmix(void *ctx)
{
	PMIx_Finalize(NULL, 0);
	free(ctx);
}

GRADCOMP_EXPORT const bootstrap_method gradcomp_bootstrap_pmix = {
	.struct_size = sizeof gradcomp_bootstrap_pmix, .version = BOOTSTRAP_VERSION, .name = "pmix",
	.open = open_pmix, .exchange = exchange, .heard = heard, .close = close_pmix};
