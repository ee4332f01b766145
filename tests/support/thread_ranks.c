#include "tests/support/thread_ranks.h"

#include "tests/support/fake_nodes.h"
#include "tests/support/tap.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_barrier_t barrier;
static const int *nodes; /* those of the ranks; NULL: all are on one */

struct memory_store {
	pthread_mutex_t lock;
	pthread_cond_t change;
	char *value[MAX_RANKS];
};

void ranks_on(const int *node_of)
{
	nodes = node_of;
}

static int store_set(void *ctx, const char *key, const void *value, size_t bytes)
{
	memory_store *s = ctx;
	int r = atoi(strchr(key, '/') + 1);
	if (!strncmp(key, "gradcomp/heard/", 15))
		return 0;
	pthread_mutex_lock(&s->lock);
	free(s->value[r]); /* a rank that refuses writes others' records */
	s->value[r] = nodes ? endpoint_of_node(value, bytes, nodes[r]) : strndup(value, bytes);
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
	if (!strncmp(key, "gradcomp/heard/", 15))
		return -1;
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

void run_ranks_with(int P, const char *const *settings[], rank_arg *results,
                    void (*body)(gradcomp_job *, int, int, void *), void *arg)
{
	memory_store shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
	rank_arg own[MAX_RANKS], *a = results ? results : own;
	pthread_t threads[MAX_RANKS];
	memset(a, 0, (size_t)P * sizeof *a);
	for (int r = 0; r < P; r++) {
		a[r].shared = &shared;
		a[r].store = (gradcomp_store){.struct_size = sizeof a[r].store,
		                              .rank = r,
		                              .nranks = P,
		                              .ctx = &shared,
		                              .set = store_set,
		                              .get = store_get};
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

void ranks_wait(void)
{
	pthread_barrier_wait(&barrier);
}

void ranks_wait_init(int P)
{
	pthread_barrier_init(&barrier, NULL, (unsigned)P);
}

void ranks_wait_end(void)
{
	pthread_barrier_destroy(&barrier);
}

void run_ranks(int P, const char *const *settings, void (*body)(gradcomp_job *, int, int, void *), void *arg)
{
	const char *const *all[MAX_RANKS] = {settings};
	ranks_wait_init(P);
	run_ranks_with(P, all, NULL, body, arg);
	ranks_wait_end();
}

static char plugin_path[4200];

static void plugin_path_find(void)
{
	char exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	exe[n > 0 ? n : 0] = 0;
	for (int up = 0; n > 0 && up < 3; up++)
		*strrchr(exe, '/') = 0;
	snprintf(plugin_path, sizeof plugin_path, "gradcomp.plugin_path=%s/lib/gradcomp", exe);
}

/* Ranks that are threads ask at the same time. */
const char *plugin_path_setting(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, plugin_path_find);
	return plugin_path;
}
