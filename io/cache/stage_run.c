/* One call of gradcomp_stage(): its progress reports and its threads. */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/thread.h"
#include "base/thread_pool.h"
#include "io/cache/stage_run.h"

/* From here on it is worth a line. */
#define SILENT_MS 5000

static int report(stage_run *run, const char *notice)
{
	double now = clock_now();
	const gradcomp_stage_progress p = {
		.struct_size = sizeof p,
		.phase = notice ? GRADCOMP_STAGE_NOTICE : run->phase,
		.files = atomic_load(&run->files),
		.bytes = atomic_load(&run->bytes),
		.files_total = run->files_total,
		.bytes_total = run->bytes_total,
		.seconds = now - run->phase_begin,
		.pid = run->pid,
		.notice = notice,
	};
	run->last_call = now;
	return run->options->progress ? run->options->progress(run->options->ctx, &p) : 0;
}

void stage_run_phase(stage_run *run, gradcomp_stage_phase phase, uint64_t files, uint64_t bytes)
{
	run->phase = phase;
	run->phase_begin = clock_now();
	run->last_call = 0;
	run->files_total = files;
	run->bytes_total = bytes;
	atomic_store(&run->files, 0);
	atomic_store(&run->bytes, 0);
}

/* A server that does not answer may come back: the user is told what is waited for. */
static void tell_silence(stage_run *run)
{
	unsigned ms = run->reads ? source_silent(run->reads) : 0;
	if (ms >= SILENT_MS && !run->silent)
		stage_run_notice(
			run,
			"the server of %s has not answered for %u s; waiting for it (setting stage.source_timeout)",
			run->source ? run->source : "the source", ms / 1000);
	else if (!ms && run->silent)
		stage_run_notice(run, "the server of %s answers again", run->source ? run->source : "the source");
	run->silent = ms >= SILENT_MS || (ms && run->silent);
}

gradcomp_status stage_run_tick(stage_run *run, gradcomp_error *err)
{
	if (clock_now() - run->last_call < 0.1)
		return GRADCOMP_OK;
	tell_silence(run);
	if (!report(run, NULL))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_STATE, "stopped before the copy was complete");
}

static int wants_stop(void *run)
{
	return stage_run_tick(run, NULL) != 0;
}

source_wait stage_run_wait(stage_run *run)
{
	return (source_wait){wants_stop, run};
}

void stage_run_notice(stage_run *run, const char *fmt, ...)
{
	char text[sizeof((gradcomp_error *)0)->text];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	report(run, text);
}

struct each_call {
	stage_run *run;
	size_t n;
	source *from;
	int to;
	gradcomp_status (*each)(void *ctx, stage_worker *w, size_t i, gradcomp_error *err);
	void *ctx;
	atomic_bool stop;
	stage_worker workers[THREAD_POOL_MAX];
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool done;
	gradcomp_status status; /* the first failure's */
	gradcomp_error error;
};

static int stopped(void *stop)
{
	return atomic_load((const atomic_bool *)stop);
}

static gradcomp_status worker_open(struct each_call *c, stage_worker *w, gradcomp_error *err)
{
	w->stop = &c->stop;
	dirwalk_begin(&w->to, c->to);
	if (!(w->buffer = malloc(STAGE_BUFFER)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory, trying to start a copying thread");
	return c->from ? source_reader_open(c->from, (source_wait){stopped, &c->stop}, &w->from, err) : GRADCOMP_OK;
}

static void worker_close(stage_worker *w)
{
	source_reader_close(w->from);
	if (w->stop)
		dirwalk_end(&w->to);
	free(w->buffer);
}

/* The first failure counts: others that follow from its stop. */
static void each_failed(struct each_call *c, gradcomp_status status, const gradcomp_error *error)
{
	if (!status || atomic_exchange(&c->stop, true))
		return;
	c->status = status;
	c->error = *error;
}

static gradcomp_status each_one(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err)
{
	struct each_call *c = ctx;
	stage_worker *w = &c->workers[worker];
	gradcomp_status st = GRADCOMP_OK;
	if (atomic_load(&c->stop))
		return error_set(err, GRADCOMP_ERR_STATE, "stopped");
	if (!w->stop)
		st = worker_open(c, w, err);
	if (!st)
		st = c->each(c->ctx, w, (size_t)i, err);
	each_failed(c, st, err);
	return st;
}

static void *each_main(void *arg)
{
	struct each_call *c = arg;
	gradcomp_error error;
	thread_pool_each((int)c->run->workers, c->n, each_one, c, &error);
	pthread_mutex_lock(&c->lock);
	c->done = true;
	pthread_cond_signal(&c->ended);
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static void each_wait(struct each_call *c)
{
	gradcomp_error error;
	pthread_mutex_lock(&c->lock);
	while (!c->done) {
		thread_wait(&c->ended, &c->lock, 100);
		pthread_mutex_unlock(&c->lock);
		each_failed(c, stage_run_tick(c->run, &error), &error);
		pthread_mutex_lock(&c->lock);
	}
	pthread_mutex_unlock(&c->lock);
}

gradcomp_status stage_run_each(stage_run *run, size_t n, source *from, int to,
                               gradcomp_status (*each)(void *ctx, stage_worker *w, size_t i, gradcomp_error *err),
                               void *ctx, gradcomp_error *err)
{
	gradcomp_status st = stage_run_tick(run, err);
	struct each_call *c = st ? NULL : calloc(1, sizeof *c);
	pthread_t thread;
	int code;
	if (st || !n) {
		free(c);
		return st;
	}
	if (!c)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory, trying to start a copying thread");
	*c = (struct each_call){.run = run, .n = n, .from = from, .to = to, .each = each, .ctx = ctx};
	pthread_mutex_init(&c->lock, NULL);
	thread_condition(&c->ended);
	if ((code = thread_start(&thread, each_main, c))) {
		errno = code;
		c->status = error_errno(&c->error, GRADCOMP_ERR_NOMEM, "cannot start a copying thread");
	} else {
		each_wait(c);
		pthread_join(thread, NULL);
	}
	for (int i = 0; i < THREAD_POOL_MAX; i++)
		worker_close(&c->workers[i]);
	pthread_cond_destroy(&c->ended);
	pthread_mutex_destroy(&c->lock);
	if ((st = c->status) && err)
		*err = c->error;
	free(c);
	return st;
}
