/* The pipeline of coded blocks around the ring (compression-assisted collectives: Zhou et
 * al. 2023).
 *
 * Transfers are numbered step * pieces + piece, as in ring_pipeline.c. While blocks are
 * summed, a transfer is decoded onto this rank's piece, and the sum is coded to go
 * on; every rank codes every block once, and what that loses is the executing
 * rank's residual. The sum that is complete is scaled and coded once; from there on
 * the coded bytes are forwarded unchanged, and the owner too takes what they decode to, so
 * all ranks end with the same bits. A reduce-scatter ends with the complete sum.
 *
 * Sums whose losses nobody keeps (GRADCOMP_CODEC_LOSES) do not go around, up to RING_OWNERS_MOST ranks: every rank's
 * part of a block goes to its owner, in two steps (direct_coded.c).
 *
 * mode=hop is there to compare with: blocks are not cut into pieces, and are coded anew at every hop
 * of the gathering too. The ranks would not agree if that code were sent on. So is
 * mode=direct: everything in two steps. */
#include "plugins/common/collectives/ring.h"

#include "plugins/common/collectives/coding.h"
#include "plugins/common/collectives/direct.h"

#include <stdbool.h>

/* A block becomes at least this many pieces before they are made longer. */
#define CODED_PIECES 8u

typedef struct coded {
	ring *r;
	const ring_codes *c;
	coding code;
	uint64_t piece, pieces; /* floats of a piece, pieces of a block */
	uint64_t total;
	uint64_t stride;    /* bytes of a slot: head and code */
	uint64_t came, own; /* slots of arriving codes, and of codes made here */
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
	/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): at least RING_AHEAD */
	return t->r->pieces + i % t->came * t->stride;
}

static char *own_slot(const coded *t, uint64_t i)
{
	return t->r->pieces + (t->came + i % t->own) * t->stride;
}

/* Returns true for what is sent as it came from the left. */
static int forwarded(const coded *t, uint64_t i)
{
	return i / t->pieces > (uint64_t)t->c->reduce_steps;
}

/* Compares x as it was with what its code in `slot` decodes to. */
static gradcomp_status note_loss(const coded *t, float *x, uint64_t n, const char *slot, int complete,
                                 gradcomp_error *err)
{
	float *e = t->c->residual ? t->c->residual + ((uint64_t)(x - t->c->buf) - t->c->residual_from) : NULL;
	return complete ? coding_settle(&t->code, x, n, t->c->scale, slot, e, err)
	                : coding_loss(&t->code, x, n, slot, e, err);
}

static gradcomp_request *sending(const coded *t, uint64_t i)
{
	return &t->r->send[2 * (i % RING_AHEAD)];
}

static gradcomp_status collect_sends(coded *t, uint64_t until, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	uint64_t n;
	for (; !st && t->collected < until; t->collected++) {
		locate(t, t->collected, 0, &n);
		if (n)
			st = coding_sent(&t->code, n, sending(t, t->collected), err);
	}
	return st;
}

static gradcomp_status post_send(coded *t, gradcomp_error *err)
{
	ring *r = t->r;
	const ring_codes *c = t->c;
	uint64_t i = t->sent++, n;
	float *x = locate(t, i, 0, &n);
	int right = (r->rank + 1) % r->nranks, complete = i / t->pieces == (uint64_t)c->reduce_steps;
	char *slot = forwarded(t, i) ? came_slot(t, i - t->pieces) : own_slot(t, i);
	gradcomp_status st = i >= RING_AHEAD ? collect_sends(t, i - RING_AHEAD + 1, err) : GRADCOMP_OK;
	if (st || !n)
		return st;
	if (!forwarded(t, i) && complete && c->scale != 1.0)
		st = r->host->operators->scale_as(NULL, x, c->scale, n, GRADCOMP_F32);
	if (!st && (!forwarded(t, i) || r->hop))
		st = coding_make(&t->code, x, n, c->counter + i, forwarded(t, i) ? own_slot(t, i) : slot, err);
	if (!st)
		st = coding_send(&t->code, right, slot, n, sending(t, i), err);
	/* The wire is busy meanwhile. */
	return st || forwarded(t, i) ? st : note_loss(t, x, n, slot, complete, err);
}

