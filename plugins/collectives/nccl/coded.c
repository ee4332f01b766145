/* Coded sums on device memory, in two steps as in 1-bit SGD and others' two-step
 * all-reduces: the bucket is cut into a stripe for each rank; every rank codes the
 * stripes of the others and sends them, adds what comes to its own, and codes the sum
 * once, which goes to all. The owner takes what its code decodes to, so that all
 * ranks end with the same bits.
 *
 * A rank's losses go to its residual: what its codes of others' stripes lost, and, in
 * units of the sum, what the code of its own complete stripe lost. Where nobody keeps them a rank's own
 * part of its stripe is coded like the others', as in direct_coded.c. A code has
 * exactly bound(n) bytes here (compressor.h, code_on), so both sides know lengths. */
#include "plugins/collectives/nccl/comm.h"

#include "plugins/common/collectives/coding.h"

#include <stdbool.h>

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
	int rounds = coding_loses(c->codec, residual);
	part own = part_at(c, me);
	float *x = buf + own.from;
	gradcomp_status st = nccl_reserve(n, 2 * all, err);
	char *codes = n->scratch, *came = n->scratch + all;
	for (int r = 0; !st && r < P; r++) {
		part p = part_at(c, r);
		char *at = codes + (size_t)r * c->stride;
		if ((r == me && !rounds) || !p.n)
			continue;
		st = code(n, c->codec, buf + p.from, p.n, counter + (uint64_t)r, at, p.bytes, err);
		if (!st && r == me)
			st = c->codec->decode(c->codec->ctx, at, p.bytes, x, p.n, err);
		else if (!st)
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

/* A bucket whose code can be cut, and where everything is in scratch memory: the code of all numbers as values and
 * codes; what came from each rank, `stride` apart; the own stripe of the sum, coded; and all ranks' stripes of that, as
 * the code of all numbers again. */
typedef struct whole {
	nccl *n;
	const gradcomp_codec *codec;
	uint64_t count;
	uint64_t each; /* numbers of a stripe */
	gradcomp_code_layout of_all, of_each;
	size_t values, codes, came, stride, own, own_codes, sum_values, sum_codes, end;
} whole;

static gradcomp_code_layout layout_of(const gradcomp_codec *codec, uint64_t count)
{
	gradcomp_code_layout l = {.struct_size = sizeof l};
	codec->layout(codec->ctx, count, &l);
	return l;
}

static bool can_cut(const nccl *n, const gradcomp_codec *codec, uint64_t count)
{
	return count && n->links->nranks > 1 && GRADCOMP_HAS(codec, layout) && codec->layout &&
	       GRADCOMP_HAS(n->ops, codes_sum);
}

/* Returns of how many numbers a stripe is a multiple, so that its values and codes stand on NCCL's boundaries. */
static uint64_t stripe_grain(const gradcomp_codec *codec)
{
	const uint64_t grain = layout_of(codec, 0).grain;
	uint64_t g = GRAIN;
	while (g % grain)
		g += GRAIN;
	while (layout_of(codec, g).values % 16 || layout_of(codec, g).codes % 16)
		g *= 2;
	return g;
}

static size_t after(size_t *end, uint64_t bytes)
{
	const size_t at = *end;
	*end += nccl_rounded(bytes);
	return at;
}

static whole lay_out(nccl *n, const gradcomp_codec *codec, uint64_t count)
{
	const uint64_t P = (uint64_t)n->links->nranks, grain = stripe_grain(codec);
	whole w = {.n = n, .codec = codec, .count = count};
	w.each = ((count + P - 1) / P + grain - 1) / grain * grain;
	w.of_all = layout_of(codec, count);
	w.of_each = layout_of(codec, w.each);
	w.values = after(&w.end, w.of_all.values + w.of_all.codes);
	w.codes = w.of_all.values % 16 ? after(&w.end, w.of_all.codes) : w.values + w.of_all.values;
	w.stride = nccl_rounded(w.of_each.values) + nccl_rounded(w.of_each.codes);
	w.came = after(&w.end, P * w.stride);
	w.own = after(&w.end, w.of_each.values + w.of_each.codes);
	w.own_codes = after(&w.end, w.of_each.codes);
	w.sum_values = after(&w.end, P * w.of_each.values);
	w.sum_codes = after(&w.end, P * w.of_each.codes);
	return w;
}

static part stripe_at(const whole *w, int r)
{
	const uint64_t from = (uint64_t)r * w->each < w->count ? (uint64_t)r * w->each : w->count,
		       left = w->count - from;
	return (part){.from = from, .n = left < w->each ? left : w->each};
}

/* y = x + a times what `payload` of so many ranks says. */
static void add_up(const whole *w, const gradcomp_coded *parts, size_t count, const void *const *payload, size_t ranks,
                   float a)
{
	w->n->ops->codes_sum(w->n->queue, &w->of_all.coding, parts, count, payload, ranks, a, w->of_all.fault);
}

/* x = what the code of this rank's stripe, one of all numbers, says. */
static void round_own(const whole *w, float *x, const part *own)
{
	const gradcomp_code_layout before = layout_of(w->codec, own->from);
	const void *const payload[] = {w->n->scratch};
	const gradcomp_coded mine = {
		.y = x, .n = own->n, .values = w->values + before.values, .codes = w->codes + before.codes};
	add_up(w, &mine, 1, payload, 1, 1);
}

/* Every stripe goes to its rank. */
static gradcomp_status scatter_pieces(const whole *w, gradcomp_error *err)
{
	nccl *n = w->n;
	const int P = n->links->nranks, me = n->links->rank;
	const gradcomp_code_layout mine = layout_of(w->codec, stripe_at(w, me).n);
	ncclResult_t rc = n->f.ncclGroupStart();
	for (int r = 0; nccl_going(rc) && r < P; r++) {
		const part p = stripe_at(w, r);
		const gradcomp_code_layout to = layout_of(w->codec, p.n), before = layout_of(w->codec, p.from);
		char *came = n->scratch + w->came + (size_t)r * w->stride;
		if (r == me)
			continue;
		if (to.values)
			rc = n->f.ncclSend(n->scratch + w->values + before.values, to.values, ncclUint8, r, n->comm,
			                   n->queue);
		if (nccl_going(rc) && p.n)
			rc = n->f.ncclSend(n->scratch + w->codes + before.codes, to.codes, ncclUint8, r, n->comm,
			                   n->queue);
		if (nccl_going(rc) && mine.values)
			rc = n->f.ncclRecv(came, mine.values, ncclUint8, r, n->comm, n->queue);
		if (nccl_going(rc) && mine.codes)
			rc = n->f.ncclRecv(came + nccl_rounded(w->of_each.values), mine.codes, ncclUint8, r, n->comm,
			                   n->queue);
	}
	rc = nccl_both(rc, n->f.ncclGroupEnd());
	return nccl_launched(n, rc, "send coded stripes to their ranks", err);
}

/* x += what came from all other ranks, in their order; then the sum is scaled. */
static void add_stripes(const whole *w, float *x, uint64_t count, double scale)
{
	enum { AT_ONCE = 128 };
	const void *payload[AT_ONCE];
	const int P = w->n->links->nranks;
	gradcomp_coded stripe = {.y = x, .x = x, .n = count, .codes = nccl_rounded(w->of_each.values)};
	size_t k = 0;
	for (int r = 0; r < P; r++) {
		if (r != w->n->links->rank)
			payload[k++] = w->n->scratch + w->came + (size_t)r * w->stride;
		if (k == AT_ONCE || (r == P - 1 && k)) {
			if (r == P - 1 && scale != 1.0)
				stripe.times = (float)scale;
			add_up(w, &stripe, 1, payload, k, 1);
			k = 0;
		}
	}
}

/* The own stripe of the sum is coded, and its codes stand on NCCL's boundaries. */
static gradcomp_status code_stripe(const whole *w, const float *x, const part *own, uint64_t counter,
                                   gradcomp_error *err)
{
	nccl *n = w->n;
	const gradcomp_code_layout l = layout_of(w->codec, own->n);
	char *at = n->scratch + w->own;
	gradcomp_status st = code(n, w->codec, x, own->n, counter, at, l.values + l.codes, err);
	if (!st && l.values % 16)
		n->ops->copy(n->queue, n->scratch + w->own_codes, at + l.values, l.codes);
	return st;
}

/* e = what the codes of buf lost: of others' stripes that of all numbers, of this rank's that of the sum, times `back`. */
static void note_lost(const whole *w, const float *buf, const part *own, float *e, float back)
{
	const uint64_t ends[] = {0, own->from, own->from + own->n, w->count};
	const void *const payload[] = {w->n->scratch};
	gradcomp_coded parts[3];
	size_t some = 0;
	for (int k = 0; k < 3; k++) {
		const uint64_t from = ends[k], n = ends[k + 1] - from;
		const gradcomp_code_layout before = layout_of(w->codec, from);
		const bool mine = k == 1;
		gradcomp_coded p = {.y = e + from, .x = buf + from, .n = n};
		p.values = mine ? w->own : w->values + before.values;
		p.codes = mine ? w->own + layout_of(w->codec, n).values : w->codes + before.codes;
		if (mine && back != 1)
			p.times = back;
		if (n)
			parts[some++] = p;
	}
	add_up(w, parts, some, payload, 1, -1);
}

/* Gathers as much of a shorter stripe as of the others: nobody reads what it has not. */
static gradcomp_status gather_pieces(const whole *w, const part *own, gradcomp_error *err)
{
	nccl *n = w->n;
	const size_t values = layout_of(w->codec, own->n).values;
	const char *const v = n->scratch + w->own, *const c = values % 16 ? n->scratch + w->own_codes : v + values;
	ncclResult_t rc = n->f.ncclGroupStart();
	if (nccl_going(rc) && w->of_each.values)
		rc = n->f.ncclAllGather(v, n->scratch + w->sum_values, w->of_each.values, ncclUint8, n->comm, n->queue);
	if (nccl_going(rc))
		rc = n->f.ncclAllGather(c, n->scratch + w->sum_codes, w->of_each.codes, ncclUint8, n->comm, n->queue);
	rc = nccl_both(rc, n->f.ncclGroupEnd());
	return nccl_launched(n, rc, "gather the coded parts", err);
}

/* Launches as much whatever the number of ranks: all numbers are coded at once, all stripes that come are added up at
 * once, and the sums of all ranks are read at once. */
static gradcomp_status allreduce_whole(const whole *w, float *buf, double scale, uint64_t counter, float *residual,
                                       gradcomp_error *err)
{
	nccl *n = w->n;
	const part own = stripe_at(w, n->links->rank);
	float *x = buf + own.from;
	gradcomp_status st = nccl_reserve(n, w->end, err);
	const void *const payload[] = {n->scratch};
	const gradcomp_coded all = {.y = buf, .n = w->count, .values = w->sum_values, .codes = w->sum_codes};
	if (!st)
		st = code(n, w->codec, buf, w->count, counter, n->scratch + w->values,
		          w->of_all.values + w->of_all.codes, err);
	if (st)
		return st;
	if (w->codes != w->values + w->of_all.values)
		n->ops->copy(n->queue, n->scratch + w->codes, n->scratch + w->values + w->of_all.values,
		             w->of_all.codes);
	if (own.n && coding_loses(w->codec, residual))
		round_own(w, x, &own);
	st = scatter_pieces(w, err);
	if (!st && own.n)
		add_stripes(w, x, own.n, scale);
	if (!st && own.n)
		st = code_stripe(w, x, &own, counter + 1, err);
	if (!st)
		st = gather_pieces(w, &own, err);
	if (st)
		return st;
	/* This keeps none of NCCL's operations waiting. */
	if (residual)
		note_lost(w, buf, &own, residual, (float)(1 / scale));
	add_up(w, &all, 1, payload, 1, 1);
	return nccl_done(n, "gather the coded parts", err);
}

gradcomp_status nccl_coded_allreduce(nccl *n, float *buf, uint64_t count, double scale, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err)
{
	if (can_cut(n, codec, count)) {
		const whole w = lay_out(n, codec, count);
		return allreduce_whole(&w, buf, scale, counter, residual, err);
	}
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
