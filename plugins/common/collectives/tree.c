/* The tree: its instance, a rank's position in it, and its calls. */
#include "plugins/common/collectives/tree.h"

#include "gradcomp/sdk/growbuf.h"
#include "plugins/common/collectives/barrier.h"

#include <string.h>

gradcomp_status tree_reserve(tree *t, size_t bytes, gradcomp_error *err)
{
	return sdk_growbuf_reserve(t->host, &t->scratch, &t->scratch_bytes, bytes, "tree", err);
}

tree_position tree_find(const tree *t, int root)
{
	int P = t->nranks, me = (t->rank - root + P) % P, full = t->shape.full;
	tree_position position = {.parent = -1};
	if (me >= full) {
		position.parent = (me - full + root) % P;
		return position;
	}
	if (me + full < P)
		position.child[position.nchildren++] = (me + full + root) % P;
	for (int bit = 1; bit < full; bit *= 2) {
		if (me & bit) {
			position.parent = (me - bit + root) % P;
			break;
		}
		position.child[position.nchildren++] = (me + bit + root) % P;
	}
	return position;
}

gradcomp_status tree_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, tree **out,
                            gradcomp_error *err)
{
	tree *t = host->alloc(sizeof *t);
	int32_t *count = host->alloc((size_t)links->nnodes * sizeof *count);
	if (!t || !count) {
		host->release(count);
		host->release(t);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "tree: no memory for an instance of %d ranks",
		                  links->nranks);
	}
	t->host = host;
	t->links = links;
	t->rank = links->rank;
	t->nranks = links->nranks;
	t->piece = ((chunk ? chunk : links->chunk) + 63) & ~(size_t)63;
	tree_scan(&t->shape, links, count);
	host->release(count);
	*out = t;
	return GRADCOMP_OK;
}

void tree_destroy(void *instance)
{
	tree *t = instance;
	if (!t)
		return;
	const gradcomp_host *host = t->host;
	host->release(t->scratch);
	host->release(t);
}

/* Sums go up the tree and down again, piece by piece; while a rank adds one, the next is on its way. */

static size_t piece_bytes(const tree *t, uint64_t bytes, uint64_t i)
{
	uint64_t rest = bytes - i * t->piece;
	return rest < t->piece ? rest : t->piece;
}

/* Piece `i` to the ranks to[0..n-1]; its buffer stays in use until wait_sent(i). */
static gradcomp_status post(tree *t, const int *to, int n, const char *buf, size_t bytes, uint64_t i,
                            gradcomp_error *err)
{
	const gradcomp_links *l = t->links;
	gradcomp_status st = GRADCOMP_OK;
	/* The child with the most below it comes last in the order of addition. */
	for (int k = n - 1; !st && k >= 0; k--)
		st = l->send(l->ctx, to[k], buf, bytes, &t->send[i % TREE_AHEAD][k], err);
	return st;
}

static gradcomp_status wait_sent(tree *t, int n, uint64_t i, gradcomp_error *err)
{
	const gradcomp_links *l = t->links;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st && k < n; k++)
		st = l->wait(l->ctx, &t->send[i % TREE_AHEAD][k], err);
	return st;
}

/* Says where piece i of child k arrives: those of all children next to each other, in half i % 2 of the scratch. A
 * rank without children has none. */
static char *arrival(const tree *t, const tree_position *p, uint64_t i, int k)
{
	return t->scratch + (i % 2 * (size_t)p->nchildren + (size_t)k) * t->piece;
}

static gradcomp_status post_children(tree *t, const tree_position *p, uint64_t bytes, uint64_t i, gradcomp_error *err)
{
	const gradcomp_links *l = t->links;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st && k < p->nchildren; k++)
		st = l->recv(l->ctx, p->child[k], arrival(t, p, i, k), piece_bytes(t, bytes, i), &t->arriving[i % 2][k],
		             err);
	return st;
}

static gradcomp_status reduce(tree *t, const tree_position *p, char *buf, uint64_t bytes, gradcomp_dtype dtype,
                              gradcomp_op op, gradcomp_error *err)
{
	const gradcomp_operators *ops = t->host->operators;
	const gradcomp_links *l = t->links;
	uint64_t pieces = (bytes + t->piece - 1) / t->piece;
	size_t size = gradcomp_dtype_bytes(dtype);
	int up = p->parent >= 0;
	gradcomp_status st = tree_reserve(t, 2 * (size_t)p->nchildren * t->piece, err);
	if (!st)
		st = post_children(t, p, bytes, 0, err);
	for (uint64_t i = 0; !st && i < pieces; i++) {
		size_t len = piece_bytes(t, bytes, i);
		if (i + 1 < pieces)
			st = post_children(t, p, bytes, i + 1, err);
		for (int k = 0; !st && k < p->nchildren; k++) {
			st = l->wait(l->ctx, &t->arriving[i % 2][k], err);
			if (!st && ops->reduce(NULL, buf + i * t->piece, arrival(t, p, i, k), len / size, dtype, op))
				st = t->host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
				                   "tree: operation %d has no meaning on elements of type %d", (int)op,
				                   (int)dtype);
		}
		if (!st && up && i >= TREE_AHEAD)
			st = wait_sent(t, 1, i, err);
		if (!st && up)
			st = post(t, &p->parent, 1, buf + i * t->piece, len, i, err);
	}
	for (uint64_t i = pieces > TREE_AHEAD ? pieces - TREE_AHEAD : 0; !st && up && i < pieces; i++)
		st = wait_sent(t, 1, i, err);
	return st;
}

