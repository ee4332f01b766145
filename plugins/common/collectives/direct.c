/* The direct collective's instance, and the order of its transfers. */
#include "plugins/common/collectives/direct.h"

#include "plugins/common/collectives/blocks.h"

#include "gradcomp/sdk/growbuf.h"

#include <stdbool.h>

gradcomp_status direct_reserve(direct *d, size_t bytes, gradcomp_error *err)
{
	return sdk_growbuf_reserve(d->host, &d->scratch, &d->scratch_bytes, bytes, "direct", err);
}

static bool can_multicast(const gradcomp_links *links)
{
	return GRADCOMP_HAS(links, multicast) && links->multicast && links->nnodes == 1;
}

int direct_has_one_copy(const gradcomp_links *links)
{
	return can_multicast(links) && direct_copies_once(links->nranks);
}

/* Makes what all-gathers by multicast take, where the ranks have one. */
static gradcomp_status make_gathers(direct *d, gradcomp_error *err)
{
	size_t n = (size_t)d->nranks - 1;
	gradcomp_request *r;
	if (!can_multicast(d->links) || n < 2)
		return GRADCOMP_OK;
	r = d->host->alloc(2 * DIRECT_GATHERS * n * sizeof *r + n * sizeof *d->others);
	if (!r)
		return d->host->fail(err, GRADCOMP_ERR_NOMEM, "direct: no memory for requests of %d ranks", d->nranks);
	d->requests = r;
	for (int k = 0; k < DIRECT_GATHERS; k++, r += 2 * n)
		d->gather[k] = (direct_gather){r, r + n};
	d->others = (int *)(void *)r;
	for (size_t i = 0; i < n; i++)
		d->others[i] = (int)(((size_t)d->rank + 1 + i) % (n + 1));
	return GRADCOMP_OK;
}

gradcomp_status direct_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, direct **out,
                              gradcomp_error *err)
{
	size_t blocks = 2 * ((size_t)links->nranks + 1);
	direct *d = host->alloc(sizeof *d + blocks * sizeof d->offset[0]);
	if (!d)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "direct: no memory for an instance of %d ranks",
		                  links->nranks);
	d->host = host;
	d->links = links;
	d->rank = links->rank;
	d->nranks = links->nranks;
	d->piece = ((chunk ? chunk : links->chunk) + 63) & ~(size_t)63;
	gradcomp_status st = tree_create(host, links, chunk, &d->tree, err);
	if (!st)
		st = make_gathers(d, err);
	if (st)
		direct_destroy(d);
	else
		*out = d;
	return st;
}

void direct_destroy(void *instance)
{
	direct *d = instance;
	if (!d)
		return;
	const gradcomp_host *host = d->host;
	tree_destroy(d->tree);
	host->release(d->requests);
	host->release(d->scratch);
	host->release(d);
}

uint64_t direct_longest(const direct *d)
{
	uint64_t longest = 0;
	for (int b = 0; b < d->nranks; b++)
		if (d->offset[b + 1] - d->offset[b] > longest)
			longest = d->offset[b + 1] - d->offset[b];
	return longest;
}

typedef struct run {
	direct *d;
	const direct_calls *calls;
	void *ctx;
	uint64_t others, ahead;
	uint64_t pieces, total;
	int reduces, gathers;
	uint64_t posted, sent, collected; /* transfers; `collected` sends have been waited for */
	uint64_t complete;                /* pieces */
} run;

/* With both halves the order is R0, then R1 G0, R2 G1, ..., and the last G: phases of a
 * transfer with every other rank. */
static direct_step step_of(const run *r, uint64_t i)
{
	const direct *d = r->d;
	uint64_t phase = i / r->others;
	int far = 1 + (int)(i % r->others);
	direct_step s = {.index = i,
	                 .piece = phase,
	                 .gather = !r->reduces,
	                 .to = (int)((d->rank + (int64_t)far) % d->nranks),
	                 .from = (int)((d->rank + (int64_t)d->nranks - far) % d->nranks)};
	if (r->reduces && r->gathers) {
		int last = phase == 2 * r->pieces - 1;
		s.gather = last || (phase && phase % 2 == 0);
		s.piece = last ? r->pieces - 1 : s.gather ? phase / 2 - 1 : (phase + 1) / 2;
	}
	return s;
}

static gradcomp_status collect(run *r, uint64_t until, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (; !st && r->collected < until; r->collected++)
		st = r->calls->sent(r->ctx, step_of(r, r->collected), err);
	return st;
}

/* Is called before transfer i. What a piece that is given out overwrites has been sent to its owner before, and
 * that send must have been waited for. */
static gradcomp_status post_recvs(run *r, uint64_t i, uint64_t until, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	while (!st && r->posted < until) {
		direct_step s = step_of(r, r->posted);
		uint64_t brought = (s.piece ? 2 * s.piece : 1) * r->others;
		if (s.gather && r->reduces && i < brought)
			return GRADCOMP_OK;
		if (s.gather && r->reduces)
			st = collect(r, brought, err);
		if (!st)
			st = r->calls->recv(r->ctx, s, err);
		r->posted++;
	}
	return st;
}

