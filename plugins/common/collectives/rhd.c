/* rhd's instance, its circle, and its calls as rounds of blocks. */
#include "plugins/common/collectives/rhd.h"

#include "plugins/common/collectives/blocks.h"
#include "plugins/common/collectives/barrier.h"
#include "gradcomp/sdk/growbuf.h"

#include <string.h>

/* Positions go around the nodes: the first ranks of all nodes, then the second ones. */
static void go_around(rhd *r, int32_t *count)
{
	const gradcomp_links *l = r->links;
	for (int k = 0; k < l->nnodes; k++)
		count[k] = 0;
	for (int i = 0; i < l->nranks; i++) {
		int position = count[l->node[i]]++ * l->nnodes + l->node[i];
		r->order[position] = i;
		r->position_of[i] = position;
	}
}

static void draw_circle(rhd *r, uint64_t brief, int32_t *count)
{
	if (rhd_goes_around(r->links, count)) {
		go_around(r, count);
	} else {
		r->host->release(r->order);
		r->host->release(r->position_of);
		r->order = r->position_of = NULL;
	}
	r->position = r->position_of ? r->position_of[r->rank] : r->rank;
	rhd_scan(&r->shape, r->links, r->order, brief, count);
}

gradcomp_status rhd_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, uint64_t brief,
                           rhd **out, gradcomp_error *err)
{
	size_t P = (size_t)links->nranks;
	rhd *r = host->alloc(sizeof *r);
	int32_t *count = host->alloc((size_t)links->nnodes * sizeof *count);
	gradcomp_status st = GRADCOMP_ERR_NOMEM;
	if (r)
		r->host = host;
	if (!r || !count)
		goto nomem;
	r->links = links;
	r->rank = links->rank;
	r->nranks = links->nranks;
	r->piece = ((chunk ? chunk : links->chunk) + 63) & ~(size_t)63;
	r->offset = host->alloc((P + 1) * sizeof *r->offset);
	r->order = host->alloc(P * sizeof *r->order);
	r->position_of = host->alloc(P * sizeof *r->position_of);
	if (!r->offset || !r->order || !r->position_of)
		goto nomem;
	st = tree_create(host, links, chunk, &r->tree, err);
	if (st)
		goto fail;
	draw_circle(r, brief, count);
	host->release(count);
	*out = r;
	return GRADCOMP_OK;
nomem:
	st = host->fail(err, st, "rhd: no memory for an instance of %d ranks", links->nranks);
fail:
	host->release(count);
	rhd_destroy(r);
	return st;
}

void rhd_destroy(void *instance)
{
	rhd *r = instance;
	if (!r)
		return;
	const gradcomp_host *host = r->host;
	tree_destroy(r->tree);
	host->release(r->position_of);
	host->release(r->order);
	host->release(r->offset);
	host->release(r->scratch);
	host->release(r);
}

/* All blocks of position v end reduced at position v. */
static gradcomp_status halve(rhd *r, const rhd_blocks *c, gradcomp_error *err)
{
	int P = r->nranks, v = r->position;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st && k + 1 < r->shape.nskips; k++) {
		int s = r->shape.skip[k + 1], n = r->shape.skip[k] - s, to = (v + s) % P;
		st = rhd_round(r, c, &(rhd_run){to, to, n}, &(rhd_run){(v + P - s) % P, v, n}, err);
	}
	return st;
}

/* The way back: the block of position v goes from position v to everybody. */
static gradcomp_status gather(rhd *r, const rhd_blocks *c, gradcomp_error *err)
{
	int P = r->nranks, v = r->position;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = r->shape.nskips - 1; !st && k > 0; k--) {
		int s = r->shape.skip[k], n = r->shape.skip[k - 1] - s, from = (v + s) % P;
		st = rhd_round(r, c, &(rhd_run){(v + P - s) % P, v, n}, &(rhd_run){from, from, n}, err);
	}
	return st;
}

/* Block `b` of c, which this rank has the sum of. */
static gradcomp_status scale_block(rhd *r, const rhd_blocks *c, int b, double scale, gradcomp_error *err)
{
	uint64_t n = (c->offset[b + 1] - c->offset[b]) / gradcomp_dtype_bytes(c->dtype);
	if (scale != 1.0 && n && r->host->operators->scale_as(NULL, c->buf + c->offset[b], scale, n, c->dtype))
		return r->host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "rhd: elements of type %d cannot be scaled",
		                     (int)c->dtype);
	return GRADCOMP_OK;
}

static gradcomp_status halved(rhd *r, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                              gradcomp_error *err)
{
	rhd_blocks c = {.buf = buf, .offset = r->offset, .reduce = 1, .dtype = dtype, .op = op};
	gradcomp_status st;
	blocks_split(r->offset, r->nranks, count, gradcomp_dtype_bytes(dtype));
	st = halve(r, &c, err);
	if (!st)
		st = scale_block(r, &c, r->position, scale, err);
	c.reduce = 0;
	return st ? st : gather(r, &c, err);
}

gradcomp_status rhd_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                              double scale, gradcomp_error *err)
{
	rhd *r = instance;
	if (!count)
		return GRADCOMP_OK;
	if (r->nranks == 1)
		return scale == 1.0 ? GRADCOMP_OK : r->host->operators->scale_as(NULL, buf, scale, count, dtype);
	return (count * gradcomp_dtype_bytes(dtype) <= r->shape.brief ? rhd_doubled : halved)(r, buf, count, dtype, op,
	                                                                                      scale, err);
}

