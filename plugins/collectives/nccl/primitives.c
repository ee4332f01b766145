/* Plain collectives on device memory, by NCCL's own. Sums are scaled after they are
 * complete, once, by the device's operators. */
#include "plugins/collectives/nccl/comm.h"

#include <stdio.h>

#define WHAT_BYTES 96

/* NCCL's name for a type, or -1. */
static int type_of(gradcomp_dtype dtype)
{
	switch (dtype) {
	case GRADCOMP_F32:
		return ncclFloat32;
	case GRADCOMP_F16:
		return ncclFloat16;
	case GRADCOMP_BF16:
		return ncclBfloat16;
	case GRADCOMP_F64:
		return ncclFloat64;
	case GRADCOMP_I32:
		return ncclInt32;
	case GRADCOMP_I64:
		return ncclInt64;
	case GRADCOMP_U8:
		return ncclUint8;
	default:
		return -1;
	}
}

/* -1: NCCL has none that does as collective.h says. Its maxima may lose a NaN. */
static int operation(gradcomp_dtype dtype, gradcomp_op op)
{
	if (type_of(dtype) < 0)
		return -1;
	if (op == GRADCOMP_SUM)
		return ncclSum;
	if (dtype <= GRADCOMP_F64)
		return -1;
	return op == GRADCOMP_MAX ? (int)ncclMax : op == GRADCOMP_MIN ? (int)ncclMin : -1;
}

static gradcomp_status finish(nccl *n, ncclResult_t rc, void *scaled, uint64_t count, gradcomp_dtype dtype,
                              double scale, const char *what, gradcomp_error *err)
{
	gradcomp_status st = nccl_launched(n, rc, what, err);
	if (!st && scale != 1.0 && count && dtype <= GRADCOMP_F64)
		st = n->ops->scale_as(n->queue, scaled, scale, count, dtype);
	return st ? st : nccl_done(n, what, err);
}

static gradcomp_status reduce_here(nccl *n, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                   const char *what, gradcomp_error *err)
{
	size_t bytes = count * gradcomp_dtype_bytes(dtype), stride = nccl_rounded(bytes);
	char *own;
	/* Asked with no elements, the table says whether it knows the pair. */
	gradcomp_status st = n->ops->reduce(n->queue, buf, buf, 0, dtype, op);
	if (st)
		return n->host->fail(err, st, "nccl: operation %d has no meaning on elements of type %d", (int)op,
		                     (int)dtype);
	st = nccl_reserve(n, stride * (size_t)n->links->nranks, err);
	if (st)
		return st;
	own = n->scratch + (size_t)n->links->rank * stride;
	n->ops->copy(n->queue, own, buf, bytes);
	st = nccl_launched(n, n->f.ncclAllGather(own, n->scratch, stride, ncclUint8, n->comm, n->queue), what, err);
	if (!st)
		n->ops->copy(n->queue, buf, n->scratch, bytes);
	for (int r = 1; !st && r < n->links->nranks; r++)
		st = n->ops->reduce(n->queue, buf, n->scratch + (size_t)r * stride, count, dtype, op);
	return st ? st : nccl_done(n, what, err);
}

gradcomp_status nccl_allreduce(nccl *n, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                               gradcomp_error *err)
{
	int how = operation(dtype, op);
	char what[WHAT_BYTES];
	snprintf(what, sizeof what, "reduce %llu numbers", (unsigned long long)count);
	/* NCCL cannot do this: it is gathered, and put together in the order of ranks. */
	if (how < 0)
		return reduce_here(n, buf, count, dtype, op, what, err);
	return finish(n,
	              n->f.ncclAllReduce(buf, buf, count, (ncclDataType_t)type_of(dtype), (ncclRedOp_t)how, n->comm,
	                                 n->queue),
	              buf, count, dtype, op == GRADCOMP_SUM ? scale : 1.0, what, err);
}

static int all_equal(const uint64_t *v, int n)
{
	for (int i = 1; i < n; i++)
		if (v[i] != v[0])
			return 0;
	return 1;
}

