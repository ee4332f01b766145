/* Two levels: the instance, and what goes by shards. */
#include "plugins/common/collectives/hier.h"

#include "plugins/common/collectives/barrier.h"

/* Fills order, first, shards, and this rank's index. */
static void find_nodes(hier *h, int ranks_per_node)
{
	h->shards = hier_nodes(h->links, ranks_per_node, h->nodes, h->order, h->first);
	h->sorted = 1;
	for (int at = 0; at < h->nranks; at++) {
		h->sorted &= h->order[at] == at;
		if (h->order[at] == h->links->rank)
			h->rank_at = at;
	}
	while (h->first[h->node + 1] <= h->rank_at)
		h->node++;
	h->local = h->rank_at - h->first[h->node];
	h->locals = h->first[h->node + 1] - h->first[h->node];
}

static gradcomp_status open_level(hier *h, const int *ranks, int n, int me, size_t chunk, sublinks **links, ring **out,
                                  gradcomp_error *err)
{
	const ring_options o = {.chunk = chunk, .small = HIER_SMALL};
	gradcomp_status st = sublinks_create(h->host, h->links, ranks, n, me, links, err);
	return st ? st : ring_create(h->host, &(*links)->links, &o, out, err);
}

gradcomp_status hier_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, int ranks_per_node,
                            hier **out, gradcomp_error *err)
{
	size_t P = (size_t)links->nranks;
	int nodes = ranks_per_node ? (links->nranks - 1) / ranks_per_node + 1 : links->nnodes;
	hier *h = host->alloc(sizeof *h + (2 * (P + 1) + (size_t)nodes + 1) * sizeof *h->counts +
	                      (P + 2 * (size_t)nodes + 1) * sizeof *h->order);
	int32_t *count = host->alloc((size_t)links->nnodes * sizeof *count);
	gradcomp_status st;
	if (!h || !count) {
		host->release(count);
		host->release(h);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "hier: no memory for an instance of %d ranks", links->nranks);
	}
	h->host = host;
	h->links = links;
	h->nranks = links->nranks;
	h->nodes = nodes;
	h->counts = (uint64_t *)(void *)(h + 1);
	h->offset = h->counts + P + 1;
	h->start = h->offset + P + 1;
	h->order = (int *)(void *)(h->start + nodes + 1);
	h->first = h->order + P;
	h->holders = h->first + nodes + 1;
	find_nodes(h, ranks_per_node);
	hier_scan(&h->shape, links, h->order, h->first, nodes, h->shards, chunk, count);
	host->release(count);
	st = open_level(h, h->order + h->first[h->node], h->locals, h->local, chunk, &h->inside, &h->inner, err);
	if (!st && h->local < h->shards) {
		for (int k = 0; k < nodes; k++)
			h->holders[k] = h->order[h->first[k] + h->local];
		st = open_level(h, h->holders, nodes, h->node, chunk, &h->across, &h->outer, err);
	}
	if (st)
		hier_destroy(h);
	else
		*out = h;
	return st;
}

void hier_destroy(void *instance)
{
	hier *h = instance;
	if (!h)
		return;
	const gradcomp_host *host = h->host;
	ring_destroy(h->inner);
	ring_destroy(h->outer);
	sublinks_destroy(h->inside);
	sublinks_destroy(h->across);
	host->release(h->scratch);
	host->release(h);
}

static const uint64_t *shard_counts(hier *h, uint64_t total, size_t size)
{
	for (int j = 0; j < h->locals; j++)
		h->counts[j] = (hier_begin(h, total, j + 1) - hier_begin(h, total, j)) * size;
	return h->counts;
}

gradcomp_status hier_bring(hier *h, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                           gradcomp_error *err)
{
	return ring_reduce_scatter(h->inner, buf, shard_counts(h, count, 1), dtype, op, scale, err);
}

gradcomp_status hier_hand_out(hier *h, void *buf, uint64_t count, size_t size, gradcomp_error *err)
{
	return ring_allgather(h->inner, buf, shard_counts(h, count, size), err);
}

