/* rhd: recursive halving and doubling for any number of ranks: all-reduce, reduce-scatter,
 * all-gather, broadcast and barrier in ceil(log2 P) rounds, or twice as many, with as few
 * bytes as a ring; short all-reduces in half the rounds by doubling whole buffers. */
#include "plugins/common/collectives/rhd.h"

enum { PARAM_CHUNK, PARAM_SHORT };

static const gradcomp_param params[] = {
	[PARAM_CHUNK] = {.name = "chunk",
                         .type = GRADCOMP_PARAM_SIZE,
                         .def = "0",
                         .min = 0,
                         .max = 1 << 30,
                         .help = "piece that is sent at a time; 0: what the links do best"},
	[PARAM_SHORT] = {.name = "short",
                         .type = GRADCOMP_PARAM_SIZE,
                         .def = "64K",
                         .min = 0,
                         .max = 1 << 30,
                         .help = "all-reduces and broadcasts up to this size are not cut into blocks: half the rounds"},
};

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	rhd *r;
	gradcomp_status st =
		rhd_create(host, links, (size_t)values[PARAM_CHUNK].i, (uint64_t)values[PARAM_SHORT].i, &r, err);
	if (!st)
		*instance = r;
	return st;
}

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	return rhd_predict((uint64_t)values[PARAM_SHORT].i, nranks, nnodes, primitive, bytes, out, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof(struct gradcomp_collective_v1),
                 .name = "rhd",
                 .version = "1.0",
                 .licence = "MIT",
                 .summary =
                         "recursive halving and doubling: log2 P rounds, as few bytes as a ring, any number of ranks",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.traits = GRADCOMP_TRAIT_ALL_TYPES,
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
                  GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER,
	.create = create,
	.destroy = rhd_destroy,
	.allreduce = rhd_allreduce,
	.reduce_scatter = rhd_reduce_scatter,
	.allgather = rhd_allgather,
	.broadcast = rhd_broadcast,
	.barrier = rhd_barrier,
	.cost = rhd_cost,
	.predict = predict,
};
