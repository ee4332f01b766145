/* Ranks as threads of one process: each thread is a rank of a job and finds the
 * others through a store in memory. run_ranks(P, body, arg) starts them, gives
 * each its job, and joins them; body returns when its rank is done. */
#ifndef TESTS_SUPPORT_THREAD_RANKS_H
#define TESTS_SUPPORT_THREAD_RANKS_H

#include "gradcomp/gradcomp.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/tap.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 16

typedef struct memory_store {
	pthread_mutex_t lock;
	pthread_cond_t change;
	char *value[MAX_RANKS];
} memory_store;

typedef struct rank_arg {
	memory_store *shared;
	gradcomp_store store;
	const char *const *settings;
	void (*body)(gradcomp_job *job, int rank, int nranks, void *arg);
	void *arg;
	gradcomp_status joined, left;
	gradcomp_error error;
} rank_arg;

/* The node of each rank, for jobs that are to look as if on several: their endpoint records say so,
 * and nodes speak over tcp. NULL: all are on one. */
__attribute__((unused)) static const int *ranks_nodes;

static int store_set(void *ctx, const char *key, const void *value, size_t bytes)
{
	memory_store *s = ctx;
	int r = atoi(strchr(key, '/') + 1);
	pthread_mutex_lock(&s->lock);
	s->value[r] = ranks_nodes ? endpoint_of_node(value, bytes, ranks_nodes[r]) : strndup(value, bytes);
	pthread_cond_broadcast(&s->change);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

static long store_get(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms)
{
	memory_store *s = ctx;
	int r = atoi(strchr(key, '/') + 1), late = 0;
	struct timespec until;
	long n = -1;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_ms / 1000 + 1;
	pthread_mutex_lock(&s->lock);
	while (!s->value[r] && late != ETIMEDOUT)
		late = pthread_cond_timedwait(&s->change, &s->lock, &until);
	if (s->value[r]) {
		n = (long)strlen(s->value[r]);
		memcpy(value, s->value[r], (size_t)n < capacity ? (size_t)n : capacity);
	}
	pthread_mutex_unlock(&s->lock);
	return n;
}

static void *rank_main(void *arg)
{
	rank_arg *a = arg;
	gradcomp_job_options o = {.struct_size = sizeof o, .store = &a->store, .settings = a->settings};
	gradcomp_job *job;
	a->joined = gradcomp_job_create(&o, &job, &a->error);
	if (a->joined)
		return NULL;
	a->body(job, a->store.rank, a->store.nranks, a->arg);
	a->left = gradcomp_job_free(job, &a->error);
	return NULL;
}

/* settings[r] may be NULL: then all ranks use settings[0]. results has P entries
 * when given; else joining and leaving must succeed, and are tested. */
__attribute__((unused)) static void run_ranks_with(int P, const char *const *settings[], rank_arg *results,
                                                   void (*body)(gradcomp_job *, int, int, void *), void *arg)
{
	memory_store shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
	rank_arg own[MAX_RANKS], *a = results ? results : own;
	pthread_t threads[MAX_RANKS];
	memset(a, 0, (size_t)P * sizeof *a);
	for (int r = 0; r < P; r++) {
		a[r].shared = &shared;
		a[r].store = (gradcomp_store){.struct_size = sizeof a[r].store, .rank = r, .nranks = P, .ctx = &shared,
		                              .set = store_set, .get = store_get};
		a[r].settings = settings[r] ? settings[r] : settings[0];
		a[r].body = body;
		a[r].arg = arg;
		pthread_create(&threads[r], NULL, rank_main, &a[r]);
	}
	for (int r = 0; r < P; r++)
		pthread_join(threads[r], NULL);
	for (int r = 0; !results && r < P; r++)
		if (a[r].joined || a[r].left)
			ok(0, "rank %d of %d joins and leaves: %s", r, P, a[r].error.text);
	for (int r = 0; r < P; r++)
		free(shared.value[r]);
}

/* A barrier of all ranks of a run: after it they may read what the others wrote.
 * ThreadSanitizer does not see that of a barrier over links. */
__attribute__((unused)) static pthread_barrier_t ranks_barrier;

__attribute__((unused)) static void run_ranks(int P, const char *const *settings,
                                              void (*body)(gradcomp_job *, int, int, void *), void *arg)
{
	const char *const *all[MAX_RANKS] = {settings};
	pthread_barrier_init(&ranks_barrier, NULL, (unsigned)P);
	run_ranks_with(P, all, NULL, body, arg);
	pthread_barrier_destroy(&ranks_barrier);
}

/* "gradcomp.plugin_path=BUILD/lib/gradcomp" of the build this program,
 * BUILD/tests/unit/NAME, belongs to. */
__attribute__((unused)) static const char *plugin_path_setting(void)
{
	static char text[4200], exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	for (int up = 0; n > 0 && up < 3; up++)
		*strrchr(exe, '/') = 0;
	snprintf(text, sizeof text, "gradcomp.plugin_path=%s/lib/gradcomp", exe);
	return text;
}

#endif
