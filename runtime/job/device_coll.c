#include "job/device_coll.h"

#include "base/error.h"
#include "job/consensus.h"
#include "operators/operator_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* There are two such pieces of pinned memory. */
#define PIECE ((size_t)4 << 20)
/* A block of fewer bytes is not worth a message. */
#define LEAST ((size_t)16 << 10)

struct device_coll {
	gradcomp_group *group;
	coll_ctx coll_ctx;
	bool direct;
	launcher launches; /* direct: on the stream of each call, which has done it when it returns */
	const device_calls *d;
	const gradcomp_operators *ops; /* NULL, unless direct */
	/* Otherwise: a piece on its way down or up, and one that is sent. */
	char *pinned[2];
	size_t room;
	void *came[2];   /* events: the piece is there */
	uint64_t *bytes; /* length of each rank's block in a call; then of a piece of it */
};

/* Tells the others what a rank would do. */
typedef struct device_claim {
	char name[SPEC_NAME_MAX], why[200];
} device_claim;

/* Chooses the collective of this rank: as of reducers. */
static gradcomp_status choose(const gradcomp_group *g, const char *named, const plugin **p, const spec **s,
                              device_claim *claim, gradcomp_error *err)
{
	gradcomp_job *job = g->job;
	const char *usual = config_str(job->config, SET_GRADCOMP_DEVICE_COLLECTIVE), *why = NULL;
	gradcomp_error inner = {0};
	gradcomp_status st = GRADCOMP_ERR_NOTFOUND;
	if (named) {
		st = spec_table_get(&job->specs, GRADCOMP_KIND_COLLECTIVE, named, p, s, err);
		if (st)
			return st;
	} else if (config_is_default(job->config, SET_GRADCOMP_COLLECTIVE)) {
		st = spec_table_get(&job->specs, GRADCOMP_KIND_COLLECTIVE, usual, p, s, &inner);
		why = st ? inner.text : (*p)->collective->unusable ? (*p)->collective->unusable() : NULL;
		snprintf(claim->why, sizeof claim->why, "%.*s", (int)sizeof claim->why - 1, why ? why : "");
	}
	if (st || why)
		st = job_collective(job, p, s, err);
	if (!st)
		snprintf(claim->name, sizeof claim->name, "%s", (*p)->info->name);
	return st;
}

static gradcomp_status prepare(device_coll *c, const char *named, const plugin **p, const spec **s, device_claim *claim,
                               gradcomp_error *err)
{
	gradcomp_error inner = {0};
	int id;
	gradcomp_status st = choose(c->group, named, p, s, claim, err);
	if (st)
		return st;
	const struct gradcomp_collective_v1 *k = (*p)->collective;
	c->direct = k->traits & GRADCOMP_TRAIT_CUDA && !(k->traits & GRADCOMP_TRAIT_ELSE_HOST && k->unusable());
	c->d = device_open(c->group->job->config, &inner);
	c->ops = c->d && c->direct ? operators_cuda(&inner) : NULL;
	if (!c->d || (c->direct && !c->ops))
		return error_set(err, inner.status, "CUDA memory is not served here: %s", inner.text);
	c->bytes = calloc((size_t)c->group->nranks, sizeof *c->bytes);
	if (!c->bytes)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d blocks", c->group->nranks);
	const char *why = c->d->current(&id);
	for (int i = 0; !why && i < 2; i++)
		why = c->d->event(&c->came[i]);
	return device_check(why, "it cannot be used", err);
}

/* Agrees on one collective for all. */
static gradcomp_status agree(gradcomp_group *g, gradcomp_status mine, const device_claim *claim, gradcomp_error *err)
{
	void *claims;
	gradcomp_status st =
		consensus_gather(g,
	                         &(consensus_topic){"use CUDA memory in collectives", claim, sizeof *claim, NULL, true},
	                         mine, &claims, err);
	device_claim *all = claims;
	for (int r = 1; !st && r < g->nranks; r++) {
		all[0].name[sizeof all[0].name - 1] = all[r].name[sizeof all[r].name - 1] = 0;
		if (!strcmp(all[r].name, all[0].name))
			continue;
		const device_claim *lacks = *all[r].why ? &all[r] : &all[0];
		st = error_set(err, GRADCOMP_ERR_MISMATCH,
		               "rank %d on %s sends from CUDA memory by '%s', rank %d by '%s' (%.*s)", g->ranks[r],
		               transport_host(g->job->transport, g->ranks[r]), all[r].name, g->ranks[0], all[0].name,
		               (int)sizeof lacks->why - 1, lacks->why);
		consensus_leave(g);
	}
	free(claims);
	return st;
}

