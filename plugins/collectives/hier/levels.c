#include "plugins/collectives/hier/levels.h"

#include "plugins/collectives/nccl/comm.h"
#include "plugins/common/collectives/hier_blocks.h"

/* One of this rank's shards. */
typedef struct level_part {
	struct levels *of;
	hier_part *shard;
	nccl across; /* among its holders */
} level_part;

typedef struct levels {
	level_part own; /* the first, so that a levels is one, too; there also when this rank holds nothing */
	hier *hier;
	ring *ring;  /* for meeting */
	nccl world;  /* all ranks */
	nccl inside; /* those of the node */
	level_part *more;
	cudaEvent_t latest; /* see nccl.latest */
	int ready;
} levels;

static level_part *part_at(levels *l, int i)
{
	return i ? &l->more[i - 1] : &l->own;
}

static nccl *member(levels *l, int i)
{
	return i == 0 ? &l->world : i == 1 ? &l->inside : &part_at(l, i - 2)->across;
}

/* Returns how many of them are in use, also when l->more could not be had. */
static int members(const levels *l)
{
	int held = l->hier ? l->hier->held : 0;
	return 2 + (held > 1 && !l->more ? 1 : held);
}

static void begin(nccl *n, const gradcomp_host *host, const gradcomp_links *links, double timeout)
{
	n->host = host;
	n->links = links;
	n->timeout = timeout;
}

void levels_destroy(void *instance)
{
	levels *l = instance;
	if (!l)
		return;
	const gradcomp_host *host = l->world.host;
	for (int i = members(l); i-- > 0;)
		nccl_close(member(l, i));
	if (l->latest)
		cudaEventDestroy(l->latest);
	ring_destroy(l->ring);
	hier_destroy(l->hier);
	host->release(l->more);
	host->release(l);
}

gradcomp_status levels_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, int ranks_per_node,
                              double timeout, void **out, gradcomp_error *err)
{
	const ring_options meeting = {.small = HIER_SMALL};
	levels *l = host->alloc(sizeof *l);
	gradcomp_status st;
	if (!l)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "hier: no memory");
	begin(&l->world, host, links, timeout);
	st = hier_create(host, links, chunk, ranks_per_node, &l->hier, err);
	if (!st)
		st = ring_create(host, links, &meeting, &l->ring, err);
	if (!st && l->hier->held > 1 && !(l->more = host->alloc((size_t)(l->hier->held - 1) * sizeof *l->more)))
		st = host->fail(err, GRADCOMP_ERR_NOMEM, "hier: no memory for %d shards", l->hier->held);
	if (st) {
		levels_destroy(l);
		return st;
	}
	l->world.ring = l->ring;
	begin(&l->inside, host, &l->hier->inside->links, timeout);
	l->own.of = l;
	l->own.shard = &l->hier->own;
	for (int i = 0; i < l->hier->held; i++) {
		level_part *p = part_at(l, i);
		p->of = l;
		p->shard = i ? &l->hier->more[i - 1] : &l->hier->own;
		begin(&p->across, host, &p->shard->across->links, timeout);
	}
	for (int i = 0; i < members(l); i++) {
		member(l, i)->with = member(l, (i + 1) % members(l));
		member(l, i)->latest = &l->latest;
	}
	*out = l;
	return GRADCOMP_OK;
}

gradcomp_status levels_set_queue(void *instance, void *queue, gradcomp_error *err)
{
	levels *l = instance;
	cudaError_t e = cudaSuccess;
	if (l->world.queue == queue)
		return GRADCOMP_OK;
	/* Different communicators have to come in one order on all ranks, also where they are on two queues. */
	if (!l->latest)
		e = cudaEventCreateWithFlags(&l->latest, cudaEventDisableTiming);
	else
		e = cudaStreamWaitEvent(queue, l->latest, 0);
	if (e)
		return l->world.host->fail(err, GRADCOMP_ERR_IO, "hier: the order of exchanges: %s",
		                           cudaGetErrorString(e));
	for (int i = 0; i < members(l); i++)
		nccl_take_queue(member(l, i), queue);
	return GRADCOMP_OK;
}

