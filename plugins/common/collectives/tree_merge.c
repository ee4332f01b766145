/* What takes no sums: merging, and gathering blocks. */
#include <string.h>

#include "tree.h"

/* Every rank merges what its children bring into what it has, in their order, and
 * hands it up; the root's is everybody's. Payloads have `bound` bytes. */
gradcomp_status tree_merge(void *instance, gradcomp_payload *inout, uint64_t bound, const gradcomp_merger *merger,
                           gradcomp_error *err)
{
	tree *t = instance;
	const gradcomp_links *l = t->links;
	tree_place p = tree_find(t, 0);
	size_t stride = (bound + 63) & ~(size_t)63;
	gradcomp_payload have = *inout, next;
	gradcomp_status st = GRADCOMP_OK;
	if (inout->bytes != bound || inout->capacity < bound)
		return t->host->fail(err, GRADCOMP_ERR_INVALID,
		                     "tree: a payload of %llu bytes in room for %llu is to be merged; all have %llu",
		                     (unsigned long long)inout->bytes, (unsigned long long)inout->capacity,
		                     (unsigned long long)bound);
	if (t->nranks == 1)
		return GRADCOMP_OK;
	if (p.nchildren)
		st = tree_room(t, ((size_t)p.nchildren + 1) * stride, err);
	for (int k = 0; !st && k < p.nchildren; k++)
		st = l->recv(l->ctx, p.child[k], t->room + (size_t)(k + 1) * stride, bound, &t->arriving[0][k], err);
	next = (gradcomp_payload){t->room, bound, bound};
	for (int k = 0; !st && k < p.nchildren; k++) {
		gradcomp_payload other = {t->room + (size_t)(k + 1) * stride, bound, bound}, out = next;
		st = l->wait(l->ctx, &t->arriving[0][k], err);
		if (!st)
			st = merger->merge(merger->ctx, &have, &other, &out, err);
		if (!st && out.bytes != bound)
			st = t->host->fail(err, GRADCOMP_ERR_INTERNAL, "tree: a merged payload has %llu bytes, all have %llu",
			                   (unsigned long long)out.bytes, (unsigned long long)bound);
		next = have;
		have = out;
	}
	if (!st && bound && have.data != inout->data)
		memcpy(inout->data, have.data, bound);
	if (!st && p.parent >= 0)
		st = l->send(l->ctx, p.parent, inout->data, bound, &t->send[0][0], err);
	if (!st && p.parent >= 0)
		st = l->wait(l->ctx, &t->send[0][0], err);
	return st ? st : tree_broadcast(t, inout->data, bound, 0, err);
}

/* A run of n blocks from block `first` on, around the end: at most two pieces.
 * Sends them to, or receives them from, a peer. */
static gradcomp_status move(tree *t, int sending, int peer, char *buf, const uint64_t *bytes, int first, int n,
                            gradcomp_request req[2], int *posted, gradcomp_error *err)
{
	const gradcomp_links *l = t->links;
	int P = t->nranks, until_end = n < P - first ? n : P - first;
	gradcomp_status st = GRADCOMP_OK;
	uint64_t at = 0, len[2] = {0, 0};
	for (int b = 0; b < first; b++) {
		at += bytes[b];
		len[1] += b < n - until_end ? bytes[b] : 0;
	}
	for (int b = first; b < first + until_end; b++)
		len[0] += bytes[b];
	char *piece[2] = {buf + at, buf};
	*posted = 0;
	for (int k = 0; !st && k < 2; k++) {
		if (!len[k])
			continue;
		st = sending ? l->send(l->ctx, peer, piece[k], len[k], &req[*posted], err)
		             : l->recv(l->ctx, peer, piece[k], len[k], &req[*posted], err);
		++*posted;
	}
	return st;
}

/* Bruck et al. 1997, with blocks in their final places: in the round of reach d a
 * rank has blocks rank .. rank + d - 1 and gets those behind them from rank + d. */
gradcomp_status tree_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	tree *t = instance;
	const gradcomp_links *l = t->links;
	gradcomp_status st = GRADCOMP_OK;
	int P = t->nranks;
	for (int d = 1; !st && d < P; d *= 2) {
		int n = d < P - d ? d : P - d, from = (t->rank + d) % P, to = (t->rank + P - d) % P, nrecv = 0, nsend = 0;
		st = move(t, 0, from, buf, bytes, from, n, t->arriving[0], &nrecv, err);
		if (!st)
			st = move(t, 1, to, buf, bytes, t->rank, n, t->send[0], &nsend, err);
		for (int k = 0; !st && k < nrecv; k++)
			st = l->wait(l->ctx, &t->arriving[0][k], err);
		for (int k = 0; !st && k < nsend; k++)
			st = l->wait(l->ctx, &t->send[0][k], err);
	}
	return st;
}
