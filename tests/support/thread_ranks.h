/* Ranks as threads of one process: each thread is a rank of a job and finds the
 * others through a store in memory. run_ranks(P, body, arg) starts them, gives
 * each its job, and joins them; body returns when its rank is done. */
#ifndef TESTS_SUPPORT_THREAD_RANKS_H
#define TESTS_SUPPORT_THREAD_RANKS_H

#include "gradcomp/gradcomp.h"
#include "tests/support/tap.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 16

typedef struct memory_store memory_store;

typedef struct rank_arg {
	memory_store *shared;
	gradcomp_store store;
	const char *const *settings;
	void (*body)(gradcomp_job *job, int rank, int nranks, void *arg);
	void *arg;
	gradcomp_status joined, left;
	gradcomp_error error;
} rank_arg;

/* From now on jobs look as if on several nodes: node_of[r] is that of rank r. Their endpoint records
 * say so, and nodes communicate over tcp. NULL: all are on one. */
void ranks_on(const int *node_of);

/* settings[r] may be NULL: then all ranks use settings[0]. results has P entries
 * when given; else joining and leaving must succeed, and are tested. */
void run_ranks_with(int P, const char *const *settings[], rank_arg *results,
                    void (*body)(gradcomp_job *, int, int, void *), void *arg);
void run_ranks(int P, const char *const *settings, void (*body)(gradcomp_job *, int, int, void *), void *arg);

/* In run_ranks(): a barrier of all ranks. After it they may read what the others wrote.
 * ThreadSanitizer does not see that of a barrier over links. */
void ranks_wait(void);
/* The same in run_ranks_with(): before it and after it. */
void ranks_wait_init(int P);
void ranks_wait_end(void);

/* "gradcomp.plugin_path=BUILD/lib/gradcomp" of the build this program,
 * BUILD/tests/unit/NAME, belongs to. */
const char *plugin_path_setting(void);

#endif
