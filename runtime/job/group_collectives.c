/* The blocking collectives of a group: uncompressed, one at a time. */
#include "job/device_coll.h"

#include "base/error.h"
#include "base/first_sizes.h"

#include <stdlib.h>
#include <string.h>

/* Gives the group's collective, with the group's lock held on success. */
static gradcomp_status begin(gradcomp_group *g, coll_ctx **out, gradcomp_error *err)
{
	gradcomp_job *job = g->job;
	gradcomp_status st = GRADCOMP_OK;
	const plugin *p;
	const spec *s;
	pthread_mutex_lock(&g->lock);
	if (!g->blocking.channel) {
		st = job_collective(job, &p, &s, err);
		if (!st)
			st = group_coll_open(g, p, s, &g->blocking, err);
	}
	if (!st)
		st = transport_failure(job->transport, err);
	if (st)
		pthread_mutex_unlock(&g->lock);
	else
		*out = &g->blocking;
	return st;
}

/* Arguments are wrong on all ranks alike, and the job goes on. Any other failure is this
 * rank's own: the others must not wait for it. */
static gradcomp_status end(gradcomp_group *g, gradcomp_status st, const gradcomp_error *err)
{
	if (st && st != GRADCOMP_ERR_INVALID && st != GRADCOMP_ERR_UNSUPPORTED && st != GRADCOMP_ERR_RANGE)
		job_fail(g->job, st, err ? err->text : gradcomp_strerror(st));
	return st;
}

/* The collective has no such primitive. */
static gradcomp_status unserved(const coll_ctx *p, const char *what, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "collective '%s' serves no %s", p->collective->info.name, what);
}

static gradcomp_status check(const gradcomp_group *g, const void *buf, uint64_t count, gradcomp_dtype dtype,
                             gradcomp_error *err)
{
	if (!g)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	if (!gradcomp_dtype_bytes(dtype))
		return error_set(err, GRADCOMP_ERR_INVALID, "element type %d: must be 0..%d", (int)dtype, GRADCOMP_U8);
	if (count && !buf)
		return error_set(err, GRADCOMP_ERR_INVALID, "buffer is NULL for %llu elements",
		                 (unsigned long long)count);
	if (count > INT64_MAX / gradcomp_dtype_bytes(dtype))
		return error_set(err, GRADCOMP_ERR_RANGE, "%llu elements of %zu bytes are more than memory can have",
		                 (unsigned long long)count, gradcomp_dtype_bytes(dtype));
	return GRADCOMP_OK;
}

static gradcomp_status check_op(gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	if ((unsigned)op > GRADCOMP_BOR)
		return error_set(err, GRADCOMP_ERR_INVALID, "operation %d: must be 0..%d", (int)op, GRADCOMP_BOR);
	return op == GRADCOMP_BOR && dtype <= GRADCOMP_F64
	               ? error_set(err, GRADCOMP_ERR_UNSUPPORTED, "bitwise or has no meaning on floating types")
	               : GRADCOMP_OK;
}

static gradcomp_status check_root(const gradcomp_group *g, int root, gradcomp_error *err)
{
	return root < 0 || root >= g->nranks
	               ? error_set(err, GRADCOMP_ERR_INVALID, "root %d: must be 0..%d", root, g->nranks - 1)
	               : GRADCOMP_OK;
}

gradcomp_status group_allreduce(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                gradcomp_error *err)
{
	coll_ctx *p;
	gradcomp_status st = check(g, buf, count, dtype, err);
	if (!st)
		st = check_op(dtype, op, err);
	if (!st)
		st = begin(g, &p, err);
	if (st)
		return end(g, st, err);
	st = p->collective->allreduce ? p->collective->allreduce(p->instance, buf, count, dtype, op, 1.0, err)
	                              : unserved(p, "all-reduce", err);
	pthread_mutex_unlock(&g->lock);
	return end(g, st, err);
}

