/* Ranks of a transport as threads or as processes. They share memory, through which
 * they find each other and report results. */
#ifndef TESTS_SUPPORT_TRANSPORT_RANKS_H
#define TESTS_SUPPORT_TRANSPORT_RANKS_H

#include "tests/support/tap.h"
#include "transport/core/transport.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BOARD_RANKS 16

typedef struct board {
	int n;
	transport_options options;
	int streams[BOARD_RANKS]; /* of a rank that is not to have those of `options`; 0: as there */
	void (*enter)(int rank); /* what a rank that is a process does first; may be NULL */
	void (*body)(struct board *b, transport *t, int rank);
	void (*leave)(struct board *b, int rank); /* and last */
	void (*run_rank)(struct board *b, int rank);  /* in place of transport and body, for a rank that is a process */
	int per_node; /* ranks of one node by their endpoint records; 0: all, as it is */
	void *arg;
	int late_rank; /* joins only when `late` is set; -1: nobody */
	atomic_int late, there, ready;
	unsigned char secret[TRANSPORT_SECRET_BYTES];
	char endpoint[BOARD_RANKS][TRANSPORT_ENDPOINT_MAX];
	pid_t pid[BOARD_RANKS];
	/* The results. */
	gradcomp_status started[BOARD_RANKS], stopped[BOARD_RANKS];
	gradcomp_error start_error[BOARD_RANKS], stop_error[BOARD_RANKS], error[BOARD_RANKS];
	gradcomp_status status[BOARD_RANKS];
	double when[BOARD_RANKS];
	atomic_int wrong; /* bytes that were not what they should be */
} board;

typedef struct rank_slot {
	board *b;
	int rank;
} rank_slot;

/* s that may be added to a limit */
#define LATE 8

static const log_sink board_log = {GRADCOMP_LOG_ERROR, -1};

static inline double board_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static inline board *board_new(int n)
{
	board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (b == MAP_FAILED)
		abort();
	b->n = n;
	b->late_rank = -1;
	b->options = (transport_options){.nranks = n, .timeout = 10, .wait_timeout = 60, .streams = 2, .chunk = 64 << 10,
	                                 .spin_us = 20, .interface = "", .allow = "shm,tcp", .cma = 1, .log = &board_log,
	                                 .verbs_gid = -1, .verbs_memory = 64 << 20};
	transport_secret(b->secret, NULL);
	return b;
}

static inline void board_free(board *b)
{
	munmap(b, sizeof *b);
}

static inline void *board_rank(void *arg)
{
	rank_slot *s = arg;
	board *b = s->b;
	transport_options o = b->options;
	const char *endpoints[BOARD_RANKS];
	transport *t;
	int r = s->rank;

	o.rank = r;
	if (b->streams[r])
		o.streams = b->streams[r];
	b->started[r] = transport_listen(&o, &t, &b->start_error[r]);
	if (b->started[r]) {
		atomic_fetch_add(&b->there, 1);
		return NULL;
	}
	strcpy(b->endpoint[r], transport_endpoint(t));
	if (b->per_node)
		strstr(b->endpoint[r], " node=")[6] = (char)('A' + r / b->per_node);
	atomic_fetch_add(&b->there, 1);
	while (atomic_load(&b->there) < b->n)
		usleep(200);
	for (int i = 0; i < b->n; i++)
		endpoints[i] = b->endpoint[i];
	while (r == b->late_rank && !atomic_load(&b->late))
		usleep(1000);
	b->started[r] = transport_start(t, endpoints, b->secret, &b->start_error[r]);
	if (!b->started[r])
		b->body(b, t, r);
	b->stopped[r] = transport_stop(t, &b->stop_error[r]);
	return NULL;
}

/* Everybody inside before anybody goes on. */
static inline void board_exchange(board *b)
{
	atomic_fetch_add(&b->ready, 1);
	while (atomic_load(&b->ready) < b->n)
		usleep(200);
}

static inline void board_threads(board *b)
{
	pthread_t thread[BOARD_RANKS];
	rank_slot s[BOARD_RANKS];

	for (int r = 0; r < b->n; r++) {
		s[r] = (rank_slot){b, r};
		pthread_create(&thread[r], NULL, board_rank, &s[r]);
	}
	for (int r = 0; r < b->n; r++)
		pthread_join(thread[r], NULL);
}

static inline void board_fork(board *b)
{
	fflush(stdout);
	for (int r = 0; r < b->n; r++) {
		pid_t pid = fork();

		if (pid < 0)
			abort();
		if (!pid) {
			rank_slot s = {b, r};

			/* A test that is interrupted leaves nobody behind. */
			alarm(300);
			if (b->enter)
				b->enter(r);
			if (b->run_rank)
				b->run_rank(b, r);
			else
				board_rank(&s);
			if (b->leave)
				b->leave(b, r);
			_exit(0);
		}
		/* By the parent alone: the board is shared. */
		b->pid[r] = pid;
	}
}

/* Waits for all ranks; those that must be killed first are killed by now. */
static inline void board_join(board *b)
{
	for (int r = 0; r < b->n; r++)
		waitpid(b->pid[r], NULL, 0);
}

static inline channel *board_channel(board *b, transport *t, int rank, uint64_t id)
{
	int ranks[BOARD_RANKS];
	channel *c;

	for (int i = 0; i < b->n; i++)
		ranks[i] = i;
	return channel_open(t, id, ranks, b->n, rank, &c, NULL) ? NULL : c;
}

/* All ranks came and left without an error. */
static inline int board_well(const board *b)
{
	int well = 1;

	for (int r = 0; r < b->n; r++) {
		if (b->started[r])
			printf("# rank %d start: %s\n", r, b->start_error[r].text);
		if (b->status[r])
			printf("# rank %d: %s\n", r, b->error[r].text);
		if (b->stopped[r])
			printf("# rank %d stop: %s\n", r, b->stop_error[r].text);
		well &= !b->started[r] && !b->stopped[r] && !b->status[r];
	}
	return well;
}

#endif
