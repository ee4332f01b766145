/* The two-level collective: its calls, as in collective.h with a `hier` for an instance,
 * and the parts they are made of.
 *
 * A buffer is cut into n shards (hier_nodes()). Of a node with r ranks rank j holds the shards
 * j, j + r, j + 2 r and so on: one where nodes are alike, several on a small node, none on
 * a rank j >= n. What is summed goes to the holders within the node, then the holders of a
 * shard, one a node, work among themselves, then the shards are handed out within the node.
 *
 * Ranks take their shards in ascending order. So of the shards that are not done the first has
 * all its holders, and a shard waits for at most ceil(n / r) - 1 others, r of the smallest node. */
#ifndef PLUGINS_COMMON_COLLECTIVES_HIER_H
#define PLUGINS_COMMON_COLLECTIVES_HIER_H

#include "plugins/common/collectives/blocks.h"
#include "plugins/common/collectives/direct.h"
#include "plugins/common/collectives/ring.h"
#include "plugins/common/collectives/sublinks.h"

/* The cost of calls follows from this. */
typedef struct hier_shape {
	int nranks, nodes, shards, largest; /* ranks of the largest node */
	int turns;                          /* shards of a rank, at most: they are one after another */
	int steps;                          /* shards that follow one another around a node, at most */
	double steps_out;                   /* the same where all ranks of a node read one copy of each */
	call_senders within;                /* those of a shard, to the next rank of the node */
	call_senders own;  /* those of the blocks of the node's ranks, all the way around it; of one rank's block */
	ring_shape across; /* among the holders of a shard, all shards at once */
} hier_shape;

/* A shard that this rank holds, and those that hold it too: the `instance` of hier_shard_allreduce()
 * and hier_shard_allgather(). */
typedef struct hier_part {
	const struct hier *of;
	int shard;    /* which */
	int *holders; /* by node */
	sublinks *across;
	ring *outer; /* among them; NULL: this rank holds nothing */
} hier_part;

typedef struct hier {
	hier_part own; /* the first, so that a hier is one, too */
	const gradcomp_host *host;
	const gradcomp_links *links;
	int nranks, nodes, shards;
	int node, local, locals; /* this rank's: its node, its local rank there, of how many */
	int rank_at;             /* its index in order[] */
	int sorted;              /* order[] is 0, 1, 2, ... */
	int *order;              /* ranks, node by node */
	int *first;              /* each node's place in order[]; nodes + 1 */
	int held;                /* shards that it holds */
	int *holders;            /* the holders of these, one shard after another, by node */
	hier_part *more;         /* ... the further ones of these shards, in ascending order */
	hier_shape shape;
	sublinks *inside;
	ring *inner;
	direct *straight; /* hands out what is long within the node; NULL: the ring does */
	char *scratch;    /* for blocks in the order of nodes */
	size_t scratch_bytes;
	uint64_t *counts; /* those of a call within the node, or among the nodes */
	uint64_t *offset; /* where each rank's block begins in a call; nranks + 1 */
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
gradcomp_status hier_coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err);
gradcomp_status hier_coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                          const gradcomp_codec *codec, uint64_t counter, float *residual,
                                          gradcomp_error *err);
gradcomp_status hier_shard(void *instance, uint64_t numel, gradcomp_shard *out, gradcomp_error *err);
gradcomp_status hier_shard_at(void *instance, uint32_t index, uint64_t numel, gradcomp_shard *out, void **holders,
                              gradcomp_error *err);
gradcomp_status hier_local_reduce_scatter(void *instance, float *buf, uint64_t numel, double scale,
                                          gradcomp_error *err);
gradcomp_status hier_shard_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                     double scale, gradcomp_error *err);
gradcomp_status hier_shard_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status hier_local_allgather(void *instance, float *buf, uint64_t numel, gradcomp_error *err);
void hier_cost(void *instance, uint64_t bytes, double *sent, double *messages);
/* Ranks node by node, and where each node begins in them: order, and first of nodes + 1
 * numbers that are 0. Returns the shards: of the numbers from the ranks of the smallest node to
 * those of the largest the one with the least ceil(n / r) * r / n on the node of r ranks
 * where that is most; of several the largest. It is what a rank sends within the node and holds,
 * against an even share. ranks_per_node as in hier_create(). */
int hier_nodes(const gradcomp_links *links, int ranks_per_node, int nodes, int *order, int *first);
/* count: an array of nnodes. */
void hier_scan(hier_shape *s, const gradcomp_links *links, const int *order, const int *first, int nodes, int shards,
               size_t chunk, int32_t *count);
/* Adds up an all-reduce. */
void hier_call_cost(const hier_shape *s, uint64_t bytes, call_cost *out);
/* Describes a group that is not there (call_cost.h). */
gradcomp_status hier_even(hier_shape *s, size_t chunk, int ranks_per_node, int32_t nranks, int32_t nnodes,
                          gradcomp_error *err);
gradcomp_status hier_predict(size_t chunk, int ranks_per_node, int32_t nranks, int32_t nnodes, uint32_t primitive,
                             uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err);

/* All-reduces among holders up to this size go to all of them at once. */
#define HIER_SMALL 8192u

/* Returns this rank's shard with that index; index < held. */
static inline const hier_part *hier_part_at(const hier *h, int index)
{
	return index ? &h->more[index - 1] : &h->own;
}

/* The first number of the coded runs of this rank's shard with that index: of those that a call has, in equal parts. */
static inline uint64_t hier_counter(const hier *h, uint64_t counter, int index)
{
	return counter + (uint64_t)index * ((1u << 24) / (uint32_t)h->shape.turns);
}

/* Where shard j of `total` things begins. */
static inline uint64_t hier_begin(const hier *h, uint64_t total, int j)
{
	return blocks_begin(total, h->shards, j < h->shards ? j : h->shards);
}

/* Returns 1 when all ranks of the node read one copy of what goes to all of them, so many bytes in all. */
static inline int hier_one_copy(const hier *h, uint64_t bytes)
{
	return h->straight && bytes / (uint64_t)h->locals >= DIRECT_ONE_COPY_LEAST;
}

/* Within the node: sums go to the holders of their shards, shards to everybody. */
gradcomp_status hier_bring(hier *h, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                           gradcomp_error *err);
gradcomp_status hier_hand_out(hier *h, void *buf, uint64_t count, size_t size, gradcomp_error *err);
/* Does an all-gather of the ranks of the node, `bytes` from each. */
gradcomp_status hier_gather(hier *h, void *buf, const uint64_t *bytes, gradcomp_error *err);

#endif