gradcomp_status nccl_reduce_scatter(nccl *n, void *buf, const uint64_t *counts, gradcomp_dtype dtype, gradcomp_op op,
                                    double scale, gradcomp_error *err)
{
	int P = n->links->nranks, me = n->links->rank, how = operation(dtype, op);
	ncclDataType_t type = (ncclDataType_t)type_of(dtype);
	size_t size = gradcomp_dtype_bytes(dtype);
	char *at = buf, *own = buf, what[WHAT_BYTES];
	ncclResult_t rc;
	if (how < 0)
		return n->host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
		                     "nccl: reduce-scatter of operation %d on type %d in CUDA memory: "
		                     "sums, and maxima of integers, are served",
		                     (int)op, (int)dtype);
	for (int r = 0; r < me; r++)
		own += counts[r] * size;
	snprintf(what, sizeof what, "reduce and scatter, %llu numbers to this rank", (unsigned long long)counts[me]);
	if (all_equal(counts, P)) {
		rc = n->f.ncclReduceScatter(buf, own, counts[0], type, (ncclRedOp_t)how, n->comm, n->queue);
	} else {
		rc = n->f.ncclGroupStart();
		for (int r = 0; nccl_going(rc) && r < P; at += counts[r++] * size)
			if (counts[r])
				rc = n->f.ncclReduce(at, at, counts[r], type, (ncclRedOp_t)how, r, n->comm, n->queue);
		rc = nccl_both(rc, n->f.ncclGroupEnd());
	}
	return finish(n, rc, own, counts[me], dtype, op == GRADCOMP_SUM ? scale : 1.0, what, err);
}

gradcomp_status nccl_allgather(nccl *n, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	int P = n->links->nranks, me = n->links->rank;
	char *at = buf, *own = buf, what[WHAT_BYTES];
	ncclResult_t rc;
	for (int r = 0; r < me; r++)
		own += bytes[r];
	snprintf(what, sizeof what, "gather, %llu bytes of this rank", (unsigned long long)bytes[me]);
	if (all_equal(bytes, P)) {
		rc = n->f.ncclAllGather(own, buf, bytes[0], ncclUint8, n->comm, n->queue);
	} else {
		rc = n->f.ncclGroupStart();
		for (int r = 0; nccl_going(rc) && r < P; at += bytes[r++])
			if (bytes[r])
				rc = n->f.ncclBroadcast(at, at, bytes[r], ncclUint8, r, n->comm, n->queue);
		rc = nccl_both(rc, n->f.ncclGroupEnd());
	}
	return finish(n, rc, NULL, 0, GRADCOMP_U8, 1.0, what, err);
}

gradcomp_status nccl_alltoall(nccl *n, const void *in, const uint64_t *in_bytes, void *out, const uint64_t *out_bytes,
                              gradcomp_error *err)
{
	static const char what[] = "exchange a block with every rank";
	int P = n->links->nranks, me = n->links->rank;
	const char *from = in;
	char *to = out;
	ncclResult_t rc = n->f.ncclGroupStart();
	for (int r = 0; nccl_going(rc) && r < P; from += in_bytes[r], to += out_bytes[r], r++) {
		if (r == me) {
			n->ops->copy(n->queue, to, from, in_bytes[r]);
			continue;
		}
		if (in_bytes[r])
			rc = n->f.ncclSend(from, in_bytes[r], ncclUint8, r, n->comm, n->queue);
		if (nccl_going(rc) && out_bytes[r])
			rc = n->f.ncclRecv(to, out_bytes[r], ncclUint8, r, n->comm, n->queue);
	}
	rc = nccl_both(rc, n->f.ncclGroupEnd());
	return finish(n, rc, NULL, 0, GRADCOMP_U8, 1.0, what, err);
}

gradcomp_status nccl_broadcast(nccl *n, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	char what[WHAT_BYTES];
	snprintf(what, sizeof what, "broadcast %llu bytes of rank %d", (unsigned long long)bytes, root);
	return finish(n, n->f.ncclBroadcast(buf, buf, bytes, ncclUint8, root, n->comm, n->queue), NULL, 0, GRADCOMP_U8,
	              1.0, what, err);
}
