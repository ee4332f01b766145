/* Ranks as processes of this machine, each with a device of its own (or its part of
 * one): what a GPU's driver and NCCL ask for. They find each other through a store in shared
 * memory. The program itself must have no threads and touch no device. */
#ifndef TESTS_FAKE_DEVICE_RANKS_H
#define TESTS_FAKE_DEVICE_RANKS_H

#include "gradcomp/gradcomp.h"
#include "tests/support/tap.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 16
#define STORE_BYTES 2048

/* A rank leaves this behind. */
typedef struct outcome {
	int failed, status; /* the test's own result; the last status of a call */
	double number[5];
	uint64_t mark;
	char text[600];
} outcome;

typedef struct key_store {
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct {
		size_t bytes;
		char value[STORE_BYTES];
	} entry[MAX_RANKS];
	outcome result[MAX_RANKS];
} key_store;

static key_store *processes_store;

static int processes_set(void *ctx, const char *key, const void *value, size_t bytes)
{
	key_store *m = ctx;
	int r = atoi(strchr(key, '/') + 1);
	if (!strncmp(key, "gradcomp/heard/", 15))
		return 0;
	if (bytes > STORE_BYTES)
		return -1;
	pthread_mutex_lock(&m->lock);
	memcpy(m->entry[r].value, value, bytes);
	m->entry[r].bytes = bytes;
	pthread_cond_broadcast(&m->change);
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static long processes_get(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms)
{
	key_store *m = ctx;
	int r = atoi(strchr(key, '/') + 1), late = 0;
	struct timespec until;
	long n = -1;
	if (!strncmp(key, "gradcomp/heard/", 15))
		return -1;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_ms / 1000 + 1;
	pthread_mutex_lock(&m->lock);
	while (!m->entry[r].bytes && late != ETIMEDOUT)
		late = pthread_cond_timedwait(&m->change, &m->lock, &until);
	if (m->entry[r].bytes) {
		n = (long)m->entry[r].bytes;
		memcpy(value, m->entry[r].value, (size_t)n < capacity ? (size_t)n : capacity);
	}
	pthread_mutex_unlock(&m->lock);
	return n;
}

typedef void process_body(gradcomp_job *job, int rank, int nranks, outcome *out, void *arg);

/* So many ranks are on a node; 0: all. A node is a user, so these ranks are users, each in a namespace of its own. */
static int processes_per_node;

static int enter_node(int rank)
{
	if (!processes_per_node)
		return 1;
	int uid = (int)getuid(), map;
	if (unshare(CLONE_NEWUSER) || (map = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC)) < 0)
		return 0;
	int entered = dprintf(map, "%d %d 1", 61000 + rank / processes_per_node, uid) > 0;
	close(map);
	return entered;
}

static void process_main(int rank, int nranks, const char *const *settings, process_body *body, void *arg)
{
	gradcomp_store store = {.struct_size = sizeof store,
	                        .rank = rank,
	                        .nranks = nranks,
	                        .ctx = processes_store,
	                        .set = processes_set,
	                        .get = processes_get};
	gradcomp_job_options o = {.struct_size = sizeof o, .store = &store, .settings = settings};
	outcome *out = &processes_store->result[rank];
	gradcomp_error err = {0};
	gradcomp_job *job;
	char id[64];
	if (!enter_node(rank)) {
		out->failed = ENOSYS;
		return;
	}
	/* NCCL refuses two ranks of one host on one device. */
	snprintf(id, sizeof id, "gradcomp-test-%d", rank);
	setenv("NCCL_HOSTID", id, 1);
	if (gradcomp_job_create(&o, &job, &err)) {
		printf("# rank %d cannot join: %s\n", rank, err.text);
		out->failed = 1;
		return;
	}
	body(job, rank, nranks, out, arg);
	if (gradcomp_job_free(job, &err) && !out->status) {
		printf("# rank %d leaves: %s\n", rank, err.text);
		out->failed = 1;
	}
}

/* Runs `body` on P ranks; result[] is what they left. A rank that was ended by a
 * signal has failed = -signal; one that takes longer than `seconds` is killed. */
__attribute__((unused)) static const outcome *run_processes(int P, double seconds, const char *const *settings,
                                                            process_body *body, void *arg)
{
	pthread_mutexattr_t shared_lock;
	pthread_condattr_t shared_change;
	static const struct timespec nap = {.tv_nsec = 2000000};
	double left = seconds;
	pid_t pid[MAX_RANKS];
	int running = P;
	if (processes_store)
		munmap(processes_store, sizeof *processes_store);
	processes_store =
		mmap(NULL, sizeof *processes_store, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (processes_store == MAP_FAILED)
		exit(1);
	pthread_mutexattr_init(&shared_lock);
	pthread_mutexattr_setpshared(&shared_lock, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&processes_store->lock, &shared_lock);
	pthread_condattr_init(&shared_change);
	pthread_condattr_setpshared(&shared_change, PTHREAD_PROCESS_SHARED);
	pthread_cond_init(&processes_store->change, &shared_change);
	fflush(stdout);
	for (int r = 0; r < P; r++) {
		pid[r] = fork();
		if (pid[r])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		process_main(r, P, settings, body, arg);
		fflush(stdout);
		_exit(0);
	}
	while (running) {
		for (int r = 0; r < P; r++) {
			int status;
			if (pid[r] <= 0 || waitpid(pid[r], &status, WNOHANG) != pid[r])
				continue;
			if (WIFSIGNALED(status))
				processes_store->result[r].failed = -WTERMSIG(status);
			else if (WEXITSTATUS(status))
				processes_store->result[r].failed = 1;
			pid[r] = 0;
			running--;
		}
		nanosleep(&nap, NULL);
		left -= 2e-3;
		for (int r = 0; left < 0 && r < P; r++)
			if (pid[r] > 0)
				kill(pid[r], SIGKILL);
	}
	return processes_store->result;
}

/* Returns what the fake NCCL has counted; -1: NCCL is none, or not loaded yet. */
__attribute__((unused)) static long fake_nccl(const char *counter)
{
	void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
	long (*count)(void) = NULL;
	if (library)
		*(void **)&count = dlsym(library, counter);
	return count ? count() : -1;
}

__attribute__((unused)) static double process_clock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
