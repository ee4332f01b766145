/* sparse: a ring on which sums stay sparse. On its way around, a block of a sum is pruned
 * at every hop: the rank that executes it codes its whole block in one run, so that a
 * sparse code keeps k/P of a block of d/P, and remembers the rest. The complete sum is
 * pruned once more by its owner and its code handed on. So (P-1) codes of a block go out
 * of a rank each way, and no payload grows with the ranks.
 *
 * Codes that are not sparse are carried too, dense sums as on the ring. */
#include "plugins/common/collectives/ring.h"

enum { PARAM_CHUNK };

static const gradcomp_param params[] = {
	[PARAM_CHUNK] = {.name = "chunk",
                         .type = GRADCOMP_PARAM_SIZE,
                         .def = "0",
                         .min = 0,
                         .max = 1 << 30,
                         .help = "piece of a dense block that is sent at a time; 0: what the links do best"},
};

static ring_options options(const gradcomp_value *values)
{
	return (ring_options){.chunk = (size_t)values[PARAM_CHUNK].i, .small = 8192, .one_run = 1};
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	const ring_options o = options(values);
	ring *r;
	gradcomp_status st = ring_create(host, links, &o, &r, err);
	if (!st)
		*instance = r;
	return st;
}

/* Whoever prunes remembers: there is nothing left for a memory of the collective's. */
static gradcomp_status exchange(void *instance, const gradcomp_exchange *x, gradcomp_error *err)
{
	return ring_coded_allreduce(instance, x->buf, x->count, x->scale, x->codec, x->counter, x->residual, err);
}

static uint64_t server_error(void *instance, uint64_t count)
{
	(void)instance, (void)count;
	return 0;
}

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	const ring_options o = options(values);
	return ring_predict(&o, nranks, nnodes, primitive, bytes, out, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof(struct gradcomp_collective_v1),
                 .name = "sparse",
                 .version = "1.0",
                 .licence = "MIT",
                 .summary =
                         "a ring whose sums are pruned at every hop: bytes of sparse sums do not grow with the ranks",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.traits = GRADCOMP_TRAIT_ALL_TYPES,
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
                  GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER | GRADCOMP_CAN_CODED_ALLREDUCE |
                  GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_CODED_REDUCE_SCATTER | GRADCOMP_CAN_EXCHANGE,
	.create = create,
	.destroy = ring_destroy,
	.allreduce = ring_allreduce,
	.reduce_scatter = ring_reduce_scatter,
	.allgather = ring_allgather,
	.broadcast = ring_broadcast,
	.barrier = ring_barrier,
	.coded_allreduce = ring_coded_allreduce,
	.coded_allgather = ring_coded_allgather,
	.coded_reduce_scatter = ring_coded_reduce_scatter,
	.exchange = exchange,
	.server_error = server_error,
	.cost = ring_cost,
	.predict = predict,
};
