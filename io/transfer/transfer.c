/* Buffers and threads of a transfer, from its beginning to its end. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/cache/resume_log.h"
#include "io/transfer/transfer.h"
#include "base/thread.h"

/* Each has a buffer; and the more readers of all nodes ask a server at once, the more it drops. */
#define READERS_MAX 8
#define WRITERS_MAX 8
/* Own chunks beyond those that are being read: one on its way, others ready. */
#define AHEAD 8

struct start {
	transfer *x;
	void (*work)(transfer *x);
};

static void *enter(void *arg)
{
	struct start s = *(struct start *)arg;
	transfer *x = s.x;
	free(arg);
	pthread_mutex_lock(&x->lock);
	while (!x->go && !x->cancelled)
		pthread_cond_wait(&x->changed, &x->lock);
	bool go = x->go;
	pthread_mutex_unlock(&x->lock);
	if (go)
		s.work(x);
	pthread_mutex_lock(&x->lock);
	x->running--;
	pthread_cond_broadcast(&x->changed);
	pthread_mutex_unlock(&x->lock);
	return NULL;
}

static gradcomp_status start(transfer *x, void (*work)(transfer *x), gradcomp_error *err)
{
	struct start *s = malloc(sizeof *s);
	if (!s)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory, trying to start a copying thread");
	*s = (struct start){x, work};
	if ((errno = thread_start(&x->threads[x->nthreads], enter, s))) {
		free(s);
		return error_errno(err, GRADCOMP_ERR_NOMEM, "cannot start a copying thread");
	}
	x->nthreads++;
	x->running++;
	return GRADCOMP_OK;
}

static gradcomp_status start_all(transfer *x, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&x->lock); /* `running` is counted under it */
	for (uint32_t i = 0; !st && i < x->readers; i++)
		st = start(x, transfer_reader, err);
	for (uint32_t i = 0; !st && i < x->writers; i++)
		st = start(x, transfer_writer, err);
	if (!st && x->total && x->params->peers->nnodes > 1)
		st = start(x, transfer_relay, err);
	pthread_mutex_unlock(&x->lock);
	return st;
}

static gradcomp_status add_buffers(transfer *x, unsigned n, bool own, gradcomp_error *err)
{
	for (unsigned i = 0; i < n; i++) {
		transfer_buffer *b = &x->buffers[x->nbuffers];
		/* Zeroed: a void chunk that is sent must not have a process's old data in it. */
		if (!(b->message = calloc(1, CHUNK_MESSAGE_MAX)))
			return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for %u buffers of 1 MiB to copy with",
			                 n);
		b->own = own;
		x->nbuffers++;
		transfer_push(own ? &x->free_own : &x->free_in, b);
	}
	return GRADCOMP_OK;
}

static gradcomp_status count_chunks(transfer *x, gradcomp_error *err)
{
	const transfer_params *p = x->params;
	int n = p->peers->nnodes;
	chunk_cursor c = {.m = p->m, .needed = p->needed};
	stage_chunk chunk;
	if (!(x->owner = malloc((size_t)n * sizeof *x->owner)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for a list of %d nodes", n);
	for (int i = 0; i < n; i++) {
		if (p->owners && !entry_bit(p->owners, (size_t)i))
			continue;
		x->own = i == p->peers->node ? (int)x->owners : x->own;
		x->owner[x->owners++] = (uint32_t)i;
	}
	x->cursor = c;
	while (chunk_next(&c, &chunk))
		x->total++;
	if (x->own >= 0 && x->total > (uint64_t)x->own)
		x->mine = (x->total - (uint64_t)x->own - 1) / x->owners + 1;
	return n > 1 && x->total ? transfer_relay_new(x, err) : GRADCOMP_OK;
}

static void finish(transfer *x)
{
	pthread_mutex_lock(&x->lock);
	if (!x->go)
		x->cancelled = true;
	pthread_cond_broadcast(&x->changed);
	pthread_mutex_unlock(&x->lock);
	for (uint32_t i = 0; i < x->nthreads; i++)
		pthread_join(x->threads[i], NULL);
	transfer_close_files(x);
	if (x->resume_log >= 0)
		close(x->resume_log);
	for (unsigned i = 0; i < x->nbuffers; i++)
		free(x->buffers[i].message);
	transfer_relay_free(x);
	free(x->owner);
	pthread_cond_destroy(&x->changed);
	pthread_mutex_destroy(&x->files_lock);
	pthread_mutex_destroy(&x->lock);
	free(x);
}

gradcomp_status transfer_begin(const transfer_params *params, transfer **out, gradcomp_error *err)
{
	bool alone = params->peers->nnodes == 1;
	uint32_t workers = params->run->workers;
	transfer *x = calloc(1, sizeof *x);
	if (!x)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	x->params = params;
	x->own = x->resume_log = x->wake_fd = -1;
	pthread_mutex_init(&x->lock, NULL);
	pthread_mutex_init(&x->files_lock, NULL);
	thread_condition(&x->changed);
	gradcomp_status st = count_chunks(x, err);
	if (st) {
		finish(x);
		return st;
	}
	x->readers = alone || workers < READERS_MAX ? workers : READERS_MAX;
	if (x->readers > x->mine)
		x->readers = (uint32_t)x->mine;
	if (!alone && params->wanted && x->total)
		x->writers = workers < WRITERS_MAX ? workers : WRITERS_MAX;
	static const unsigned char none[STAGE_BLOCK];
	sha256_digest(none, sizeof none, x->zeroes);
	if (params->wanted && (x->resume_log = resume_log_open(params->temp)) < 0)
		st = cache_write_failed(params->run, "the journal", err);
	if (!st && x->mine)
		st = add_buffers(x, x->readers + (alone ? 0 : AHEAD), true, err);
	if (!st && !alone && x->total)
		st = add_buffers(x, x->writers + transfer_relay_buffers(x), false, err);
	if (!st)
		st = start_all(x, err);
	if (st) {
		finish(x);
		return st;
	}
	*out = x;
	return GRADCOMP_OK;
}

gradcomp_status transfer_end(transfer *x, bool go, transfer_counts *counts, gradcomp_error *err)
{
	gradcomp_error error;
	pthread_mutex_lock(&x->lock);
	x->go = go;
	pthread_cond_broadcast(&x->changed);
	while (go && x->running) {
		transfer_wait(x);
		pthread_mutex_unlock(&x->lock);
		gradcomp_status stopped = stage_run_tick(x->params->run, &error);
		if (stopped)
			transfer_fail(x, stopped, &error);
		pthread_mutex_lock(&x->lock);
	}
	gradcomp_status st = x->status;
	if (st && err)
		*err = x->error;
	*counts = (transfer_counts){atomic_load(&x->read), atomic_load(&x->came), !st && atomic_load(&x->stopping)};
	pthread_mutex_unlock(&x->lock);
	finish(x);
	return st;
}