/* Posts the receive that comes first in transfer i. */
static gradcomp_status post_recv(coded *t, uint64_t i, gradcomp_error *err)
{
	ring *r = t->r;
	int left = (r->rank + r->nranks - 1) % r->nranks;
	uint64_t n;
	gradcomp_status st = GRADCOMP_OK;
	locate(t, i, 1, &n);
	if (!n)
		return GRADCOMP_OK;
	/* The code that is about to be overwritten went on one round later. */
	if (i >= t->came && i - t->came + t->pieces < t->total && forwarded(t, i - t->came + t->pieces))
		st = collect_sends(t, i - t->came + t->pieces + 1, err);
	return st ? st : coding_recv(&t->code, left, came_slot(t, i), n, &r->recv[0], err);
}

static gradcomp_status finish_recv(coded *t, uint64_t i, gradcomp_error *err)
{
	ring *r = t->r;
	char *slot = came_slot(t, i);
	uint64_t n;
	float *x = locate(t, i, 1, &n);
	gradcomp_status st = GRADCOMP_OK;
	if (n)
		st = coding_arrive(&t->code, (r->rank + r->nranks - 1) % r->nranks, slot, n, &r->recv[0], err);
	/* The next one can come while this is decoded. */
	if (!st && i + 1 < t->total)
		st = post_recv(t, i + 1, err);
	if (st || !n)
		return st;
	if (i / t->pieces >= (uint64_t)t->c->reduce_steps)
		return coding_take(&t->code, slot, x, n, err);
	st = coding_add(&t->code, slot, x, n, err);
	/* A complete sum that goes nowhere. */
	if (!st && i / t->pieces + 1 == (uint64_t)t->c->steps && t->c->scale != 1.0)
		st = r->host->operators->scale_as(NULL, x, t->c->scale, n, GRADCOMP_F32);
	return st;
}

static uint64_t grains(uint64_t n)
{
	return n / CODING_GRAIN * CODING_GRAIN;
}

/* Returns the numbers of a piece. The links do best with so many bytes at a time, which are codes here; but a block
 * is to be on its way before all of it is coded. */
static uint64_t piece_of(const coded *t, uint64_t longest)
{
	const ring *r = t->r;
	uint64_t piece = grains(ring_piece(r, longest * sizeof(float)) / sizeof(float) + CODING_GRAIN - 1);
	uint64_t bound = coding_bound(&t->code, piece),
		 grown = grains(piece * sizeof(float) * piece / (bound + !bound));
	uint64_t most = grains(longest / CODED_PIECES);
	if (r->hop || r->one_run)
		return longest;
	if (!r->piece_given && piece < grown && piece < most)
		piece = grown < most ? grown : most;
	return piece < longest ? piece : longest;
}

