/* A module of its own, opened when the process has a PMIx server, so that the library needs no libpmix.
 * Slurm's server knows Put, Commit, Fence and Get; the fence is not used. */
#include "bootstrap/pmix_module.h"

#include "base/error.h"
#include "base/thread.h"

#include <errno.h>
#include <pmix.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RECORD_KEY "gradcomp.step"
#define RECORD_MOST 65536
#define BLAMED 160 /* bytes of settings that are named */

static pmix_proc_t self;
static char blamed[BLAMED]; /* settings of PMIx that the environment had before PMIx added its own */

/* One call with a time limit. It runs on a thread of its own, or PMIx answers it on its own; the waiter may give up,
 * and then the last one frees it. */
typedef struct call {
	void (*run)(struct call *f);
	pthread_mutex_t lock;
	pthread_cond_t done_cond;
	bool done, abandoned;
	pmix_status_t status;
	pmix_rank_t rank;
	uint32_t nranks;
	char *text; /* the text to be put, or the one that came; NULL: none came */
} call;

static void call_free(call *f)
{
	/* It has the step's token in it. */
	if (f->text)
		explicit_bzero(f->text, strlen(f->text));
	free(f->text);
	pthread_cond_destroy(&f->done_cond);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

static call *call_new(void (*run)(call *f), int rank, const char *text)
{
	call *f = calloc(1, sizeof *f);
	if (!f)
		return NULL;
	f->run = run;
	f->rank = (pmix_rank_t)rank;
	f->text = text ? strdup(text) : NULL;
	pthread_mutex_init(&f->lock, NULL);
	thread_condition(&f->done_cond);
	if (!text || f->text)
		return f;
	call_free(f);
	return NULL;
}

static void call_done(call *f)
{
	pthread_mutex_lock(&f->lock);
	bool abandoned = f->abandoned;
	f->done = true;
	pthread_cond_signal(&f->done_cond);
	pthread_mutex_unlock(&f->lock);
	if (abandoned)
		call_free(f);
}

static void *call_main(void *arg)
{
	call *f = arg;
	f->run(f);
	call_done(f);
	return NULL;
}

/* True: it has ended, and is the caller's to free. */
static bool call_wait(call *f, double limit)
{
	struct timespec until;
	int waited = 0;
	bool done;
	clock_gettime(CLOCK_MONOTONIC, &until);
	double end = (double)until.tv_sec + (double)until.tv_nsec * 1e-9 + limit;
	until.tv_sec = (time_t)end;
	until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
	pthread_mutex_lock(&f->lock);
	while (!f->done && waited != ETIMEDOUT)
		waited = pthread_cond_timedwait(&f->done_cond, &f->lock, &until);
	done = f->done;
	f->abandoned = !done;
	pthread_mutex_unlock(&f->lock);
	return done;
}

/* NULL and TIMEOUT, or NOMEM; else the call, which has ended and is the caller's to free. */
static call *call_run(call *f, double limit, gradcomp_status *st)
{
	pthread_t thread;
	*st = GRADCOMP_ERR_NOMEM;
	if (!f)
		return NULL;
	if (thread_start(&thread, call_main, f)) {
		call_free(f);
		return NULL;
	}
	pthread_detach(thread);
	*st = call_wait(f, limit) ? GRADCOMP_OK : GRADCOMP_ERR_TIMEOUT;
	return *st ? NULL : f;
}

/* Each of them can keep a client from its server. */
static void find_settings(void)
{
	size_t n = 0;
	*blamed = 0;
	for (char **e = environ; *e; e++)
		if (!strncmp(*e, "PMIX_MCA_", 9) && n < BLAMED - 80)
			n += (size_t)snprintf(blamed + n, BLAMED - n, "%s%.60s", n ? " " : "", *e);
}

static gradcomp_status refuse(gradcomp_status st, const char *what, const char *why, gradcomp_error *err)
{
	if (*blamed)
		return error_set(err, st,
		                 "pmix: %s (%s): the environment has %s, which can keep a task from its PMIx "
		                 "server; unset it",
		                 what, why, blamed);
	return error_set(err, st,
	                 "pmix: %s (%s): the server that PMIX_NAMESPACE=%.60s names may have ended with its step; "
	                 "start tasks with srun "
	                 "--mpi=pmix",
	                 what, why, getenv("PMIX_NAMESPACE") ? getenv("PMIX_NAMESPACE") : "");
}

/* Runs on its own thread, as what follows. */
static void run_open(call *f)
{
	pmix_value_t *value = NULL;
	pmix_proc_t job;
	f->status = PMIx_Init(&self, NULL, 0);
	f->rank = PMIX_RANK_UNDEF;
	if (f->status != PMIX_SUCCESS)
		return;
	f->rank = self.rank;
	PMIX_PROC_LOAD(&job, self.nspace, PMIX_RANK_WILDCARD);
	f->status = PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &value);
	if (f->status == PMIX_SUCCESS && value->type == PMIX_UINT32)
		f->nranks = value->data.uint32;
	if (f->status == PMIX_SUCCESS)
		PMIX_VALUE_RELEASE(value);
	if (!f->nranks)
		PMIx_Finalize(NULL, 0);
}

