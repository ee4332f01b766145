/* Ranks as processes of one machine, as many as are wanted, that find each other through a store
 * in shared memory.
 *
 * run_processes(P, settings, body, bytes) forks them, gives each its job, and reaps
 * them; what body leaves in its `bytes` of the board the caller may read. */
#ifndef TESTS_SUPPORT_PROCESS_RANKS_H
#define TESTS_SUPPORT_PROCESS_RANKS_H

#include "gradcomp/gradcomp.h"
#include "tests/support/fake_nodes.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESS_TEXT 4096
#define PROCESS_LIFE 300 /* seconds after which a rank that is still there ends itself */

typedef struct process_slot {
	atomic_uint bytes; /* of text, once it is there */
	char text[PROCESS_TEXT];
	pid_t pid;
	double joining;       /* seconds */
	gradcomp_error error; /* of joining or leaving */
	int left;             /* in good order */
	int status;           /* as waitpid() tells it */
} process_slot;

typedef struct process_board {
	int P;
	size_t room; /* bytes of a rank's own room */
	pthread_barrier_t barrier;
	process_slot slot[];
} process_board;

typedef void process_body(gradcomp_job *job, int rank, process_board *board, void *room);

static void *process_room(process_board *b, int rank)
{
	return (char *)&b->slot[b->P] + (size_t)rank * b->room;
}

static double process_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The node of each rank, for jobs that are to look as if on several; NULL: one node. */
static const int *processes_nodes;

static int process_set(void *ctx, const char *key, const void *value, size_t bytes)
{
	process_board *b = ctx;
	int rank = atoi(strchr(key, '/') + 1);
	process_slot *s = &b->slot[rank];
	char *text_of_node = processes_nodes ? endpoint_of_node(value, bytes, processes_nodes[rank]) : NULL;
	if (text_of_node)
		bytes = strlen(text_of_node);
	if (bytes > sizeof s->text) {
		free(text_of_node);
		return -1;
	}
	memcpy(s->text, text_of_node ? text_of_node : value, bytes);
	free(text_of_node);
	atomic_store(&s->bytes, (unsigned)bytes);
	return 0;
}

static long process_get(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms)
{
	process_board *b = ctx;
	process_slot *s = &b->slot[atoi(strchr(key, '/') + 1)];
	unsigned bytes;
	while (!(bytes = atomic_load(&s->bytes)) && timeout_ms-- > 0)
		usleep(1000);
	memcpy(value, s->text, bytes < capacity ? bytes : capacity);
	return bytes ? (long)bytes : -1;
}

static void process_main(process_board *b, int rank, const char *const *settings, process_body *body)
{
	process_slot *s = &b->slot[rank];
	gradcomp_store store = {.struct_size = sizeof store, .rank = rank, .nranks = b->P, .ctx = b, .set = process_set,
	                        .get = process_get};
	gradcomp_job_options o = {.struct_size = sizeof o, .store = &store, .settings = settings};
	gradcomp_job *job;
	alarm(PROCESS_LIFE);
	pthread_barrier_wait(&b->barrier);
	s->joining = process_now();
	if (gradcomp_job_create(&o, &job, &s->error))
		return;
	s->joining = process_now() - s->joining;
	body(job, rank, b, process_room(b, rank));
	s->left = !gradcomp_job_free(job, &s->error);
}

/* NULL when the ranks cannot be started. The board is the caller's to end_processes(). */
static process_board *run_processes(int P, const char *const *settings, process_body *body, size_t bytes)
{
	size_t room = (bytes + 63) & ~(size_t)63;
	process_board *b = mmap(NULL, sizeof *b + (size_t)P * (sizeof b->slot[0] + room), PROT_READ | PROT_WRITE,
	                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t shared;
	int started = 0;
	if (b == MAP_FAILED)
		return NULL;
	b->P = P;
	b->room = room;
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&b->barrier, &shared, (unsigned)P);
	pthread_barrierattr_destroy(&shared);
	fflush(NULL);
	for (; started < P; started++) {
		pid_t pid = fork();
		if (pid < 0)
			break;
		if (!pid) {
			process_main(b, started, settings, body);
			fflush(NULL);
			_exit(0);
		}
		b->slot[started].pid = pid;
	}
	for (int r = 0; r < started; r++) {
		if (started < P)
			kill(b->slot[r].pid, SIGKILL);
		waitpid(b->slot[r].pid, &b->slot[r].status, 0);
	}
	return b;
}

static void end_processes(process_board *b)
{
	munmap(b, sizeof *b + (size_t)b->P * (sizeof b->slot[0] + b->room));
}

#endif
