/* The two-level collective: its calls, as in collective.h with a `hier` for an instance,
 * and the parts they are made of.
 *
 * With n the fewest ranks a node has, a buffer is cut into n shards; rank j < n of every
 * node holds shard j, the others of a node none. What is summed goes to the holders
 * within the node, then the holders of a shard, one a node, work among themselves, then
 * the shards are handed out within the node. */
#ifndef PLUGINS_COMMON_COLLECTIVES_HIER_H
#define PLUGINS_COMMON_COLLECTIVES_HIER_H

#include "plugins/common/collectives/ring.h"
#include "plugins/common/collectives/sublinks.h"

/* What the cost of calls follows from. */
typedef struct hier_shape {
	int nranks, nodes, shards, largest; /* ranks of the largest node */
	call_senders within; /* of a shard, to the next rank of the node */
	ring_shape across;   /* among the holders of a shard, all shards at once */
} hier_shape;

typedef struct hier {
	const gradcomp_host *host;
	const gradcomp_links *links;
	int nranks, nodes, shards;
	int node, local, locals; /* of this rank: its node, its local rank there, of how many */
	int rank_at;             /* its index in order[] */
	int sorted;              /* order[] is 0, 1, 2, ... */
	int *order;              /* ranks, node by node */
	int *first;              /* of each node, in order[]; nodes + 1 */
	int *holders;            /* of this rank's shard, by node */
	hier_shape shape;
	sublinks *inside, *across;
	ring *inner, *outer; /* outer: NULL on a rank that holds nothing */
	char *scratch;          /* for blocks in the order of nodes */
	size_t scratch_bytes;
	uint64_t *counts; /* of a call within the node, or among the nodes */
	uint64_t *offset; /* of a call: where each rank's block begins; nranks + 1 */
	uint64_t *start;  /* where the blocks of each node would in the order of nodes; nodes + 1 */
} hier;

/* ranks_per_node: this many ranks in a row are taken for a node; 0: as the links say. */
gradcomp_status hier_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, int ranks_per_node,
                            hier **out, gradcomp_error *err);
void hier_destroy(void *instance);
gradcomp_status hier_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                               double scale, gradcomp_error *err);
gradcomp_status hier_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                    gradcomp_op op, double scale, gradcomp_error *err);
gradcomp_status hier_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status hier_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err);
gradcomp_status hier_barrier(void *instance, gradcomp_error *err);
gradcomp_status hier_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                     const gradcomp_codec *codec, uint64_t counter, float *residual,
                                     gradcomp_error *err);
gradcomp_status hier_shard(void *instance, uint64_t numel, gradcomp_shard *out, gradcomp_error *err);
gradcomp_status hier_local_reduce_scatter(void *instance, float *buf, uint64_t numel, double scale, gradcomp_error *err);
gradcomp_status hier_shard_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                     double scale, gradcomp_error *err);
gradcomp_status hier_shard_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status hier_local_allgather(void *instance, float *buf, uint64_t numel, gradcomp_error *err);
void hier_cost(void *instance, uint64_t bytes, double *sent, double *messages);
/* Ranks node by node, and where each node begins in them: order, and first of nodes + 1
 * numbers that are 0. Returns the shards. ranks_per_node as in hier_create(). */
int hier_nodes(const gradcomp_links *links, int ranks_per_node, int nodes, int *order, int *first);
/* count: an array of nnodes. */
void hier_scan(hier_shape *s, const gradcomp_links *links, const int *order, const int *first, int nodes, int shards,
               size_t chunk, int32_t *count);
/* Of an all-reduce. */
void hier_call_cost(const hier_shape *s, uint64_t bytes, call_cost *out);
/* Of a group that is not there (call_cost.h). */
gradcomp_status hier_even(hier_shape *s, size_t chunk, int ranks_per_node, int32_t nranks, int32_t nnodes,
                          gradcomp_error *err);
gradcomp_status hier_predict(size_t chunk, int ranks_per_node, int32_t nranks, int32_t nnodes, uint32_t primitive,
                             uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err);

/* All-reduces among holders up to this size go to all of them at once. */
#define HIER_SMALL 8192u

/* Where shard j of `total` things begins. */
static inline uint64_t hier_begin(const hier *h, uint64_t total, int j)
{
	uint64_t n = (uint64_t)h->shards, k = (uint64_t)j;
	return k >= n ? total : total / n * k + (k < total % n ? k : total % n);
}

/* Within the node: sums go to the holders of their shards, shards to everybody. */
gradcomp_status hier_bring(hier *h, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                           gradcomp_error *err);
gradcomp_status hier_hand_out(hier *h, void *buf, uint64_t count, size_t size, gradcomp_error *err);

#endif
