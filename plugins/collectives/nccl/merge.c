/* Merging on device memory: up the tree of plugins/common/collectives/tree.c, in its order, so that
 * the bits are those of payloads in host memory. The root's goes to all by NCCL's broadcast. */
#include "plugins/collectives/nccl/comm.h"

static gradcomp_status receive(nccl *n, const tree_position *p, size_t stride, uint64_t bound, const char *what,
                               gradcomp_error *err)
{
	ncclResult_t rc = n->f.ncclGroupStart();
	for (int k = 0; nccl_going(rc) && k < p->nchildren; k++)
		rc = n->f.ncclRecv(n->scratch + (size_t)(k + 1) * stride, bound, ncclUint8, p->child[k], n->comm,
		                   n->queue);
	rc = nccl_both(rc, n->f.ncclGroupEnd());
	return nccl_launched(n, rc, what, err);
}

gradcomp_status nccl_merge(nccl *n, gradcomp_payload *inout, uint64_t bound, const gradcomp_merger *merger,
                           gradcomp_error *err)
{
	static const char what[] = "merge payloads";
	tree_position p = tree_find(n->tree, 0);
	size_t stride = nccl_rounded(bound);
	gradcomp_payload have = *inout, next;
	gradcomp_status st;
	if (inout->bytes != bound || inout->capacity < bound)
		return n->host->fail(err, GRADCOMP_ERR_INVALID,
		                     "nccl: a payload of %llu bytes in a buffer of %llu is to be merged; all have %llu",
		                     (unsigned long long)inout->bytes, (unsigned long long)inout->capacity,
		                     (unsigned long long)bound);
	if (n->links->nranks == 1 || !bound)
		return nccl_done(n, what, err);
	st = p.nchildren ? nccl_reserve(n, ((size_t)p.nchildren + 1) * stride, err) : GRADCOMP_OK;
	if (!st && p.nchildren)
		st = receive(n, &p, stride, bound, what, err);
	next = (gradcomp_payload){n->scratch, bound, bound};
	for (int k = 0; !st && k < p.nchildren; k++) {
		gradcomp_payload other = {n->scratch + (size_t)(k + 1) * stride, bound, bound}, out = next;
		st = merger->merge(merger->ctx, &have, &other, &out, err);
		if (!st && out.bytes != bound)
			st = n->host->fail(err, GRADCOMP_ERR_INTERNAL,
			                   "nccl: a merged payload has %llu bytes, all have %llu",
			                   (unsigned long long)out.bytes, (unsigned long long)bound);
		next = have;
		have = out;
	}
	if (!st && have.data != inout->data)
		n->ops->copy(n->queue, inout->data, have.data, bound);
	if (!st && p.parent >= 0)
		st = nccl_launched(n, n->f.ncclSend(inout->data, bound, ncclUint8, p.parent, n->comm, n->queue), what,
		                   err);
	return st ? st : nccl_broadcast(n, inout->data, bound, 0, err);
}
