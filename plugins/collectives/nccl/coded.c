/* Coded sums on device memory, in two steps as in 1-bit SGD and others' two-step
 * all-reduces: the bucket is cut into a stripe for each rank; every rank codes the
 * stripes of the others and sends them, adds what comes to its own, and codes the sum
 * once, which goes to all. The owner takes what its code decodes to, so that all
 * ranks end with the same bits.
 *
 * A rank's losses go to its residual: what its codes of others' stripes lost, and, in
 * units of the sum, what the code of its own complete stripe lost. A code has
 * exactly bound(n) bytes here (compressor.h, code_on), so both sides know lengths. */
#include "plugins/collectives/nccl/comm.h"

/* Numbers a stripe is a multiple of: codes work in blocks. */
#define GRAIN 1024u

/* How a buffer is cut: equal stripes, or what `counts` says. Codes lie `stride` apart. */
typedef struct cut {
	const gradcomp_codec *codec;
	uint64_t count, each;   /* floats */
	const uint64_t *counts; /* or NULL */
	size_t stride;
} cut;

typedef struct part {
	uint64_t from, n;
	size_t bytes; /* its code's */
} part;

static uint64_t bound(const gradcomp_codec *codec, uint64_t n)
{
	return n ? codec->bound(codec->ctx, n) : 0;
}

static cut cut_stripes(const gradcomp_codec *codec, uint64_t count, int P)
{
	uint64_t each = ((count + (uint64_t)P - 1) / (uint64_t)P + GRAIN - 1) / GRAIN * GRAIN;
	return (cut){.codec = codec, .count = count, .each = each, .stride = nccl_rounded(bound(codec, each))};
}

static cut cut_blocks(const gradcomp_codec *codec, const uint64_t *counts, int P)
{
	cut c = {.codec = codec, .counts = counts};
	for (int r = 0; r < P; r++)
		if (nccl_rounded(bound(codec, counts[r])) > c.stride)
			c.stride = nccl_rounded(bound(codec, counts[r]));
	return c;
}

static part part_at(const cut *c, int r)
{
	part p = {.from = 0};
	if (c->counts) {
		for (int k = 0; k < r; k++)
			p.from += c->counts[k];
		p.n = c->counts[r];
	} else {
		p.from = (uint64_t)r * c->each < c->count ? (uint64_t)r * c->each : c->count;
		p.n = c->count - p.from < c->each ? c->count - p.from : c->each;
	}
	p.bytes = bound(c->codec, p.n);
	return p;
}

static gradcomp_status code(nccl *n, const gradcomp_codec *codec, const float *x, uint64_t count, uint64_t counter,
                            void *out, size_t want, gradcomp_error *err)
{
	uint64_t bytes = 0;
	gradcomp_status st = codec->code(codec->ctx, x, count, counter, out, &bytes, err);
	if (!st && bytes != want)
		st = n->host->fail(err, GRADCOMP_ERR_INTERNAL,
		                   "nccl: a code of %llu bytes for %llu numbers; in CUDA memory it must have %zu",
		                   (unsigned long long)bytes, (unsigned long long)count, want);
	return st;
}

/* e = what the code of x lost, times `back`; with `take` x becomes what was coded. */
static gradcomp_status note(nccl *n, const gradcomp_codec *codec, const void *coded, size_t bytes, float *x, float *e,
                            uint64_t count, float back, int take, gradcomp_error *err)
{
	const gradcomp_operators *op = n->ops;
	gradcomp_status st = GRADCOMP_OK;
	if (e) {
		st = codec->decode(codec->ctx, coded, bytes, e, count, err);
		op->scale(n->queue, e, -1, count);
		op->add(n->queue, e, x, count);
		if (back != 1)
			op->scale(n->queue, e, back, count);
	}
	if (!st && take)
		st = codec->decode(codec->ctx, coded, bytes, x, count, err);
	return st;
}

/* Codes of all stripes to their owners; what comes lies one after another at `came`. */
static gradcomp_status scatter(nccl *n, const cut *c, const char *codes, char *came, gradcomp_error *err)
{
	int P = n->links->nranks, me = n->links->rank;
	part own = part_at(c, me);
	ncclResult_t rc = n->f.ncclGroupStart();
	for (int r = 0; nccl_going(rc) && r < P; r++) {
		part p = part_at(c, r);
		if (r != me && p.n)
			rc = n->f.ncclSend(codes + (size_t)r * c->stride, p.bytes, ncclUint8, r, n->comm, n->queue);
		if (nccl_going(rc) && r != me && own.n)
			rc = n->f.ncclRecv(came + (size_t)r * c->stride, own.bytes, ncclUint8, r, n->comm, n->queue);
	}
	rc = nccl_both(rc, n->f.ncclGroupEnd());
	return nccl_launched(n, rc, "send coded stripes to their ranks", err);
}