static gradcomp_status hand_out(tree *t, const tree_position *p, char *buf, uint64_t bytes, gradcomp_error *err)
{
	const gradcomp_links *l = t->links;
	uint64_t pieces = (bytes + t->piece - 1) / t->piece, posted = 0;
	gradcomp_status st = GRADCOMP_OK;
	for (uint64_t i = 0; !st && i < pieces; i++) {
		for (; !st && p->parent >= 0 && posted < pieces && posted < i + TREE_AHEAD; posted++)
			st = l->recv(l->ctx, p->parent, buf + posted * t->piece, piece_bytes(t, bytes, posted),
			             &t->arriving[0][posted % TREE_AHEAD], err);
		if (!st && p->parent >= 0)
			st = l->wait(l->ctx, &t->arriving[0][i % TREE_AHEAD], err);
		if (!st && i >= TREE_AHEAD)
			st = wait_sent(t, p->nchildren, i, err);
		if (!st)
			st = post(t, p->child, p->nchildren, buf + i * t->piece, piece_bytes(t, bytes, i), i, err);
	}
	for (uint64_t i = pieces > TREE_AHEAD ? pieces - TREE_AHEAD : 0; !st && i < pieces; i++)
		st = wait_sent(t, p->nchildren, i, err);
	return st;
}

/* Up to the root, which has the result then, scaled. */
static gradcomp_status reduce_to_root(tree *t, const tree_position *p, void *buf, uint64_t count, gradcomp_dtype dtype,
                                      gradcomp_op op, double scale, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	if (t->nranks > 1)
		st = reduce(t, p, buf, count * gradcomp_dtype_bytes(dtype), dtype, op, err);
	if (!st && p->parent < 0 && scale != 1.0 && t->host->operators->scale_as(NULL, buf, scale, count, dtype))
		st = t->host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "tree: elements of type %d cannot be scaled",
		                   (int)dtype);
	return st;
}

gradcomp_status tree_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                               double scale, gradcomp_error *err)
{
	tree *t = instance;
	tree_position p = tree_find(t, 0);
	if (!count)
		return GRADCOMP_OK;
	gradcomp_status st = reduce_to_root(t, &p, buf, count, dtype, op, scale, err);
	return st ? st : hand_out(t, &p, buf, count * gradcomp_dtype_bytes(dtype), err);
}

gradcomp_status tree_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	tree *t = instance;
	tree_position p = tree_find(t, root);
	return hand_out(t, &p, buf, bytes, err);
}

gradcomp_status tree_barrier(void *instance, gradcomp_error *err)
{
	const tree *t = instance;
	return barrier_disseminate(t->links, err);
}

/* Every rank merges what its children bring into what it has, in their order, and
 * hands it up; the root's is everybody's. Payloads have `bound` bytes. */
