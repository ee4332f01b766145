/* A rank that refuses to join, for whatever reason, is heard by all others at once: through a
 * store that it has itself, while another rank never comes, and when those who hear it come
 * late. */
#include "tests/support/tap.h"

#include "gradcomp/gradcomp.h"
#include "base/clock.h"
#include "tests/support/pace.h"
#include "tests/support/thread_ranks.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { P = 5, KEYS = 64 };

/* A store as a framework's: any key, the last value counts. It ends with the rank that has it. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t change;
	char key[KEYS][48], value[KEYS][4096];
	int n;
	bool gone;
} store = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static int find(const char *key)
{
	int i = 0;
	while (i < store.n && strcmp(store.key[i], key))
		i++;
	return i;
}

static int set(void *ctx, const char *key, const void *value, size_t bytes)
{
	(void)ctx;
	pthread_mutex_lock(&store.lock);
	int i = find(key), st = store.gone || i == KEYS ? -1 : 0;
	if (!st) {
		store.n += i == store.n;
		snprintf(store.key[i], sizeof store.key[i], "%s", key);
		snprintf(store.value[i], sizeof store.value[i], "%.*s", (int)bytes, (const char *)value);
		pthread_cond_broadcast(&store.change);
	}
	pthread_mutex_unlock(&store.lock);
	return st;
}

static long get(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms)
{
	struct timespec until;
	int late = 0;
	long n = -1;
	(void)ctx;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += timeout_ms % 1000 * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	pthread_mutex_lock(&store.lock);
	while (!store.gone && find(key) == store.n && late != ETIMEDOUT)
		late = pthread_cond_timedwait(&store.change, &store.lock, &until);
	if (!store.gone && find(key) < store.n) {
		const char *text = store.value[find(key)];

		n = (long)strlen(text);
		memcpy(value, text, (size_t)n < capacity ? (size_t)n : capacity);
	}
	pthread_mutex_unlock(&store.lock);
	return n;
}

static bool there(const char *key)
{
	pthread_mutex_lock(&store.lock);
	bool yes = find(key) < store.n;
	pthread_mutex_unlock(&store.lock);
	return yes;
}

static struct rank {
	int rank;
	const char *setting; /* its own; NULL: none */
	const char *after;   /* a key it waits for before it comes; NULL: none */
	bool absent;
	gradcomp_status status;
	gradcomp_error err;
	double took;
	pthread_t thread;
} ranks[P];
static int host; /* the rank that has the store */
static const char *timeout;

static void *join(void *arg)
{
	struct rank *r = arg;
	const char *settings[] = {"gradcomp.log=error", plugin_path_setting(), timeout, r->setting, NULL};
	gradcomp_store own = {.struct_size = sizeof own, .rank = r->rank, .nranks = P, .set = set, .get = get};
	gradcomp_job_options o = {.struct_size = sizeof o, .store = &own, .settings = settings};
	gradcomp_job *job;
	while (r->after && !there(r->after))
		usleep(1000);
	double began = clock_now();
	r->status = gradcomp_job_create(&o, &job, &r->err);
	r->took = clock_now() - began;
	if (!r->status)
		gradcomp_job_free(job, NULL);
	if (r->rank == host) {
		pthread_mutex_lock(&store.lock);
		store.gone = true;
		pthread_cond_broadcast(&store.change);
		pthread_mutex_unlock(&store.lock);
	}
	return NULL;
}

static void fresh(int host_rank, const char *timeout_setting)
{
	store.n = 0;
	store.gone = false;
	host = host_rank;
	timeout = timeout_setting;
	memset(ranks, 0, sizeof ranks);
	for (int r = 0; r < P; r++)
		ranks[r].rank = r;
}

/* Everybody who is there returns, in `limit` seconds, an error that has `why` in it; all but
 * `culprit` (-1: all) name that rank. */
static void all_hear(const char *name, int culprit, const char *why, double limit)
{
	char by[40];
	snprintf(by, sizeof by, "rank %d cannot join: ", culprit);
	for (int r = 0; r < P; r++)
		if (!ranks[r].absent)
			pthread_create(&ranks[r].thread, NULL, join, &ranks[r]);
	for (int r = 0; r < P; r++)
		if (!ranks[r].absent)
			pthread_join(ranks[r].thread, NULL);
	for (int r = 0; r < P; r++) {
		const struct rank *k = &ranks[r];

		if (k->absent)
			continue;
		if (!ok(k->status < 0 && strstr(k->err.text, why) &&
		                (culprit < 0 || r == culprit || strstr(k->err.text, by)),
		        "%s: rank %d hears it", name, r))
			printf("# status %d: %s\n", k->status, k->err.text);
		ok(in_time(k->took, limit), "%s: rank %d, after %.2f s", name, r, k->took);
	}
}

int main(void)
{
	unsetenv("PMIX_NAMESPACE");
	unsetenv("SLURM_JOB_ID");
	setenv("GRADCOMP_SECURITY_SECRET", "pmix", 1);

	/* The rank that has the store is the first to refuse: the others are not there yet. */
	for (int h = 0; h < P; h += 3) {
		char key[24];

		snprintf(key, sizeof key, "gradcomp/%d", h);
		fresh(h, "transport.timeout=60");
		ranks[h].setting = "gradcomp.compressor=nonsense";
		for (int r = 0; r < P; r++)
			ranks[r].after = r == h ? NULL : key;
		all_hear("a rank that has the store", h, "nonsense", 5);
	}

	fresh(0, "transport.timeout=60");
	ranks[1].setting = "transport.streams=many";
	for (int r = 2; r < P; r++)
		ranks[r].after = "gradcomp/1";
	all_hear("settings that are wrong", 1, "transport.streams", 5);

	fresh(4, "transport.timeout=60");
	ranks[4].setting = "gradcomp.collective=tree";
	for (int r = 0; r < 3; r++)
		ranks[r].after = "gradcomp/4";
	all_hear("another SPEC", -1, "rank 4 asks for 'none/tree:chunk=0', rank 0 for 'none/ring", 5);

	/* Those who wait for the rank that never comes hear of the one that does not want to; then
	 * all stay for a while, for the rank that is not there yet. */
	fresh(2, "transport.timeout=4");
	ranks[1].absent = true;
	ranks[3].setting = "gradcomp.compressor=nonsense";
	all_hear("while another never comes", 3, "nonsense", 3.9);

	fresh(0, "transport.timeout=60");
	for (int r = 0; r < P; r++)
		ranks[r].setting = "gradcomp.compressor=nonsense";
	all_hear("all refuse", -1, "nonsense", 5);

	fresh(0, "transport.timeout=60");
	ranks[2].setting = "gradcomp.compressor=nonsense";
	ranks[1].after = "gradcomp/2";
	all_hear("rank 1 comes last", 2, "nonsense", 5);
	return done_testing();
}
