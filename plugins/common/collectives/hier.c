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
	h->held = h->local < h->shards ? (h->shards - h->local - 1) / h->locals + 1 : 0;
}

static gradcomp_status open_level(hier *h, const int *ranks, int n, int me, size_t chunk, sublinks **links, ring **out,
                                  gradcomp_error *err)
{
	const ring_options o = {.chunk = chunk, .small = HIER_SMALL};
	gradcomp_status st = sublinks_create(h->host, h->links, ranks, n, me, links, err);
	return st ? st : ring_create(h->host, &(*links)->links, &o, out, err);
}

/* Opens this rank's shard with that index, and its holders. */
static gradcomp_status open_part(hier *h, int index, size_t chunk, gradcomp_error *err)
{
	hier_part *p = index ? &h->more[index - 1] : &h->own;
	p->of = h;
	p->shard = h->local + index * h->locals;
	p->holders = h->holders + (size_t)index * (size_t)h->nodes;
	for (int k = 0; k < h->nodes; k++)
		p->holders[k] = h->order[h->first[k] + p->shard % (h->first[k + 1] - h->first[k])];
	return open_level(h, p->holders, h->nodes, h->node, chunk, &p->across, &p->outer, err);
}

static gradcomp_status open_parts(hier *h, size_t chunk, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	size_t n = (size_t)h->held;
	h->own.of = h;
	h->own.shard = h->local;
	if (!n)
		return GRADCOMP_OK;
	h->holders = h->host->alloc(n * (size_t)h->nodes * sizeof *h->holders);
	h->more = n > 1 ? h->host->alloc((n - 1) * sizeof *h->more) : NULL;
	if (!h->holders || (n > 1 && !h->more))
		return h->host->fail(err, GRADCOMP_ERR_NOMEM, "hier: no memory for the holders of %d shards", h->held);
	for (int i = 0; !st && i < h->held; i++)
		st = open_part(h, i, chunk, err);
	return st;
}

gradcomp_status hier_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, int ranks_per_node,
                            hier **out, gradcomp_error *err)
{
	size_t P = (size_t)links->nranks;
	int nodes = ranks_per_node ? (links->nranks - 1) / ranks_per_node + 1 : links->nnodes;
	hier *h = host->alloc(sizeof *h + (2 * (P + 1) + (size_t)nodes + 1) * sizeof *h->counts +
	                      (P + (size_t)nodes + 1) * sizeof *h->order);
	int32_t *count = host->alloc((size_t)links->nnodes * sizeof *count);
	gradcomp_status st;
	if (!h || !count) {
		host->release(count);
		host->release(h);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "hier: no memory for an instance of %d ranks",
		                  links->nranks);
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
	find_nodes(h, ranks_per_node);
	hier_scan(&h->shape, links, h->order, h->first, nodes, h->shards, chunk, count);
	host->release(count);
	st = open_level(h, h->order + h->first[h->node], h->locals, h->local, chunk, &h->inside, &h->inner, err);
	if (!st && direct_has_one_copy(&h->inside->links))
		st = direct_create(host, &h->inside->links, chunk, &h->straight, err);
	if (!st)
		st = open_parts(h, chunk, err);
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
	direct_destroy(h->straight);
	ring_destroy(h->inner);
	sublinks_destroy(h->inside);
	for (int i = 0; i < h->held && (!i || h->more); i++) {
		ring_destroy(hier_part_at(h, i)->outer);
		sublinks_destroy(hier_part_at(h, i)->across);
	}
	host->release(h->more);
	host->release(h->holders);
	host->release(h->scratch);
	host->release(h);
}

/* Counts the shards from `first` on, one a rank of the node: into counts[]; returns how much they are. */
static uint64_t shard_counts(hier *h, int first, uint64_t total, size_t size)
{
	uint64_t all = 0;
	for (int j = 0; j < h->locals; j++) {
		h->counts[j] = (hier_begin(h, total, first + j + 1) - hier_begin(h, total, first + j)) * size;
		all += h->counts[j];
	}
	return all;
}

gradcomp_status hier_bring(hier *h, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                           gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	char *at = buf;
	for (int first = 0; !st && first < h->shards; first += h->locals) {
		uint64_t n = shard_counts(h, first, count, 1);
		st = ring_reduce_scatter(h->inner, at, h->counts, dtype, op, scale, err);
		at += n * gradcomp_dtype_bytes(dtype);
	}
	return st;
}

gradcomp_status hier_gather(hier *h, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	uint64_t all = 0;
	for (int j = 0; j < h->locals; j++)
		all += bytes[j];
	return hier_one_copy(h, all) ? direct_allgather(h->straight, buf, bytes, err)
	                             : ring_allgather(h->inner, buf, bytes, err);
}

