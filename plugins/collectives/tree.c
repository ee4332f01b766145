/* tree: all-reduce, reduce-scatter, broadcast, barrier and all-gather in ceil(log2 P) rounds, for
 * what is short or for many ranks, and the reduction tree of gTop-k (Shi et al.,
 * ICDCS 2019), in which two payloads become one at every meeting. The root alone
 * computes a result and hands out its bytes, so all ranks end with the same bits. */
#include "plugins/common/collectives/tree.h"

enum { PARAM_CHUNK };

static const gradcomp_param params[] = {
	[PARAM_CHUNK] = {.name = "chunk",
                         .type = GRADCOMP_PARAM_SIZE,
                         .def = "0",
                         .min = 0,
                         .max = 1 << 30,
                         .help = "piece that is sent at a time; 0: what the links do best"},
};

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	tree *t;
	gradcomp_status st = tree_create(host, links, (size_t)values[PARAM_CHUNK].i, &t, err);
	if (!st)
		*instance = t;
	return st;
}

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	(void)values;
	return tree_predict(nranks, nnodes, primitive, bytes, out, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof(struct gradcomp_collective_v1),
                 .name = "tree",
                 .version = "1.0",
                 .licence = "MIT",
                 .summary = "binomial tree: few rounds for short messages, and merges payloads",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.traits = GRADCOMP_TRAIT_ALL_TYPES,
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
                  GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER | GRADCOMP_CAN_MERGE,
	.create = create,
	.destroy = tree_destroy,
	.allreduce = tree_allreduce,
	.reduce_scatter = tree_reduce_scatter,
	.allgather = tree_allgather,
	.broadcast = tree_broadcast,
	.barrier = tree_barrier,
	.merge = tree_merge,
	.cost = tree_cost,
	.predict = predict,
};
