/* Reduce-scatter and all-gather in two levels, in host memory. */
#include "plugins/common/collectives/hier_blocks.h"

#include "plugins/common/collectives/blocks.h"
#include "gradcomp/sdk/growbuf.h"

#include <string.h>

/* Returns how much shard j and the blocks of a node have in common. */
static uint64_t common(const hier_blocks *b, int j, int node)
{
	uint64_t from = hier_begin(b->h, b->total, j), to = hier_begin(b->h, b->total, j + 1);
	uint64_t first = b->h->start[node], last = b->h->start[node + 1];
	from = from > first ? from : first;
	to = to < last ? to : last;
	return to > from ? to - from : 0;
}

const uint64_t *hier_blocks_by_node(const hier_blocks *b, int shard)
{
	for (int k = 0; k < b->h->nodes; k++)
		b->h->counts[k] = common(b, shard, k);
	return b->h->counts;
}

/* Counts what is in each shard from `first` on, one a rank, of this node's blocks, in bytes. */
static const uint64_t *by_shard(const hier_blocks *b, int first)
{
	for (int j = 0; j < b->h->locals; j++)
		b->h->counts[j] = first + j < b->h->shards ? common(b, first + j, b->h->node) * b->size : 0;
	return b->h->counts;
}

const uint64_t *hier_blocks_of_node(const hier_blocks *b)
{
	const hier *h = b->h;
	for (int k = 0; k < h->locals; k++)
		h->counts[k] = b->length[h->order[h->first[h->node] + k]] * b->size;
	return h->counts;
}

char *hier_blocks_here(const hier_blocks *b)
{
	return b->buf + b->h->start[b->h->node] * b->size;
}

/* Copies the blocks of indices [from, to), the first `before` bytes into our buffer, between
 * it and the caller's. */
static void copy(const hier_blocks *b, char *user, int from, int to, uint64_t before, int back)
{
	const hier *h = b->h;
	char *ours = b->buf + before;
	for (int k = from; user != b->buf && k < to; k++) {
		char *theirs = user + h->offset[h->order[k]] * b->size;
		uint64_t bytes = b->length[h->order[k]] * b->size;
		if (bytes)
			b->ops->copy(b->queue, back ? theirs : ours, back ? ours : theirs, bytes);
		ours += bytes;
	}
}

void hier_blocks_copy(const hier_blocks *b, char *user, int back)
{
	copy(b, user, 0, b->h->nranks, 0, back);
}

void hier_blocks_copy_own(const hier_blocks *b, char *user, int back)
{
	const hier *h = b->h;
	uint64_t before = h->start[h->node];
	for (int k = h->first[h->node]; k < h->rank_at; k++)
		before += b->length[h->order[k]];
	copy(b, user, h->rank_at, h->rank_at + 1, before * b->size, back);
}

hier_blocks hier_blocks_of(hier *h, const gradcomp_operators *ops, void *queue, void *buf, const uint64_t *length,
                           size_t size)
{
	hier_blocks b = {.h = h, .ops = ops, .queue = queue, .length = length, .size = size, .buf = buf};
	blocks_given(h->offset, h->nranks, length, 1);
	b.total = h->offset[h->nranks];
	for (int k = 0; k < h->nodes; k++) {
		h->start[k + 1] = h->start[k];
		for (int at = h->first[k]; at < h->first[k + 1]; at++)
			h->start[k + 1] += length[h->order[at]];
	}
	return b;
}

/* times: for so many buffers in the order of nodes. */
static gradcomp_status prepare(hier_blocks *b, hier *h, void *buf, const uint64_t *length, size_t size, int times,
                               gradcomp_error *err)
{
	*b = hier_blocks_of(h, h->host->operators, NULL, buf, length, size);
	if (h->sorted)
		return GRADCOMP_OK;
	gradcomp_status st = sdk_growbuf_reserve(h->host, &h->scratch, &h->scratch_bytes,
	                                         (uint64_t)times * b->total * size + 1, "hier", err);
	b->buf = h->scratch;
	return st;
}

/* Every rank's own is in place. Among the holders of a shard it goes under `codec`, or NULL: as it is. */
static gradcomp_status gather(const hier_blocks *b, const gradcomp_codec *codec, uint64_t counter, gradcomp_error *err)
{
	hier *h = b->h;
	gradcomp_status st = hier_gather(h, hier_blocks_here(b), hier_blocks_of_node(b), err);
	for (int i = 0; !st && i < h->held && h->nodes > 1; i++) {
		const hier_part *p = hier_part_at(h, i);
		char *shard = b->buf + hier_begin(h, b->total, p->shard) * b->size;
		const uint64_t *counts = hier_blocks_by_node(b, p->shard);
		st = codec ? ring_coded_allgather(p->outer, (float *)(void *)shard, counts, codec,
		                                  hier_counter(h, counter, i), NULL, err)
		           : ring_allgather(p->outer, shard, counts, err);
	}
	return st ? st : hier_hand_out(h, b->buf, b->total, b->size, err);
}

