/* ring: all-reduce, reduce-scatter and all-gather on a ring of ranks, each rank
 * sending 2 (P-1)/P * S bytes for an all-reduce of S (Patarasuk and Yuan 2009,
 * bandwidth-optimal). Every block is summed along one path and its bytes are then
 * handed on, so all ranks end with the same bits. */
#include "ring.h"

#include "room.h"

enum { PARAM_CHUNK, PARAM_SMALL, PARAM_MODE };
enum { MODE_ASSISTED, MODE_HOP };

static const char *const modes[] = {"assisted", "hop", NULL};

static const gradcomp_param params[] = {
	{.name = "chunk", .type = GRADCOMP_PARAM_SIZE, .def = "0", .min = 0, .max = 1 << 30,
	 .help = "piece of a block that is sent at a time; 0: what the links do best"},
	{.name = "small", .type = GRADCOMP_PARAM_SIZE, .def = "8K", .min = 0, .max = 1 << 20,
	 .help = "all-reduces up to this size go to all peers at once (up to 8 ranks)"},
	{.name = "mode", .type = GRADCOMP_PARAM_CHOICE, .def = "assisted", .choices = modes,
	 .help = "coded sums: coded once and forwarded, or coded at every hop, to compare with"},
};

gradcomp_status ring_room(ring *r, size_t bytes, gradcomp_error *err)
{
	return room_grow(r->host, &r->pieces, &r->pieces_cap, bytes, "ring", err);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values,
                              const gradcomp_links *links, void **instance, gradcomp_error *err)
{
	size_t blocks = (size_t)links->nranks + 1;
	ring *r = host->alloc(sizeof *r + blocks * sizeof r->offset[0]);
	if (!r)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "ring: no memory for an instance of %d ranks", links->nranks);
	r->host = host;
	r->links = links;
	r->rank = links->rank;
	r->nranks = links->nranks;
	r->piece = ((values[PARAM_CHUNK].i ? (size_t)values[PARAM_CHUNK].i : links->chunk) + 63) & ~(size_t)63;
	r->piece_given = values[PARAM_CHUNK].i != 0;
	r->small = (uint64_t)values[PARAM_SMALL].i;
	r->hop = values[PARAM_MODE].i == MODE_HOP;
	*instance = r;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	ring *r = instance;
	if (!r)
		return;
	const gradcomp_host *host = r->host;
	host->release(r->pieces);
	host->release(r);
}

void ring_split(ring *r, uint64_t count, size_t size)
{
	uint64_t P = (uint64_t)r->nranks;
	for (uint64_t b = 0; b <= P; b++)
		r->offset[b] = (count / P * b + (b < count % P ? b : count % P)) * size;
}

static gradcomp_status allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype,
                                 gradcomp_op op, double scale, gradcomp_error *err)
{
	ring *r = instance;
	size_t size = gradcomp_dtype_bytes(dtype);
	uint64_t P = (uint64_t)r->nranks;
	if (!count)
		return GRADCOMP_OK;
	if (P == 1)
		return scale == 1.0 ? GRADCOMP_OK : r->host->operators->scale_as(NULL, buf, scale, count, dtype);
	if (P <= RING_AHEAD && count * size <= r->small)
		return ring_small_allreduce(r, buf, count, dtype, op, scale, err);
	ring_split(r, count, size);
	ring_route route = {.buf = buf, .offset = r->offset, .start = r->rank, .steps = 2 * (r->nranks - 1),
	                    .reduce_steps = r->nranks - 1, .dtype = dtype, .op = op, .scale = scale};
	return ring_travel(r, &route, err);
}

static gradcomp_status reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                      gradcomp_op op, double scale, gradcomp_error *err)
{
	ring *r = instance;
	size_t size = gradcomp_dtype_bytes(dtype);
	uint64_t *offset = r->offset;
	if (r->nranks == 1)
		return scale == 1.0 ? GRADCOMP_OK
		                    : r->host->operators->scale_as(NULL, buf, scale, counts[0], dtype);
	for (int b = 0; b < r->nranks; b++)
		offset[b + 1] = offset[b] + counts[b] * size;
	ring_route route = {.buf = buf, .offset = offset, .start = (r->rank + r->nranks - 1) % r->nranks,
	                    .steps = r->nranks - 1, .reduce_steps = r->nranks - 1, .dtype = dtype, .op = op,
	                    .scale = scale};
	return ring_travel(r, &route, err);
}

static gradcomp_status allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	ring *r = instance;
	uint64_t *offset = r->offset;
	if (r->nranks == 1)
		return GRADCOMP_OK;
	for (int b = 0; b < r->nranks; b++)
		offset[b + 1] = offset[b] + bytes[b];
	ring_route route = {.buf = buf, .offset = offset, .start = r->rank, .steps = r->nranks - 1, .scale = 1.0};
	return ring_travel(r, &route, err);
}

static void cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const ring *r = instance;
	int direct = r->nranks <= RING_AHEAD && bytes <= r->small;
	*sent = direct ? (r->nranks - 1.0) * (double)bytes : 2.0 * (r->nranks - 1) / r->nranks * (double)bytes;
	*messages = direct ? r->nranks - 1.0 : 2.0 * (r->nranks - 1);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION, .struct_size = sizeof(struct gradcomp_collective_v1),
	         .name = "ring", .version = "1.0", .licence = "MIT",
	         .summary = "chunk-pipelined ring: bandwidth-optimal all-reduce, all-gather, reduce-scatter",
	         .params = params, .nparams = sizeof params / sizeof params[0]},
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
	          GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER | GRADCOMP_CAN_CODED_ALLREDUCE |
	          GRADCOMP_CAN_CODED_ALLGATHER,
	.create = create,
	.destroy = destroy,
	.allreduce = allreduce,
	.reduce_scatter = reduce_scatter,
	.allgather = allgather,
	.broadcast = ring_broadcast,
	.barrier = ring_barrier,
	.coded_allreduce = ring_coded_allreduce,
	.coded_allgather = ring_coded_allgather,
	.cost = cost,
};
