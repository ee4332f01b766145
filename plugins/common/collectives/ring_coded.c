/* Coded travel of blocks around the ring (compression-assisted collectives: Zhou et
 * al. 2023).
 *
 * Transfers are numbered step * pieces + piece, as in travel.c. While blocks are
 * summed, a transfer is decoded onto this rank's piece, and the sum is coded to go
 * on; every rank codes every block once, and what that loses is the executing
 * rank's residual. The sum that is complete is scaled and coded once; from there on
 * the coded bytes travel unchanged, and the owner too takes what they decode to, so
 * all ranks end with the same bits. A reduce-scatter ends with the complete sum.
 *
 * A code may have any length up to its bound. A long one follows a message with its
 * length; a short one goes with its length in front, at its bound, as one message.
 *
 * mode=hop is there to compare with: blocks go whole, and are coded anew at every hop
 * of the gathering too. The ranks would not agree if that code were sent on. */
#include "ring.h"

#include <string.h>

#define HEAD sizeof(uint64_t)
#define SHORT_CODE 8192u
/* Numbers a piece is a multiple of: codes work in blocks. */
#define GRAIN 1024u

typedef struct coded {
	ring *r;
	const ring_codes *c;
	uint64_t piece, pieces; /* floats of a piece, pieces of a block */
	uint64_t total;
	uint64_t stride;        /* bytes of a slot: head and code */
	uint64_t came, own;     /* slots of arriving codes, and of codes made here */
	uint64_t sent, collected;
} coded;

/* Piece of transfer i: the block it belongs to is `back` further around. */
static float *locate(const coded *t, uint64_t i, int back, uint64_t *n)
{
	int P = t->r->nranks, step = (int)(i / t->pieces);
	int block = ((t->c->start - step - back) % P + P) % P;
	uint64_t begin = t->c->offset[block] + i % t->pieces * t->piece, end = t->c->offset[block + 1];
	*n = begin >= end ? 0 : end - begin < t->piece ? end - begin : t->piece;
	return t->c->buf + begin;
}

static char *came_slot(const coded *t, uint64_t i)
{
	return t->r->pieces + i % t->came * t->stride;
}

static char *own_slot(const coded *t, uint64_t i)
{
	return t->r->pieces + (t->came + i % t->own) * t->stride;
}

/* Sent as it came from the left. */
static int forwarded(const coded *t, uint64_t i)
{
	return i / t->pieces > (uint64_t)t->c->reduce_steps;
}

static uint64_t bound_of(const coded *t, uint64_t n)
{
	return t->c->codec->bound(t->c->codec->ctx, n);
}

static gradcomp_status make(const coded *t, const float *x, uint64_t n, uint64_t i, char *slot, gradcomp_error *err)
{
	const gradcomp_codec *codec = t->c->codec;
	uint64_t bound = bound_of(t, n), bytes = 0;
	gradcomp_status st = codec->code(codec->ctx, x, n, t->c->counter + i, slot + HEAD, &bytes, err);
	if (!st && bytes > bound)
		st = t->r->host->fail(err, GRADCOMP_ERR_INTERNAL, "ring: a code of %llu bytes for %llu numbers, at most %llu "
		                      "were promised", (unsigned long long)bytes, (unsigned long long)n,
		                      (unsigned long long)bound);
	memcpy(slot, &bytes, HEAD);
	if (!st && bound <= SHORT_CODE)
		memset(slot + HEAD + bytes, 0, bound - bytes);
	return st;
}

/* x as it was, against what its code in `slot` decodes to. The owner of a complete
 * sum takes that, and counts its loss in units of the sum. */
static gradcomp_status note_loss(const coded *t, float *x, uint64_t n, const char *slot, int complete,
                                 gradcomp_error *err)
{
	const gradcomp_codec *codec = t->c->codec;
	double back = 1 / t->c->scale;
	uint64_t bytes;
	memcpy(&bytes, slot, HEAD);
	if (!t->c->residual)
		return complete ? codec->decode(codec->ctx, slot + HEAD, bytes, x, n, err) : GRADCOMP_OK;
	float *e = t->c->residual + ((uint64_t)(x - t->c->buf) - t->c->residual_from);
	gradcomp_status st = codec->decode(codec->ctx, slot + HEAD, bytes, e, n, err);
	if (!st && !complete) {
		t->r->host->operators->scale(NULL, e, -1, n);
		t->r->host->operators->add(NULL, e, x, n);
		return GRADCOMP_OK;
	}
	for (uint64_t k = 0; !st && k < n; k++) {
		float v = e[k];
		e[k] = (float)(((double)x[k] - v) * back);
		x[k] = v;
	}
	return st;
}