gradcomp_status device_coll_open(gradcomp_group *g, const char *named, device_coll **out, gradcomp_error *err)
{
	const plugin *p = NULL;
	const spec *s = NULL;
	device_claim claim = {{0}, {0}};
	gradcomp_error own = {0};
	gradcomp_status st;
	device_coll *c = calloc(1, sizeof *c);
	if (!c) {
		job_fail(g->job, GRADCOMP_ERR_NOMEM, "no memory for a collective");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a collective");
	}
	c->group = g;
	st = prepare(c, named, &p, &s, &claim, &own);
	st = agree(g, st, &claim, &own);
	if (!st && !g->job->rank && *claim.why && !g->job->device_told++)
		log_line(&g->job->log, GRADCOMP_LOG_WARN,
		         "collectives on CUDA memory go by '%s', through host memory, since '%s' cannot be used (%s)",
		         p->info->name, config_str(g->job->config, SET_GRADCOMP_DEVICE_COLLECTIVE), claim.why);
	if (!st) {
		st = group_coll_open(g, p, s, &c->coll_ctx, &own);
		if (!st && c->direct)
			st = launch_order_join(&c->launches, g, &c->coll_ctx, c->d, NULL, &own);
		if (st)
			job_fail(g->job, st, own.text);
	}
	if (st) {
		device_coll_close(c);
		return error_set(err, st, "%s", own.text);
	}
	*out = c;
	return GRADCOMP_OK;
}

void device_coll_close(device_coll *c)
{
	if (!c)
		return;
	launch_order_leave(&c->launches);
	group_coll_close(&c->coll_ctx);
	for (int i = 0; i < 2; i++) {
		if (c->pinned[i])
			c->d->unpin(c->pinned[i]);
		if (c->came[i])
			c->d->event_free(c->came[i]);
	}
	free(c->bytes);
	free(c);
}

bool device_coll_direct(const device_coll *c)
{
	return c->direct;
}

const device_calls *device_coll_device(const device_coll *c)
{
	return c->d;
}

/* GRADCOMP_OK, or the failure of what the calling thread has put on streams. */
static gradcomp_status device_coll_launched(const device_coll *c, gradcomp_error *err)
{
	const char *why = c->ops ? c->ops->failed() : NULL;
	return why ? error_set(err, GRADCOMP_ERR_IO, "the CUDA device: a launch failed: %s", why) : GRADCOMP_OK;
}

static const char *const names[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast"};

/* Works on blocks one after another at `at`, of counts[] elements and c->bytes[] bytes. */
static gradcomp_status exchange(const device_coll *c, const device_coll_call *call, void *at, const uint64_t *counts,
                                gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *k = c->coll_ctx.collective;
	void *on = c->coll_ctx.instance;
	switch (call->kind) {
	case DEVICE_ALLREDUCE:
		if (k->allreduce)
			return k->allreduce(on, at, counts[0], call->dtype, call->op, 1.0, err);
		break;
	case DEVICE_ALLGATHER:
		if (k->allgather)
			return k->allgather(on, at, c->bytes, err);
		break;
	case DEVICE_REDUCE_SCATTER:
		if (k->reduce_scatter)
			return k->reduce_scatter(on, at, counts, call->dtype, call->op, 1.0, err);
		break;
	case DEVICE_BROADCAST:
		if (k->broadcast)
			return k->broadcast(on, at, c->bytes[0], call->root, err);
		break;
	}
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "collective '%s' serves no %s", k->info.name,
	                 names[call->kind]);
}

static int blocks(const device_coll *c, const device_coll_call *call)
{
	return call->kind == DEVICE_ALLGATHER || call->kind == DEVICE_REDUCE_SCATTER ? c->group->nranks : 1;
}

/* Returns where this rank's block begins in the whole, in elements. */
static uint64_t own_begin(const device_coll *c, const device_coll_call *call)
{
	uint64_t at = 0;
	for (int r = 0; blocks(c, call) > 1 && r < c->group->me; r++)
		at += call->counts[r];
	return at;
}