gradcomp_status levels_enqueue(void *instance, int on, gradcomp_error *err)
{
	levels *l = instance;
	(void)err;
	for (int i = 0; i < members(l); i++)
		member(l, i)->enqueues = on;
	return GRADCOMP_OK;
}

gradcomp_status levels_watch(void *instance, int *busy, gradcomp_error *err)
{
	levels *l = instance;
	gradcomp_status st = GRADCOMP_OK;
	*busy = 0;
	for (int i = 0; !st && i < members(l); i++) {
		int is;
		st = nccl_watch(member(l, i), &is, err);
		*busy |= is;
	}
	if (st)
		*busy = 0;
	return st;
}

const char *levels_unusable(void)
{
	return nccl_unusable();
}

/* This rank's place among the holders of shard j; NULL: it is none of them. */
static nccl *holder_of(levels *l, int j)
{
	const hier *h = l->hier;
	return j % h->locals == h->local ? &part_at(l, j / h->locals)->across : NULL;
}

/* Before anything is asked of NCCL; all ranks come here together the first time. Where no rank holds
 * two shards one split makes the communicators of all of them, else each has its own. */
static gradcomp_status ready(levels *l, gradcomp_error *err)
{
	const hier *h = l->hier;
	int at_once = h->shape.turns == 1;
	gradcomp_status st = nccl_ready(&l->world, err);
	if (st || l->ready)
		return st;
	st = nccl_split(&l->world, &l->inside, h->node, err);
	if (!st && h->nodes > 1 && at_once)
		st = nccl_split(&l->world, h->held ? &l->own.across : NULL, h->local, err);
	for (int j = 0; !st && h->nodes > 1 && !at_once && j < h->shards; j++)
		st = nccl_split(&l->world, holder_of(l, j), 0, err);
	l->ready = !st;
	return st;
}

/* A rank alone is the sum. */
static gradcomp_status scale_alone(levels *l, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                   double scale)
{
	return scale == 1.0 || op != GRADCOMP_SUM || dtype > GRADCOMP_F64
	               ? GRADCOMP_OK
	               : l->world.ops->scale_as(l->inside.queue, buf, scale, count, dtype);
}

/* The shards that ranks of the node take at once, from `first` on. `stride`: what one of them takes up where all have
 * the same; they are equal and on boundaries that NCCL likes in the buffer itself if `in_place`. */
typedef struct group {
	int n, in_place;
	size_t size, stride;
	char *buf; /* where the first begins */
	char *at;  /* where they lie one after another, `stride` apart */
} group;

static uint64_t shard_begin(const levels *l, uint64_t count, int j)
{
	return hier_begin(l->hier, count, j);
}

static gradcomp_status lay_out(levels *l, void *buf, uint64_t count, size_t size, int first, group *g,
                               gradcomp_error *err)
{
	const hier *h = l->hier;
	uint64_t from = shard_begin(l, count, first), most = shard_begin(l, count, first + 1) - from;
	*g = (group){.n = h->locals, .size = size, .buf = (char *)buf + from * size};
	g->stride = most * size;
	g->in_place = first + h->locals <= h->shards &&
	              shard_begin(l, count, first + h->locals) - from == most * (uint64_t)g->n && g->stride % 16 == 0 &&
	              (uintptr_t)g->buf % 16 == 0;
	g->at = g->buf;
	if (g->in_place)
		return GRADCOMP_OK;
	g->stride = nccl_rounded(g->stride);
	gradcomp_status st = nccl_reserve(&l->inside, g->stride * (size_t)g->n, err);
	g->at = l->inside.scratch;
	return st;
}

