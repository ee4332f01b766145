/* Stripes as they are. The owner of a stripe adds its parts in rank order, so an element's
 * sum does not depend on where stripes begin. */
#include "plugins/common/collectives/direct.h"

#include "plugins/common/collectives/blocks.h"
#include "plugins/common/collectives/barrier.h"

#include <string.h>

/* For parts that wait to be added, two pieces of every rank. */
#define ROOM_MOST ((size_t)64 << 20)
typedef struct uncompressed {
	direct *d;
	char *buf;        /* gathered and reduced in place */
	const char *from; /* alltoall: what is sent, with offsets of its own */
	const uint64_t *from_at;
	size_t piece;
	gradcomp_dtype dtype;
	gradcomp_op op;
	double scale;
} uncompressed;

static char *locate(const uncompressed *t, int block, uint64_t piece, size_t *len)
{
	uint64_t begin = t->d->offset[block] + piece * t->piece, end = t->d->offset[block + 1];
	*len = begin >= end ? 0 : end - begin < t->piece ? end - begin : t->piece;
	return t->buf + begin;
}

static char *part(const uncompressed *t, int rank, uint64_t piece)
{
	return t->d->scratch + (piece % 2 * (size_t)t->d->nranks + (size_t)rank) * t->piece;
}

static const char *outgoing(const uncompressed *t, direct_step s, size_t *len)
{
	if (t->from) {
		*len = t->from_at[s.to + 1] - t->from_at[s.to];
		return t->from + t->from_at[s.to];
	}
	return locate(t, s.gather ? t->d->rank : s.to, s.piece, len);
}

static char *incoming(const uncompressed *t, direct_step s, size_t *len)
{
	char *p = locate(t, s.gather ? s.from : t->d->rank, s.piece, len);
	return s.gather ? p : part(t, s.from, s.piece);
}

static gradcomp_status recv(void *ctx, direct_step s, gradcomp_error *err)
{
	const uncompressed *t = ctx;
	const gradcomp_links *l = t->d->links;
	size_t len;
	char *p = incoming(t, s, &len);
	return len ? l->recv(l->ctx, s.from, p, len, &t->d->recv[s.index % DIRECT_AHEAD], err) : GRADCOMP_OK;
}

static gradcomp_status send(void *ctx, direct_step s, gradcomp_error *err)
{
	const uncompressed *t = ctx;
	const gradcomp_links *l = t->d->links;
	size_t len;
	const char *p = outgoing(t, s, &len);
	return len ? l->send(l->ctx, s.to, p, len, &t->d->send[s.index % DIRECT_AHEAD], err) : GRADCOMP_OK;
}

static gradcomp_status arrive(void *ctx, direct_step s, gradcomp_error *err)
{
	const uncompressed *t = ctx;
	const gradcomp_links *l = t->d->links;
	size_t len;
	incoming(t, s, &len);
	return len ? l->wait(l->ctx, &t->d->recv[s.index % DIRECT_AHEAD], err) : GRADCOMP_OK;
}

static gradcomp_status sent(void *ctx, direct_step s, gradcomp_error *err)
{
	const uncompressed *t = ctx;
	const gradcomp_links *l = t->d->links;
	size_t len;
	outgoing(t, s, &len);
	return len ? l->wait(l->ctx, &t->d->send[s.index % DIRECT_AHEAD], err) : GRADCOMP_OK;
}

static gradcomp_status add(void *ctx, uint64_t piece, gradcomp_error *err)
{
	const uncompressed *t = ctx;
	const direct *d = t->d;
	const gradcomp_operators *ops = d->host->operators;
	gradcomp_status st = GRADCOMP_OK;
	size_t len;
	char *own = locate(t, d->rank, piece, &len), *sum = d->rank ? part(t, 0, piece) : own;
	uint64_t count = len / (gradcomp_dtype_bytes(t->dtype) ? gradcomp_dtype_bytes(t->dtype) : 1);
	for (int r = 1; !st && len && r < d->nranks; r++)
		st = ops->reduce(NULL, sum, r == d->rank ? own : part(t, r, piece), count, t->dtype, t->op);
	if (!st && len && sum != own)
		memcpy(own, sum, len);
	if (!st && len && t->scale != 1.0)
		st = ops->scale_as(NULL, own, t->scale, count, t->dtype);
	return st ? d->host->fail(err, st, "direct: reduction of element type %d with operation %d failed",
	                          (int)t->dtype, (int)t->op)
	          : GRADCOMP_OK;
}

static gradcomp_status nothing(void *ctx, uint64_t piece, gradcomp_error *err)
{
	(void)ctx, (void)piece, (void)err;
	return GRADCOMP_OK;
}

static gradcomp_status run(uncompressed *t, int reduces, int gathers, gradcomp_error *err)
{
	direct *d = t->d;
	const direct_calls calls = {recv, send, arrive, sent, reduces ? add : nothing};
	uint64_t longest = direct_longest(d);
	gradcomp_status st = GRADCOMP_OK;
	if (!longest)
		return GRADCOMP_OK;
	t->piece = d->piece < longest ? d->piece : (longest + 63) & ~(size_t)63;
	if (reduces) {
		size_t share = ROOM_MOST / 2 / (size_t)d->nranks & ~(size_t)63;
		t->piece = t->piece <= share ? t->piece : share ? share : 64;
		st = direct_reserve(d, 2 * (size_t)d->nranks * t->piece, err);
	}
	return st ? st : direct_run(d, &calls, t, (longest + t->piece - 1) / t->piece, reduces, gathers, err);
}

