#define _GNU_SOURCE
#include "base/thread.h"

#include "base/clock.h"

#include <sched.h>
#include <signal.h>
#include <time.h>

int thread_start(pthread_t *thread, void *(*body)(void *), void *arg)
{
	sigset_t all, old;
	int failed;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	failed = pthread_create(thread, NULL, body, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return failed;
}

void thread_condition(pthread_cond_t *c)
{
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(c, &attr);
	pthread_condattr_destroy(&attr);
}

void thread_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, double until)
{
	struct timespec t = {(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};
	pthread_cond_timedwait(c, lock, &t);
}

void thread_wait(pthread_cond_t *c, pthread_mutex_t *lock, int ms)
{
	thread_wait_until(c, lock, clock_now() + 1e-3 * ms);
}

int thread_leave_cpu(int cpu)
{
	cpu_set_t all, others;
	if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof all, &all) || !CPU_ISSET(cpu, &all))
		return -1;
	others = all;
	CPU_CLR(cpu, &others);
	if (!CPU_COUNT(&others) || sched_setaffinity(0, sizeof others, &others))
		return -1;
	return sched_setaffinity(0, sizeof all, &all) ? -1 : 0;
}
