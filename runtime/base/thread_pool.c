/* The pool sleeps on semaphores and is handed out by one flag: who finds it taken
 * does not wait for it. A thread that has not woken up by the time all parts are
 * taken is told not to, so that a busy processor delays nobody. */
#include "base/thread_pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"

enum { IDLE, CALLED, WORKING, QUIT };

typedef struct worker {
	pthread_t thread;
	sem_t wake;
	atomic_int state;
} worker;

static struct {
	pthread_mutex_t lock; /* of starting and stopping */
	int users;
	atomic_int workers;
	atomic_flag taken;
	worker worker[THREAD_POOL_MAX - 1];
	sem_t done;
	/* The work of who has taken the pool. */
	void (*run)(void *arg, size_t part);
	void *arg;
	size_t parts;
	atomic_size_t next;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .taken = ATOMIC_FLAG_INIT};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void wait_for(sem_t *s)
{
	while (sem_wait(s) && errno == EINTR)
		;
}

static void take_parts(void)
{
	for (size_t i; (i = atomic_fetch_add_explicit(&pool.next, 1, memory_order_relaxed)) < pool.parts;)
		pool.run(pool.arg, i);
}

static void *worker_main(void *arg)
{
	worker *w = arg;
	for (;;) {
		wait_for(&w->wake);
		int state = CALLED;
		if (atomic_compare_exchange_strong(&w->state, &state, WORKING)) {
			take_parts();
			atomic_store(&w->state, IDLE);
			sem_post(&pool.done);
		} else if (state == QUIT)
			return NULL;
	}
}

void thread_pool_run(void (*run)(void *arg, size_t part), void *arg, size_t parts)
{
	int workers = parts > 1 ? atomic_load(&pool.workers) : 0;
	if (!workers || atomic_flag_test_and_set(&pool.taken)) {
		for (size_t i = 0; i < parts; i++)
			run(arg, i);
		return;
	}
	/* Between the two looks the pool may have been stopped. */
	workers = atomic_load(&pool.workers);
	if ((size_t)workers > parts - 1)
		workers = (int)(parts - 1);
	pool.run = run;
	pool.arg = arg;
	pool.parts = parts;
	atomic_store(&pool.next, 0);
	for (int i = 0; i < workers; i++) {
		atomic_store(&pool.worker[i].state, CALLED);
		sem_post(&pool.worker[i].wake);
	}
	take_parts();
	for (int i = 0; i < workers; i++) {
		int state = CALLED;
		if (!atomic_compare_exchange_strong(&pool.worker[i].state, &state, IDLE))
			wait_for(&pool.done);
	}
	atomic_flag_clear(&pool.taken);
}

/* A child has none of the threads. */
static void before_fork(void)
{
	pthread_mutex_lock(&pool.lock);
}

static void parent_forked(void)
{
	pthread_mutex_unlock(&pool.lock);
}

static void child_forked(void)
{
	pool.users = 0;
	atomic_store(&pool.workers, 0);
	atomic_flag_clear(&pool.taken);
	pthread_mutex_unlock(&pool.lock);
}

static void register_fork(void)
{
	pthread_atfork(before_fork, parent_forked, child_forked);
}

/* With the lock held and the pool taken. */
static void join_all(int workers)
{
	for (int i = 0; i < workers; i++) {
		atomic_store(&pool.worker[i].state, QUIT);
		sem_post(&pool.worker[i].wake);
	}
	for (int i = 0; i < workers; i++) {
		pthread_join(pool.worker[i].thread, NULL);
		sem_destroy(&pool.worker[i].wake);
	}
	sem_destroy(&pool.done);
}

gradcomp_status thread_pool_start(int count, gradcomp_error *err)
{
	int rc = 0, started = 0;
	pthread_once(&once, register_fork);
	pthread_mutex_lock(&pool.lock);
	if (pool.users++) {
		pthread_mutex_unlock(&pool.lock);
		return GRADCOMP_OK;
	}
	sem_init(&pool.done, 0, 0);
	for (; !rc && started < count - 1 && started < THREAD_POOL_MAX - 1; started += !rc) {
		worker *w = &pool.worker[started];
		atomic_store(&w->state, IDLE);
		sem_init(&w->wake, 0, 0);
		rc = thread_start(&w->thread, worker_main, w);
	}
	if (rc) {
		sem_destroy(&pool.worker[started].wake);
		join_all(started);
		pool.users--;
	} else
		atomic_store(&pool.workers, started);
	pthread_mutex_unlock(&pool.lock);
	return rc ? error_set(err, GRADCOMP_ERR_NOMEM, "could not start thread %d of %d for operators: %s", started + 1,
	                      count - 1, strerror(rc))
	          : GRADCOMP_OK;
}

void thread_pool_stop(void)
{
	pthread_mutex_lock(&pool.lock);
	if (pool.users && !--pool.users) {
		int workers = atomic_exchange(&pool.workers, 0);
		while (atomic_flag_test_and_set(&pool.taken))
			sched_yield();
		join_all(workers);
		atomic_flag_clear(&pool.taken);
	}
	pthread_mutex_unlock(&pool.lock);
}

int thread_pool_parse(const char *text)
{
	char *end;
	long n;
	if (!strcmp(text, "auto")) {
		const char *given = getenv("SLURM_CPUS_PER_TASK");
		cpu_set_t set;
		int cpus = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
		n = given ? strtol(given, &end, 10) : 1;
		n = n > cpus ? cpus : n;
		return n < 1 ? 1 : n > THREAD_POOL_MAX ? THREAD_POOL_MAX : (int)n;
	}
	if (*text < '0' || *text > '9')
		return 0;
	errno = 0;
	n = strtol(text, &end, 10);
	return errno || *end || n < 1 || n > THREAD_POOL_MAX ? 0 : (int)n;
}
