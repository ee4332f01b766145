/* direct: everybody sends to everybody. A buffer is cut into a stripe a rank; the owner
 * of a stripe sums its parts in rank order and gives out the result: two rounds, and
 * 2 (P-1)/P * S bytes a rank for an all-reduce of S, over P - 1 links instead of one.
 *
 * Sums of codes are 1-bit SGD's (Seide et al., Interspeech 2014): two lossy steps,
 * however many ranks there are, with a second error memory at the owner of a stripe. */
#include "plugins/common/collectives/direct.h"

enum { PARAM_CHUNK };

static const gradcomp_param params[] = {
	[PARAM_CHUNK] = {.name = "chunk",
                         .type = GRADCOMP_PARAM_SIZE,
                         .def = "0",
                         .min = 0,
                         .max = 1 << 30,
                         .help = "piece of a stripe that is sent at a time; 0: what the links do best"},
};

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	direct *d;
	gradcomp_status st = direct_create(host, links, (size_t)values[PARAM_CHUNK].i, &d, err);
	if (!st)
		*instance = d;
	return st;
}

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	(void)values;
	return direct_predict(nranks, nnodes, primitive, bytes, out, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof(struct gradcomp_collective_v1),
                 .name = "direct",
                 .version = "1.0",
                 .licence = "MIT",
                 .summary = "stripes to and from their owners: two rounds, and codes lose twice at most",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.traits = GRADCOMP_TRAIT_ALL_TYPES,
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
                  GRADCOMP_CAN_ALLTOALL | GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER | GRADCOMP_CAN_CODED_ALLREDUCE |
                  GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_CODED_REDUCE_SCATTER | GRADCOMP_CAN_EXCHANGE,
	.create = create,
	.destroy = direct_destroy,
	.allreduce = direct_allreduce,
	.reduce_scatter = direct_reduce_scatter,
	.allgather = direct_allgather,
	.alltoall = direct_alltoall,
	.broadcast = direct_broadcast,
	.barrier = direct_barrier,
	.coded_allreduce = direct_coded_allreduce,
	.coded_allgather = direct_coded_allgather,
	.coded_reduce_scatter = direct_coded_reduce_scatter,
	.exchange = direct_exchange,
	.server_error = direct_server_error,
	.cost = direct_cost,
	.predict = predict,
	.server_error_begin = direct_server_error_begin,
};
