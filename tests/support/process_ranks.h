/* Ranks as processes of one machine, as many as are wanted, that find each other through a store
 * in shared memory.
 *
 * run_processes(P, settings, body, bytes) forks them, gives each its job, and reaps
 * them; what body leaves in its `bytes` of the board the caller may read. */
#ifndef TESTS_SUPPORT_PROCESS_RANKS_H
#define TESTS_SUPPORT_PROCESS_RANKS_H

#include "gradcomp/gradcomp.h"

#include <pthread.h>
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
	atomic_uint bytes; /* length of the text, once it is there */
	char text[PROCESS_TEXT];
	pid_t pid;
	double joining;       /* seconds */
	gradcomp_error error; /* that of joining or leaving */
	int left;             /* in good order */
	int status;           /* waitpid() tells it */
} process_slot;

typedef struct process_board {
	int P;
	size_t room; /* bytes of a rank's own room */
	pthread_barrier_t barrier;
	process_slot slot[];
} process_board;

typedef void process_body(gradcomp_job *job, int rank, process_board *board, void *room);

/* From now on jobs look as if on several nodes: node_of[r] is that of rank r; NULL: all are on one. */
void processes_on(const int *node_of);
const int *processes_nodes(void);
void *process_room(process_board *b, int rank);
/* Seconds of a clock that does not jump. */
double process_now(void);
/* NULL when the ranks cannot be started. The board is the caller's to end_processes(). */
process_board *run_processes(int P, const char *const *settings, process_body *body, size_t bytes);
void end_processes(process_board *b);

#endif
