/* What the nodes that stage together tell each other. */
#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "manifest.h"
#include "thread.h"
#include "wire.h"

/* ---- aside: a call that waits for others, while progress is reported --------------- */

struct aside {
	gradcomp_status (*call)(void *ctx, gradcomp_error *err);
	void *ctx;
	gradcomp_status status;
	gradcomp_error error;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool done;
};

static void *aside_main(void *arg)
{
	struct aside *a = arg;
	a->status = a->call(a->ctx, &a->error);
	pthread_mutex_lock(&a->lock);
	a->done = true;
	pthread_cond_signal(&a->ended);
	pthread_mutex_unlock(&a->lock);
	return NULL;
}

/* A caller who wants to stop is heard now and obeyed at the next agreement: the others
 * are in this call, too. */
static void listen_to_caller(crew *c)
{
	gradcomp_error error;
	gradcomp_status status = stage_run_tick(c->run, &error);
	if (!status || c->stopped)
		return;
	c->stopped = status;
	c->stop = error;
}

gradcomp_status crew_aside(crew *c, gradcomp_status (*call)(void *ctx, gradcomp_error *err), void *ctx,
                           gradcomp_error *err)
{
	struct aside a = {.call = call, .ctx = ctx};
	pthread_t thread;
	pthread_mutex_init(&a.lock, NULL);
	thread_condition(&a.ended);
	if (thread_start(&thread, aside_main, &a)) { /* then without progress: the others wait for this node */
		aside_main(&a);
	} else {
		pthread_mutex_lock(&a.lock);
		while (!a.done) {
			thread_wait(&a.ended, &a.lock, 100);
			if (a.done)
				break;
			pthread_mutex_unlock(&a.lock);
			listen_to_caller(c);
			pthread_mutex_lock(&a.lock);
		}
		pthread_mutex_unlock(&a.lock);
		pthread_join(thread, NULL);
	}
	pthread_cond_destroy(&a.ended);
	pthread_mutex_destroy(&a.lock);
	if (a.status && err)
		*err = a.error;
	return a.status;
}

/* ---- plain messages ----------------------------------------------------------------- */

struct bytes {
	crew *c;
	const void *in;
	void *out;
	size_t n;
};

static gradcomp_status share(void *ctx, gradcomp_error *err)
{
	const struct bytes *b = ctx;
	return gradcomp_broadcast(b->c->nodes, b->out, b->n, GRADCOMP_U8, 0, err);
}

gradcomp_status crew_share(crew *c, void *bytes, size_t n, gradcomp_error *err)
{
	struct bytes b = {.c = c, .out = bytes, .n = n};
	return c->nodes ? crew_aside(c, share, &b, err) : GRADCOMP_OK;
}

static gradcomp_status or_bytes(void *ctx, gradcomp_error *err)
{
	const struct bytes *b = ctx;
	return gradcomp_allreduce(b->c->nodes, b->out, b->n, GRADCOMP_U8, GRADCOMP_BOR, err);
}

gradcomp_status crew_or(crew *c, unsigned char *bytes, size_t n, gradcomp_error *err)
{
	struct bytes b = {.c = c, .out = bytes, .n = n};
	return c->nodes ? crew_aside(c, or_bytes, &b, err) : GRADCOMP_OK;
}

