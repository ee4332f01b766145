/* Up the tree and down again, piece by piece: while a rank adds one, the next is on
 * its way. */
#include "tree.h"

#include "disseminate.h"

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

/* Pieces i of all children, next to each other in half i % 2 of the room. */
static gradcomp_status post_children(tree *t, const tree_place *p, uint64_t bytes, uint64_t i, gradcomp_error *err)
{
	const gradcomp_links *l = t->links;
	gradcomp_status st = GRADCOMP_OK;
	char *half = t->room + i % 2 * (size_t)p->nchildren * t->piece;
	for (int k = 0; !st && k < p->nchildren; k++)
		st = l->recv(l->ctx, p->child[k], half + (size_t)k * t->piece, piece_bytes(t, bytes, i),
		             &t->arriving[i % 2][k], err);
	return st;
}

static gradcomp_status reduce(tree *t, const tree_place *p, char *buf, uint64_t bytes, gradcomp_dtype dtype,
                              gradcomp_op op, gradcomp_error *err)
{
	const gradcomp_operators *ops = t->host->operators;
	const gradcomp_links *l = t->links;
	uint64_t pieces = (bytes + t->piece - 1) / t->piece;
	size_t size = gradcomp_dtype_bytes(dtype);
	int up = p->parent >= 0;
	gradcomp_status st = tree_room(t, 2 * (size_t)p->nchildren * t->piece, err);
	if (!st)
		st = post_children(t, p, bytes, 0, err);
	for (uint64_t i = 0; !st && i < pieces; i++) {
		size_t len = piece_bytes(t, bytes, i);
		char *half = t->room + i % 2 * (size_t)p->nchildren * t->piece;
		if (i + 1 < pieces)
			st = post_children(t, p, bytes, i + 1, err);
		for (int k = 0; !st && k < p->nchildren; k++) {
			st = l->wait(l->ctx, &t->arriving[i % 2][k], err);
			if (!st && ops->reduce(NULL, buf + i * t->piece, half + (size_t)k * t->piece, len / size, dtype, op))
				st = t->host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
				                   "tree: operation %d has no meaning on elements of type %d", (int)op, (int)dtype);
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

static gradcomp_status hand_out(tree *t, const tree_place *p, char *buf, uint64_t bytes, gradcomp_error *err)
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

gradcomp_status tree_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                               double scale, gradcomp_error *err)
{
	tree *t = instance;
	uint64_t bytes = count * gradcomp_dtype_bytes(dtype);
	tree_place p = tree_find(t, 0);
	gradcomp_status st = GRADCOMP_OK;
	if (!count)
		return GRADCOMP_OK;
	if (t->nranks > 1)
		st = reduce(t, &p, buf, bytes, dtype, op, err);
	if (!st && p.parent < 0 && scale != 1.0 && t->host->operators->scale_as(NULL, buf, scale, count, dtype))
		st = t->host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "tree: elements of type %d cannot be scaled", (int)dtype);
	return st ? st : hand_out(t, &p, buf, bytes, err);
}

gradcomp_status tree_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	tree *t = instance;
	tree_place p = tree_find(t, root);
	return hand_out(t, &p, buf, bytes, err);
}

gradcomp_status tree_barrier(void *instance, gradcomp_error *err)
{
	const tree *t = instance;
	return disseminate(t->links, err);
}
