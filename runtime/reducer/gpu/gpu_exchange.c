/* The EXCHANGE task of a bucket in GPU memory. A collective that takes device memory
 * gets it after the compute stream has made it; for another, payloads are brought into
 * pinned host memory, exchanged there as any, and what came is brought back. */
#include "reducer/gpu/gpu.h"
#include "reducer/exchange/exchange.h"

static gradcomp_status settle(const gpu *g, const char *why, gradcomp_error *err)
{
	if (!why)
		why = g->d->record(g->exchanged, g->exchange);
	if (!why)
		why = g->d->wait(g->exchanged);
	return gpu_check(why, "a payload could not be moved", err);
}

/* Where what a round sends is, and how much; what comes back takes as much, or with
 * gathered payloads all of `gathered`. */
static gradcomp_status through_host(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	const gradcomp_round *rd = &b->plan.rounds[round];
	workspace *mirror = b->workspace->mirror;
	bucket view = *b;
	int gathers = rd->pattern == GRADCOMP_GATHERED, in_place = !!(rd->flags & GRADCOMP_ROUND_IN_PLACE);
	int fixed = gathers && rd->flags & GRADCOMP_ROUND_FIXED;
	size_t stride = payload_fixed_stride(eng, rd->bound), size = gradcomp_dtype_bytes(rd->dtype);
	void *own = in_place ? b->work.flat : b->own.data;
	size_t bytes = in_place ? b->pub.numel * sizeof(float) : gathers ? b->own.bytes : rd->count * size;
	scratch_buf *buf = fixed ? &mirror->gathered : &mirror->own;
	gradcomp_status st = scratch_buf_grow(buf, fixed ? stride * (size_t)eng->layout.nranks : bytes + SUMMED_MARKS * size, err);
	if (st)
		return st;
	view.workspace = mirror;
	view.own.data = fixed ? (char *)buf->p + (size_t)eng->layout.rank * stride + PAYLOAD_HEAD : buf->p;
	if (in_place)
		view.work.flat = buf->p;
	/* Of a gradient that is not finite nothing was encoded. */
	st = settle(g, b->local_bad && !in_place ? NULL : g->d->copy(g->exchange, view.own.data, own, bytes), err);
	if (!st)
		st = exchange_run(eng, &view, round, err);
	b->bad = view.bad;
	if (st || b->bad)
		return st;
	if (!gathers) {
		b->own = (gradcomp_payload){own, bytes, bytes};
		return settle(g, g->d->copy(g->exchange, own, buf->p, bytes), err);
	}
	size_t all = 0;
	for (int p = 0; p < eng->layout.nranks; p++) {
		size_t end = (size_t)((char *)b->parts[p].data - (char *)mirror->gathered.p) + b->parts[p].bytes;
		all = end > all ? end : all;
	}
	st = scratch_buf_grow(&b->workspace->gathered, all, err);
	for (int p = 0; !st && p < eng->layout.nranks; p++)
		b->parts[p].data =
			(char *)b->workspace->gathered.p + ((char *)b->parts[p].data - (char *)mirror->gathered.p);
	return st ? st : settle(g, g->d->copy(g->exchange, b->workspace->gathered.p, mirror->gathered.p, all), err);
}

gradcomp_status gpu_exchange(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	gradcomp_status st = gpu_check(g->d->follow(g->exchange, g->passed[b->pub.index]), "a bucket's work", err);
	if (st)
		return st;
	if (!g->direct)
		return through_host(eng, b, round, err);
	st = exchange_run(eng, b, round, err);
	const char *why = st ? NULL : g->d->record(g->exchanged, g->exchange);
	if (!st && !why)
		why = g->d->follow(g->compute, g->exchanged);
	return st ? st : gpu_check(why, "a bucket's work", err);
}
