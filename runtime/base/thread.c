#define _GNU_SOURCE
#include "base/thread.h"

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

void thread_wait(pthread_cond_t *c, pthread_mutex_t *lock, int ms)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += ms / 1000;
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(c, lock, &t);
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