/* Copies shard k of the group between the buffer and where NCCL works; `mine` alone, or all. */
static gradcomp_status carry(levels *l, const group *g, uint64_t count, int first, int mine, int back,
                             gradcomp_error *err)
{
	const hier *h = l->hier;
	uint64_t from = shard_begin(l, count, first);
	if (g->in_place)
		return GRADCOMP_OK;
	for (int k = mine ? h->local : 0; k < (mine ? h->local + 1 : g->n); k++) {
		uint64_t begin = shard_begin(l, count, first + k) - from,
			 end = shard_begin(l, count, first + k + 1) - from;
		char *ours = g->at + (size_t)k * g->stride, *theirs = g->buf + begin * g->size;
		size_t bytes = (end - begin) * g->size;
		if (bytes)
			l->world.ops->copy(l->inside.queue, back ? theirs : ours, back ? ours : theirs, bytes);
		if (!back && bytes < g->stride && cudaMemsetAsync(ours + bytes, 0, g->stride - bytes, l->inside.queue))
			return h->host->fail(err, GRADCOMP_ERR_IO, "hier: CUDA memory cannot be cleared");
	}
	return GRADCOMP_OK;
}

static gradcomp_status bring(levels *l, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                             gradcomp_error *err)
{
	const hier *h = l->hier;
	size_t size = gradcomp_dtype_bytes(dtype);
	gradcomp_status st = GRADCOMP_OK;
	if (h->locals == 1)
		st = scale_alone(l, buf, count, dtype, op, scale);
	for (int first = 0; !st && h->locals > 1 && first < h->shards; first += h->locals) {
		group g;
		st = lay_out(l, buf, count, size, first, &g, err);
		if (!st)
			st = carry(l, &g, count, first, 0, 0, err);
		for (int k = 0; k < h->locals; k++)
			h->counts[k] = g.stride / size;
		if (!st)
			st = nccl_reduce_scatter(&l->inside, g.at, h->counts, dtype, op, scale, err);
		if (!st)
			st = carry(l, &g, count, first, 1, 1, err);
	}
	return st ? st : nccl_done(&l->inside, "reduce within the node", err);
}

static gradcomp_status hand_out(levels *l, void *buf, uint64_t count, size_t size, gradcomp_error *err)
{
	const hier *h = l->hier;
	gradcomp_status st = GRADCOMP_OK;
	for (int first = 0; !st && h->locals > 1 && first < h->shards; first += h->locals) {
		group g;
		st = lay_out(l, buf, count, size, first, &g, err);
		if (!st)
			st = carry(l, &g, count, first, 1, 0, err);
		for (int k = 0; k < h->locals; k++)
			h->counts[k] = g.stride;
		if (!st)
			st = nccl_allgather(&l->inside, g.at, h->counts, err);
		if (!st)
			st = carry(l, &g, count, first, 0, 1, err);
	}
	return st ? st : nccl_done(&l->inside, "gather within the node", err);
}

/* Reduces a shard among its holders. NCCL would move single bytes where memory does not begin on its boundaries. */
static gradcomp_status reduce_across(level_part *p, char *x, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                     double scale, gradcomp_error *err)
{
	nccl *n = &p->across;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	gradcomp_status st;
	if (p->of->hier->nodes == 1) {
		st = scale_alone(p->of, x, count, dtype, op, scale);
		return st ? st : nccl_done(&p->of->inside, "scale a shard", err);
	}
	/* A result that is no sum may be put together in the same memory. */
	if ((uintptr_t)x % 16 == 0 || op != GRADCOMP_SUM || !count)
		return nccl_allreduce(n, x, count, dtype, op, scale, err);
	st = nccl_reserve(n, bytes, err);
	if (st)
		return st;
	n->ops->copy(n->queue, n->scratch, x, bytes);
	st = nccl_allreduce(n, n->scratch, count, dtype, op, scale, err);
	if (st)
		return st;
	n->ops->copy(n->queue, x, n->scratch, bytes);
	return nccl_done(n, "reduce among the holders of a shard", err);
}

static uint64_t extent(const level_part *p, uint64_t total, uint64_t *n)
{
	uint64_t begin = shard_begin(p->of, total, p->shard->shard);
	*n = shard_begin(p->of, total, p->shard->shard + 1) - begin;
	return begin;
}

