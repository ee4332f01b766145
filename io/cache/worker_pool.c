/* A few threads over a list of files. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "io/cache/cache.h"
#include "base/thread.h"

struct pool {
	gradcomp_status (*each)(void *ctx, stage_worker *w, size_t i, gradcomp_error *err);
	void *ctx;
	size_t n;
	source *from;
	int to;
	atomic_size_t next;
	atomic_bool stop;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	uint32_t running;
	gradcomp_status status; /* of the first failure */
	gradcomp_error error;
};

static int stopped(void *stop)
{
	return atomic_load((const atomic_bool *)stop);
}

static void *work(void *arg)
{
	struct pool *p = arg;
	stage_worker w = {.stop = &p->stop, .buffer = malloc(STAGE_BUFFER)};
	gradcomp_error error = {0};
	gradcomp_status status = GRADCOMP_OK;
	dirwalk_begin(&w.to, p->to);
	if (!w.buffer)
		status = error_set(&error, GRADCOMP_ERR_NOMEM, "out of memory, trying to start a copying thread");
	else if (p->from)
		status = source_reader_open(p->from, (source_wait){stopped, &p->stop}, &w.from, &error);
	for (size_t i; !status && !atomic_load(&p->stop) && (i = atomic_fetch_add(&p->next, 1)) < p->n;)
		status = p->each(p->ctx, &w, i, &error);
	source_reader_close(w.from);
	dirwalk_end(&w.to);
	free(w.buffer);

	pthread_mutex_lock(&p->lock);
	if (status && !atomic_exchange(&p->stop, true)) {
		p->status = status;
		p->error = error;
	}
	p->running--;
	pthread_cond_signal(&p->ended);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void start(struct pool *p, pthread_t *threads, uint32_t want, uint32_t *started)
{
	for (*started = 0; *started < want; ++*started) {
		pthread_mutex_lock(&p->lock);
		p->running++;
		pthread_mutex_unlock(&p->lock);
		if ((errno = thread_start(&threads[*started], work, p))) {
			pthread_mutex_lock(&p->lock);
			p->running--;
			pthread_mutex_unlock(&p->lock);
			break;
		}
	}
}

gradcomp_status stage_run_each(stage_run *run, size_t n, source *from, int to,
                           gradcomp_status (*each)(void *ctx, stage_worker *w, size_t i, gradcomp_error *err),
                           void *ctx, gradcomp_error *err)
{
	struct pool p = {.each = each, .ctx = ctx, .n = n, .from = from, .to = to};
	uint32_t want = n < run->workers ? (uint32_t)n : run->workers, started;
	pthread_t threads[64];
	gradcomp_status status = stage_run_tick(run, err);
	if (status)
		return status;
	pthread_mutex_init(&p.lock, NULL);
	thread_condition(&p.ended);
	start(&p, threads, want, &started);
	if (want && !started) {
		p.status = error_errno(&p.error, GRADCOMP_ERR_NOMEM, "cannot start a copying thread");
		atomic_store(&p.stop, true);
	}

	pthread_mutex_lock(&p.lock);
	while (p.running) {
		thread_wait(&p.ended, &p.lock, 100);
		pthread_mutex_unlock(&p.lock);
		gradcomp_error error;
		gradcomp_status stopped = stage_run_tick(run, &error);
		pthread_mutex_lock(&p.lock);
		if (stopped && !atomic_exchange(&p.stop, true)) {
			p.status = stopped;
			p.error = error;
		}
	}
	pthread_mutex_unlock(&p.lock);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	pthread_cond_destroy(&p.ended);
	pthread_mutex_destroy(&p.lock);
	if (p.status && err)
		*err = p.error;
	return p.status;
}
