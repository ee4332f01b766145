/* The threads that work for the reducers of a job: two, however many reducers there are.
 *
 * A reducer (a client) has work of two kinds: it computes, and it exchanges. It says so with
 * progress_wake(), and a thread calls turn[kind](), which does some of it. Of one client at
 * most one turn of a kind is under way. Of one kind at most one turn is under way in the
 * job, so two threads serve all: any thread takes either kind, and one that has computed
 * goes on with the exchange that follows from it, which then needs no other thread to wake up.
 *
 * Why this ends. An exchange waits for other ranks, and ranks may come to the exchanges of
 * different reducers in different orders: the program gives gradients in any order, of any number
 * of groups, and nobody could say an order beforehand without asking all ranks. With a single
 * thread rank 0 would wait in reducer A for rank 1, which waits in B for rank 0. Likewise a done()
 * callback may wait for another reducer. So the limit of one turn a kind is a preference and no rule:
 *
 *   (1) while work is due that nobody runs, a thread of the job is idle, or one is being started;
 *   (2) an idle thread takes work that is due when no turn of its kind was begun for 5 ms (exchanges) or
 *       50 ms (computing), however many are under way.
 *
 * So every piece of work that is due begins after a bounded time, whatever the others wait for, as
 * if each reducer had threads of its own; and within a reducer the order is one, the same on
 * all ranks (schedule/bucket_order.h). When (2) has happened to exchanges, ranks have different orders or
 * exchanges are long: from then on one more exchange may be under way at once, so what was waited for
 * once is not waited for again in every step. Of computing the same holds until none is under way.
 * Threads beyond two end when they have had nothing to do for a while.
 *
 * Gradients on a GPU: their reducer has two threads of its own, which are bound to the device, and
 * wait for its streams.
 *
 * Locks: a client may hold its own when it calls progress_wake(), progress_next(), progress_at();
 * turns are called without any. */
#ifndef REDUCER_PROGRESS_H
#define REDUCER_PROGRESS_H

#include "job/job.h"

#include <stdbool.h>

typedef enum progress_kind { PROGRESS_COMPUTE, PROGRESS_EXCHANGE, PROGRESS_KINDS } progress_kind;

typedef struct progress progress;

typedef struct progress_client {
	void (*turn[PROGRESS_KINDS])(void *ctx);
	void (*bind)(void *ctx); /* NULL, or: it has threads of its own, and each of them calls this first */
	void *ctx;

	/* progress.c's, under its lock */
	progress *of;
	struct progress_client *next, *queued_next[PROGRESS_KINDS];
	bool queued[PROGRESS_KINDS], active[PROGRESS_KINDS], again[PROGRESS_KINDS], leaving;
	double at; /* when it exchanges unasked, by clock_now(); 0: never */
} progress_client;

/* The members above the private ones are set, all others 0. The first of a job starts the threads. */
gradcomp_status progress_join(progress_client *c, gradcomp_job *job, gradcomp_error *err);
/* When its turns under way have ended; no other begins. Nothing where it has not joined. Not from a turn. */
void progress_leave(progress_client *c, gradcomp_job *job);
/* There is work of this kind: a turn begins after this call. */
void progress_wake(progress_client *c, progress_kind kind);
/* The same from a turn of this client that returns now: its thread takes it. */
void progress_next(progress_client *c, progress_kind kind);
/* Another client has such work: a turn that goes on keeps it waiting. */
bool progress_contended(const progress_client *c, progress_kind kind);
/* A turn of exchange at time `at`, though nobody wakes it; 0: not. Of several calls the earliest time counts. The
 * next turn of exchange uses it up. */
void progress_at(progress_client *c, double at);

#endif
