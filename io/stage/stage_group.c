/* The ranks that stage together: an acting rank of each node, and those that wait for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/stage/stage_group.h"
#include "io/manifest/manifest.h"
#include "base/thread.h"
#include "job/job.h"
#include "transport/wire/wire.h"

struct async_call {
	gradcomp_status (*call)(void *ctx, gradcomp_error *err);
	void *ctx;
	gradcomp_status status;
	gradcomp_error error;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool done;
};

static void *async_main(void *arg)
{
	struct async_call *a = arg;
	a->status = a->call(a->ctx, &a->error);
	pthread_mutex_lock(&a->lock);
	a->done = true;
	pthread_cond_signal(&a->ended);
	pthread_mutex_unlock(&a->lock);
	return NULL;
}

/* That the caller wants to stop is noted here, and takes effect at the next agreement: the other
 * nodes are in this call, too. */
static void listen_to_caller(stage_group *c)
{
	gradcomp_error error;
	gradcomp_status st = stage_run_tick(c->run, &error);
	if (!st || c->stopped)
		return;
	c->stopped = st;
	c->stop = error;
}

/* Makes the call on a thread of its own, while this one reports progress. */
static gradcomp_status stage_group_call(stage_group *c, gradcomp_status (*call)(void *ctx, gradcomp_error *err),
                                        void *ctx, gradcomp_error *err)
{
	struct async_call a = {.call = call, .ctx = ctx};
	pthread_t thread;
	pthread_mutex_init(&a.lock, NULL);
	thread_condition(&a.ended);
	if (thread_start(&thread, async_main,
	                 &a)) { /* then without progress reports: the other nodes wait for this one */
		async_main(&a);
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

struct opening {
	stage_group *c;
	gradcomp_group *group;
	const int32_t *node; /* each of its ranks' */
};

static gradcomp_status split(void *ctx, gradcomp_error *err)
{
	const struct opening *o = ctx;
	stage_group *c = o->c;
	int me = gradcomp_group_rank(o->group), n = gradcomp_group_nranks(o->group), first = me, local_ranks = 0;
	bool one = true; /* a rank a node, everywhere */
	for (int r = n; r-- > 0;)
		if (o->node[r] == o->node[me]) {
			first = r;
			local_ranks++;
		}
	for (int r = 1; r < n; r++)
		one = one && o->node[r] > o->node[r - 1];
	c->acting = first == me;
	if (one) {
		c->nodes = o->group;
		return GRADCOMP_OK;
	}
	c->split = true;
	gradcomp_status st = group_split(o->group, c->acting ? 0 : -1, me, &c->nodes, err);
	return st ? st : group_split(o->group, o->node[me], me, &c->local_ranks, err);
}

static gradcomp_status exchange_hosts(stage_group *c, gradcomp_error *err)
{
	char mine[STAGE_GROUP_HOST] = "";
	c->peers.node = c->nodes ? gradcomp_group_rank(c->nodes) : 0;
	c->peers.nnodes = c->nodes ? gradcomp_group_nranks(c->nodes) : 1;
	c->host = calloc((size_t)c->peers.nnodes, sizeof *c->host);
	c->hosts = calloc((size_t)c->peers.nnodes, sizeof *c->hosts);
	if (!c->host || !c->hosts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for the names of %d nodes", c->peers.nnodes);
	gethostname(mine, sizeof mine - 1);
	gradcomp_status st = stage_group_allgather(c, mine, c->host, sizeof mine, err);
	for (int i = 0; !st && i < c->peers.nnodes; i++) {
		c->host[i][STAGE_GROUP_HOST - 1] = 0;
		c->hosts[i] = c->host[i];
	}
	c->peers.hosts = c->hosts;
	return st;
}

gradcomp_status stage_group_init(stage_group *c, stage_run *run, gradcomp_group *group, gradcomp_error *err)
{
	struct opening o = {.c = c, .group = group};
	const gradcomp_links *links = NULL;
	gradcomp_status st = GRADCOMP_OK;
	*c = (stage_group){.run = run, .acting = true};
	if (group && gradcomp_group_nranks(group) > 1) {
		if ((st = gradcomp_links_open(group, &links, err)))
			return st;
		o.node = links->node;
		st = stage_group_call(c, split, &o, err);
		gradcomp_links_close(group, links);
	}
	return st || !c->acting ? st : exchange_hosts(c, err);
}

void stage_group_free(stage_group *c)
{
	gradcomp_links_close(c->nodes, c->peers.links);
	if (c->split) {
		gradcomp_group_free(c->nodes);
		gradcomp_group_free(c->local_ranks);
	}
	free(c->host);
	free(c->hosts);
}

gradcomp_status stage_group_links(stage_group *c, gradcomp_error *err)
{
	c->peers.group = c->nodes;
	return c->peers.nnodes == 1 || c->peers.links ? GRADCOMP_OK
	                                              : gradcomp_links_open(c->nodes, &c->peers.links, err);
}

struct outcome {
	int32_t status;
	char text[sizeof((gradcomp_error *)0)->text];
	gradcomp_stage_result result;
};

struct result_bcast {
	stage_group *c;
	struct outcome *outcome;
};

static gradcomp_status bcast_result(void *ctx, gradcomp_error *err)
{
	const struct result_bcast *t = ctx;
	return group_broadcast(t->c->local_ranks, t->outcome, sizeof *t->outcome, GRADCOMP_U8, 0, err);
}

gradcomp_status stage_group_result(stage_group *c, gradcomp_stage_result *result, gradcomp_status status,
                                   gradcomp_error *err)
{
	struct outcome o;
	struct result_bcast t = {c, &o};
	if (!c->local_ranks)
		return status;
	memset(&o, 0, sizeof o);
	o.status = status;
	memcpy(&o.result, result, sizeof o.result);
	if (status)
		snprintf(o.text, sizeof o.text, "%s", err->text);
	gradcomp_status told = stage_group_call(c, bcast_result, &t, err);
	if (told)
		return status ? status : told;
	*result = o.result;
	o.text[sizeof o.text - 1] = 0;
	return o.status ? error_set(err, (gradcomp_status)o.status, "%s", o.text) : GRADCOMP_OK;
}

struct bytes {
	stage_group *c;
	const void *in;
	void *out;
	size_t n;
};

static gradcomp_status bcast_bytes(void *ctx, gradcomp_error *err)
{
	const struct bytes *b = ctx;
	return group_broadcast(b->c->nodes, b->out, b->n, GRADCOMP_U8, 0, err);
}

gradcomp_status stage_group_bcast(stage_group *c, void *bytes, size_t n, gradcomp_error *err)
{
	struct bytes b = {.c = c, .out = bytes, .n = n};
	return c->nodes ? stage_group_call(c, bcast_bytes, &b, err) : GRADCOMP_OK;
}

static gradcomp_status or_bytes(void *ctx, gradcomp_error *err)
{
	const struct bytes *b = ctx;
	return group_allreduce(b->c->nodes, b->out, b->n, GRADCOMP_U8, GRADCOMP_BOR, err);
}

gradcomp_status stage_group_or(stage_group *c, unsigned char *bytes, size_t n, gradcomp_error *err)
{
	struct bytes b = {.c = c, .out = bytes, .n = n};
	return c->nodes ? stage_group_call(c, or_bytes, &b, err) : GRADCOMP_OK;
}

static gradcomp_status allgather_bytes(void *ctx, gradcomp_error *err)
{
	const struct bytes *b = ctx;
	int n = b->c->peers.nnodes;
	uint64_t *counts = malloc((size_t)n * sizeof *counts);
	if (!counts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for words of %d nodes", n);
	for (int i = 0; i < n; i++)
		counts[i] = b->n;
	gradcomp_status st = group_allgather(b->c->nodes, b->in, b->out, counts, GRADCOMP_U8, err);
	free(counts);
	return st;
}

gradcomp_status stage_group_allgather(stage_group *c, const void *mine, void *all, size_t n, gradcomp_error *err)
{
	struct bytes b = {.c = c, .in = mine, .out = all, .n = n};
	if (c->nodes)
		return stage_group_call(c, allgather_bytes, &b, err);
	memcpy(all, mine, n);
	return GRADCOMP_OK;
}

/* A failure on its way: status, whether the source changed (32 bits each), text. */
#define TEXT_BYTES sizeof((gradcomp_error *)0)->text
#define FAILURE_MSG_BYTES (8 + TEXT_BYTES)

struct agreement {
	stage_group *c;
	gradcomp_status status;
	gradcomp_error error;
	bool changed;
};

static gradcomp_status agree(void *ctx, gradcomp_error *err)
{
	struct agreement *a = ctx;
	stage_group *c = a->c;
	unsigned char failure_msg[FAILURE_MSG_BYTES] = {0};
	/* The first node that has failed has the largest number. */
	int32_t culprit = a->status ? c->peers.nnodes - c->peers.node : 0;
	gradcomp_status st = group_allreduce(c->nodes, &culprit, 1, GRADCOMP_I32, GRADCOMP_MAX, err);
	if (st || culprit <= 0) {
		a->status = GRADCOMP_OK;
		return st;
	}
	culprit = c->peers.nnodes - culprit;
	if (culprit == c->peers.node) {
		put32(failure_msg, (uint32_t)-a->status);
		put32(failure_msg + 4, a->changed);
		snprintf((char *)failure_msg + 8, TEXT_BYTES, "%s", a->error.text);
	}
	if ((st = group_broadcast(c->nodes, failure_msg, sizeof failure_msg, GRADCOMP_U8, culprit, err)))
		return st;
	if (culprit == c->peers.node)
		return GRADCOMP_OK;
	uint32_t code = get32(failure_msg);
	failure_msg[FAILURE_MSG_BYTES - 1] = 0;
	a->changed = get32(failure_msg + 4);
	a->status =
		error_set(&a->error, code >= 1 && code <= 14 ? (gradcomp_status) - (int)code : GRADCOMP_ERR_INTERNAL,
	                  "node %d (%s): %s", culprit, c->hosts[culprit], (const char *)failure_msg + 8);
	return GRADCOMP_OK;
}

gradcomp_status stage_group_agree(stage_group *c, gradcomp_status status, gradcomp_error *err)
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
	if ((status = stage_group_call(c, agree, &a, err)))
		return status;
	atomic_store(&c->run->changed, a.status && a.changed);
	if (a.status)
		*err = a.error;
	return a.status;
}

#define LIST_CHUNK (1u << 20)

struct listing {
	stage_group *c;
	stage_manifest *m;
	char *text; /* LIST_CHUNK bytes */
};

/* Pieces: the length, of which 0 is the end and one that is too long means that node 0
 * has no memory; then the text. */
static gradcomp_status list(void *ctx, gradcomp_error *err)
{
	const struct listing *l = ctx;
	gradcomp_group *nodes = l->c->nodes;
	bool first = !l->c->peers.node;
	gradcomp_error error;
	gradcomp_status st, failed = GRADCOMP_OK;
	unsigned char word[8] = {0};
	size_t next = 0;
	for (;;) {
		if (first)
			put64(word, (uint64_t)manifest_pack(l->m, &next, l->text, LIST_CHUNK));
		if ((st = group_broadcast(nodes, word, sizeof word, GRADCOMP_U8, 0, err)))
			return st;
		uint64_t n = get64(word);
		if (n > LIST_CHUNK)
			return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of files");
		if (!n)
			break;
		if ((st = group_broadcast(nodes, l->text, n, GRADCOMP_U8, 0, err)))
			return st;
		if (!first && !failed)
			failed = manifest_unpack(l->m, l->text, n, &error);
	}
	if (!first && !failed)
		failed = manifest_unpacked(l->m, &error);
	if (failed)
		*err = error;
	return failed;
}

gradcomp_status stage_group_manifest(stage_group *c, stage_manifest *m, gradcomp_error *err)
{
	struct listing l = {c, m, c->nodes ? malloc(LIST_CHUNK) : NULL};
	gradcomp_status st = GRADCOMP_OK;
	if (!c->nodes)
		return GRADCOMP_OK;
	if (!l.text)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of files");
	if (c->peers.node)
		manifest_clear(m);
	if (!(st = stage_group_agree(c, st, err)))
		/* All nodes agree on what is wrong with it on one of them. */
		st = stage_group_agree(c, stage_group_call(c, list, &l, err), err);
	free(l.text);
	return st;
}