static void run_close(call *f)
{
	f->status = PMIx_Finalize(NULL, 0);
}

static void run_publish(call *f)
{
	pmix_value_t value;
	PMIX_VALUE_CONSTRUCT(&value);
	value.type = PMIX_STRING;
	value.data.string = f->text;
	f->status = PMIx_Put(PMIX_GLOBAL, RECORD_KEY, &value);
	if (f->status == PMIX_SUCCESS)
		f->status = PMIx_Commit();
}

static void run_host(call *f)
{
	pmix_value_t *value = NULL;
	pmix_info_t local;
	pmix_proc_t peer;
	bool yes = true;
	PMIX_PROC_LOAD(&peer, self.nspace, f->rank);
	PMIX_INFO_CONSTRUCT(&local);
	PMIX_INFO_LOAD(&local, PMIX_OPTIONAL, &yes, PMIX_BOOL);
	if (PMIx_Get(&peer, PMIX_HOSTNAME, &local, 1, &value) != PMIX_SUCCESS)
		return;
	if (value->type == PMIX_STRING && value->data.string)
		f->text = strdup(value->data.string);
	PMIX_VALUE_RELEASE(value);
}

static gradcomp_status open_pmix(double limit, int *rank, int *nranks, gradcomp_error *err)
{
	char text[48];
	gradcomp_status st;
	find_settings();
	call *f = call_run(call_new(run_open, 0, NULL), limit, &st);
	if (st == GRADCOMP_ERR_NOMEM)
		return error_set(err, st, "pmix: no memory");
	if (st) {
		snprintf(text, sizeof text, "nothing in %.3g s", limit);
		return refuse(st, "no answer from the PMIx server", text, err);
	}
	if (f->rank == PMIX_RANK_UNDEF)
		st = refuse(GRADCOMP_ERR_STATE, "no answer from the PMIx server", PMIx_Error_string(f->status), err);
	else if (!f->nranks)
		st = refuse(GRADCOMP_ERR_STATE, "the server does not tell the size of the job",
		            PMIx_Error_string(f->status), err);
	*rank = (int)f->rank;
	*nranks = (int)f->nranks;
	call_free(f);
	return st;
}

static gradcomp_status publish(const char *text, double limit, gradcomp_error *err)
{
	gradcomp_status st;
	call *f = call_run(call_new(run_publish, 0, text), limit, &st);
	pmix_status_t rc = f ? f->status : st == GRADCOMP_ERR_NOMEM ? PMIX_ERR_NOMEM : PMIX_ERR_TIMEOUT;
	if (f)
		call_free(f);
	return rc == PMIX_SUCCESS ? GRADCOMP_OK
	                          : refuse(st ? st : GRADCOMP_ERR_IO, "could not publish where the ranks meet",
	                                   PMIx_Error_string(rc), err);
}

/* Runs on PMIx's thread. */
static void record_done(pmix_status_t status, pmix_value_t *value, void *cbdata)
{
	call *f = cbdata;
	if (status == PMIX_SUCCESS && value && value->type == PMIX_STRING && value->data.string &&
	    strlen(value->data.string) < RECORD_MOST)
		f->text = strdup(value->data.string);
	f->status = status;
	call_done(f);
}

static gradcomp_status lookup(int rank, bool wait, double limit, char **text)
{
	call *f = call_new(NULL, rank, NULL);
	pmix_proc_t peer;
	static pmix_info_t at_once; /* PMIx reads it later */
	pmix_status_t rc;
	bool yes = true;
	*text = NULL;
	if (!f)
		return GRADCOMP_ERR_NOMEM;
	PMIX_PROC_LOAD(&peer, self.nspace, (pmix_rank_t)rank);
	PMIX_INFO_CONSTRUCT(&at_once);
	PMIX_INFO_LOAD(&at_once, PMIX_IMMEDIATE, &yes, PMIX_BOOL);
	rc = PMIx_Get_nb(&peer, RECORD_KEY, &at_once, wait ? 0 : 1, record_done, f);
	if (rc != PMIX_SUCCESS) {
		call_free(f);
	} else if (call_wait(f, limit)) {
		*text = f->text;
		f->text = NULL;
		call_free(f);
	}
	return *text ? GRADCOMP_OK : GRADCOMP_ERR_NOTFOUND;
}

static void host(int rank, double limit, char out[PMIX_HOST_MAX])
{
	gradcomp_status st;
	call *f = call_run(call_new(run_host, rank, NULL), limit, &st);
	snprintf(out, PMIX_HOST_MAX, "%s", f && f->text ? f->text : "");
	if (f)
		call_free(f);
}

static void close_pmix(double limit)
{
	gradcomp_status st;
	call *f = call_run(call_new(run_close, 0, NULL), limit, &st);
	if (f)
		call_free(f);
}

GRADCOMP_EXPORT const pmix_module gradcomp_bootstrap_pmix = {.struct_size = sizeof gradcomp_bootstrap_pmix,
                                                             .version = PMIX_MODULE_VERSION,
                                                             .open = open_pmix,
                                                             .publish = publish,
                                                             .lookup = lookup,
                                                             .host = host,
                                                             .close = close_pmix};
