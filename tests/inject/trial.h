/* One run of ranks that are processes with faults made in one or all of them, and
 * what may come of it: all get through with the right results, or all learn of an
 * error in words; nobody crashes, hangs, or keeps memory or a descriptor. */
#ifndef INJECT_TRIAL_H
#define INJECT_TRIAL_H

#include "inject/inject.h"
#include "unit/entries.h"
#include "unit/transport_ranks.h"


#define TRIAL_SECONDS 20 /* whoever is still there hangs */

typedef struct trial {
	char faults[120]; /* GRADCOMP_INJECT's form; without a seed each rank has another */
	unsigned seed;
	int who;    /* the rank that has them; -1: all */
	int joins;  /* from the start; else only while the body asks for them */
	int keeps;  /* it loads plugins, which stay */
	void *arg;  /* the body's */
	/* What came of it. */
	inject_counts seen[BOARD_RANKS];
	int wrong[BOARD_RANKS], fds[BOARD_RANKS], how[BOARD_RANKS];
	double begin, seconds;
} trial;

static inline trial *trial_of(const board *b)
{
	return b->arg;
}

static inline int trial_hits(const trial *t, int rank)
{
	return t->who < 0 || t->who == rank;
}

static board *trial_board; /* of the processes forked next */

static void trial_enter(int rank)
{
	trial *t = trial_of(trial_board);
	char text[200];

	snprintf(text, sizeof text, "seed=%u;%s", t->seed * 16 + (unsigned)rank, t->faults);
	if (inject_set(text))
		_exit(9);
	t->fds[rank] = entries("/proc/self/fd");
	if (t->joins && trial_hits(t, rank))
		inject_on();
}

static void trial_leave(board *b, int rank)
{
	trial *t = trial_of(b);

	inject_off();
	t->seen[rank] = inject_seen();
	t->fds[rank] = entries("/proc/self/fd") - t->fds[rank];
}

/* The board's own body, with the faults on where they are to be. */
static inline void trial_begin(board *b, int rank)
{
	if (trial_hits(trial_of(b), rank))
		inject_on();
}

static inline trial *trial_new(board *b)
{
	trial *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (t == MAP_FAILED)
		abort();
	t->who = -1;
	b->arg = t;
	b->enter = trial_enter;
	b->leave = trial_leave;
	return t;
}

static inline void trial_start(board *b)
{
	trial *t = trial_of(b);

	trial_board = b;
	t->begin = board_now();
	memset(t->how, -1, sizeof t->how);
	board_fork(b);
}

static inline void trial_finish(board *b)
{
	trial *t = trial_of(b);
	int left = b->n;

	while (left && board_now() - t->begin < TRIAL_SECONDS)
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

static inline int trial_failed(const board *b, int r)
{
	return b->started[r] || b->status[r] || b->stopped[r];
}

static inline const char *trial_text(const board *b, int r)
{
	return b->started[r] ? b->start_error[r].text : b->status[r] ? b->error[r].text : b->stop_error[r].text;
}

/* Allocations and calls that were tried with faults on, by the rank with most. */
static inline inject_counts trial_seen(const board *b)
{
	const trial *t = trial_of(b);
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
static inline const char *trial_judge(const board *b, int may_fail)
{
	const trial *t = trial_of(b);
	int failed = 0;

	for (int r = 0; r < b->n; r++) {
		if (t->how[r])
			return t->how[r] < 0 ? "a rank hangs" : "a rank crashed";
		if (t->seen[r].live && !t->keeps)
			return "memory is lost";
		if (t->fds[r])
			return "a descriptor is lost";
		if (t->wrong[r] && !trial_failed(b, r))
			return "a result is wrong";
		failed += trial_failed(b, r) != 0;
		if (trial_failed(b, r) && (strlen(trial_text(b, r)) < 8 || (r != t->who && !strstr(trial_text(b, r), "rank "))))
			return "an error names nothing";
	}
	if (failed && !may_fail)
		return "a rank failed";
	return failed && failed < b->n ? "some ranks do not know of the failure" : NULL;
}

static inline void trial_show(const board *b, const char *why)
{
	const trial *t = trial_of(b);

	printf("# %s after %.2f s, with \"%s\", seed %u, in rank %d\n", why, t->seconds, t->faults, t->seed, t->who);
	for (int r = 0; r < b->n; r++)
		printf("# rank %d: end %d, started %d, status %d, stopped %d, wrong %d, live %lu, descriptors %d: %s\n", r,
		       t->how[r], b->started[r], b->status[r], b->stopped[r], t->wrong[r], t->seen[r].live, t->fds[r],
		       trial_failed(b, r) ? trial_text(b, r) : "well");
	fflush(stdout);
}

static inline void trial_free(board *b)
{
	munmap(b->arg, sizeof(trial));
	board_free(b);
}

#endif
