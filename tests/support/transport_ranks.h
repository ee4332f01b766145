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
	int streams[BOARD_RANKS]; /* for each rank that is not to have those of `options`; 0: as there */
	void (*enter)(int rank);  /* a rank that is a process does this first; may be NULL */
	void (*body)(struct board *b, transport *t, int rank);
	void (*leave)(struct board *b, int rank);    /* and last */
	void (*run_rank)(struct board *b, int rank); /* in place of transport and body, for a rank that is a process */
	int per_node;                                /* ranks of one node by their endpoint records; 0: all, as it is */
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

/* s that may be added to a limit */
#define LATE 8

/* Seconds of a clock that does not jump. */
double board_now(void);
/* A board for n ranks, with the options of most tests. */
board *board_new(int n);
void board_free(board *b);
/* Runs the ranks as threads, and waits for them. */
void board_threads(board *b);
/* Starts the ranks as processes. */
void board_fork(board *b);
/* Waits for all ranks; those that must be killed first are killed by now. */
void board_join(board *b);
/* Everybody inside before anybody goes on. */
void board_exchange(board *b);
/* This rank's end of a channel of all ranks; NULL when it cannot be opened. */
channel *board_channel(board *b, transport *t, int rank, uint64_t id);
/* Returns 1 when all ranks joined and left without an error. */
int board_well(const board *b);

#endif