static const char *copy(const device_coll *c, const device_coll_call *call, void *to, const void *from, uint64_t bytes)
{
	return bytes && to != from ? c->d->copy(call->queue, to, from, bytes) : NULL;
}

static gradcomp_status alive(void *job, gradcomp_error *err)
{
	return transport_failure(((gradcomp_job *)job)->transport, err);
}

gradcomp_status device_coll_await(gradcomp_job *job, const device_calls *d, void *event, const char *what,
                                  gradcomp_error *err)
{
	return device_await(d, event, &(device_watch){alive, job}, what, err);
}

static gradcomp_status await(const device_coll *c, void *event, gradcomp_error *err)
{
	return device_coll_await(c->group->job, c->d, event, "the caller's stream", err);
}

/* Waits until the stream has done all that is on it. */
static gradcomp_status settle(const device_coll *c, void *queue, gradcomp_error *err)
{
	gradcomp_status st = device_check(c->d->record(c->came[0], queue), "the caller's stream", err);
	return st ? st : await(c, c->came[0], err);
}

/* The functions below are work on the stream. */

static gradcomp_status run_direct(device_coll *c, const device_coll_call *call, gradcomp_error *err)
{
	const size_t size = gradcomp_dtype_bytes(call->dtype);
	const uint64_t own = c->bytes[blocks(c, call) > 1 ? c->group->me : 0];
	char *mine = (char *)call->buf + own_begin(c, call) * size;
	const char *why = NULL;
	if (call->kind == DEVICE_ALLGATHER)
		why = copy(c, call, mine, call->in, own);
	gradcomp_status st = device_check(why, "a block could not be copied", err);
	if (!st)
		st = c->coll_ctx.collective->set_queue(c->coll_ctx.instance, call->queue, err);
	if (!st)
		st = launch_order_begin(&c->launches, &c->coll_ctx, call->queue, false, err);
	if (st)
		return st;
	st = exchange(c, call, call->buf, call->counts, err);
	launch_order_end(&c->launches);
	if (!st)
		st = device_coll_launched(c, err);
	if (st || call->kind != DEVICE_REDUCE_SCATTER || !own || call->out == mine)
		return st;
	st = device_check(copy(c, call, call->out, mine, own), "a block could not be copied", err);
	return st ? st : settle(c, call->queue, err);
}

/* A piece: of each block the elements from `at` on, as many as `most`, one after another in pinned memory. */
typedef struct piece {
	uint64_t at, most;
	char *pinned;
} piece;

static uint64_t part_of(const piece *p, uint64_t count)
{
	uint64_t left = count > p->at ? count - p->at : 0;
	return left < p->most ? left : p->most;
}

/* Says which blocks go that way. */
static bool goes_down(const device_coll *c, const device_coll_call *call, int block)
{
	return call->kind == DEVICE_BROADCAST ? c->group->me == call->root
	                                      : call->kind != DEVICE_ALLGATHER || block == c->group->me;
}

static bool goes_up(const device_coll *c, const device_coll_call *call, int block)
{
	return call->kind == DEVICE_BROADCAST        ? c->group->me != call->root
	       : call->kind == DEVICE_REDUCE_SCATTER ? block == c->group->me
	                                             : true;
}

static gradcomp_status move(const device_coll *c, const device_coll_call *call, const piece *p, bool up,
                            gradcomp_error *err)
{
	const size_t size = gradcomp_dtype_bytes(call->dtype);
	const char *why = NULL;
	char *pinned = p->pinned;
	uint64_t begin = 0;
	for (int r = 0; !why && r < blocks(c, call); begin += call->counts[r++]) {
		uint64_t bytes = part_of(p, call->counts[r]) * size;
		char *there = (char *)call->buf + (begin + p->at) * size;
		if (up && call->kind == DEVICE_REDUCE_SCATTER)
			there = (char *)call->out + p->at * size;
		if (!up && call->kind == DEVICE_ALLGATHER)
			there = (char *)call->in + p->at * size;
		if (up ? goes_up(c, call, r) : goes_down(c, call, r))
			why = up ? copy(c, call, there, pinned, bytes) : copy(c, call, pinned, there, bytes);
		pinned += bytes;
	}
	return device_check(why, "a block could not be copied", err);
}

