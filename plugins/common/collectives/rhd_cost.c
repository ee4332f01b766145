/* Says what rhd's calls cost. */
#include "plugins/common/collectives/rhd.h"

#include <stdlib.h>
#include <string.h>

int rhd_goes_around(const gradcomp_links *l, int32_t *count)
{
	for (int k = 0; k < l->nnodes; k++)
		count[k] = 0;
	for (int r = 0; r < l->nranks; r++)
		count[l->node[r]]++;
	for (int k = 1; k < l->nnodes; k++)
		if (count[k] != count[0])
			return 0;
	return l->nnodes > 1 && count[0] > 1 ? count[0] : 0;
}

/* `step`: what skips should be multiples of. */
static void choose_skips(rhd_shape *r, int step)
{
	for (int s = r->nranks; s >= 1; r->nskips++) {
		r->skip[r->nskips] = s;
		int half = (s + 1) / 2, even = (half + step - 1) / step * step;
		s = s == 1 ? 0 : even < s ? even : half;
	}
}

static int fold(int p, int d, int n)
{
	return p < d && d < n - p ? p + d : -1;
}

static int partner(int p, int d, int n)
{
	int full = 1;
	while (full <= n / 2)
		full *= 2;
	return p < full ? p ^ d : -1;
}

/* The blocks that the rounds of scatter() in rhd.c move, from the root at position 0: who has n
 * of them from position a on. */
static void scan_scatter(rhd_shape *s, const gradcomp_links *l, const int *order, int a, int n, int k)
{
	for (; k < s->nskips && n > 1; k++) {
		int skip = s->skip[k], more = n - skip, there = a + skip;
		if (more <= 0)
			continue;
		s->scattered[k].sent += (double)more / s->nranks;
		if (l->node[order ? order[a] : a] != l->node[order ? order[there] : there])
			s->scattered[k].left += (double)more / l->nnodes;
		scan_scatter(s, l, order, there, more, k + 1);
		n = skip;
	}
}

void rhd_scan(rhd_shape *s, const gradcomp_links *links, const int *order, uint64_t brief, int32_t *count)
{
	memset(s, 0, sizeof *s);
	s->nranks = links->nranks;
	s->brief = brief;
	tree_scan(&s->tree, links, count);
	s->full = s->tree.full;
	choose_skips(s, order ? links->nnodes : 1);
	for (int k = 0; k < s->nskips; k++)
		s->by_skip[k] = call_count_senders(links, order, call_shift, s->skip[k], count);
	s->doubling[0] = call_count_senders(links, order, fold, s->full, count);
	for (int k = 1, d = 1; d < s->full; d *= 2, k++)
		s->doubling[k] = call_count_senders(links, order, partner, d, count);
	scan_scatter(s, links, order, 0, s->nranks, 1);
}

/* The fold goes back the other way. */
static void cost_of_doubling(const rhd_shape *s, uint64_t bytes, call_cost *out)
{
	if (s->full < s->nranks)
		call_cost_add(out, &s->doubling[0], 2, (double)bytes);
	for (int k = 1, d = 1; d < s->full; d *= 2, k++)
		call_cost_add(out, &s->doubling[k], 1, (double)bytes);
	out->reduced = (call_cost_messages(out) - (s->full < s->nranks)) * (double)bytes;
}

void rhd_call_cost(const rhd_shape *s, call_kind call, uint64_t bytes, call_cost *out)
{
	int both = call == CALL_ALLREDUCE || call == CALL_BROADCAST;
	double block = (double)bytes / s->nranks;
	*out = (call_cost){0};
	if (both && bytes <= s->brief) {
		if (call == CALL_ALLREDUCE)
			cost_of_doubling(s, bytes, out);
		else
			tree_call_cost(&s->tree, call, bytes, out);
		return;
	}
	for (int k = 1; k < s->nskips; k++)
		call_cost_add(out, &s->by_skip[k], 1 + both, block * (s->skip[k - 1] - s->skip[k]));
	out->reduced = call == CALL_ALLREDUCE || call == CALL_REDUCE_SCATTER ? (s->nranks - 1) * block : 0;
	if (call != CALL_BROADCAST)
		return;
	/* On the way out few have anything to send. */
	out->sent /= 2;
	out->left /= 2;
	for (int k = 1; k < s->nskips; k++) {
		out->sent += block * s->scattered[k].sent;
		out->left += block * s->scattered[k].left;
	}
}

/* Planners ask for many sizes of one group. */
gradcomp_status rhd_even(rhd_shape **out, uint64_t brief, int32_t nranks, int32_t nnodes, gradcomp_error *err)
{
	static _Thread_local struct {
		int nnodes;
		rhd_shape shape;
	} last;
	*out = &last.shape;
	if (!last.nnodes || last.nnodes != nnodes || last.shape.nranks != nranks) {
		call_group g;
		int *order = NULL;
		gradcomp_status st = call_group_open(&g, "rhd", nranks, nnodes, err);
		if (st)
			return st;
		int each = rhd_goes_around(&g.links, g.count);
		if (each && (order = malloc((size_t)nranks * sizeof *order)))
			for (int p = 0; p < nranks; p++)
				order[p] = p % nnodes * each + p / nnodes;
		if (!each || order) {
			rhd_scan(&last.shape, &g.links, order, brief, g.count);
			last.nnodes = nnodes;
		}
		free(order);
		call_group_close(&g);
		if (each && !order) {
			call_cost_nomem("rhd", nranks, nnodes, err);
			return GRADCOMP_ERR_NOMEM;
		}
	}
	last.shape.brief = brief;
	return GRADCOMP_OK;
}

gradcomp_status rhd_predict(uint64_t brief, int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                            gradcomp_call_load *out, gradcomp_error *err)
{
	rhd_shape *s;
	call_cost l = {0};
	gradcomp_status st;
	if (primitive == GRADCOMP_CAN_BARRIER)
		return tree_predict(nranks, nnodes, primitive, bytes, out, err);
	st = rhd_even(&s, brief, nranks, nnodes, err);
	if (st)
		return st;
	switch (primitive) {
	case GRADCOMP_CAN_ALLREDUCE:
		rhd_call_cost(s, CALL_ALLREDUCE, bytes, &l);
		break;
	case GRADCOMP_CAN_REDUCE_SCATTER:
		rhd_call_cost(s, CALL_REDUCE_SCATTER, bytes, &l);
		break;
	case GRADCOMP_CAN_ALLGATHER:
		rhd_call_cost(s, CALL_ALLGATHER, call_bytes(primitive, nranks, bytes), &l);
		break;
	case GRADCOMP_CAN_BROADCAST:
		rhd_call_cost(s, CALL_BROADCAST, bytes, &l);
		break;
	default:
		return call_cost_refuse("rhd", primitive, err);
	}
	call_cost_export(&l, out);
	return GRADCOMP_OK;
}

void rhd_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const rhd *r = instance;
	int rounds = 0;
	call_cost l;
	rhd_call_cost(&r->shape, CALL_ALLREDUCE, bytes, &l);
	*messages = call_cost_messages(&l);
	*sent = 2.0 * (r->nranks - 1) / r->nranks * (double)bytes;
	if (bytes > r->shape.brief)
		return;
	while (1 << rounds < r->shape.full)
		rounds++;
	*sent = (double)bytes * (r->position >= r->shape.full ? 1 : rounds + (r->position + r->shape.full < r->nranks));
}
