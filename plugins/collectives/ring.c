/* ring: all-reduce, reduce-scatter and all-gather on a ring of ranks, each rank
 * sending 2 (P-1)/P * S bytes for an all-reduce of S (Patarasuk and Yuan 2009,
 * bandwidth-optimal). Every block is summed along one path and its bytes are then
 * handed on, so all ranks end with the same bits.
 *
 * Coded sums whose losses nobody keeps do not go around (ring_coded.c); where nodes have several ranks
 * they are made in two levels, since every rank would send to every other through its node's interface. */
#include "plugins/common/collectives/hier.h"

#include "plugins/common/collectives/coding.h"

#include <stdbool.h>

enum { PARAM_CHUNK, PARAM_SMALL, PARAM_MODE };
enum { MODE_ASSISTED, MODE_HOP, MODE_DIRECT };

static const char *const modes[] = {[MODE_ASSISTED] = "assisted", [MODE_HOP] = "hop", [MODE_DIRECT] = "direct", NULL};

static const gradcomp_param params[] = {
	{.name = "chunk",
         .type = GRADCOMP_PARAM_SIZE,
         .def = "0",
         .min = 0,
         .max = 1 << 30,
         .help = "piece of a block that is sent at a time; 0: what the links do best"},
	{.name = "small",
         .type = GRADCOMP_PARAM_SIZE,
         .def = "8K",
         .min = 0,
         .max = 1 << 20,
         .help = "all-reduces up to this size go to all peers at once (up to 8 ranks)"},
	{.name = "mode",
         .type = GRADCOMP_PARAM_CHOICE,
         .def = "assisted",
         .choices = modes,
         .help = "coded sums: coded once and forwarded; to compare with: coded at every hop, or in two steps to and from owners"},
};

static ring_options options(const gradcomp_value *values)
{
	return (ring_options){.chunk = (size_t)values[PARAM_CHUNK].i,
	                      .small = (uint64_t)values[PARAM_SMALL].i,
	                      .hop = values[PARAM_MODE].i == MODE_HOP,
	                      .direct = values[PARAM_MODE].i == MODE_DIRECT};
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

static void destroy(void *instance)
{
	ring *r = instance;
	if (r)
		hier_destroy(r->levels);
	ring_destroy(r);
}

static bool has_levels(int32_t nranks, int32_t nnodes)
{
	return nnodes > 1 && nnodes < nranks;
}

/* Sets *out to the collective by which a sum is made in two levels, NULL: it is not. */
static gradcomp_status find_levels(ring *r, const gradcomp_codec *codec, const float *residual, hier **out,
                                   gradcomp_error *err)
{
	const bool levels = has_levels(r->nranks, r->links->nnodes) && ring_owns_sums(r, codec, residual);
	gradcomp_status st = GRADCOMP_OK;
	if (levels && !r->levels)
		st = hier_create(r->host, r->links, r->piece_given ? r->piece : 0, 0, &r->levels, err);
	*out = levels ? r->levels : NULL;
	return st;
}

static gradcomp_status coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                       const gradcomp_codec *codec, uint64_t counter, float *residual,
                                       gradcomp_error *err)
{
	hier *h;
	gradcomp_status st = find_levels(instance, codec, residual, &h, err);
	if (st)
		return st;
	return h ? hier_coded_allreduce(h, buf, count, scale, codec, counter, residual, err)
	         : ring_coded_allreduce(instance, buf, count, scale, codec, counter, residual, err);
}

static gradcomp_status coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                            const gradcomp_codec *codec, uint64_t counter, float *residual,
                                            gradcomp_error *err)
{
	hier *h;
	gradcomp_status st = find_levels(instance, codec, residual, &h, err);
	if (st)
		return st;
	return h ? hier_coded_reduce_scatter(h, buf, counts, scale, codec, counter, residual, err)
	         : ring_coded_reduce_scatter(instance, buf, counts, scale, codec, counter, residual, err);
}

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	ring_options o = options(values);
	if (ring_sum_options(&o, nranks, &primitive) && has_levels(nranks, nnodes))
		return hier_predict(o.chunk, 0, nranks, nnodes, primitive, bytes, out, err);
	return primitive == GRADCOMP_CAN_EXCHANGE ? call_cost_refuse("ring", primitive, err)
	                                          : ring_predict(&o, nranks, nnodes, primitive, bytes, out, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof(struct gradcomp_collective_v1),
                 .name = "ring",
                 .version = "1.0",
                 .licence = "MIT",
                 .summary = "chunk-pipelined ring: bandwidth-optimal all-reduce, all-gather, reduce-scatter",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.traits = GRADCOMP_TRAIT_ALL_TYPES,
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
                  GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER | GRADCOMP_CAN_CODED_ALLREDUCE |
                  GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_CODED_REDUCE_SCATTER | GRADCOMP_CAN_OWNED_SUMS,
	.create = create,
	.destroy = destroy,
	.allreduce = ring_allreduce,
	.reduce_scatter = ring_reduce_scatter,
	.allgather = ring_allgather,
	.broadcast = ring_broadcast,
	.barrier = ring_barrier,
	.coded_allreduce = coded_allreduce,
	.coded_allgather = ring_coded_allgather,
	.coded_reduce_scatter = coded_reduce_scatter,
	.cost = ring_cost,
	.predict = predict,
};