static gradcomp_status reserve(device_coll *c, size_t bytes, gradcomp_error *err)
{
	for (int i = 0; i < 2 && bytes > c->room; i++) {
		void *p = NULL;
		const char *why;
		if (c->pinned[i])
			c->d->unpin(c->pinned[i]);
		c->pinned[i] = NULL;
		why = c->d->pin(&p, bytes);
		if (why) {
			c->room = 0;
			return error_set(err, GRADCOMP_ERR_NOMEM, "no pinned memory for %zu bytes on their way: %s",
			                 bytes, why);
		}
		c->pinned[i] = p;
	}
	c->room = bytes > c->room ? bytes : c->room;
	return GRADCOMP_OK;
}

static gradcomp_status send_piece(device_coll *c, const device_coll_call *call, const piece *p, uint64_t *counts,
                                  gradcomp_error *err)
{
	const size_t size = gradcomp_dtype_bytes(call->dtype);
	for (int r = 0; r < blocks(c, call); r++) {
		counts[r] = part_of(p, call->counts[r]);
		c->bytes[r] = counts[r] * size;
	}
	return exchange(c, call, p->pinned, counts, err);
}

static gradcomp_status bring(const device_coll *c, const device_coll_call *call, const piece *p, void *came,
                             gradcomp_error *err)
{
	gradcomp_status st = move(c, call, p, false, err);
	return st ? st : device_check(c->d->record(came, call->queue), "the caller's stream", err);
}

/* The stream has, in this order: down 0, down 1, up 0, down 2, up 1 ... So that down i has come is all that
 * is waited for, and what it overwrites has gone up by then. */
static gradcomp_status run_staged(device_coll *c, const device_coll_call *call, gradcomp_error *err)
{
	const size_t size = gradcomp_dtype_bytes(call->dtype);
	const int n = blocks(c, call);
	size_t block = PIECE / (size_t)n > LEAST ? PIECE / (size_t)n : LEAST;
	uint64_t most = 0, *counts = calloc((size_t)n, sizeof *counts);
	gradcomp_status st = GRADCOMP_OK;
	if (!counts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d blocks", n);
	for (int r = 0; r < n; r++)
		most = call->counts[r] > most ? call->counts[r] : most;
	if (most * size < block)
		block = most * size;
	st = reserve(c, block * (size_t)n, err);
	piece p[2] = {{0, block / size, c->pinned[0]}, {0, block / size, c->pinned[1]}};
	if (!st)
		st = bring(c, call, &p[0], c->came[0], err);
	for (uint64_t i = 0, at = 0; !st && at < most; i++, at += p[0].most) {
		piece *now = &p[i % 2], *next = &p[1 - i % 2];
		next->at = at + now->most;
		if (next->at < most)
			st = bring(c, call, next, c->came[1 - i % 2], err);
		if (!st)
			st = await(c, c->came[i % 2], err);
		if (!st)
			st = send_piece(c, call, now, counts, err);
		if (!st)
			st = move(c, call, now, true, err);
	}
	if (!st)
		st = settle(c, call->queue, err);
	/* Nothing is on its way from or to the caller's memory, or ours, when this returns: copies alone are, which
	 * end. */
	if (st)
		device_drain(c->d, &call->queue, 1);
	free(counts);
	return st;
}

gradcomp_status device_coll_run(device_coll *c, const device_coll_call *call, gradcomp_error *err)
{
	int captures = 0;
	uint64_t total = 0;
	gradcomp_status st = device_check(c->d->captures(call->queue, &captures), "the caller's stream", err);
	if (!st && captures)
		st = error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"the caller's stream is being captured into a CUDA graph, which would replay the call without "
			"the host's part of it: its order among ranks and its failures");
	for (int r = 0; r < blocks(c, call); r++)
		total += c->bytes[r] = call->counts[r] * gradcomp_dtype_bytes(call->dtype);
	if (st)
		return st;
	/* Nothing to move: where the buffer is does not matter, and need not be the same on all ranks. */
	if (!total) {
		char nothing[8];
		return exchange(c, call, nothing, call->counts, err);
	}
	return c->direct ? run_direct(c, call, err) : run_staged(c, call, err);
}