/* *total: bytes of all blocks. */
static gradcomp_status check_counts(const gradcomp_group *g, const uint64_t *counts, gradcomp_dtype dtype,
                                    uint64_t *total, gradcomp_error *err)
{
	*total = 0;
	if (!counts)
		return error_set(err, GRADCOMP_ERR_INVALID, "counts is NULL");
	for (int r = 0; r < g->nranks; r++) {
		if (counts[r] > (INT64_MAX - *total) / gradcomp_dtype_bytes(dtype))
			return error_set(err, GRADCOMP_ERR_RANGE, "counts up to rank %d are more than memory can have",
			                 r);
		*total += counts[r] * gradcomp_dtype_bytes(dtype);
	}
	return GRADCOMP_OK;
}

/* Computes the bytes of every block, and of those before this rank's; freed by the caller. */
static gradcomp_status block_bytes(const gradcomp_group *g, const uint64_t *counts, gradcomp_dtype dtype,
                                   uint64_t **bytes, uint64_t *before, gradcomp_error *err)
{
	uint64_t total;
	gradcomp_status st = check_counts(g, counts, dtype, &total, err);
	if (st)
		return st;
	*bytes = malloc((size_t)g->nranks * sizeof **bytes);
	if (!*bytes)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d counts", g->nranks);
	*before = 0;
	for (int r = 0; r < g->nranks; r++) {
		(*bytes)[r] = counts[r] * gradcomp_dtype_bytes(dtype);
		*before += r < g->me ? (*bytes)[r] : 0;
	}
	return GRADCOMP_OK;
}

/* Begins a collective of blocks; on success the group's lock is held and *bytes is the caller's to free. */
static gradcomp_status blocks_begin(gradcomp_group *g, const void *out, const uint64_t *counts, gradcomp_dtype dtype,
                                    coll_ctx **p, uint64_t **bytes, uint64_t *before, gradcomp_error *err)
{
	gradcomp_status st = check(g, out, 0, dtype, err);
	if (!st)
		st = block_bytes(g, counts, dtype, bytes, before, err);
	if (st)
		return st;
	st = begin(g, p, err);
	if (st)
		free(*bytes);
	return st;
}

gradcomp_status group_allgather(gradcomp_group *g, const void *in, void *out, const uint64_t *counts,
                                gradcomp_dtype dtype, gradcomp_error *err)
{
	coll_ctx *p;
	uint64_t *bytes, before = 0;
	gradcomp_status st = blocks_begin(g, out, counts, dtype, &p, &bytes, &before, err);
	if (st)
		return end(g, st, err);
	if (bytes[g->me] && (char *)out + before != (const char *)in)
		memmove((char *)out + before, in, bytes[g->me]);
	st = p->collective->allgather ? p->collective->allgather(p->instance, out, bytes, err)
	                              : unserved(p, "all-gather", err);
	pthread_mutex_unlock(&g->lock);
	free(bytes);
	return end(g, st, err);
}

static gradcomp_status reduce_scatter(gradcomp_group *g, void *in, void *out, const uint64_t *counts,
                                      gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	coll_ctx *p;
	uint64_t *bytes, before = 0;
	gradcomp_status st = blocks_begin(g, out, counts, dtype, &p, &bytes, &before, err);
	if (st)
		return end(g, st, err);
	st = p->collective->reduce_scatter ? p->collective->reduce_scatter(p->instance, in, counts, dtype, op, 1.0, err)
	                                   : unserved(p, "reduce-scatter", err);
	if (!st && bytes[g->me])
		memmove(out, (char *)in + before, bytes[g->me]);
	pthread_mutex_unlock(&g->lock);
	free(bytes);
	return end(g, st, err);
}

gradcomp_status group_broadcast(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, int root,
                                gradcomp_error *err)
{
	coll_ctx *p;
	gradcomp_status st = check(g, buf, count, dtype, err);
	if (!st)
		st = check_root(g, root, err);
	if (!st)
		st = begin(g, &p, err);
	if (st)
		return end(g, st, err);
	st = p->collective->broadcast
	             ? p->collective->broadcast(p->instance, buf, count * gradcomp_dtype_bytes(dtype), root, err)
	             : unserved(p, "broadcast", err);
	pthread_mutex_unlock(&g->lock);
	return end(g, st, err);
}

