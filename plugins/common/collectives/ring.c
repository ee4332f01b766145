/* The ring's instance, and its calls as routes of blocks. */
#include "ring.h"

#include "blocks.h"
#include "direct.h"
#include "room.h"

gradcomp_status ring_room(ring *r, size_t bytes, gradcomp_error *err)
{
	return room_grow(r->host, &r->pieces, &r->pieces_cap, bytes, "ring", err);
}

gradcomp_status ring_create(const gradcomp_host *host, const gradcomp_links *links, const ring_options *o, ring **out,
                            gradcomp_error *err)
{
	size_t blocks = (size_t)links->nranks + 1;
	ring *r = host->alloc(sizeof *r + blocks * sizeof r->offset[0]);
	if (!r)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "ring: no memory for an instance of %d ranks", links->nranks);
	r->host = host;
	r->links = links;
	r->rank = links->rank;
	r->nranks = links->nranks;
	r->piece = ((o->chunk ? o->chunk : links->chunk) + 63) & ~(size_t)63;
	r->piece_given = o->chunk != 0;
	r->small = o->small;
	r->hop = o->hop;
	r->whole = o->whole;
	gradcomp_status st = o->direct ? direct_create(host, links, o->chunk, &r->direct, err) : GRADCOMP_OK;
	if (st)
		host->release(r);
	else
		*out = r;
	return st;
}

void ring_destroy(void *instance)
{
	ring *r = instance;
	if (!r)
		return;
	const gradcomp_host *host = r->host;
	direct_destroy(r->direct);
	host->release(r->pieces);
	host->release(r);
}

void ring_split(ring *r, uint64_t count, size_t size)
{
	blocks_split(r->offset, r->nranks, count, size);
}

void ring_offsets(ring *r, const uint64_t *counts, size_t size)
{
	blocks_given(r->offset, r->nranks, counts, size);
}

gradcomp_status ring_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype,
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

gradcomp_status ring_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                      gradcomp_op op, double scale, gradcomp_error *err)
{
	ring *r = instance;
	size_t size = gradcomp_dtype_bytes(dtype);
	if (r->nranks == 1)
		return scale == 1.0 ? GRADCOMP_OK
		                    : r->host->operators->scale_as(NULL, buf, scale, counts[0], dtype);
	ring_offsets(r, counts, size);
	ring_route route = {.buf = buf, .offset = r->offset, .start = (r->rank + r->nranks - 1) % r->nranks,
	                    .steps = r->nranks - 1, .reduce_steps = r->nranks - 1, .dtype = dtype, .op = op,
	                    .scale = scale};
	return ring_travel(r, &route, err);
}

gradcomp_status ring_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	ring *r = instance;
	if (r->nranks == 1)
		return GRADCOMP_OK;
	ring_offsets(r, bytes, 1);
	ring_route route = {.buf = buf, .offset = r->offset, .start = r->rank, .steps = r->nranks - 1, .scale = 1.0};
	return ring_travel(r, &route, err);
}
