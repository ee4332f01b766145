/* Blocks around the ring, as a pipeline of chunks.
 *
 * All pieces of all steps form one sequence of transfers, numbered
 * step * pieces + piece, in which transfer i + pieces sends on what transfer i
 * brought. Receives run RING_AHEAD transfers ahead of the arithmetic, so the
 * wire stays busy while a piece is being added, and no step waits for a whole
 * block. */
#include "plugins/common/collectives/ring.h"

typedef struct pipeline {
	ring *r;
	const ring_route *route;
	size_t piece;
	uint64_t pieces;          /* a block */
	uint64_t sent, collected; /* transfers posted, and waited for */
	int in_place;             /* links reduce into the block by themselves */
} pipeline;

/* Between nodes a short block is cut finer than the links would have it, so that
 * its pieces overlap too. Within a node each piece costs a wake-up instead. */
#define PIECES_WANTED 4
#define SHORTEST_PIECE ((size_t)16 << 10)

#define SENDS (sizeof(((ring *)0)->send) / sizeof(((ring *)0)->send[0]))

/* Piece of transfer i: the block it belongs to is `back` further around. */
static char *locate(const pipeline *t, uint64_t i, int back, size_t *len)
{
	int P = t->r->nranks, step = (int)(i / t->pieces);
	int block = ((t->route->start - step - back) % P + P) % P;
	uint64_t begin = t->route->offset[block] + (i % t->pieces) * t->piece;
	uint64_t end = t->route->offset[block + 1];
	*len = begin >= end ? 0 : end - begin < t->piece ? end - begin : t->piece;
	return t->route->buf + begin;
}

static gradcomp_status collect_sends(pipeline *t, uint64_t until, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	size_t len;
	for (; !st && t->collected < until; t->collected++) {
		locate(t, t->collected, 0, &len);
		if (len)
			st = t->r->links->wait(t->r->links->ctx, &t->r->send[t->collected % SENDS], err);
	}
	return st;
}

static gradcomp_status post_send(pipeline *t, gradcomp_error *err)
{
	const gradcomp_links *l = t->r->links;
	gradcomp_status st = GRADCOMP_OK;
	size_t len;
	char *p = locate(t, t->sent, 0, &len);
	if (t->sent >= SENDS)
		st = collect_sends(t, t->sent - SENDS + 1, err);
	if (!st && len)
		st = l->send(l->ctx, (t->r->rank + 1) % t->r->nranks, p, len, &t->r->send[t->sent % SENDS], err);
	t->sent++;
	return st;
}

static gradcomp_status post_recv(pipeline *t, uint64_t i, gradcomp_error *err)
{
	ring *r = t->r;
	const gradcomp_links *l = r->links;
	int left = (r->rank + r->nranks - 1) % r->nranks;
	uint64_t around = (uint64_t)(r->nranks - 1) * t->pieces;
	gradcomp_request *req = &r->recv[i % RING_AHEAD];
	size_t len;
	char *p = locate(t, i, 1, &len);
	if (!len)
		return GRADCOMP_OK;
	if (i / t->pieces < (uint64_t)t->route->reduce_steps) {
		if (t->in_place)
			return l->recv_reduce(l->ctx, left, p, len / gradcomp_dtype_bytes(t->route->dtype),
			                      t->route->dtype, t->route->op, req, err);
		return l->recv(l->ctx, left, r->pieces + (i % RING_AHEAD) * t->piece, len, req, err);
	}
	/* The memory that is about to be overwritten was sent one round ago. */
	if (i >= around) {
		gradcomp_status st = collect_sends(t, i - around + 1, err);
		if (st)
			return st;
	}
	return l->recv(l->ctx, left, p, len, req, err);
}

static gradcomp_status finish_recv(pipeline *t, uint64_t i, gradcomp_error *err)
{
	ring *r = t->r;
	const ring_route *route = t->route;
	const gradcomp_operators *ops = r->host->operators;
	uint64_t step = i / t->pieces;
	size_t len, count;
	char *p = locate(t, i, 1, &len);
	if (!len)
		return GRADCOMP_OK;
	gradcomp_status st = r->links->wait(r->links->ctx, &r->recv[i % RING_AHEAD], err);
	if (st || step >= (uint64_t)route->reduce_steps)
		return st;
	count = len / gradcomp_dtype_bytes(route->dtype);
	if (!t->in_place)
		st = ops->reduce(NULL, p, r->pieces + (i % RING_AHEAD) * t->piece, count, route->dtype, route->op);
	if (!st && step + 1 == (uint64_t)route->reduce_steps && route->scale != 1.0)
		st = ops->scale_as(NULL, p, route->scale, count, route->dtype);
	return st ? r->host->fail(err, st, "ring: reduction of element type %d with operation %d failed",
	                          (int)route->dtype, (int)route->op)
	          : GRADCOMP_OK;
}

size_t ring_piece(const ring *r, uint64_t longest)
{
	size_t piece = r->piece;
	if (!r->piece_given && r->links->nnodes > 1 && longest / PIECES_WANTED < piece)
		piece = longest / PIECES_WANTED > SHORTEST_PIECE ? (longest / PIECES_WANTED + 63) & ~(size_t)63
		                                                 : SHORTEST_PIECE;
	if (longest > (uint64_t)piece * RING_MAX_PIECES)
		piece = (longest / RING_MAX_PIECES + 64) & ~(size_t)63;
	return piece;
}

gradcomp_status ring_pipeline(ring *r, const ring_route *route, gradcomp_error *err)
{
	pipeline t = {.r = r, .route = route};
	uint64_t longest = 0, posted = 0;
	gradcomp_status st = GRADCOMP_OK;
	for (int b = 0; b < r->nranks; b++)
		if (route->offset[b + 1] - route->offset[b] > longest)
			longest = route->offset[b + 1] - route->offset[b];
	t.piece = ring_piece(r, longest);
	t.pieces = longest ? (longest + t.piece - 1) / t.piece : 0;
	t.in_place = GRADCOMP_HAS(r->links, recv_reduce) && r->links->recv_reduce;

	uint64_t total = (uint64_t)route->steps * t.pieces;
	uint64_t ahead = RING_AHEAD < (uint64_t)r->nranks * t.pieces ? RING_AHEAD : (uint64_t)r->nranks * t.pieces;
	if (!total)
		return GRADCOMP_OK;
	if (route->reduce_steps && !t.in_place)
		st = ring_reserve(r, RING_AHEAD * t.piece, err);
	for (uint64_t i = 0; !st && i < t.pieces; i++) {
		if (posted < ahead && posted < total)
			st = post_recv(&t, posted++, err);
		if (!st)
			st = post_send(&t, err);
	}
	for (uint64_t i = 0; !st && i < total; i++) {
		while (!st && posted < total && posted < i + ahead)
			st = post_recv(&t, posted++, err);
		if (!st)
			st = finish_recv(&t, i, err);
		if (!st && t.sent < total)
			st = post_send(&t, err);
	}
	return st ? st : collect_sends(&t, total, err);
}
