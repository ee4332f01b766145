/* Threads of the library. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>

/* Starts one that signals pass by: they are the application's. 0, or an error number. */
int thread_start(pthread_t *thread, void *(*body)(void *), void *arg);

/* Makes a condition for thread_wait(): its time does not jump. */
void thread_condition(pthread_cond_t *c);
/* Waits like pthread_cond_wait(), at most about `ms` milliseconds. */
void thread_wait(pthread_cond_t *c, pthread_mutex_t *lock, int ms);
/* The same, until about the time `until` of clock_now(). */
void thread_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, double until);

/* Moves this thread from the CPU to another of those it may run on, and takes none from it for later.
 * 0, or -1 where there is no other or the kernel refuses. */
int thread_leave_cpu(int cpu);

#endif
