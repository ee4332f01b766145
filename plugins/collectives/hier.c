/* hier: two levels. Ranks of a node sum among themselves, each a shard; the holders of a
 * shard, one a node, then work among themselves; and the shards are handed out within
 * the node. Between nodes a dense all-reduce of S moves 2 (m-1)/m * S/n bytes a rank, m
 * nodes of n ranks; coded sums are coded there alone.
 *
 * A compressor whose payloads are gathered works on the shards (HiTopKComm: Shi, Zhou,
 * Song, Wang, Zhu, Chu 2020): its error memory lives on the shard, 1/n of the size, and
 * between nodes a node receives 1/n of what a flat all-gather of the same density
 * brings.
 *
 * Coded reduce-scatter and all-gather are those of ZeRO++ (Wang et al. 2023), but for what goes
 * within a node: there is memory to share there, and nothing to save by a code. */
#include "plugins/common/collectives/hier.h"

/* Made with NCCL it has another half, for payloads in GPU memory. */
#ifdef HIER_ON_DEVICE
#include "plugins/collectives/hier/levels.h"
#define LEVELS(call) levels_##call
#else
#define LEVELS(call) hier_##call
#endif

enum { PARAM_CHUNK, PARAM_RANKS_PER_NODE, PARAM_TIMEOUT };

static const gradcomp_param params[] = {
	[PARAM_CHUNK] = {.name = "chunk",
                         .type = GRADCOMP_PARAM_SIZE,
                         .def = "0",
                         .min = 0,
                         .max = 1 << 30,
                         .help = "piece of a block that is sent at a time; 0: what the links do best"},
	[PARAM_RANKS_PER_NODE] =
		{.name = "ranks_per_node",
                 .type = GRADCOMP_PARAM_INT,
                 .def = "0",
                 .min = 0,
                 .max = 1 << 20,
                 .help = "ranks in a row that make a node, as those of a switch; 0: the nodes there are"},
	[PARAM_TIMEOUT] = {.name = "timeout",
                           .type = GRADCOMP_PARAM_FLOAT,
                           .def = "1800",
                           .min = 0.1,
                           .max = 604800,
                           .help = "seconds a call on GPU memory may wait for other ranks"},
};

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	size_t chunk = (size_t)values[PARAM_CHUNK].i;
	int ranks_per_node = (int)values[PARAM_RANKS_PER_NODE].i;
#ifdef HIER_ON_DEVICE
	return levels_create(host, links, chunk, ranks_per_node, values[PARAM_TIMEOUT].f, instance, err);
#else
	hier *h;
	gradcomp_status st = hier_create(host, links, chunk, ranks_per_node, &h, err);
	if (!st)
		*instance = h;
	return st;
#endif
}

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	return hier_predict((size_t)values[PARAM_CHUNK].i, (int)values[PARAM_RANKS_PER_NODE].i, nranks, nnodes,
	                    primitive, bytes, out, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof(struct gradcomp_collective_v1),
                 .name = "hier",
                 .version = "1.0",
                 .licence = "MIT",
                 .summary = "two levels: within nodes as they are, compressed between nodes",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
                  GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER | GRADCOMP_CAN_CODED_ALLREDUCE |
                  GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_CODED_REDUCE_SCATTER | GRADCOMP_CAN_SHARD,
#ifdef HIER_ON_DEVICE
	.traits = GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_ELSE_HOST | GRADCOMP_TRAIT_TWO_QUEUES | GRADCOMP_TRAIT_ALL_TYPES,
	.set_queue = levels_set_queue,
	.enqueue = levels_enqueue,
	.watch = levels_watch,
	.unusable = levels_unusable,
#else
	.traits = GRADCOMP_TRAIT_ALL_TYPES,
#endif
	.create = create,
	.destroy = LEVELS(destroy),
	.allreduce = LEVELS(allreduce),
	.reduce_scatter = LEVELS(reduce_scatter),
	.allgather = LEVELS(allgather),
	.broadcast = LEVELS(broadcast),
	.barrier = LEVELS(barrier),
	.coded_allreduce = LEVELS(coded_allreduce),
	.coded_allgather = LEVELS(coded_allgather),
	.coded_reduce_scatter = LEVELS(coded_reduce_scatter),
	.shard = LEVELS(shard),
	.local_reduce_scatter = LEVELS(local_reduce_scatter),
	.shard_allreduce = LEVELS(shard_allreduce),
	.shard_allgather = LEVELS(shard_allgather),
	.local_allgather = LEVELS(local_allgather),
	.shard_at = LEVELS(shard_at),
	.cost = LEVELS(cost),
	.predict = predict,
};