/* Sends every rank's code to all, and decodes it into buf; this rank's own is there already. */
static gradcomp_status spread(nccl *n, const cut *c, char *codes, float *buf, gradcomp_error *err)
{
	static const char what[] = "gather the coded parts";
	int P = n->links->nranks;
	ncclResult_t rc = n->f.ncclGroupStart();
	gradcomp_status st;
	for (int r = 0; nccl_going(rc) && r < P; r++) {
		char *at = codes + (size_t)r * c->stride;
		part p = part_at(c, r);
		if (p.n)
			rc = n->f.ncclBroadcast(at, at, p.bytes, ncclUint8, r, n->comm, n->queue);
	}
	rc = nccl_both(rc, n->f.ncclGroupEnd());
	st = nccl_launched(n, rc, what, err);
	for (int r = 0; !st && r < P; r++) {
		part p = part_at(c, r);
		if (p.n && r != n->links->rank)
			st = c->codec->decode(c->codec->ctx, codes + (size_t)r * c->stride, p.bytes, buf + p.from, p.n,
			                      err);
	}
	return st ? st : nccl_done(n, what, err);
}

/* This rank's part of the sum, scaled: every part is coded for its owner once. Codes are at the
 * beginning of scratch afterwards, `stride` apart. */
static gradcomp_status reduce(nccl *n, const cut *c, float *buf, double scale, uint64_t counter, float *residual,
                              gradcomp_error *err)
{
	int P = n->links->nranks, me = n->links->rank;
	size_t all = (size_t)P * c->stride;
	part own = part_at(c, me);
	float *x = buf + own.from;
	gradcomp_status st = nccl_reserve(n, 2 * all, err);
	char *codes = n->scratch, *came = n->scratch + all;
	for (int r = 0; !st && r < P; r++) {
		part p = part_at(c, r);
		char *at = codes + (size_t)r * c->stride;
		if (r == me || !p.n)
			continue;
		st = code(n, c->codec, buf + p.from, p.n, counter + (uint64_t)r, at, p.bytes, err);
		if (!st)
			st = note(n, c->codec, at, p.bytes, buf + p.from, residual ? residual + p.from : NULL, p.n, 1,
			          0, err);
	}
	if (!st)
		st = scatter(n, c, codes, came, err);
	for (int r = 0; !st && own.n && r < P; r++)
		if (r != me)
			st = c->codec->decode_add(c->codec->ctx, came + (size_t)r * c->stride, own.bytes, x, own.n,
			                          err);
	if (!st && own.n && scale != 1.0)
		st = n->ops->scale_as(n->queue, x, scale, own.n, GRADCOMP_F32);
	return st;
}

gradcomp_status nccl_coded_allreduce(nccl *n, float *buf, uint64_t count, double scale, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err)
{
	int P = n->links->nranks, me = n->links->rank;
	const cut c = cut_stripes(codec, count, P);
	part own = part_at(&c, me);
	float *x = buf + own.from;
	gradcomp_status st = reduce(n, &c, buf, scale, counter, residual, err);
	char *codes = n->scratch;
	if (!st && own.n)
		st = code(n, codec, x, own.n, counter + (uint64_t)P, codes + (size_t)me * c.stride, own.bytes, err);
	if (!st && own.n)
		st = note(n, codec, codes + (size_t)me * c.stride, own.bytes, x, residual ? residual + own.from : NULL,
		          own.n, (float)(1 / scale), 1, err);
	return st ? st : spread(n, &c, codes, buf, err);
}

gradcomp_status nccl_coded_reduce_scatter(nccl *n, float *buf, const uint64_t *counts, double scale,
                                          const gradcomp_codec *codec, uint64_t counter, float *residual,
                                          gradcomp_error *err)
{
	const cut c = cut_blocks(codec, counts, n->links->nranks);
	part own = part_at(&c, n->links->rank);
	gradcomp_status st = reduce(n, &c, buf, scale, counter, residual, err);
	if (!st && residual && own.n)
		n->ops->fill(n->queue, residual + own.from, 0, own.n);
	return st ? st : nccl_done(n, "reduce and scatter coded blocks", err);
}

gradcomp_status nccl_coded_allgather(nccl *n, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err)
{
	int P = n->links->nranks, me = n->links->rank;
	const cut c = cut_blocks(codec, counts, P);
	part own;
	gradcomp_status st = nccl_reserve(n, (size_t)P * c.stride, err);
	own = part_at(&c, me);
	char *at = n->scratch + (size_t)me * c.stride;
	if (!st && own.n)
		st = code(n, codec, buf + own.from, own.n, counter, at, own.bytes, err);
	if (!st && own.n)
		st = note(n, codec, at, own.bytes, buf + own.from, residual, own.n, 1, 1, err);
	return st ? st : spread(n, &c, n->scratch, buf, err);
}