static gradcomp_status post_sends(run *r, uint64_t until, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	while (!st && r->sent < until) {
		direct_step s = step_of(r, r->sent);
		if (s.gather && r->reduces && s.piece >= r->complete)
			return GRADCOMP_OK;
		if (r->sent >= r->ahead)
			st = collect(r, r->sent - r->ahead + 1, err);
		if (!st && !r->reduces && s.piece >= r->complete) {
			st = r->calls->complete(r->ctx, s.piece, err);
			r->complete = s.piece + 1;
		}
		if (!st)
			st = r->calls->send(r->ctx, s, err);
		r->sent++;
	}
	return st;
}

/* No rank waits for ever: whoever is at transfer i waits for a send only when it is one
 * before i, which all ranks that have come as far have received; and has itself sent i
 * before it waits for it. Between two ranks transfers are `others` or more apart, which
 * is no less than the distance ahead: the head and the code of one are through before
 * the head of the next is posted. */
gradcomp_status direct_run(direct *d, const direct_calls *calls, void *ctx, uint64_t pieces, int reduces, int gathers,
                           gradcomp_error *err)
{
	uint64_t others = (uint64_t)d->nranks - 1;
	run r = {.d = d,
	         .calls = calls,
	         .ctx = ctx,
	         .others = others,
	         .ahead = others < DIRECT_AHEAD ? others : DIRECT_AHEAD,
	         .pieces = pieces,
	         .total = (uint64_t)(reduces + gathers) * pieces * others,
	         .reduces = reduces,
	         .gathers = gathers};
	gradcomp_status st = GRADCOMP_OK;
	for (uint64_t i = 0; !st && i < r.total; i++) {
		uint64_t until = i + r.ahead < r.total ? i + r.ahead : r.total;
		direct_step s = step_of(&r, i);
		st = post_recvs(&r, i, until, err);
		if (!st)
			st = post_sends(&r, until, err);
		if (!st)
			st = calls->arrive(ctx, s, err);
		if (!st && !s.gather && i % others == others - 1) {
			st = calls->complete(ctx, s.piece, err);
			r.complete = s.piece + 1;
		}
	}
	return st ? st : collect(&r, r.total, err);
}

uint64_t direct_server_error(void *instance, uint64_t count)
{
	const direct *d = instance;
	return d->nranks == 1 ? 0 : blocks_count(count, d->nranks, d->rank);
}

uint64_t direct_server_error_begin(void *instance, uint64_t count)
{
	const direct *d = instance;
	return blocks_begin(count, d->nranks, d->rank);
}

/* Says what direct's calls cost. */

/* Returns, for stripes that go to their owners, or from them, or both, the number of rounds in which everybody
 * sends to everybody. */
static int rounds(uint32_t primitive)
{
	switch (primitive) {
	case GRADCOMP_CAN_ALLREDUCE:
	case GRADCOMP_CAN_CODED_ALLREDUCE:
	case GRADCOMP_CAN_EXCHANGE:
		return 2;
	case GRADCOMP_CAN_REDUCE_SCATTER:
	case GRADCOMP_CAN_CODED_REDUCE_SCATTER:
	case GRADCOMP_CAN_ALLGATHER:
	case GRADCOMP_CAN_CODED_ALLGATHER:
	case GRADCOMP_CAN_ALLTOALL:
		return 1;
	}
	return 0;
}

gradcomp_status direct_predict(int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                               gradcomp_call_load *out, gradcomp_error *err)
{
	int n = rounds(primitive),
	    sums = primitive == GRADCOMP_CAN_ALLREDUCE || primitive == GRADCOMP_CAN_REDUCE_SCATTER;
	double stripe = primitive == GRADCOMP_CAN_ALLTOALL ? (double)bytes
	                                                   : (double)call_bytes(primitive, nranks, bytes) / nranks;
	call_group g;
	call_cost l = {0};
	gradcomp_status st;
	if (primitive == GRADCOMP_CAN_MERGE)
		return call_cost_refuse("direct", primitive, err);
	if (!n || (primitive == GRADCOMP_CAN_ALLREDUCE && direct_is_short(nranks, bytes)))
		return tree_predict(nranks, nnodes, primitive, bytes, out, err);
	st = call_group_open(&g, "direct", nranks, nnodes, err);
	if (st)
		return st;
	call_senders s = call_scan_to_all(&g.links, g.count);
	for (int k = 0; nranks > 1 && k < n; k++)
		call_cost_add_to_all(&l, &s, nranks, stripe);
	l.reduced = sums ? (nranks - 1) * stripe : 0;
	if (primitive & CALL_CODED)
		l.coded = call_coded_numbers(nranks, primitive, stripe / sizeof(float));
	call_group_close(&g);
	call_cost_export(&l, out);
	return GRADCOMP_OK;
}

void direct_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const direct *d = instance;
	if (direct_is_short(d->nranks, bytes)) {
		tree_cost(d->tree, bytes, sent, messages);
		return;
	}
	*sent = 2 * (double)bytes * (d->nranks - 1) / d->nranks;
	*messages = 2.0 * (d->nranks - 1);
}