gradcomp_status hier_blocks_to_owners(const hier_blocks *b,
                                      gradcomp_status (*gather)(void *, void *, const uint64_t *, gradcomp_error *),
                                      void *inside, gradcomp_error *err)
{
	const hier *h = b->h;
	gradcomp_status st = GRADCOMP_OK;
	char *at = hier_blocks_here(b);
	for (int first = 0; !st && first < h->shards; first += h->locals) {
		const uint64_t *counts = by_shard(b, first);
		st = gather(inside, at, counts, err);
		for (int k = 0; k < h->locals; k++)
			at += counts[k];
	}
	return st;
}

gradcomp_status hier_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	hier *h = instance;
	hier_blocks b;
	gradcomp_status st = prepare(&b, h, buf, bytes, 1, 1, err);
	if (st)
		return st;
	hier_blocks_copy_own(&b, buf, 0);
	st = gather(&b, NULL, 0, err);
	if (!st)
		hier_blocks_copy(&b, buf, 1);
	return st;
}

/* A block is coded in parts, by the holders of the shards it is in, who need not be its owner: what
 * was lost of it the owner sees in what comes back. */
gradcomp_status hier_coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err)
{
	hier *h = instance;
	hier_blocks b;
	gradcomp_status st = prepare(&b, h, buf, counts, sizeof *buf, 1, err);
	if (st)
		return st;
	const float *own = buf + h->offset[h->links->rank];
	uint64_t n = residual ? counts[h->links->rank] : 0;
	hier_blocks_copy_own(&b, (char *)buf, 0);
	if (n)
		memcpy(residual, own, n * sizeof *own);
	st = gather(&b, codec, counter, err);
	if (!st)
		hier_blocks_copy(&b, (char *)buf, 1);
	for (uint64_t i = 0; !st && i < n; i++)
		residual[i] -= own[i];
	return st;
}

gradcomp_status hier_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                    gradcomp_op op, double scale, gradcomp_error *err)
{
	hier *h = instance;
	size_t size = gradcomp_dtype_bytes(dtype);
	hier_blocks b;
	gradcomp_status st = prepare(&b, h, buf, counts, size, 1, err);
	if (st)
		return st;
	hier_blocks_copy(&b, buf, 0);
	st = hier_bring(h, b.buf, b.total, dtype, op, 1.0, err);
	for (int i = 0; !st && i < h->held; i++) {
		const hier_part *p = hier_part_at(h, i);
		st = ring_reduce_scatter(p->outer, b.buf + hier_begin(h, b.total, p->shard) * size,
		                         hier_blocks_by_node(&b, p->shard), dtype, op, scale, err);
	}
	if (!st)
		st = hier_blocks_to_owners(&b, ring_allgather, h->inner, err);
	if (!st)
		hier_blocks_copy_own(&b, buf, 1);
	return st;
}

gradcomp_status hier_coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                          const gradcomp_codec *codec, uint64_t counter, float *residual,
                                          gradcomp_error *err)
{
	hier *h = instance;
	hier_blocks b;
	gradcomp_status st = prepare(&b, h, buf, counts, sizeof *buf, residual ? 2 : 1, err);
	if (st)
		return st;
	hier_blocks lost = b;
	lost.buf = h->sorted ? (char *)residual : b.buf + b.total * sizeof *buf;
	if (residual)
		h->host->operators->fill(NULL, (float *)(void *)lost.buf, 0, b.total);
	hier_blocks_copy(&b, (char *)buf, 0);
	st = hier_bring(h, b.buf, b.total, GRADCOMP_F32, GRADCOMP_SUM, h->nodes > 1 ? 1.0 : scale, err);
	for (int i = 0; !st && i < h->held && h->nodes > 1; i++) {
		const hier_part *p = hier_part_at(h, i);
		uint64_t begin = hier_begin(h, b.total, p->shard);
		st = ring_coded_reduce_scatter(p->outer, (float *)(void *)b.buf + begin,
		                               hier_blocks_by_node(&b, p->shard), scale, codec,
		                               hier_counter(h, counter, i),
		                               residual ? (float *)(void *)lost.buf + begin : NULL, err);
	}
	if (!st)
		st = hier_blocks_to_owners(&b, ring_allgather, h->inner, err);
	if (st)
		return st;
	hier_blocks_copy_own(&b, (char *)buf, 1);
	if (residual)
		hier_blocks_copy(&lost, (char *)residual, 1);
	return GRADCOMP_OK;
}