static gradcomp_status pipeline(ring *r, const ring_codes *c, gradcomp_error *err)
{
	coded t = {.r = r, .c = c, .code = {.host = r->host, .links = r->links, .who = "ring", .codec = c->codec}};
	uint64_t longest = 0;
	gradcomp_status st;
	for (int b = 0; b < r->nranks; b++)
		if (c->offset[b + 1] - c->offset[b] > longest)
			longest = c->offset[b + 1] - c->offset[b];
	if (!longest)
		return GRADCOMP_OK;
	t.piece = piece_of(&t, longest);
	t.pieces = (longest + t.piece - 1) / t.piece;
	t.total = (uint64_t)c->steps * t.pieces;
	uint64_t ahead = t.pieces < RING_AHEAD / 2 ? t.pieces : RING_AHEAD / 2;
	t.came = t.pieces + RING_AHEAD;
	t.own = RING_AHEAD + 1;
	t.stride = coding_stride(&t.code, c->offset, r->nranks, t.piece);
	st = ring_reserve(r, (t.came + t.own) * t.stride, err);
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

/* Does what the calls do on one rank: nothing is coded. */
static gradcomp_status alone(const ring *r, float *buf, uint64_t count, double scale, float *residual)
{
	const gradcomp_operators *ops = r->host->operators;
	if (residual)
		ops->fill(NULL, residual, 0, count);
	return scale == 1.0 ? GRADCOMP_OK : ops->scale_as(NULL, buf, scale, count, GRADCOMP_F32);
}

bool ring_owns_sums(const ring *r, const gradcomp_codec *codec, const float *residual)
{
	return r->nranks > 1 && !r->hop && !r->two_steps && coding_loses(codec, residual);
}

/* Sets *out to the collective by which a call goes in two steps, NULL: it goes around the ring. */
static gradcomp_status find_direct(ring *r, bool owned, direct **out, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	*out = NULL;
	if (r->nranks == 1 || (!r->two_steps && (!owned || r->nranks > RING_OWNERS_MOST)))
		return GRADCOMP_OK;
	if (!r->direct)
		st = direct_create(r->host, r->links, r->piece_given ? r->piece : 0, &r->direct, err);
	*out = r->direct;
	return st;
}

gradcomp_status ring_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                     const gradcomp_codec *codec, uint64_t counter, float *residual,
                                     gradcomp_error *err)
{
	ring *r = instance;
	ring_codes c = {.buf = buf,
	                .offset = r->offset,
	                .start = r->rank,
	                .steps = 2 * (r->nranks - 1),
	                .reduce_steps = r->nranks - 1,
	                .scale = scale,
	                .codec = codec,
	                .counter = counter,
	                .residual = residual};
	direct *d;
	gradcomp_status st = find_direct(r, ring_owns_sums(r, codec, residual), &d, err);
	if (st || d)
		return st ? st : direct_coded_allreduce(d, buf, count, scale, codec, counter, residual, err);
	if (r->nranks > 1) {
		ring_split(r, count, 1);
		return pipeline(r, &c, err);
	}
	return alone(r, buf, count, scale, residual);
}

gradcomp_status ring_coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err)
{
	ring *r = instance;
	ring_codes c = {.buf = buf,
	                .offset = r->offset,
	                .start = r->rank,
	                .steps = r->nranks - 1,
	                .scale = 1.0,
	                .codec = codec,
	                .counter = counter,
	                .residual = residual};
	direct *d;
	gradcomp_status st = find_direct(r, false, &d, err);
	if (st || d)
		return st ? st : direct_coded_allgather(d, buf, counts, codec, counter, residual, err);
	ring_offsets(r, counts, 1);
	c.residual_from = r->offset[r->rank];
	if (r->nranks > 1)
		return pipeline(r, &c, err);
	return alone(r, buf, counts[0], 1.0, residual);
}

gradcomp_status ring_coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                          const gradcomp_codec *codec, uint64_t counter, float *residual,
                                          gradcomp_error *err)
{
	ring *r = instance;
	ring_codes c = {.buf = buf,
	                .offset = r->offset,
	                .start = (r->rank + r->nranks - 1) % r->nranks,
	                .steps = r->nranks - 1,
	                .reduce_steps = r->nranks - 1,
	                .scale = scale,
	                .codec = codec,
	                .counter = counter,
	                .residual = residual};
	direct *d;
	gradcomp_status st = find_direct(r, ring_owns_sums(r, codec, residual), &d, err);
	if (st || d)
		return st ? st : direct_coded_reduce_scatter(d, buf, counts, scale, codec, counter, residual, err);
	if (r->nranks == 1)
		return alone(r, buf, counts[0], scale, residual);
	ring_offsets(r, counts, 1);
	if (residual)
		r->host->operators->fill(NULL, residual + r->offset[r->rank], 0, counts[r->rank]);
	return pipeline(r, &c, err);
}