static gradcomp_status device_allreduce(levels *l, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                        double scale, gradcomp_error *err)
{
	const hier *h = l->hier;
	size_t size = gradcomp_dtype_bytes(dtype);
	gradcomp_status st;
	/* Short integers, whose sum is the same in any order, and what is no sum, take one all-reduce of all ranks. */
	if (op != GRADCOMP_SUM || (dtype > GRADCOMP_F64 && count * size <= HIER_SMALL))
		return nccl_allreduce(&l->world, buf, count, dtype, op, scale, err);
	st = bring(l, buf, count, dtype, op, h->nodes > 1 ? 1.0 : scale, err);
	for (int i = 0; !st && i < h->held && h->nodes > 1; i++) {
		level_part *p = part_at(l, i);
		uint64_t n, begin = extent(p, count, &n);
		st = reduce_across(p, (char *)buf + begin * size, n, dtype, op, scale, err);
	}
	return st ? st : hand_out(l, buf, count, size, err);
}

static gradcomp_status device_coded_allreduce(levels *l, float *buf, uint64_t count, double scale,
                                              const gradcomp_codec *codec, uint64_t counter, float *residual,
                                              gradcomp_error *err)
{
	const hier *h = l->hier;
	gradcomp_status st = bring(l, buf, count, GRADCOMP_F32, GRADCOMP_SUM, h->nodes > 1 ? 1.0 : scale, err);
	if (!st && residual)
		l->world.ops->fill(l->world.queue, residual, 0, count);
	for (int i = 0; !st && i < h->held && h->nodes > 1; i++) {
		level_part *p = part_at(l, i);
		uint64_t n, begin = extent(p, count, &n);
		st = nccl_coded_allreduce(&p->across, buf + begin, n, scale, codec, hier_counter(h, counter, i),
		                          residual ? residual + begin : NULL, err);
	}
	return st ? st : hand_out(l, buf, count, sizeof(float), err);
}

/* In the order of nodes, which is the buffer's own or one in scratch memory, of so many `times` as much. */
static gradcomp_status blocks_of(levels *l, float *buf, const uint64_t *counts, int times, hier_blocks *b,
                                 gradcomp_error *err)
{
	nccl *n = &l->world;
	*b = hier_blocks_of(l->hier, n->ops, n->queue, buf, counts, sizeof *buf);
	if (l->hier->sorted)
		return GRADCOMP_OK;
	gradcomp_status st = nccl_reserve(n, (size_t)times * b->total * sizeof *buf + 1, err);
	b->buf = n->scratch;
	return st;
}

/* Parts of the node's ranks, of bytes[], one after another: each has its own in place, and gets all. */
static gradcomp_status gather_inside(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	levels *l = instance;
	nccl *n = &l->inside;
	char *parts = buf;
	const hier *h = l->hier;
	uint64_t most = 0, before = 0;
	for (int k = 0; k < h->locals; k++)
		most = bytes[k] > most ? bytes[k] : most;
	if (!most || h->locals == 1)
		return GRADCOMP_OK;
	/* Parts of any lengths stand off NCCL's boundaries. */
	size_t stride = nccl_rounded(most);
	gradcomp_status st = nccl_reserve(n, stride * (size_t)h->locals, err);
	char *own = n->scratch + (size_t)h->local * stride;
	for (int k = 0; k < h->local; k++)
		before += bytes[k];
	if (st)
		return st;
	if (bytes[h->local])
		n->ops->copy(n->queue, own, parts + before, bytes[h->local]);
	st = nccl_launched(n, n->f.ncclAllGather(own, n->scratch, stride, ncclUint8, n->comm, n->queue),
	                   "gather within the node", err);
	for (int k = 0; !st && k < h->locals; parts += bytes[k++])
		if (k != h->local && bytes[k])
			n->ops->copy(n->queue, parts, n->scratch + (size_t)k * stride, bytes[k]);
	return st ? st : nccl_done(n, "gather within the node", err);
}

/* Waits for what the stream owes of scratch memory, before that grows: blocks in the order of nodes are in the
 * world's. */
static gradcomp_status blocks_done(levels *l, const char *what, gradcomp_error *err)
{
	gradcomp_status st = l->hier->sorted ? GRADCOMP_OK : nccl_done(&l->world, what, err);
	return st ? st : nccl_done(&l->inside, what, err);
}