gradcomp_status group_barrier(gradcomp_group *g, gradcomp_error *err)
{
	coll_ctx *p;
	gradcomp_status st = check(g, NULL, 0, GRADCOMP_U8, err);
	if (!st)
		st = begin(g, &p, err);
	if (st)
		return end(g, st, err);
	st = p->collective->barrier ? p->collective->barrier(p->instance, err) : unserved(p, "barrier", err);
	pthread_mutex_unlock(&g->lock);
	return end(g, st, err);
}

/* When a rank leaves it, all have entered: in round k everybody hears of 2^k more. */
gradcomp_status group_meet(channel *c, gradcomp_error *err)
{
	const gradcomp_links *l = channel_links(c);
	char out = 1, in;
	gradcomp_status st = GRADCOMP_OK;
	for (int64_t k = 1; !st && k < l->nranks; k *= 2) {
		gradcomp_request s, r;
		st = l->recv(l->ctx, (int)((l->rank + l->nranks - k) % l->nranks), &in, 1, &r, err);
		if (!st)
			st = l->send(l->ctx, (int)((l->rank + k) % l->nranks), &out, 1, &s, err);
		if (!st)
			st = l->wait(l->ctx, &r, err);
		if (!st)
			st = l->wait(l->ctx, &s, err);
	}
	return st;
}

gradcomp_status group_commit(gradcomp_group *g, gradcomp_status st, gradcomp_error *err)
{
	if (st || g != g->job->world || !g->job->transport_options.outlives)
		return st;
	pthread_mutex_lock(&g->lock);
	if (!g->commits)
		st = group_channel(g, &g->commits, err);
	if (!st)
		st = group_meet(g->commits, err);
	if (!st)
		g->done++;
	pthread_mutex_unlock(&g->lock);
	return end(g, st, err);
}

gradcomp_status gradcomp_allreduce(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                   gradcomp_error *err)
{
	return group_commit(g, group_allreduce(g, buf, count, dtype, op, err), err);
}

gradcomp_status gradcomp_allgather(gradcomp_group *g, const void *in, void *out, const uint64_t *counts,
                                   gradcomp_dtype dtype, gradcomp_error *err)
{
	return group_commit(g, group_allgather(g, in, out, counts, dtype, err), err);
}

gradcomp_status gradcomp_reduce_scatter(gradcomp_group *g, void *in, void *out, const uint64_t *counts,
                                        gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	return group_commit(g, reduce_scatter(g, in, out, counts, dtype, op, err), err);
}

gradcomp_status gradcomp_broadcast(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, int root,
                                   gradcomp_error *err)
{
	return group_commit(g, group_broadcast(g, buf, count, dtype, root, err), err);
}

gradcomp_status gradcomp_barrier(gradcomp_group *g, gradcomp_error *err)
{
	return group_commit(g, group_barrier(g, err), err);
}

/* Returns true when a call is of host memory: then it is the function's above. */
static bool in_host_memory(const gradcomp_memory_options *where)
{
	return !where || where->device == GRADCOMP_HOST;
}

gradcomp_status group_memory_options_check(const gradcomp_memory_options *where, gradcomp_error *err)
{
	if (where->struct_size < FIRST_SIZE(gradcomp_memory_options))
		return error_set(err, GRADCOMP_ERR_INVALID, "memory options of %u bytes: must be %d or more",
		                 where->struct_size, FIRST_SIZE(gradcomp_memory_options));
	return where->device == GRADCOMP_CUDA
	               ? GRADCOMP_OK
	               : error_set(err, GRADCOMP_ERR_INVALID, "buffers on device %d: must be 0 (host) or 1 (CUDA)",
	                           (int)where->device);
}

static gradcomp_status run(gradcomp_group *g, device_coll_call *call, void *queue, gradcomp_error *err)
{
	gradcomp_status st;
	call->queue = queue;
	pthread_mutex_lock(&g->device_lock);
	st = transport_failure(g->job->transport, err);
	/* All ranks know then what one of them cannot. */
	if (!st && !g->device)
		st = device_coll_open(g, NULL, &g->device, err);
	if (!st)
		st = end(g, device_coll_run(g->device, call, err), err);
	pthread_mutex_unlock(&g->device_lock);
	return group_commit(g, st, err);
}