/* Runs on one rank alone. */
static gradcomp_status alone(direct *d, void *buf, uint64_t count, gradcomp_dtype dtype, double scale)
{
	return scale == 1.0 || !count ? GRADCOMP_OK : d->host->operators->scale_as(NULL, buf, scale, count, dtype);
}

gradcomp_status direct_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                 double scale, gradcomp_error *err)
{
	direct *d = instance;
	uncompressed t = {.d = d, .buf = buf, .dtype = dtype, .op = op, .scale = scale};
	if (d->nranks == 1)
		return alone(d, buf, count, dtype, scale);
	if (direct_is_short(d->nranks, count * gradcomp_dtype_bytes(dtype)))
		return tree_allreduce(d->tree, buf, count, dtype, op, scale, err);
	blocks_split(d->offset, d->nranks, count, gradcomp_dtype_bytes(dtype));
	return run(&t, 1, 1, err);
}

gradcomp_status direct_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                      gradcomp_op op, double scale, gradcomp_error *err)
{
	direct *d = instance;
	uncompressed t = {.d = d, .buf = buf, .dtype = dtype, .op = op, .scale = scale};
	if (d->nranks == 1)
		return alone(d, buf, counts[0], dtype, scale);
	blocks_given(d->offset, d->nranks, counts, gradcomp_dtype_bytes(dtype));
	return run(&t, 1, 0, err);
}

static gradcomp_status post_gather(const uncompressed *t, uint64_t piece, gradcomp_error *err)
{
	const direct *d = t->d;
	const gradcomp_links *l = d->links;
	const direct_gather *h = &d->gather[piece % DIRECT_GATHERS];
	gradcomp_status st = GRADCOMP_OK;
	size_t len;
	for (int i = 0; !st && i < d->nranks - 1; i++) {
		char *p = locate(t, d->others[i], piece, &len);
		if (len)
			st = l->recv(l->ctx, d->others[i], p, len, &h->recv[i], err);
	}
	const char *own = locate(t, d->rank, piece, &len);
	return st || !len ? st : l->multicast(l->ctx, d->others, d->nranks - 1, own, len, h->send, err);
}

static gradcomp_status finish_gather(const uncompressed *t, uint64_t piece, gradcomp_error *err)
{
	const direct *d = t->d;
	const gradcomp_links *l = d->links;
	const direct_gather *h = &d->gather[piece % DIRECT_GATHERS];
	gradcomp_status st = GRADCOMP_OK;
	size_t len;
	for (int i = 0; !st && i < d->nranks - 1; i++) {
		locate(t, d->others[i], piece, &len);
		if (len)
			st = l->wait(l->ctx, &h->recv[i], err);
	}
	locate(t, d->rank, piece, &len);
	for (int i = 0; !st && len && i < d->nranks - 1; i++)
		st = l->wait(l->ctx, &h->send[i], err);
	return st;
}

/* Sends each rank's stripe to all others at once. All post what they receive of a piece before they wait for any of
 * it, so none keeps its piece from the others. */
static gradcomp_status gather_all(uncompressed *t, gradcomp_error *err)
{
	const direct *d = t->d;
	uint64_t pieces = (direct_longest(d) + d->piece - 1) / d->piece, posted = 0;
	gradcomp_status st = GRADCOMP_OK;
	t->piece = d->piece;
	for (uint64_t i = 0; !st && i < pieces; i++) {
		for (; !st && posted < pieces && posted < i + DIRECT_GATHERS; posted++)
			st = post_gather(t, posted, err);
		if (!st)
			st = finish_gather(t, i, err);
	}
	return st;
}

gradcomp_status direct_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	direct *d = instance;
	uncompressed t = {.d = d, .buf = buf};
	if (d->nranks == 1)
		return GRADCOMP_OK;
	blocks_given(d->offset, d->nranks, bytes, 1);
	return d->others ? gather_all(&t, err) : run(&t, 0, 1, err);
}

gradcomp_status direct_alltoall(void *instance, const void *in, const uint64_t *in_bytes, void *out,
                                const uint64_t *out_bytes, gradcomp_error *err)
{
	direct *d = instance;
	const direct_calls calls = {recv, send, arrive, sent, nothing};
	uint64_t *from_at = d->offset + d->nranks + 1;
	uncompressed t = {.d = d, .buf = out, .from = in, .from_at = from_at, .piece = SIZE_MAX};
	blocks_given(d->offset, d->nranks, out_bytes, 1);
	blocks_given(from_at, d->nranks, in_bytes, 1);
	if (in_bytes[d->rank] != out_bytes[d->rank])
		return d->host->fail(err, GRADCOMP_ERR_INVALID,
		                     "direct: rank %d of the group has %llu bytes for itself and expects %llu", d->rank,
		                     (unsigned long long)in_bytes[d->rank], (unsigned long long)out_bytes[d->rank]);
	if (in_bytes[d->rank])
		memcpy((char *)out + d->offset[d->rank], (const char *)in + from_at[d->rank], in_bytes[d->rank]);
	return d->nranks == 1 ? GRADCOMP_OK : direct_run(d, &calls, &t, 1, 0, 1, err);
}

gradcomp_status direct_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	direct *d = instance;
	return tree_broadcast(d->tree, buf, bytes, root, err);
}

gradcomp_status direct_barrier(void *instance, gradcomp_error *err)
{
	const direct *d = instance;
	return barrier_disseminate(d->links, err);
}
