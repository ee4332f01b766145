/* Says what a tree's calls cost. */
#include "plugins/common/collectives/tree.h"

static int full_tree(int n)
{
	int full = 1;
	while (full <= n / 2)
		full *= 2;
	return full;
}

/* Down, in the round of bit d. */
static int hand_down(int p, int d, int n)
{
	return call_halving(p, d, full_tree(n));
}

void tree_scan(tree_shape *s, const gradcomp_links *links, int32_t *count)
{
	s->nranks = links->nranks;
	s->full = full_tree(links->nranks);
	s->down[0] = call_count_senders(links, NULL, call_chain, s->full, count);
	for (int k = 1, d = 1; d < s->full; d *= 2, k++)
		s->down[k] = call_count_senders(links, NULL, hand_down, d, count);
}

void tree_call_cost(const tree_shape *s, call_kind call, uint64_t bytes, call_cost *out)
{
	double times = call == CALL_ALLREDUCE ? 2 : 1;
	*out = (call_cost){0};
	if (s->full < s->nranks)
		call_cost_add(out, &s->down[0], times, (double)bytes);
	for (int k = 1, d = 1; d < s->full; d *= 2, k++)
		call_cost_add(out, &s->down[k], times, (double)bytes);
	out->reduced = call == CALL_ALLREDUCE ? call_cost_messages(out) / 2 * (double)bytes : 0;
}

int tree_below(const tree_shape *s, int rank, int *folded)
{
	int next = 1;
	*folded = 0;
	if (rank >= s->full)
		return 1;
	while (!(rank & next) && next < s->full)
		next *= 2;
	if (rank + s->full < s->nranks)
		*folded = s->nranks - rank - s->full < next ? s->nranks - rank - s->full : next;
	return next;
}

/* Up all of it, and down the blocks of those below. In the round of bit d these are d of `full`, but not of every
 * rank alike where some are folded: what is sent is counted. */
static void cost_of_reduce_scatter(const tree_shape *s, const call_group *g, uint64_t bytes, call_cost *out)
{
	int P = s->nranks;
	double block = (double)bytes / P, sent, left;
	tree_call_cost(s, CALL_BROADCAST, bytes, out);
	sent = out->sent;
	left = out->left;
	*out = (call_cost){0};
	if (s->full < P)
		call_cost_add(out, &s->down[0], 2, ((double)bytes + block) / 2);
	for (int k = 1, d = 1; d < s->full; d *= 2, k++)
		call_cost_add(out, &s->down[k], 2, (double)bytes * (1 + (double)d / s->full) / 2);
	for (int r = 1; r < P; r++) {
		int folded, next = tree_below(s, r, &folded), parent = r >= s->full ? r - s->full : r & (r - 1);
		sent += block * (next + folded) / P;
		left += g->links.node[r] == g->links.node[parent] ? 0 : block * (next + folded) / g->links.nnodes;
	}
	out->sent = sent;
	out->left = left;
	out->reduced = call_cost_messages(out) / 2 * (double)bytes;
}

/* Bruck's all-gather: in the round of reach d everybody sends d blocks. */
static void cost_of_allgather(const call_group *g, uint64_t bytes, call_cost *out)
{
	int P = g->links.nranks;
	*out = (call_cost){0};
	for (int64_t d = 1; d < P; d *= 2) {
		call_senders s = call_count_senders(&g->links, NULL, call_shift, P - (int)d, g->count);
		call_cost_add(out, &s, 1, (double)bytes * (double)(d < P - d ? d : P - d));
	}
}

/* Planners ask for many sizes of one group. */
static const tree_shape *scan_again(const call_group *g)
{
	static _Thread_local struct {
		int nnodes;
		tree_shape shape;
	} last;
	if (last.nnodes != g->links.nnodes || last.shape.nranks != g->links.nranks) {
		tree_scan(&last.shape, &g->links, g->count);
		last.nnodes = g->links.nnodes;
	}
	return &last.shape;
}

gradcomp_status tree_predict(int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                             gradcomp_call_load *out, gradcomp_error *err)
{
	call_group g;
	call_cost l = {0};
	gradcomp_status st = call_group_open(&g, "tree", nranks, nnodes, err);
	if (st)
		return st;
	switch (primitive) {
	case GRADCOMP_CAN_ALLREDUCE:
	case GRADCOMP_CAN_MERGE: /* payloads are merged as they go up, which is not adding */
		tree_call_cost(scan_again(&g), CALL_ALLREDUCE, bytes, &l);
		if (primitive == GRADCOMP_CAN_MERGE)
			l.reduced = 0;
		break;
	case GRADCOMP_CAN_REDUCE_SCATTER:
		cost_of_reduce_scatter(scan_again(&g), &g, bytes, &l);
		break;
	case GRADCOMP_CAN_BROADCAST:
		tree_call_cost(scan_again(&g), CALL_BROADCAST, bytes, &l);
		break;
	case GRADCOMP_CAN_ALLGATHER:
		cost_of_allgather(&g, bytes, &l);
		break;
	case GRADCOMP_CAN_BARRIER:
		call_cost_barrier(&g.links, g.count, &l);
		break;
	default:
		st = call_cost_refuse("tree", primitive, err);
	}
	call_group_close(&g);
	if (!st)
		call_cost_export(&l, out);
	return st;
}

void tree_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const tree *t = instance;
	tree_position p = tree_find(t, 0);
	call_cost l;
	tree_call_cost(&t->shape, CALL_ALLREDUCE, bytes, &l);
	*sent = (double)bytes * (p.nchildren + (p.parent >= 0));
	*messages = call_cost_messages(&l);
}