gradcomp_status rhd_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                   gradcomp_op op, double scale, gradcomp_error *err)
{
	rhd *r = instance;
	rhd_blocks c = {
		.buf = buf, .offset = r->offset, .position_of = r->position_of, .reduce = 1, .dtype = dtype, .op = op};
	gradcomp_status st;
	blocks_given(r->offset, r->nranks, counts, gradcomp_dtype_bytes(dtype));
	st = halve(r, &c, err);
	return st ? st : scale_block(r, &c, r->rank, scale, err);
}

gradcomp_status rhd_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	rhd *r = instance;
	rhd_blocks c = {.buf = buf, .offset = r->offset, .position_of = r->position_of};
	blocks_given(r->offset, r->nranks, bytes, 1);
	return gather(r, &c, err);
}

/* van de Geijn 1994. A rank that has the blocks of n positions from `a` on, counted from
 * the root's, gives those from a + s on to the rank at position a + s. */
static gradcomp_status scatter(rhd *r, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	rhd_blocks c = {.buf = buf, .offset = r->offset};
	int P = r->nranks, base = r->position_of ? r->position_of[root] : root, me = (r->position - base + P) % P,
	    a = 0, n = P;
	const rhd_run nothing = {0, 0, 0};
	gradcomp_status st = GRADCOMP_OK;
	blocks_split(r->offset, P, bytes, 1);
	for (int k = 1; !st && k < r->shape.nskips; k++) {
		int s = r->shape.skip[k], there = (base + a + s) % P, here = (base + a) % P;
		if (n <= s)
			continue;
		if (me == a)
			st = rhd_round(r, &c, &(rhd_run){there, there, n - s}, &nothing, err);
		else if (me == a + s)
			st = rhd_round(r, &c, &nothing, &(rhd_run){here, there, n - s}, err);
		if (me < a + s) {
			n = s;
		} else {
			a += s;
			n -= s;
		}
	}
	return st ? st : gather(r, &c, err);
}

gradcomp_status rhd_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	rhd *r = instance;
	if (r->nranks == 1 || !bytes)
		return GRADCOMP_OK;
	return bytes <= r->shape.brief ? tree_broadcast(r->tree, buf, bytes, root, err)
	                               : scatter(r, buf, bytes, root, err);
}

gradcomp_status rhd_barrier(void *instance, gradcomp_error *err)
{
	const rhd *r = instance;
	return barrier_disseminate(r->links, err);
}

/* Recursive doubling, for what is bound by latency: in the round of bit d the ranks at
 * positions v and v ^ d give each other their sums, log2 P rounds. Positions from the largest
 * power of two on are folded onto those at the beginning first, and get the result at
 * the end (Rabenseifner 2004).
 *
 * Both partners add the sum of the lower position to that of the higher one in this order:
 * zeroes of either sign and NaN come out alike too. */
static int rank_at(const rhd *r, int position)
{
	return r->order ? r->order[position] : position;
}

static gradcomp_status swap_sums(rhd *r, int peer, const char *mine, char *theirs, size_t bytes, gradcomp_error *err)
{
	const gradcomp_links *l = r->links;
	gradcomp_status st = l->recv(l->ctx, peer, theirs, bytes, &r->recv[0], err);
	if (!st)
		st = l->send(l->ctx, peer, mine, bytes, &r->send[0], err);
	if (!st)
		st = l->wait(l->ctx, &r->recv[0], err);
	return st ? st : l->wait(l->ctx, &r->send[0], err);
}

static gradcomp_status one_way(rhd *r, int peer, int sending, void *buf, size_t bytes, gradcomp_error *err)
{
	const gradcomp_links *l = r->links;
	gradcomp_status st = sending ? l->send(l->ctx, peer, buf, bytes, &r->send[0], err)
	                             : l->recv(l->ctx, peer, buf, bytes, &r->recv[0], err);
	return st ? st : l->wait(l->ctx, sending ? &r->send[0] : &r->recv[0], err);
}

gradcomp_status rhd_doubled(rhd *r, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                            gradcomp_error *err)
{
	const gradcomp_operators *ops = r->host->operators;
	int position = r->position, P = r->nranks,
	    folded = position + r->shape.full < P ? rank_at(r, position + r->shape.full) : -1;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	gradcomp_status st, bad = GRADCOMP_OK;
	if (position >= r->shape.full) {
		int peer = rank_at(r, position - r->shape.full);
		st = one_way(r, peer, 1, buf, bytes, err);
		return st ? st : one_way(r, peer, 0, buf, bytes, err);
	}
	st = sdk_growbuf_reserve(r->host, &r->scratch, &r->scratch_bytes, bytes, "rhd", err);
	char *have = buf, *other = r->scratch;
	if (!st && folded >= 0) {
		st = one_way(r, folded, 0, other, bytes, err);
		if (!st)
			bad = ops->reduce(NULL, have, other, count, dtype, op);
	}
	for (int d = 1; !st && !bad && d < r->shape.full; d *= 2) {
		st = swap_sums(r, rank_at(r, position ^ d), have, other, bytes, err);
		if (st)
			break;
		if (position & d) {
			char *mine = have;
			have = other;
			other = mine;
		}
		bad = ops->reduce(NULL, have, other, count, dtype, op);
	}
	if (!st && !bad && scale != 1.0)
		bad = ops->scale_as(NULL, have, scale, count, dtype);
	if (bad)
		return r->host->fail(err, bad, "rhd: reduction of element type %d with operation %d failed", (int)dtype,
		                     (int)op);
	if (!st && have != buf)
		memcpy(buf, have, bytes);
	return st || folded < 0 ? st : one_way(r, folded, 1, buf, bytes, err);
}