static gradcomp_status gather(void *ctx, gradcomp_error *err)
{
	const struct bytes *b = ctx;
	int n = b->c->ring.nnodes;
	uint64_t *counts = malloc((size_t)n * sizeof *counts);
	if (!counts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for words of %d nodes", n);
	for (int i = 0; i < n; i++)
		counts[i] = b->n;
	gradcomp_status status = gradcomp_allgather(b->c->nodes, b->in, b->out, counts, GRADCOMP_U8, err);
	free(counts);
	return status;
}

gradcomp_status crew_gather(crew *c, const void *mine, void *all, size_t n, gradcomp_error *err)
{
	struct bytes b = {.c = c, .in = mine, .out = all, .n = n};
	if (c->nodes)
		return crew_aside(c, gather, &b, err);
	memcpy(all, mine, n);
	return GRADCOMP_OK;
}

/* ---- agreement ------------------------------------------------------------------------ */

/* A failure on its way: status, whether the source changed (32 bits each), text. */
#define TEXT_BYTES sizeof((gradcomp_error *)0)->text
#define NEWS_BYTES (8 + TEXT_BYTES)

struct agreement {
	crew *c;
	gradcomp_status status;
	gradcomp_error error;
	bool changed;
};

static gradcomp_status agree(void *ctx, gradcomp_error *err)
{
	struct agreement *a = ctx;
	crew *c = a->c;
	unsigned char news[NEWS_BYTES] = {0};
	/* The first node that has failed has the largest number. */
	int32_t culprit = a->status ? c->ring.nnodes - c->ring.node : 0;
	gradcomp_status status = gradcomp_allreduce(c->nodes, &culprit, 1, GRADCOMP_I32, GRADCOMP_MAX, err);
	if (status || culprit <= 0) {
		a->status = GRADCOMP_OK;
		return status;
	}
	culprit = c->ring.nnodes - culprit;
	if (culprit == c->ring.node) {
		put32(news, (uint32_t)-a->status);
		put32(news + 4, a->changed);
		snprintf((char *)news + 8, TEXT_BYTES, "%s", a->error.text);
	}
	if ((status = gradcomp_broadcast(c->nodes, news, sizeof news, GRADCOMP_U8, culprit, err)))
		return status;
	if (culprit == c->ring.node)
		return GRADCOMP_OK;
	uint32_t code = get32(news);
	news[NEWS_BYTES - 1] = 0;
	a->changed = get32(news + 4);
	a->status = error_set(&a->error, code >= 1 && code <= 14 ? (gradcomp_status) - (int)code : GRADCOMP_ERR_INTERNAL,
	                      "node %d (%s): %s", culprit, c->hosts[culprit], (const char *)news + 8);
	return GRADCOMP_OK;
}

gradcomp_status crew_agree(crew *c, gradcomp_status status, gradcomp_error *err)
{
	if (!status && c->stopped) {
		status = c->stopped;
		*err = c->stop;
	}
	if (!c->nodes)
		return status;
	struct agreement a = {.c = c, .status = status, .changed = status && atomic_load(&c->run->changed)};
	if (status)
		a.error = *err;
	if ((status = crew_aside(c, agree, &a, err)))
		return status;
	atomic_store(&c->run->changed, a.status && a.changed);
	if (a.status)
		*err = a.error;
	return a.status;
}

/* ---- the listing ------------------------------------------------------------------------ */

#define LIST_PIECE (1u << 20)

struct listing {
	crew *c;
	stage_manifest *m;
	char *text; /* LIST_PIECE bytes */
};

/* Pieces: the length, of which 0 is the end and one that is too long means that node 0
 * has no memory; then the text. */
static gradcomp_status list(void *ctx, gradcomp_error *err)
{
	const struct listing *l = ctx;
	gradcomp_group *nodes = l->c->nodes;
	bool first = !l->c->ring.node;
	gradcomp_error error;
	gradcomp_status status, failed = GRADCOMP_OK;
	unsigned char word[8] = {0};
	size_t next = 0;
	for (;;) {
		if (first)
			put64(word, (uint64_t)stage_manifest_pack(l->m, &next, l->text, LIST_PIECE));
		if ((status = gradcomp_broadcast(nodes, word, sizeof word, GRADCOMP_U8, 0, err)))
			return status;
		uint64_t n = get64(word);
		if (n > LIST_PIECE)
			return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of files");
		if (!n)
			break;
		if ((status = gradcomp_broadcast(nodes, l->text, n, GRADCOMP_U8, 0, err)))
			return status;
		if (!first && !failed)
			failed = stage_manifest_unpack(l->m, l->text, n, &error);
	}
	if (!first && !failed)
		failed = stage_manifest_unpacked(l->m, &error);
	if (failed)
		*err = error;
	return failed;
}

gradcomp_status crew_list(crew *c, stage_manifest *m, gradcomp_error *err)
{
	struct listing l = {c, m, c->nodes ? malloc(LIST_PIECE) : NULL};
	gradcomp_status status = GRADCOMP_OK;
	if (!c->nodes)
		return GRADCOMP_OK;
	if (!l.text)
		status = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of files");
	if (c->ring.node)
		stage_manifest_clear(m);
	if (!(status = crew_agree(c, status, err)))
		/* What is wrong with it on one node all agree on. */
		status = crew_agree(c, crew_aside(c, list, &l, err), err);
	free(l.text);
	return status;
}
