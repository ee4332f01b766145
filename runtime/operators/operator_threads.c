#include "operators/operator_threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/thread_pool.h"

static struct {
	pthread_mutex_t lock; /* held to start and to stop */
	int users;
	atomic_int started;
	atomic_flag taken; /* by who runs, or ends the pool: whose `pool` is */
	thread_pool *pool;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .taken = ATOMIC_FLAG_INIT};

static pthread_once_t once = PTHREAD_ONCE_INIT;

void operator_threads_run(void (*run)(void *arg, size_t part), void *arg, size_t parts)
{
	if (parts < 2 || !atomic_load(&shared.started) || atomic_flag_test_and_set(&shared.taken)) {
		for (size_t i = 0; i < parts; i++)
			run(arg, i);
		return;
	}
	/* Between the two looks the pool may have been stopped. */
	if (shared.pool)
		thread_pool_run(shared.pool, run, arg, parts);
	else
		for (size_t i = 0; i < parts; i++)
			run(arg, i);
	atomic_flag_clear(&shared.taken);
}

/* A child has none of the threads. */
static void before_fork(void)
{
	pthread_mutex_lock(&shared.lock);
}

static void parent_forked(void)
{
	pthread_mutex_unlock(&shared.lock);
}

static void child_forked(void)
{
	thread_pool_abandon(shared.pool);
	shared.users = 0;
	shared.pool = NULL;
	atomic_store(&shared.started, 0);
	atomic_flag_clear(&shared.taken);
	pthread_mutex_unlock(&shared.lock);
}

static void register_fork(void)
{
	pthread_atfork(before_fork, parent_forked, child_forked);
}

static void take(void)
{
	while (atomic_flag_test_and_set(&shared.taken))
		sched_yield();
}

gradcomp_status operator_threads_start(int count, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	thread_pool *p = NULL;
	pthread_once(&once, register_fork);
	pthread_mutex_lock(&shared.lock);
	if (shared.users++) {
		pthread_mutex_unlock(&shared.lock);
		return GRADCOMP_OK;
	}
	int rc = count > 1 ? thread_pool_open(count, &p) : 0;
	if (rc) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "could not start thread %d of %d for operators: %s",
		               p ? thread_pool_threads(p) : 1, count - 1, strerror(rc));
		thread_pool_close(p);
		shared.users--;
	} else {
		take();
		shared.pool = p;
		atomic_flag_clear(&shared.taken);
		atomic_store(&shared.started, p != NULL);
	}
	pthread_mutex_unlock(&shared.lock);
	return st;
}

void operator_threads_stop(void)
{
	pthread_mutex_lock(&shared.lock);
	if (shared.users && !--shared.users) {
		atomic_store(&shared.started, 0);
		take();
		thread_pool_close(shared.pool);
		shared.pool = NULL;
		atomic_flag_clear(&shared.taken);
	}
	pthread_mutex_unlock(&shared.lock);
}
