/* The ring's instance, and its calls as routes of blocks. */
#include "plugins/common/collectives/ring.h"

#include "plugins/common/collectives/blocks.h"
#include "plugins/common/collectives/direct.h"
#include "gradcomp/sdk/growbuf.h"
#include "plugins/common/collectives/barrier.h"

#include <string.h>

gradcomp_status ring_reserve(ring *r, size_t bytes, gradcomp_error *err)
{
	return sdk_growbuf_reserve(r->host, &r->pieces, &r->pieces_cap, bytes, "ring", err);
}

gradcomp_status ring_create(const gradcomp_host *host, const gradcomp_links *links, const ring_options *o, ring **out,
                            gradcomp_error *err)
{
	size_t blocks = (size_t)links->nranks + 1;
	ring *r = host->alloc(sizeof *r + blocks * sizeof r->offset[0]);
	if (!r)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "ring: no memory for an instance of %d ranks",
		                  links->nranks);
	r->host = host;
	r->links = links;
	r->rank = links->rank;
	r->nranks = links->nranks;
	r->piece = ((o->chunk ? o->chunk : links->chunk) + 63) & ~(size_t)63;
	r->piece_given = o->chunk != 0;
	r->small = o->small;
	r->hop = o->hop;
	r->one_run = o->one_run;
	r->two_steps = o->direct;
	*out = r;
	return GRADCOMP_OK;
}

void ring_destroy(void *instance)
{
	ring *r = instance;
	if (!r)
		return;
	const gradcomp_host *host = r->host;
	direct_destroy(r->direct);
	host->release(r->pieces);
	host->release(r);
}

void ring_split(ring *r, uint64_t count, size_t size)
{
	blocks_split(r->offset, r->nranks, count, size);
}

void ring_offsets(ring *r, const uint64_t *counts, size_t size)
{
	blocks_given(r->offset, r->nranks, counts, size);
}

gradcomp_status ring_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                               double scale, gradcomp_error *err)
{
	ring *r = instance;
	size_t size = gradcomp_dtype_bytes(dtype);
	uint64_t P = (uint64_t)r->nranks;
	if (!count)
		return GRADCOMP_OK;
	if (P == 1)
		return scale == 1.0 ? GRADCOMP_OK : r->host->operators->scale_as(NULL, buf, scale, count, dtype);
	if (P <= RING_AHEAD && count * size <= r->small)
		return ring_small_allreduce(r, buf, count, dtype, op, scale, err);
	ring_split(r, count, size);
	ring_route route = {.buf = buf,
	                    .offset = r->offset,
	                    .start = r->rank,
	                    .steps = 2 * (r->nranks - 1),
	                    .reduce_steps = r->nranks - 1,
	                    .dtype = dtype,
	                    .op = op,
	                    .scale = scale};
	return ring_pipeline(r, &route, err);
}

gradcomp_status ring_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                    gradcomp_op op, double scale, gradcomp_error *err)
{
	ring *r = instance;
	size_t size = gradcomp_dtype_bytes(dtype);
	if (r->nranks == 1)
		return scale == 1.0 ? GRADCOMP_OK : r->host->operators->scale_as(NULL, buf, scale, counts[0], dtype);
	ring_offsets(r, counts, size);
	ring_route route = {.buf = buf,
	                    .offset = r->offset,
	                    .start = (r->rank + r->nranks - 1) % r->nranks,
	                    .steps = r->nranks - 1,
	                    .reduce_steps = r->nranks - 1,
	                    .dtype = dtype,
	                    .op = op,
	                    .scale = scale};
	return ring_pipeline(r, &route, err);
}

gradcomp_status ring_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	ring *r = instance;
	if (r->nranks == 1)
		return GRADCOMP_OK;
	ring_offsets(r, bytes, 1);
	ring_route route = {.buf = buf, .offset = r->offset, .start = r->rank, .steps = r->nranks - 1, .scale = 1.0};
	return ring_pipeline(r, &route, err);
}

/* Everybody sends to everybody, then adds in rank order: one round instead of
 * 2 (P - 1), and the same bits on all ranks. */
