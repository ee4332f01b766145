/* hier: two levels. Ranks of a node sum among themselves, each a shard; the holders of a
 * shard, one a node, then work among themselves; and the shards are handed out within
 * the node. Between nodes a dense all-reduce of S moves 2 (m-1)/m * S/n bytes a rank, m
 * nodes of n ranks; coded sums are coded there alone.
 *
 * A compressor whose payloads are gathered works on the shards (HiTopKComm: Shi, Zhou,
 * Song, Wang, Zhu, Chu 2020): its error memory lives on the shard, 1/n of the size, and
 * between nodes a node receives 1/n of what a flat all-gather of the same density
 * brings. */
#include "plugins/common/collectives/hier.h"

enum { PARAM_CHUNK, PARAM_RANKS_PER_NODE };

static const gradcomp_param params[] = {
	[PARAM_CHUNK] = {.name = "chunk", .type = GRADCOMP_PARAM_SIZE, .def = "0", .min = 0, .max = 1 << 30,
	                 .help = "piece of a block that is sent at a time; 0: what the links do best"},
	[PARAM_RANKS_PER_NODE] = {.name = "ranks_per_node", .type = GRADCOMP_PARAM_INT, .def = "0", .min = 0,
	                          .max = 1 << 20,
	                          .help = "ranks in a row that make a node, as those of a switch; 0: the nodes there are"},
};

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	hier *h;
	gradcomp_status st = hier_create(host, links, (size_t)values[PARAM_CHUNK].i,
	                                 (int)values[PARAM_RANKS_PER_NODE].i, &h, err);
	if (!st)
		*instance = h;
	return st;
}

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	return hier_predict((size_t)values[PARAM_CHUNK].i, (int)values[PARAM_RANKS_PER_NODE].i, nranks, nnodes, primitive,
	                    bytes, out, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION, .struct_size = sizeof(struct gradcomp_collective_v1),
	         .name = "hier", .version = "1.0", .licence = "MIT",
	         .summary = "two levels: within nodes as they are, compressed between nodes",
	         .params = params, .nparams = sizeof params / sizeof params[0]},
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
	          GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER | GRADCOMP_CAN_CODED_ALLREDUCE | GRADCOMP_CAN_SHARD,
	.create = create,
	.destroy = hier_destroy,
	.allreduce = hier_allreduce,
	.reduce_scatter = hier_reduce_scatter,
	.allgather = hier_allgather,
	.broadcast = hier_broadcast,
	.barrier = hier_barrier,
	.coded_allreduce = hier_coded_allreduce,
	.shard = hier_shard,
	.local_reduce_scatter = hier_local_reduce_scatter,
	.shard_allreduce = hier_shard_allreduce,
	.shard_allgather = hier_shard_allgather,
	.local_allgather = hier_local_allgather,
	.shard_at = hier_shard_at,
	.cost = hier_cost,
	.predict = predict,
};
