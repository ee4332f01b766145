#include "reducer/word_sync.h"

#include "base/error.h"
#include "step/exchange/exchange.h"
#include "step/memops.h"

#include <stdlib.h>

int word_sync_supported(const reducer *r)
{
	return r->eng.layout.nranks == 1 ||
	       r->eng.coll_ctx.collective->serves & (GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER);
}

/* Where the collective takes its buffers from; freed when it is not a workspace's. */
static gradcomp_status word_buffer(reducer *r, size_t bytes, void **buf, gradcomp_error *err)
{
	scratch_buf *a = &r->workspaces[0].own;
	if (memops_on_device(&r->eng)) {
		gradcomp_status st = workspace_grow(a, bytes, err);
		*buf = a->p;
		return st;
	}
	*buf = malloc(bytes);
	return *buf ? GRADCOMP_OK
	            : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %zu bytes of measurements", bytes);
}

static void release(const reducer *r, void *buf)
{
	if (!memops_on_device(&r->eng))
		free(buf);
}

static gradcomp_status reduced(reducer *r, int64_t *w, size_t n, gradcomp_error *err)
{
	size_t bytes = n * sizeof *w;
	void *buf;
	/* Nothing that could fail on this rank alone. */
	if (!memops_on_device(&r->eng))
		return r->eng.coll_ctx.collective->allreduce(r->eng.coll_ctx.instance, w, n, GRADCOMP_I64, GRADCOMP_MAX,
		                                             1.0, err);
	gradcomp_status st = word_buffer(r, bytes, &buf, err);
	if (!st)
		st = memops_put(&r->eng, buf, w, bytes, err);
	if (!st)
		st = r->eng.coll_ctx.collective->allreduce(r->eng.coll_ctx.instance, buf, n, GRADCOMP_I64, GRADCOMP_MAX,
		                                           1.0, err);
	if (!st)
		st = memops_get(&r->eng, w, buf, bytes, err);
	release(r, buf);
	return st;
}

/* Gathers everybody's into all[nranks][n]. */
static gradcomp_status gathered(reducer *r, const int64_t *w, size_t n, int64_t *all, gradcomp_error *err)
{
	size_t bytes = n * sizeof *w, P = (size_t)r->eng.layout.nranks;
	void *buf;
	gradcomp_status st = word_buffer(r, P * bytes, &buf, err);
	for (size_t p = 0; p < P; p++)
		r->eng.room.lengths[p] = bytes;
	if (!st)
		st = memops_put(&r->eng, (char *)buf + (size_t)r->eng.layout.rank * bytes, w, bytes, err);
	if (!st)
		st = exchange_blocks(&r->eng, buf, r->eng.room.lengths, err);
	if (!st)
		st = memops_get(&r->eng, all, buf, P * bytes, err);
	release(r, buf);
	return st;
}

gradcomp_status word_sync_max(reducer *r, int64_t *w, size_t n, gradcomp_error *err)
{
	size_t P = (size_t)r->eng.layout.nranks;
	int64_t *all;
	gradcomp_status st;
	if (P == 1)
		return GRADCOMP_OK;
	if (r->eng.coll_ctx.collective->serves & GRADCOMP_CAN_ALLREDUCE)
		return reduced(r, w, n, err);
	all = malloc(P * n * sizeof *all);
	if (!all)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what %zu ranks have measured", P);
	st = gathered(r, w, n, all, err);
	for (size_t p = 0; !st && p < P; p++)
		for (size_t i = 0; i < n; i++)
			w[i] = all[p * n + i] > w[i] ? all[p * n + i] : w[i];
	free(all);
	return st;
}

/* The others have nothing to say, which is less than anything. */
gradcomp_status word_sync_bcast(reducer *r, int64_t *w, size_t n, gradcomp_error *err)
{
	for (size_t i = 0; r->eng.layout.rank && i < n; i++)
		w[i] = INT64_MIN;
	return word_sync_max(r, w, n, err);
}