static gradcomp_status collect_sends(coded *t, uint64_t until, gradcomp_error *err)
{
	ring *r = t->r;
	gradcomp_status st = GRADCOMP_OK;
	uint64_t n;
	for (; !st && t->collected < until; t->collected++) {
		locate(t, t->collected, 0, &n);
		for (int k = 0; !st && n && k < (bound_of(t, n) > SHORT_CODE ? 2 : 1); k++)
			st = r->links->wait(r->links->ctx, &r->send[2 * (t->collected % RING_AHEAD) + (uint64_t)k], err);
	}
	return st;
}

static gradcomp_status post_send(coded *t, gradcomp_error *err)
{
	ring *r = t->r;
	const gradcomp_links *l = r->links;
	const ring_codes *c = t->c;
	uint64_t i = t->sent++, n, bytes;
	float *x = locate(t, i, 0, &n);
	int right = (r->rank + 1) % r->nranks, complete = i / t->pieces == (uint64_t)c->reduce_steps;
	char *slot = forwarded(t, i) ? came_slot(t, i - t->pieces) : own_slot(t, i);
	gradcomp_status st = i >= RING_AHEAD ? collect_sends(t, i - RING_AHEAD + 1, err) : GRADCOMP_OK;
	if (st || !n)
		return st;
	if (!forwarded(t, i)) {
		if (complete && c->scale != 1.0)
			st = r->host->operators->scale_as(NULL, x, c->scale, n, GRADCOMP_F32);
		if (!st)
			st = make(t, x, n, i, slot, err);
	} else if (r->hop) {
		st = make(t, x, n, i, own_slot(t, i), err);
	}
	if (st)
		return st;
	memcpy(&bytes, slot, HEAD);
	gradcomp_request *req = &r->send[2 * (i % RING_AHEAD)];
	if (bound_of(t, n) <= SHORT_CODE)
		st = l->send(l->ctx, right, slot, HEAD + bound_of(t, n), req, err);
	else if (!(st = l->send(l->ctx, right, slot, HEAD, req, err)))
		st = l->send(l->ctx, right, slot + HEAD, bytes, req + 1, err);
	/* The wire is busy meanwhile. */
	return st || forwarded(t, i) ? st : note_loss(t, x, n, slot, complete, err);
}

/* What comes first of transfer i: all of it, or its length. */
static gradcomp_status post_recv(coded *t, uint64_t i, gradcomp_error *err)
{
	ring *r = t->r;
	const gradcomp_links *l = r->links;
	int left = (r->rank + r->nranks - 1) % r->nranks;
	uint64_t n, bound;
	gradcomp_status st = GRADCOMP_OK;
	locate(t, i, 1, &n);
	if (!n)
		return GRADCOMP_OK;
	/* The code that is about to be overwritten went on one round later. */
	if (i >= t->came && i - t->came + t->pieces < t->total && forwarded(t, i - t->came + t->pieces))
		st = collect_sends(t, i - t->came + t->pieces + 1, err);
	bound = bound_of(t, n);
	return st ? st
	          : l->recv(l->ctx, left, came_slot(t, i), bound > SHORT_CODE ? HEAD : HEAD + bound, &r->recv[0], err);
}

static gradcomp_status finish_recv(coded *t, uint64_t i, gradcomp_error *err)
{
	ring *r = t->r;
	const gradcomp_links *l = r->links;
	const gradcomp_codec *codec = t->c->codec;
	int left = (r->rank + r->nranks - 1) % r->nranks;
	char *slot = came_slot(t, i);
	uint64_t n, bytes, bound;
	float *x = locate(t, i, 1, &n);
	if (!n)
		return i + 1 < t->total ? post_recv(t, i + 1, err) : GRADCOMP_OK;
	gradcomp_status st = l->wait(l->ctx, &r->recv[0], err);
	if (st)
		return st;
	bound = bound_of(t, n);
	memcpy(&bytes, slot, HEAD);
	if (bytes > bound)
		return r->host->fail(err, GRADCOMP_ERR_MISMATCH,
		                     "ring: rank %d of the group announces a code of %llu bytes for %llu numbers, at most %llu "
		                     "are possible", left, (unsigned long long)bytes, (unsigned long long)n,
		                     (unsigned long long)bound);
	if (bound > SHORT_CODE) {
		st = l->recv(l->ctx, left, slot + HEAD, bytes, &r->recv[0], err);
		if (!st)
			st = l->wait(l->ctx, &r->recv[0], err);
	}
	/* The next one can come while this is decoded. */
	if (!st && i + 1 < t->total)
		st = post_recv(t, i + 1, err);
	if (st)
		return st;
	if (i / t->pieces >= (uint64_t)t->c->reduce_steps)
		return codec->decode(codec->ctx, slot + HEAD, bytes, x, n, err);
	st = codec->decode_add(codec->ctx, slot + HEAD, bytes, x, n, err);
	/* A complete sum that goes nowhere. */
	if (!st && i / t->pieces + 1 == (uint64_t)t->c->steps && t->c->scale != 1.0)
		st = r->host->operators->scale_as(NULL, x, t->c->scale, n, GRADCOMP_F32);
	return st;
}

