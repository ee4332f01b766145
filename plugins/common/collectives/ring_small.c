/* What is bound by latency: short all-reduces, broadcast and barrier. */
#include "ring.h"

#include "disseminate.h"

#include <string.h>

/* Everybody sends to everybody, then adds in rank order: one trip instead of
 * 2 (P - 1), and the same bits on all ranks. */
gradcomp_status ring_small_allreduce(ring *r, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                     double scale, gradcomp_error *err)
{
	const gradcomp_links *l = r->links;
	const gradcomp_operators *ops = r->host->operators;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	gradcomp_status st = ring_room(r, bytes * (size_t)r->nranks, err);
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
	return disseminate(r->links, err);
}
