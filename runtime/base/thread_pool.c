#include "base/thread_pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

enum { IDLE, CALLED, WORKING, QUIT };

typedef struct worker {
	thread_pool *pool;
	pthread_t thread;
	sem_t wake;
	atomic_int state;
} worker;

struct thread_pool {
	int nworkers;
	worker worker[THREAD_POOL_MAX - 1];
	sem_t done;
	/* The work of the run. */
	void (*run)(void *arg, size_t part);
	void *arg;
	size_t parts;
	atomic_size_t next;
};

static void wait_for(sem_t *s)
{
	while (sem_wait(s) && errno == EINTR)
		;
}

static void take_parts(thread_pool *p)
{
	for (size_t i; (i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->parts;)
		p->run(p->arg, i);
}

static void *worker_main(void *arg)
{
	worker *w = arg;
	for (;;) {
		wait_for(&w->wake);
		int state = CALLED;
		if (atomic_compare_exchange_strong(&w->state, &state, WORKING)) {
			take_parts(w->pool);
			atomic_store(&w->state, IDLE);
			sem_post(&w->pool->done);
		} else if (state == QUIT)
			return NULL;
	}
}

void thread_pool_run(thread_pool *p, void (*run)(void *arg, size_t part), void *arg, size_t parts)
{
	int workers = (size_t)p->nworkers < parts ? p->nworkers : (int)parts - 1;
	if (!parts)
		return;
	p->run = run;
	p->arg = arg;
	p->parts = parts;
	atomic_store(&p->next, 0);
	for (int i = 0; i < workers; i++) {
		atomic_store(&p->worker[i].state, CALLED);
		sem_post(&p->worker[i].wake);
	}
	take_parts(p);
	for (int i = 0; i < workers; i++) {
		int state = CALLED;
		if (!atomic_compare_exchange_strong(&p->worker[i].state, &state, IDLE))
			wait_for(&p->done);
	}
}

int thread_pool_open(int threads, thread_pool **out)
{
	thread_pool *p = *out = calloc(1, sizeof *p);
	int rc = 0;
	if (!p)
		return ENOMEM;
	sem_init(&p->done, 0, 0);
	while (!rc && p->nworkers < threads - 1 && p->nworkers < THREAD_POOL_MAX - 1) {
		worker *w = &p->worker[p->nworkers];
		w->pool = p;
		sem_init(&w->wake, 0, 0);
		rc = thread_start(&w->thread, worker_main, w);
		if (rc)
			sem_destroy(&w->wake);
		else
			p->nworkers++;
	}
	return rc;
}

int thread_pool_threads(const thread_pool *p)
{
	return p->nworkers + 1;
}

void thread_pool_close(thread_pool *p)
{
	if (!p)
		return;
	for (int i = 0; i < p->nworkers; i++) {
		atomic_store(&p->worker[i].state, QUIT);
		sem_post(&p->worker[i].wake);
	}
	for (int i = 0; i < p->nworkers; i++) {
		pthread_join(p->worker[i].thread, NULL);
		sem_destroy(&p->worker[i].wake);
	}
	sem_destroy(&p->done);
	free(p);
}

void thread_pool_abandon(thread_pool *p)
{
	free(p);
}

typedef struct each_run {
	gradcomp_status (*each)(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err);
	void *ctx;
	uint64_t n;
	atomic_uint_fast64_t next;
	atomic_bool stop;
	pthread_mutex_t lock; /* guards the members behind it */
	uint64_t failed;      /* the least i that did */
	gradcomp_status status;
	gradcomp_error error;
} each_run;

/* All that are less than `i` have been begun: the least that fails is the same however many threads there are. */
static void each_failed(each_run *r, uint64_t i, gradcomp_status st, const gradcomp_error *error)
{
	pthread_mutex_lock(&r->lock);
	if (!r->status || i < r->failed) {
		r->failed = i;
		r->status = st;
		r->error = *error;
	}
	pthread_mutex_unlock(&r->lock);
	atomic_store(&r->stop, true);
}

static void each_worker(void *arg, size_t worker)
{
	each_run *r = arg;
	gradcomp_error error = {0};
	for (uint64_t i; !atomic_load(&r->stop) && (i = atomic_fetch_add(&r->next, 1)) < r->n;) {
		gradcomp_status st = r->each(r->ctx, (uint32_t)worker, i, &error);
		if (st)
			each_failed(r, i, st, &error);
	}
}

gradcomp_status thread_pool_each(int threads, uint64_t n,
                                 gradcomp_status (*each)(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err),
                                 void *ctx, gradcomp_error *err)
{
	each_run r = {.each = each, .ctx = ctx, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER};
	thread_pool *p = NULL;
	if ((uint64_t)threads > n)
		threads = (int)n;
	if (threads > 1)
		thread_pool_open(threads, &p);
	if (p)
		thread_pool_run(p, each_worker, &r, (size_t)thread_pool_threads(p));
	else
		each_worker(&r, 0);
	thread_pool_close(p);
	if (r.status && err)
		*err = r.error;
	return r.status;
}

int thread_pool_cpus(void)
{
	cpu_set_t set;
	int cpus = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
	return cpus > THREAD_POOL_MAX ? THREAD_POOL_MAX : cpus;
}

int thread_pool_parse(const char *text)
{
	char *end;
	long n;
	if (!strcmp(text, "auto")) {
		const char *given = getenv("SLURM_CPUS_PER_TASK");
		int cpus = thread_pool_cpus();
		n = given ? strtol(given, &end, 10) : 1;
		return n < 1 ? 1 : n > cpus ? cpus : (int)n;
	}
	if (*text < '0' || *text > '9')
		return 0;
	errno = 0;
	n = strtol(text, &end, 10);
	return errno || *end || n < 1 || n > THREAD_POOL_MAX ? 0 : (int)n;
}
