/* Two levels, of a block a rank: reduce-scatter and all-gather.
 *
 * Blocks are taken node by node, so that a node's are one run; where ranks of a node are
 * not neighbours they are copied into that order. A shard is cut where nodes meet: what
 * of it belongs to a node travels to, or from, that node's holder of the shard. */
#include "hier.h"

#include "room.h"

#include <string.h>

typedef struct blocks {
	hier *h;
	const uint64_t *length; /* of each rank's block, in the group's order */
	size_t size;            /* of what they are lengths of */
	uint64_t total;
	char *buf; /* in the order of nodes */
} blocks;

/* Where the blocks of the ranks up to place `at` of the order end. */
static uint64_t until(const blocks *b, int at)
{
	uint64_t n = 0;
	for (int k = 0; k < at; k++)
		n += b->length[b->h->order[k]];
	return n;
}

/* What shard j and the blocks of a node have in common, from *begin on. */
static uint64_t common(const blocks *b, int j, int node, uint64_t *begin)
{
	uint64_t from = hier_begin(b->h, b->total, j), to = hier_begin(b->h, b->total, j + 1);
	uint64_t first = until(b, b->h->first[node]), last = until(b, b->h->first[node + 1]);
	*begin = from > first ? from : first;
	to = to < last ? to : last;
	return to > *begin ? to - *begin : 0;
}

/* Of this rank's shard, what belongs to each node. */
static const uint64_t *by_node(const blocks *b, size_t size)
{
	uint64_t begin;
	for (int k = 0; k < b->h->nodes; k++)
		b->h->counts[k] = common(b, b->h->local, k, &begin) * size;
	return b->h->counts;
}

/* Of this node's blocks, what is in each shard. */
static const uint64_t *by_shard(const blocks *b)
{
	uint64_t begin;
	for (int j = 0; j < b->h->locals; j++)
		b->h->counts[j] = j < b->h->shards ? common(b, j, b->h->node, &begin) * b->size : 0;
	return b->h->counts;
}

static const uint64_t *of_node(const blocks *b)
{
	const hier *h = b->h;
	for (int k = 0; k < h->locals; k++)
		h->counts[k] = b->length[h->order[h->first[h->node] + k]] * b->size;
	return h->counts;
}

/* Copies the blocks of places [from, to) between the caller's buffer and ours. */
static void copy(const blocks *b, char *user, int from, int to, int back)
{
	const hier *h = b->h;
	uint64_t at = until(b, from) * b->size;
	for (int k = from; user != b->buf && k < to; k++) {
		uint64_t place = 0, bytes = b->length[h->order[k]] * b->size;
		for (int r = 0; r < h->order[k]; r++)
			place += b->length[r] * b->size;
		if (bytes && back)
			memcpy(user + place, b->buf + at, bytes);
		else if (bytes)
			memcpy(b->buf + at, user + place, bytes);
		at += bytes;
	}
}

static gradcomp_status begin(blocks *b, hier *h, void *buf, const uint64_t *length, size_t size, gradcomp_error *err)
{
	*b = (blocks){.h = h, .length = length, .size = size, .buf = buf};
	b->total = until(b, h->nranks);
	if (h->sorted)
		return GRADCOMP_OK;
	gradcomp_status st = room_grow(h->host, &h->room, &h->room_bytes, b->total * size + 1, "hier", err);
	b->buf = h->room;
	return st;
}

gradcomp_status hier_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	hier *h = instance;
	blocks b;
	gradcomp_status st = begin(&b, h, buf, bytes, 1, err);
	if (st)
		return st;
	copy(&b, buf, h->rank_at, h->rank_at + 1, 0);
	st = ring_allgather(h->inner, b.buf + until(&b, h->first[h->node]), of_node(&b), err);
	if (!st && h->outer)
		st = ring_allgather(h->outer, b.buf + hier_begin(h, b.total, h->local), by_node(&b, 1), err);
	if (!st)
		st = hier_hand_out(h, b.buf, b.total, 1, err);
	if (!st)
		copy(&b, buf, 0, h->nranks, 1);
	return st;
}

gradcomp_status hier_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                    gradcomp_op op, double scale, gradcomp_error *err)
{
	hier *h = instance;
	size_t size = gradcomp_dtype_bytes(dtype);
	blocks b;
	gradcomp_status st = begin(&b, h, buf, counts, size, err);
	if (st)
		return st;
	copy(&b, buf, 0, h->nranks, 0);
	st = hier_bring(h, b.buf, b.total, dtype, op, 1.0, err);
	if (!st && h->outer)
		st = ring_reduce_scatter(h->outer, b.buf + hier_begin(h, b.total, h->local) * size, by_node(&b, 1), dtype, op,
		                         scale, err);
	if (!st)
		st = ring_allgather(h->inner, b.buf + until(&b, h->first[h->node]) * size, by_shard(&b), err);
	if (!st)
		copy(&b, buf, h->rank_at, h->rank_at + 1, 1);
	return st;
}