gradcomp_status hier_hand_out(hier *h, void *buf, uint64_t count, size_t size, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	char *at = buf;
	for (int first = 0; !st && first < h->shards; first += h->locals) {
		uint64_t bytes = shard_counts(h, first, count, size);
		st = hier_gather(h, at, h->counts, err);
		at += bytes;
	}
	return st;
}

/* Where it begins; in *n how long it is. */
static uint64_t extent(const hier_part *p, uint64_t total, uint64_t *n)
{
	uint64_t begin = hier_begin(p->of, total, p->shard);
	*n = hier_begin(p->of, total, p->shard + 1) - begin;
	return begin;
}

gradcomp_status hier_shard_at(void *instance, uint32_t index, uint64_t numel, gradcomp_shard *out, void **holders,
                              gradcomp_error *err)
{
	const hier *h = instance;
	int is = index < (uint32_t)h->held;
	const hier_part *p = is ? hier_part_at(h, (int)index) : &h->own;
	(void)err;
	out->rank = is ? h->node : -1;
	out->nranks = h->nodes;
	out->begin = is ? extent(p, numel, &out->numel) : numel;
	out->numel = is ? out->numel : 0;
	*holders = (void *)(uintptr_t)p;
	return GRADCOMP_OK;
}

gradcomp_status hier_shard(void *instance, uint64_t numel, gradcomp_shard *out, gradcomp_error *err)
{
	void *holders;
	return hier_shard_at(instance, 0, numel, out, &holders, err);
}

gradcomp_status hier_local_reduce_scatter(void *instance, float *buf, uint64_t numel, double scale, gradcomp_error *err)
{
	return hier_bring(instance, buf, numel, GRADCOMP_F32, GRADCOMP_SUM, scale, err);
}

gradcomp_status hier_shard_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                     double scale, gradcomp_error *err)
{
	const hier_part *p = instance;
	return ring_allreduce(p->outer, buf, count, dtype, op, scale, err);
}

gradcomp_status hier_shard_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	const hier_part *p = instance;
	return ring_allgather(p->outer, buf, bytes, err);
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
	gradcomp_status st = hier_bring(h, buf, count, dtype, op, h->nodes > 1 ? 1.0 : scale, err);
	for (int i = 0; !st && i < h->held && h->nodes > 1; i++) {
		const hier_part *p = hier_part_at(h, i);
		uint64_t n, begin = extent(p, count, &n);
		st = ring_allreduce(p->outer, (char *)buf + begin * size, n, dtype, op, scale, err);
	}
	return st ? st : hier_hand_out(h, buf, count, size, err);
}

/* Within a node nothing is coded. */
gradcomp_status hier_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                     const gradcomp_codec *codec, uint64_t counter, float *residual,
                                     gradcomp_error *err)
{
	hier *h = instance;
	gradcomp_status st = hier_bring(h, buf, count, GRADCOMP_F32, GRADCOMP_SUM, h->nodes > 1 ? 1.0 : scale, err);
	if (!st && residual)
		h->host->operators->fill(NULL, residual, 0, count);
	for (int i = 0; !st && i < h->held && h->nodes > 1; i++) {
		const hier_part *p = hier_part_at(h, i);
		uint64_t n, begin = extent(p, count, &n);
		st = ring_coded_allreduce(p->outer, buf + begin, n, scale, codec, hier_counter(h, counter, i),
		                          residual ? residual + begin : NULL, err);
	}
	return st ? st : hier_hand_out(h, buf, count, sizeof(float), err);
}

/* Broadcasts within the root's node; then every shard by its holders to the other nodes; then within those. */
gradcomp_status hier_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	hier *h = instance;
	gradcomp_status st = GRADCOMP_OK;
	int at = 0, from = 0;
	while (h->order[at] != root)
		at++;
	while (h->first[from + 1] <= at)
		from++;
	if (h->node == from)
		st = ring_broadcast(h->inner, buf, bytes, at - h->first[from], err);
	for (int i = 0; !st && i < h->held; i++) {
		const hier_part *p = hier_part_at(h, i);
		uint64_t n, begin = extent(p, bytes, &n);
		st = ring_broadcast(p->outer, (char *)buf + begin, n, from, err);
	}
	return st || h->node == from ? st : hier_hand_out(h, buf, bytes, 1, err);
}

gradcomp_status hier_barrier(void *instance, gradcomp_error *err)
{
	const hier *h = instance;
	gradcomp_status st = barrier_disseminate(&h->inside->links, err);
	if (!st && h->local == 0)
		st = barrier_disseminate(&h->own.across->links, err);
	return st ? st : barrier_disseminate(&h->inside->links, err);
}
