/* A few threads that share work with the thread that calls.
 *
 * Work comes in parts, numbered from 0; whoever is free takes the next one. Threads sleep on
 * semaphores between runs, and one that has not woken up by the time all parts are taken is
 * told not to, so that a busy processor delays nobody. */
#ifndef BASE_THREAD_POOL_H
#define BASE_THREAD_POOL_H

#include "gradcomp/abi.h"

enum { THREAD_POOL_MAX = 64 };

typedef struct thread_pool thread_pool;

/* Starts threads - 1 of them, THREAD_POOL_MAX - 1 at most. 0; ENOMEM and no pool; or the error
 * number of a thread that could not be started, with a pool of those before it. */
int thread_pool_open(int threads, thread_pool **out);
/* How many there are, the caller's among them. */
int thread_pool_threads(const thread_pool *p);
/* Calls run(arg, 0..parts - 1), each once, in any order and at the same time, and returns when
 * all have returned. One caller at a time. Takes no lock and allocates nothing. */
void thread_pool_run(thread_pool *p, void (*run)(void *arg, size_t part), void *arg, size_t parts);
/* Closes the pool, when nothing runs. NULL is fine. */
void thread_pool_close(thread_pool *p);
/* The same in a child of fork(), which has none of the threads. */
void thread_pool_abandon(thread_pool *p);

/* Calls each(ctx, worker, i) for i = 0..n - 1 on at most `threads` threads, the caller's among
 * them; `worker` says which, from 0. They are begun in that order, and after a failure no other is;
 * that of the least i is returned, as one thread alone would have it. A thread that cannot be
 * started is not missed. */
gradcomp_status thread_pool_each(int threads, uint64_t n,
                                 gradcomp_status (*each)(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err),
                                 void *ctx, gradcomp_error *err);

/* The CPUs that this process may run on, at most THREAD_POOL_MAX. */
int thread_pool_cpus(void);
/* How many threads `text` asks for, a number or "auto": what Slurm gives this task, but no more
 * than the CPUs it may run on. 0 when it is neither. */
int thread_pool_parse(const char *text);

#endif
