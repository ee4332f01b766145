#include "tests/support/process_ranks.h"

#include "tests/support/fake_nodes.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void *process_room(process_board *b, int rank)
{
	return (char *)&b->slot[b->P] + (size_t)rank * b->room;
}

double process_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const int *nodes; /* those of the ranks; NULL: all are on one */

void processes_on(const int *node_of)
{
	nodes = node_of;
}

const int *processes_nodes(void)
{
	return nodes;
}

static int process_set(void *ctx, const char *key, const void *value, size_t bytes)
{
	process_board *b = ctx;
	int rank = atoi(strchr(key, '/') + 1);
	process_slot *s = &b->slot[rank];
	if (!strncmp(key, "gradcomp/heard/", 15))
		return 0;
	char *text_of_node = nodes ? endpoint_of_node(value, bytes, nodes[rank]) : NULL;
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
	if (!strncmp(key, "gradcomp/heard/", 15))
		return -1;
	while (!(bytes = atomic_load(&s->bytes)) && timeout_ms-- > 0)
		usleep(1000);
	memcpy(value, s->text, bytes < capacity ? bytes : capacity);
	return bytes ? (long)bytes : -1;
}

static void process_main(process_board *b, int rank, const char *const *settings, process_body *body)
{
	process_slot *s = &b->slot[rank];
	gradcomp_store store = {.struct_size = sizeof store,
	                        .rank = rank,
	                        .nranks = b->P,
	                        .ctx = b,
	                        .set = process_set,
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

process_board *run_processes(int P, const char *const *settings, process_body *body, size_t bytes)
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

void end_processes(process_board *b)
{
	munmap(b, sizeof *b + (size_t)b->P * (sizeof b->slot[0] + b->room));
}
