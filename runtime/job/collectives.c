/* The blocking collectives of a group: uncompressed, one at a time. */
#include "job/job.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* The group's collective, with the group's lock held on success. */
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
			st = coll_ctx_open(g, p, s, &g->blocking, err);
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
		return error_set(err, GRADCOMP_ERR_INVALID, "buffer is NULL for %llu elements", (unsigned long long)count);
	if (count > INT64_MAX / gradcomp_dtype_bytes(dtype))
		return error_set(err, GRADCOMP_ERR_RANGE, "%llu elements of %zu bytes are more than memory can have",
		                 (unsigned long long)count, gradcomp_dtype_bytes(dtype));
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_allreduce(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype,
                                   gradcomp_op op, gradcomp_error *err)
{
	coll_ctx *p;
	gradcomp_status st = check(g, buf, count, dtype, err);
	if (!st && (unsigned)op > GRADCOMP_BOR)
		st = error_set(err, GRADCOMP_ERR_INVALID, "operation %d: must be 0..%d", (int)op, GRADCOMP_BOR);
	if (!st && op == GRADCOMP_BOR && dtype <= GRADCOMP_F64)
		st = error_set(err, GRADCOMP_ERR_UNSUPPORTED, "bitwise or has no meaning on floating types");
	if (!st)
		st = begin(g, &p, err);
	if (st)
		return end(g, st, err);
	st = p->collective->allreduce ? p->collective->allreduce(p->instance, buf, count, dtype, op, 1.0, err)
	                              : unserved(p, "all-reduce", err);
	pthread_mutex_unlock(&g->lock);
	return end(g, st, err);
}

/* Bytes of every block, and of all; freed by the caller. */
static gradcomp_status block_bytes(const gradcomp_group *g, const uint64_t *counts, gradcomp_dtype dtype,
                                   uint64_t **bytes, uint64_t *before, gradcomp_error *err)
{
	uint64_t total = 0;
	if (!counts)
		return error_set(err, GRADCOMP_ERR_INVALID, "counts is NULL");
	*bytes = malloc((size_t)g->nranks * sizeof **bytes);
	if (!*bytes)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d counts", g->nranks);
	for (int r = 0; r < g->nranks; r++) {
		if (r == g->me)
			*before = total;
		if (counts[r] > (INT64_MAX - total) / gradcomp_dtype_bytes(dtype)) {
			free(*bytes);
			return error_set(err, GRADCOMP_ERR_RANGE, "counts up to rank %d are more than memory can have", r);
		}
		(*bytes)[r] = counts[r] * gradcomp_dtype_bytes(dtype);
		total += (*bytes)[r];
	}
	return GRADCOMP_OK;
}

/* What both collectives of blocks begin with; on success the group's lock is held
 * and *bytes is the caller's to free. */
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

gradcomp_status gradcomp_allgather(gradcomp_group *g, const void *in, void *out, const uint64_t *counts,
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

gradcomp_status gradcomp_reduce_scatter(gradcomp_group *g, void *in, void *out, const uint64_t *counts,
                                        gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	coll_ctx *p;
	uint64_t *bytes, before = 0;
	gradcomp_status st = blocks_begin(g, out, counts, dtype, &p, &bytes, &before, err);
	if (st)
		return end(g, st, err);
	st = p->collective->reduce_scatter
	             ? p->collective->reduce_scatter(p->instance, in, counts, dtype, op, 1.0, err)
	             : unserved(p, "reduce-scatter", err);
	if (!st && bytes[g->me])
		memmove(out, (char *)in + before, bytes[g->me]);
	pthread_mutex_unlock(&g->lock);
	free(bytes);
	return end(g, st, err);
}

gradcomp_status gradcomp_broadcast(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, int root,
                                   gradcomp_error *err)
{
	coll_ctx *p;
	gradcomp_status st = check(g, buf, count, dtype, err);
	if (!st && (root < 0 || root >= g->nranks))
		st = error_set(err, GRADCOMP_ERR_INVALID, "root %d: must be 0..%d", root, g->nranks - 1);
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

gradcomp_status gradcomp_barrier(gradcomp_group *g, gradcomp_error *err)
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