gradcomp_status tree_merge(void *instance, gradcomp_payload *inout, uint64_t bound, const gradcomp_merger *merger,
                           gradcomp_error *err)
{
	tree *t = instance;
	const gradcomp_links *l = t->links;
	tree_position p = tree_find(t, 0);
	size_t stride = (bound + 63) & ~(size_t)63;
	gradcomp_payload have = *inout, next;
	gradcomp_status st = GRADCOMP_OK;
	if (inout->bytes != bound || inout->capacity < bound)
		return t->host->fail(err, GRADCOMP_ERR_INVALID,
		                     "tree: a payload of %llu bytes in a buffer of %llu is to be merged; all have %llu",
		                     (unsigned long long)inout->bytes, (unsigned long long)inout->capacity,
		                     (unsigned long long)bound);
	if (t->nranks == 1)
		return GRADCOMP_OK;
	if (p.nchildren)
		st = tree_reserve(t, ((size_t)p.nchildren + 1) * stride, err);
	for (int k = 0; !st && k < p.nchildren; k++)
		st = l->recv(l->ctx, p.child[k], t->scratch + (size_t)(k + 1) * stride, bound, &t->arriving[0][k], err);
	next = (gradcomp_payload){t->scratch, bound, bound};
	for (int k = 0; !st && k < p.nchildren; k++) {
		gradcomp_payload other = {t->scratch + (size_t)(k + 1) * stride, bound, bound}, out = next;
		st = l->wait(l->ctx, &t->arriving[0][k], err);
		if (!st)
			st = merger->merge(merger->ctx, &have, &other, &out, err);
		if (!st && out.bytes != bound)
			st = t->host->fail(err, GRADCOMP_ERR_INTERNAL,
			                   "tree: a merged payload has %llu bytes, all have %llu",
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

/* Moves a run of n blocks from block `first` on, around the end: at most two pieces. Blocks have so many elements
 * of `size` bytes. Sends them to, or receives them from, a peer. */
static gradcomp_status move(tree *t, int sending, int peer, char *buf, const uint64_t *counts, size_t size, int first,
                            int n, gradcomp_request req[2], int *posted, gradcomp_error *err)
{
	const gradcomp_links *l = t->links;
	int P = t->nranks, until_end = n < P - first ? n : P - first;
	gradcomp_status st = GRADCOMP_OK;
	uint64_t at = 0, len[2] = {0, 0};
	for (int b = 0; b < first; b++) {
		at += counts[b] * size;
		len[1] += b < n - until_end ? counts[b] * size : 0;
	}
	for (int b = first; b < first + until_end; b++)
		len[0] += counts[b] * size;
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

/* Bruck et al. 1997, with blocks in their final positions: in the round of reach d a
 * rank has blocks rank .. rank + d - 1 and gets those behind them from rank + d. */
gradcomp_status tree_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	tree *t = instance;
	const gradcomp_links *l = t->links;
	gradcomp_status st = GRADCOMP_OK;
	int P = t->nranks;
	for (int d = 1; !st && d < P; d *= 2) {
		int n = d < P - d ? d : P - d, from = (t->rank + d) % P, to = (t->rank + P - d) % P, nrecv = 0,
		    nsend = 0;
		st = move(t, 0, from, buf, bytes, 1, from, n, t->arriving[0], &nrecv, err);
		if (!st)
			st = move(t, 1, to, buf, bytes, 1, t->rank, n, t->send[0], &nsend, err);
		for (int k = 0; !st && k < nrecv; k++)
			st = l->wait(l->ctx, &t->arriving[0][k], err);
		for (int k = 0; !st && k < nsend; k++)
			st = l->wait(l->ctx, &t->send[0][k], err);
	}
	return st;
}

/* The blocks of all ranks from `rank` down, of which there may be two runs: those next to it, and those folded
 * onto them. They go between `rank` and its parent. */
static gradcomp_status move_below(tree *t, int sending, int peer, int rank, char *buf, const uint64_t *counts,
                                  size_t size, gradcomp_request *const req[2], int posted[2], gradcomp_error *err)
{
	int folded, next = tree_below(&t->shape, rank, &folded);
	gradcomp_status st = move(t, sending, peer, buf, counts, size, rank, next, req[0], &posted[0], err);
	posted[1] = 0;
	if (!st && folded)
		st = move(t, sending, peer, buf, counts, size, rank + t->shape.full, folded, req[1], &posted[1], err);
	return st;
}

static gradcomp_status scatter(tree *t, const tree_position *p, char *buf, const uint64_t *counts, size_t size,
                               gradcomp_error *err)
{
	const gradcomp_links *l = t->links;
	int posted[TREE_MAX_CHILDREN][2];
	gradcomp_status st = GRADCOMP_OK;
	if (p->parent >= 0) {
		gradcomp_request *const req[2] = {t->arriving[0], t->arriving[1]};
		st = move_below(t, 0, p->parent, t->rank, buf, counts, size, req, posted[0], err);
		for (int run = 0; !st && run < 2; run++)
			if (posted[0][run])
				st = l->wait(l->ctx, req[run], err);
	}
	/* The child with the most below it comes last in the order of addition. */
	for (int k = p->nchildren - 1; !st && k >= 0; k--) {
		gradcomp_request *const req[2] = {&t->send[0][k], &t->send[1][k]};
		st = move_below(t, 1, p->child[k], p->child[k], buf, counts, size, req, posted[k], err);
	}
	for (int k = p->nchildren - 1; !st && k >= 0; k--)
		for (int run = 0; !st && run < 2; run++)
			if (posted[k][run])
				st = l->wait(l->ctx, &t->send[run][k], err);
	return st;
}

gradcomp_status tree_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                    gradcomp_op op, double scale, gradcomp_error *err)
{
	tree *t = instance;
	tree_position p = tree_find(t, 0);
	uint64_t count = 0;
	for (int r = 0; r < t->nranks; r++)
		count += counts[r];
	gradcomp_status st = count ? reduce_to_root(t, &p, buf, count, dtype, op, scale, err) : GRADCOMP_OK;
	return st ? st : scatter(t, &p, buf, counts, gradcomp_dtype_bytes(dtype), err);
}