gradcomp_status ring_small_allreduce(ring *r, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                     double scale, gradcomp_error *err)
{
	const gradcomp_links *l = r->links;
	const gradcomp_operators *ops = r->host->operators;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	gradcomp_status st = ring_reserve(r, bytes * (size_t)r->nranks, err);
	if (st)
		return st;
	for (int d = 1; !st && d < r->nranks; d++) {
		int from = (r->rank + r->nranks - d) % r->nranks;
		st = l->recv(l->ctx, from, r->pieces + (size_t)from * bytes, bytes, &r->recv[d - 1], err);
	}
	for (int d = 1; !st && d < r->nranks; d++)
		st = l->send(l->ctx, (r->rank + d) % r->nranks, buf, bytes, &r->send[d - 1], err);
	for (int d = 1; !st && d < r->nranks; d++)
		st = l->wait(l->ctx, &r->recv[d - 1], err);
	for (int d = 1; !st && d < r->nranks; d++)
		st = l->wait(l->ctx, &r->send[d - 1], err);
	if (st)
		return st;
	memcpy(r->pieces + (size_t)r->rank * bytes, buf, bytes);
	memcpy(buf, r->pieces, bytes);
	for (int p = 1; !st && p < r->nranks; p++)
		st = ops->reduce(NULL, buf, r->pieces + (size_t)p * bytes, count, dtype, op);
	if (!st && scale != 1.0)
		st = ops->scale_as(NULL, buf, scale, count, dtype);
	return st ? r->host->fail(err, st, "ring: reduction of element type %d with operation %d failed", (int)dtype,
	                          (int)op)
	          : GRADCOMP_OK;
}

/* Short: a binomial tree. Long: a chain in pieces, each forwarded as it
 * comes. */
gradcomp_status ring_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	ring *r = instance;
	const gradcomp_links *l = r->links;
	int P = r->nranks, me = (r->rank - root + P) % P;
	gradcomp_status st = GRADCOMP_OK;
	if (P == 1 || !bytes)
		return GRADCOMP_OK;
	if (bytes <= r->piece) {
		int bit = 1, n = 0;
		for (; bit < P && !(me & bit); bit <<= 1)
			;
		if (me) {
			st = l->recv(l->ctx, (me - bit + root) % P, buf, bytes, &r->recv[0], err);
			if (!st)
				st = l->wait(l->ctx, &r->recv[0], err);
		}
		for (bit >>= 1; !st && bit; bit >>= 1)
			if (me + bit < P)
				st = l->send(l->ctx, (me + bit + root) % P, buf, bytes, &r->send[n++], err);
		while (!st && n)
			st = l->wait(l->ctx, &r->send[--n], err);
		return st;
	}
	int next = me + 1 < P ? (r->rank + 1) % P : -1, prev = (r->rank + P - 1) % P;
	uint64_t pieces = (bytes + r->piece - 1) / r->piece, posted = 0, sent = 0;
	for (uint64_t i = 0; !st && i < pieces; i++) {
		for (; !st && me && posted < pieces && posted < i + RING_AHEAD; posted++) {
			size_t at = posted * r->piece, len = bytes - at < r->piece ? bytes - at : r->piece;
			st = l->recv(l->ctx, prev, (char *)buf + at, len, &r->recv[posted % RING_AHEAD], err);
		}
		if (!st && me)
			st = l->wait(l->ctx, &r->recv[i % RING_AHEAD], err);
		if (!st && next >= 0) {
			size_t at = i * r->piece, len = bytes - at < r->piece ? bytes - at : r->piece;
			if (i >= RING_MAX_PIECES) {
				st = l->wait(l->ctx, &r->send[(i - RING_MAX_PIECES) % RING_MAX_PIECES], err);
				sent = i - RING_MAX_PIECES + 1;
			}
			if (!st)
				st = l->send(l->ctx, next, (char *)buf + at, len, &r->send[i % RING_MAX_PIECES], err);
		}
	}
	for (; !st && next >= 0 && sent < pieces; sent++)
		st = l->wait(l->ctx, &r->send[sent % RING_MAX_PIECES], err);
	return st;
}

gradcomp_status ring_barrier(void *instance, gradcomp_error *err)
{
	const ring *r = instance;
	return barrier_disseminate(r->links, err);
}