gradcomp_status hier_shard(void *instance, uint64_t numel, gradcomp_shard *out, gradcomp_error *err)
{
	const hier *h = instance;
	(void)err;
	out->rank = h->outer ? h->node : -1;
	out->nranks = h->nodes;
	out->begin = hier_begin(h, numel, h->local);
	out->numel = hier_begin(h, numel, h->local + 1) - out->begin;
	return GRADCOMP_OK;
}

gradcomp_status hier_local_reduce_scatter(void *instance, float *buf, uint64_t numel, double scale, gradcomp_error *err)
{
	return hier_bring(instance, buf, numel, GRADCOMP_F32, GRADCOMP_SUM, scale, err);
}

gradcomp_status hier_shard_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                     double scale, gradcomp_error *err)
{
	hier *h = instance;
	return ring_allreduce(h->outer, buf, count, dtype, op, scale, err);
}

gradcomp_status hier_shard_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	hier *h = instance;
	return ring_allgather(h->outer, buf, bytes, err);
}

gradcomp_status hier_local_allgather(void *instance, float *buf, uint64_t numel, gradcomp_error *err)
{
	return hier_hand_out(instance, buf, numel, sizeof(float), err);
}

gradcomp_status hier_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                               double scale, gradcomp_error *err)
{
	hier *h = instance;
	size_t size = gradcomp_dtype_bytes(dtype);
	uint64_t begin = hier_begin(h, count, h->local), n = hier_begin(h, count, h->local + 1) - begin;
	gradcomp_status st = hier_bring(h, buf, count, dtype, op, h->nodes > 1 ? 1.0 : scale, err);
	if (!st && h->outer && h->nodes > 1)
		st = ring_allreduce(h->outer, (char *)buf + begin * size, n, dtype, op, scale, err);
	return st ? st : hier_hand_out(h, buf, count, size, err);
}

/* Within a node nothing is coded. */
gradcomp_status hier_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                     const gradcomp_codec *codec, uint64_t counter, float *residual,
                                     gradcomp_error *err)
{
	hier *h = instance;
	uint64_t begin = hier_begin(h, count, h->local), n = hier_begin(h, count, h->local + 1) - begin;
	gradcomp_status st = hier_bring(h, buf, count, GRADCOMP_F32, GRADCOMP_SUM, h->nodes > 1 ? 1.0 : scale, err);
	if (!st && residual)
		h->host->operators->fill(NULL, residual, 0, count);
	if (!st && h->outer && h->nodes > 1)
		st = ring_coded_allreduce(h->outer, buf + begin, n, scale, codec, counter, residual ? residual + begin : NULL,
		                          err);
	return st ? st : hier_hand_out(h, buf, count, sizeof(float), err);
}

/* Within the root's node; every shard by its holders to the other nodes; within those. */
gradcomp_status hier_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	hier *h = instance;
	uint64_t begin = hier_begin(h, bytes, h->local), n = hier_begin(h, bytes, h->local + 1) - begin;
	gradcomp_status st = GRADCOMP_OK;
	int at = 0, from = 0;
	while (h->order[at] != root)
		at++;
	while (h->first[from + 1] <= at)
		from++;
	if (h->node == from)
		st = ring_broadcast(h->inner, buf, bytes, at - h->first[from], err);
	if (!st && h->outer)
		st = ring_broadcast(h->outer, (char *)buf + begin, n, from, err);
	return st || h->node == from ? st : hier_hand_out(h, buf, bytes, 1, err);
}

gradcomp_status hier_barrier(void *instance, gradcomp_error *err)
{
	const hier *h = instance;
	gradcomp_status st = barrier_disseminate(&h->inside->links, err);
	if (!st && h->local == 0)
		st = barrier_disseminate(&h->across->links, err);
	return st ? st : barrier_disseminate(&h->inside->links, err);
}
