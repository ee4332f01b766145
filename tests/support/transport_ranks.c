#include "tests/support/transport_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct rank_slot {
	board *b;
	int rank;
} rank_slot;

static const log_sink board_log = {GRADCOMP_LOG_ERROR, -1};

double board_now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

board *board_new(int n)
{
	board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED)
		abort();
	b->n = n;
	b->late_rank = -1;
	b->options = (transport_options){.nranks = n,
	                                 .timeout = 10,
	                                 .wait_timeout = 60,
	                                 .streams = 2,
	                                 .chunk = 64 << 10,
	                                 .spin_us = 20,
	                                 .interface = "",
	                                 .allow = "shm,tcp",
	                                 .cma = 1,
	                                 .log = &board_log,
	                                 .verbs_gid = -1,
	                                 .verbs_memory = 64 << 20};
	transport_secret(b->secret, NULL);
	return b;
}

void board_free(board *b)
{
	munmap(b, sizeof *b);
}

static void *board_rank(void *arg)
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

void board_exchange(board *b)
{
	atomic_fetch_add(&b->ready, 1);
	while (atomic_load(&b->ready) < b->n)
		usleep(200);
}

void board_threads(board *b)
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

void board_fork(board *b)
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

void board_join(board *b)
{
	for (int r = 0; r < b->n; r++)
		waitpid(b->pid[r], NULL, 0);
}

channel *board_channel(board *b, transport *t, int rank, uint64_t id)
{
	int ranks[BOARD_RANKS];
	channel *c;
	for (int i = 0; i < b->n; i++)
		ranks[i] = i;
	return channel_open(t, id, ranks, b->n, rank, &c, NULL) ? NULL : c;
}

int board_well(const board *b)
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
