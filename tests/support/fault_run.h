/* One run of ranks that are processes with faults made in one or all of them, and
 * what may come of it: all get through with the right results, or all learn of an
 * error in words; nobody crashes, hangs, or keeps memory or a descriptor. */
#ifndef TESTS_SUPPORT_FAULT_RUN_H
#define TESTS_SUPPORT_FAULT_RUN_H

#include "tests/support/inject/inject.h"
#include "tests/support/dir_entries.h"
#include "tests/support/pace.h"
#include "tests/support/transport_ranks.h"

#define FAULT_RUN_SECONDS 20 /* whoever is still there hangs */

typedef struct fault_run {
	char faults[120]; /* GRADCOMP_INJECT's form; without a seed each rank has another */
	unsigned seed;
	int who;   /* the rank that has them; -1: all */
	int joins; /* from the start; else only while the body asks for them */
	int keeps; /* it loads plugins, which stay */
	void *arg; /* the body's */
	/* These came of it. */
	inject_counts seen[BOARD_RANKS];
	int wrong[BOARD_RANKS], fds[BOARD_RANKS], how[BOARD_RANKS];
	double begin, seconds;
} fault_run;

static inline fault_run *fault_run_of(const board *b)
{
	return b->arg;
}

static inline int fault_run_hits(const fault_run *t, int rank)
{
	return t->who < 0 || t->who == rank;
}

static board *fault_run_board; /* the one of the processes forked next */

static void fault_run_enter(int rank)
{
	fault_run *t = fault_run_of(fault_run_board);
	char text[200];
	snprintf(text, sizeof text, "seed=%u;%s", t->seed * 16 + (unsigned)rank, t->faults);
	if (inject_set(text))
		_exit(9);
	t->fds[rank] = entries("/proc/self/fd");
	if (t->joins && fault_run_hits(t, rank))
		inject_on();
}

static void fault_run_leave(board *b, int rank)
{
	fault_run *t = fault_run_of(b);
	inject_off();
	t->seen[rank] = inject_seen();
	t->fds[rank] = entries("/proc/self/fd") - t->fds[rank];
}

/* The board's own body, with the faults on where they are to be. */
static inline void fault_run_begin(board *b, int rank)
{
	if (fault_run_hits(fault_run_of(b), rank))
		inject_on();
}

static inline fault_run *fault_run_new(board *b)
{
	fault_run *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (t == MAP_FAILED)
		abort();
	t->who = -1;
	b->arg = t;
	b->enter = fault_run_enter;
	b->leave = fault_run_leave;
	return t;
}

static inline void fault_run_start(board *b)
{
	fault_run *t = fault_run_of(b);
	fault_run_board = b;
	t->begin = board_now();
	memset(t->how, -1, sizeof t->how);
	board_fork(b);
}

static inline void fault_run_finish(board *b)
{
	fault_run *t = fault_run_of(b);
	int left = b->n;
	while (left && in_time(board_now() - t->begin, FAULT_RUN_SECONDS))
		for (int r = left = 0; r < b->n; r++)
			if (t->how[r] < 0 && !waitpid(b->pid[r], &t->how[r], WNOHANG)) {
				t->how[r] = -1;
				left = 1;
				usleep(500);
			}
	for (int r = 0; r < b->n; r++)
		if (t->how[r] < 0) {
			kill(b->pid[r], SIGKILL);
			waitpid(b->pid[r], NULL, 0);
		}
	t->seconds = board_now() - t->begin;
}

static inline int fault_run_failed(const board *b, int r)
{
	return b->started[r] || b->status[r] || b->stopped[r];
}

static inline const char *fault_run_text(const board *b, int r)
{
	return b->started[r] ? b->start_error[r].text : b->status[r] ? b->error[r].text : b->stop_error[r].text;
}

/* Allocations and calls that were tried with faults on, by the rank with most. */
static inline inject_counts fault_run_seen(const board *b)
{
	const fault_run *t = fault_run_of(b);
	inject_counts most = {0};
	for (int r = 0; r < b->n; r++) {
		most.faults += t->seen[r].faults;
		if (t->seen[r].allocations > most.allocations)
			most.allocations = t->seen[r].allocations;
		if (t->seen[r].calls > most.calls)
			most.calls = t->seen[r].calls;
	}
	return most;
}

/* NULL, or what must not happen. `may_fail`: an error on all ranks is fine too. */
static inline const char *fault_run_check(const board *b, int may_fail)
{
	const fault_run *t = fault_run_of(b);
	int failed = 0;
	for (int r = 0; r < b->n; r++) {
		if (t->how[r])
			return t->how[r] < 0 ? "a rank hangs" : "a rank crashed";
		if (t->seen[r].live && !t->keeps)
			return "memory is lost";
		if (t->fds[r])
			return "a descriptor is lost";
		if (t->wrong[r] && !fault_run_failed(b, r))
			return "a result is wrong";
		failed += fault_run_failed(b, r) != 0;
		if (fault_run_failed(b, r) &&
		    (strlen(fault_run_text(b, r)) < 8 || (r != t->who && !strstr(fault_run_text(b, r), "rank "))))
			return "an error names nothing";
	}
	if (failed && !may_fail)
		return "a rank failed";
	return failed && failed < b->n ? "some ranks do not know of the failure" : NULL;
}

static inline void fault_run_show(const board *b, const char *why)
{
	const fault_run *t = fault_run_of(b);
	printf("# %s after %.2f s, with \"%s\", seed %u, in rank %d\n", why, t->seconds, t->faults, t->seed, t->who);
	for (int r = 0; r < b->n; r++)
		printf("# rank %d: end %d, started %d, status %d, stopped %d, wrong %d, live %lu, descriptors %d: %s\n",
		       r, t->how[r], b->started[r], b->status[r], b->stopped[r], t->wrong[r], t->seen[r].live,
		       t->fds[r], fault_run_failed(b, r) ? fault_run_text(b, r) : "well");
	fflush(stdout);
}

static inline void fault_run_free(board *b)
{
	munmap(b->arg, sizeof(fault_run));
	board_free(b);
}

#endif