static float *shard_of(const hier_blocks *b, float *in, const level_part *p)
{
	return in + shard_begin(p->of, b->total, p->shard->shard);
}

static gradcomp_status device_coded_allgather(levels *l, float *buf, const uint64_t *counts,
                                              const gradcomp_codec *codec, uint64_t counter, float *residual,
                                              gradcomp_error *err)
{
	const hier *h = l->hier;
	const gradcomp_operators *ops = l->world.ops;
	void *queue = l->world.queue;
	hier_blocks b;
	gradcomp_status st = blocks_of(l, buf, counts, 1, &b, err);
	if (st)
		return st;
	const float *own = buf + h->offset[h->links->rank];
	uint64_t n = residual ? counts[h->links->rank] : 0;
	hier_blocks_copy_own(&b, (char *)buf, 0);
	if (n)
		ops->copy(queue, residual, own, n * sizeof *own);
	st = gather_inside(l, hier_blocks_here(&b), hier_blocks_of_node(&b), err);
	for (int i = 0; !st && i < h->held && h->nodes > 1; i++) {
		level_part *p = part_at(l, i);
		st = nccl_coded_allgather(&p->across, shard_of(&b, (float *)(void *)b.buf, p),
		                          hier_blocks_by_node(&b, p->shard->shard), codec, hier_counter(h, counter, i),
		                          NULL, err);
	}
	if (!st)
		st = hand_out(l, b.buf, b.total, sizeof *buf, err);
	if (st)
		return st;
	hier_blocks_copy(&b, (char *)buf, 1);
	/* The loss shows here alone: the holders of the block's shards have coded it, and need not be its
	 * owner. */
	if (n)
		ops->axpy(queue, residual, -1, own, n);
	return blocks_done(l, "gather coded blocks", err);
}

static gradcomp_status device_coded_reduce_scatter(levels *l, float *buf, const uint64_t *counts, double scale,
                                                   const gradcomp_codec *codec, uint64_t counter, float *residual,
                                                   gradcomp_error *err)
{
	const hier *h = l->hier;
	hier_blocks b;
	gradcomp_status st = blocks_of(l, buf, counts, residual ? 2 : 1, &b, err);
	if (st)
		return st;
	hier_blocks lost = b;
	lost.buf = h->sorted ? (char *)residual : b.buf + b.total * sizeof *buf;
	if (residual)
		b.ops->fill(b.queue, (float *)(void *)lost.buf, 0, b.total);
	hier_blocks_copy(&b, (char *)buf, 0);
	st = bring(l, b.buf, b.total, GRADCOMP_F32, GRADCOMP_SUM, h->nodes > 1 ? 1.0 : scale, err);
	for (int i = 0; !st && i < h->held && h->nodes > 1; i++) {
		level_part *p = part_at(l, i);
		st = nccl_coded_reduce_scatter(&p->across, shard_of(&b, (float *)(void *)b.buf, p),
		                               hier_blocks_by_node(&b, p->shard->shard), scale, codec,
		                               hier_counter(h, counter, i),
		                               residual ? shard_of(&b, (float *)(void *)lost.buf, p) : NULL, err);
	}
	if (!st)
		st = hier_blocks_to_owners(&b, gather_inside, l, err);
	if (st)
		return st;
	hier_blocks_copy_own(&b, (char *)buf, 1);
	if (residual)
		hier_blocks_copy(&lost, (char *)residual, 1);
	return blocks_done(l, "reduce and scatter coded blocks", err);
}

/* On device memory, or else over the job's links. */
#define EITHER(l, buf, device, host) \
	do { \
		gradcomp_status st; \
		if (!nccl_on_device(buf)) \
			return host; \
		st = ready(l, err); \
		return st ? st : device; \
	} while (0)

gradcomp_status levels_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                 double scale, gradcomp_error *err)
{
	levels *l = instance;
	EITHER(l, buf, device_allreduce(l, buf, count, dtype, op, scale, err),
	       hier_allreduce(l->hier, buf, count, dtype, op, scale, err));
}