gradcomp_status gradcomp_allreduce_on(gradcomp_group *g, const gradcomp_memory_options *where, void *buf,
                                      uint64_t count, gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	gradcomp_error own = {0};
	err = err ? err : &own;
	if (in_host_memory(where))
		return gradcomp_allreduce(g, buf, count, dtype, op, err);
	gradcomp_status st = group_memory_options_check(where, err);
	if (!st)
		st = check(g, buf, count, dtype, err);
	if (!st)
		st = check_op(dtype, op, err);
	device_coll_call call = {.kind = DEVICE_ALLREDUCE, .buf = buf, .counts = &count, .dtype = dtype, .op = op};
	return st ? st : run(g, &call, where->queue, err);
}

/* Checks the buffers of blocks: all of them, and this rank's. */
static gradcomp_status check_blocks(const gradcomp_group *g, const void *all, const void *own, const uint64_t *counts,
                                    gradcomp_dtype dtype, gradcomp_error *err)
{
	uint64_t total;
	gradcomp_status st = check(g, NULL, 0, dtype, err);
	if (!st)
		st = check_counts(g, counts, dtype, &total, err);
	if (!st && ((total && !all) || (counts[g->me] && !own)))
		st = error_set(err, GRADCOMP_ERR_INVALID, "a buffer is NULL for blocks of %llu bytes",
		               (unsigned long long)total);
	return st;
}

gradcomp_status gradcomp_allgather_on(gradcomp_group *g, const gradcomp_memory_options *where, const void *in,
                                      void *out, const uint64_t *counts, gradcomp_dtype dtype, gradcomp_error *err)
{
	gradcomp_error own = {0};
	err = err ? err : &own;
	if (in_host_memory(where))
		return gradcomp_allgather(g, in, out, counts, dtype, err);
	gradcomp_status st = group_memory_options_check(where, err);
	if (!st)
		st = check_blocks(g, out, in, counts, dtype, err);
	device_coll_call call = {.kind = DEVICE_ALLGATHER, .buf = out, .in = in, .counts = counts, .dtype = dtype};
	return st ? st : run(g, &call, where->queue, err);
}

gradcomp_status gradcomp_reduce_scatter_on(gradcomp_group *g, const gradcomp_memory_options *where, void *in, void *out,
                                           const uint64_t *counts, gradcomp_dtype dtype, gradcomp_op op,
                                           gradcomp_error *err)
{
	gradcomp_error own = {0};
	err = err ? err : &own;
	if (in_host_memory(where))
		return gradcomp_reduce_scatter(g, in, out, counts, dtype, op, err);
	gradcomp_status st = group_memory_options_check(where, err);
	if (!st)
		st = check_blocks(g, in, out, counts, dtype, err);
	if (!st)
		st = check_op(dtype, op, err);
	device_coll_call call = {
		.kind = DEVICE_REDUCE_SCATTER, .buf = in, .out = out, .counts = counts, .dtype = dtype, .op = op};
	return st ? st : run(g, &call, where->queue, err);
}

gradcomp_status gradcomp_broadcast_on(gradcomp_group *g, const gradcomp_memory_options *where, void *buf,
                                      uint64_t count, gradcomp_dtype dtype, int root, gradcomp_error *err)
{
	gradcomp_error own = {0};
	err = err ? err : &own;
	if (in_host_memory(where))
		return gradcomp_broadcast(g, buf, count, dtype, root, err);
	gradcomp_status st = group_memory_options_check(where, err);
	if (!st)
		st = check(g, buf, count, dtype, err);
	if (!st)
		st = check_root(g, root, err);
	device_coll_call call = {.kind = DEVICE_BROADCAST, .buf = buf, .counts = &count, .dtype = dtype, .root = root};
	return st ? st : run(g, &call, where->queue, err);
}