/* The longest code there can be, whatever the last piece of a block has. */
static uint64_t longest_code(const coded *t)
{
	uint64_t most = bound_of(t, t->piece);
	for (int b = 0; b < t->r->nranks; b++) {
		uint64_t rest = (t->c->offset[b + 1] - t->c->offset[b]) % t->piece;
		uint64_t bound = rest ? bound_of(t, rest) : 0;
		most = bound > most ? bound : most;
	}
	return most;
}

static gradcomp_status travel(ring *r, const ring_codes *c, gradcomp_error *err)
{
	coded t = {.r = r, .c = c};
	uint64_t longest = 0;
	gradcomp_status st;
	for (int b = 0; b < r->nranks; b++)
		if (c->offset[b + 1] - c->offset[b] > longest)
			longest = c->offset[b + 1] - c->offset[b];
	if (!longest)
		return GRADCOMP_OK;
	t.piece = r->hop ? longest : (ring_piece(r, longest * sizeof(float)) / sizeof(float) + GRAIN - 1) / GRAIN * GRAIN;
	t.pieces = (longest + t.piece - 1) / t.piece;
	t.total = (uint64_t)c->steps * t.pieces;
	uint64_t ahead = t.pieces < RING_AHEAD / 2 ? t.pieces : RING_AHEAD / 2;
	t.came = t.pieces + RING_AHEAD;
	t.own = RING_AHEAD + 1;
	t.stride = (HEAD + longest_code(&t) + 63) & ~(uint64_t)63;
	st = ring_room(r, (t.came + t.own) * t.stride, err);
	if (!st)
		st = post_recv(&t, 0, err);
	while (!st && t.sent < ahead)
		st = post_send(&t, err);
	for (uint64_t i = 0; !st && i < t.total; i++) {
		st = finish_recv(&t, i, err);
		if (!st && t.sent < t.total)
			st = post_send(&t, err);
	}
	return st ? st : collect_sends(&t, t.total, err);
}

/* What the calls do on one rank: nothing is coded. */
static gradcomp_status alone(const ring *r, float *buf, uint64_t count, double scale, float *residual)
{
	const gradcomp_operators *ops = r->host->operators;
	if (residual)
		ops->fill(NULL, residual, 0, count);
	return scale == 1.0 ? GRADCOMP_OK : ops->scale_as(NULL, buf, scale, count, GRADCOMP_F32);
}

gradcomp_status ring_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                     const gradcomp_codec *codec, uint64_t counter, float *residual,
                                     gradcomp_error *err)
{
	ring *r = instance;
	ring_codes c = {.buf = buf, .offset = r->offset, .start = r->rank, .steps = 2 * (r->nranks - 1),
	                .reduce_steps = r->nranks - 1, .scale = scale, .codec = codec, .counter = counter,
	                .residual = residual};
	if (r->nranks > 1) {
		ring_split(r, count, 1);
		return travel(r, &c, err);
	}
	return alone(r, buf, count, scale, residual);
}

gradcomp_status ring_coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err)
{
	ring *r = instance;
	ring_codes c = {.buf = buf, .offset = r->offset, .start = r->rank, .steps = r->nranks - 1, .scale = 1.0,
	                .codec = codec, .counter = counter, .residual = residual};
	ring_offsets(r, counts, 1);
	c.residual_from = r->offset[r->rank];
	if (r->nranks > 1)
		return travel(r, &c, err);
	return alone(r, buf, counts[0], 1.0, residual);
}

gradcomp_status ring_coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                          const gradcomp_codec *codec, uint64_t counter, float *residual,
                                          gradcomp_error *err)
{
	ring *r = instance;
	ring_codes c = {.buf = buf, .offset = r->offset, .start = (r->rank + r->nranks - 1) % r->nranks,
	                .steps = r->nranks - 1, .reduce_steps = r->nranks - 1, .scale = scale, .codec = codec,
	                .counter = counter, .residual = residual};
	if (r->nranks == 1)
		return alone(r, buf, counts[0], scale, residual);
	ring_offsets(r, counts, 1);
	if (residual)
		r->host->operators->fill(NULL, residual + r->offset[r->rank], 0, counts[r->rank]);
	return travel(r, &c, err);
}