/* NCCL knows the nodes. */
gradcomp_status levels_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                      gradcomp_op op, double scale, gradcomp_error *err)
{
	levels *l = instance;
	EITHER(l, buf, nccl_reduce_scatter(&l->world, buf, counts, dtype, op, scale, err),
	       hier_reduce_scatter(l->hier, buf, counts, dtype, op, scale, err));
}

gradcomp_status levels_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	levels *l = instance;
	EITHER(l, buf, nccl_allgather(&l->world, buf, bytes, err), hier_allgather(l->hier, buf, bytes, err));
}

gradcomp_status levels_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	levels *l = instance;
	EITHER(l, buf, nccl_broadcast(&l->world, buf, bytes, root, err),
	       hier_broadcast(l->hier, buf, bytes, root, err));
}

gradcomp_status levels_barrier(void *instance, gradcomp_error *err)
{
	levels *l = instance;
	const gradcomp_error *failed = &l->world.failed;
	return failed->status ? l->world.host->fail(err, failed->status, "%s", failed->text)
	                      : hier_barrier(l->hier, err);
}

gradcomp_status levels_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                       const gradcomp_codec *codec, uint64_t counter, float *residual,
                                       gradcomp_error *err)
{
	levels *l = instance;
	EITHER(l, buf, device_coded_allreduce(l, buf, count, scale, codec, counter, residual, err),
	       hier_coded_allreduce(l->hier, buf, count, scale, codec, counter, residual, err));
}

gradcomp_status levels_coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                       uint64_t counter, float *residual, gradcomp_error *err)
{
	levels *l = instance;
	EITHER(l, buf, device_coded_allgather(l, buf, counts, codec, counter, residual, err),
	       hier_coded_allgather(l->hier, buf, counts, codec, counter, residual, err));
}

gradcomp_status levels_coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                            const gradcomp_codec *codec, uint64_t counter, float *residual,
                                            gradcomp_error *err)
{
	levels *l = instance;
	EITHER(l, buf, device_coded_reduce_scatter(l, buf, counts, scale, codec, counter, residual, err),
	       hier_coded_reduce_scatter(l->hier, buf, counts, scale, codec, counter, residual, err));
}

gradcomp_status levels_shard_at(void *instance, uint32_t index, uint64_t numel, gradcomp_shard *out, void **holders,
                                gradcomp_error *err)
{
	levels *l = instance;
	gradcomp_status st = hier_shard_at(l->hier, index, numel, out, holders, err);
	*holders = part_at(l, out->rank < 0 ? 0 : (int)index);
	return st;
}

gradcomp_status levels_shard(void *instance, uint64_t numel, gradcomp_shard *out, gradcomp_error *err)
{
	levels *l = instance;
	return hier_shard(l->hier, numel, out, err);
}

gradcomp_status levels_local_reduce_scatter(void *instance, float *buf, uint64_t numel, double scale,
                                            gradcomp_error *err)
{
	levels *l = instance;
	EITHER(l, buf, bring(l, buf, numel, GRADCOMP_F32, GRADCOMP_SUM, scale, err),
	       hier_local_reduce_scatter(l->hier, buf, numel, scale, err));
}

gradcomp_status levels_shard_allreduce(void *holders, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                       double scale, gradcomp_error *err)
{
	level_part *p = holders;
	EITHER(p->of, buf, reduce_across(p, buf, count, dtype, op, scale, err),
	       hier_shard_allreduce(p->shard, buf, count, dtype, op, scale, err));
}

gradcomp_status levels_shard_allgather(void *holders, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	level_part *p = holders;
	EITHER(p->of, buf, p->of->hier->nodes == 1 ? GRADCOMP_OK : nccl_allgather(&p->across, buf, bytes, err),
	       hier_shard_allgather(p->shard, buf, bytes, err));
}

gradcomp_status levels_local_allgather(void *instance, float *buf, uint64_t numel, gradcomp_error *err)
{
	levels *l = instance;
	EITHER(l, buf, hand_out(l, buf, numel, sizeof(float), err), hier_local_allgather(l->hier, buf, numel, err));
}

void levels_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	levels *l = instance;
	hier_cost(l->hier, bytes, sent, messages);
}
