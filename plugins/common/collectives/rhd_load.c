/* What rhd's calls cost. */
#include "rhd.h"

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

/* The blocks that the trips of scatter() in rhd.c move, from the root at place 0: who has n
 * of them from place a on. */
static void look_at_scatter(rhd_shape *s, const gradcomp_links *l, const int *order, int a, int n, int k)
{
	for (; k < s->nskips && n > 1; k++) {
		int skip = s->skip[k], more = n - skip, there = a + skip;
		if (more <= 0)
			continue;
		s->scattered[k].sent += (double)more / s->nranks;
		if (l->node[order ? order[a] : a] != l->node[order ? order[there] : there])
			s->scattered[k].left += (double)more / l->nnodes;
		look_at_scatter(s, l, order, there, more, k + 1);
		n = skip;
	}
}

void rhd_look(rhd_shape *s, const gradcomp_links *links, const int *order, uint64_t brief, int32_t *count)
{
	memset(s, 0, sizeof *s);
	s->nranks = links->nranks;
	s->brief = brief;
	tree_look(&s->tree, links, count);
	s->full = s->tree.full;
	choose_skips(s, order ? links->nnodes : 1);
	for (int k = 0; k < s->nskips; k++)
		s->by_skip[k] = load_count(links, order, load_shift, s->skip[k], count);
	s->doubling[0] = load_count(links, order, fold, s->full, count);
	for (int k = 1, d = 1; d < s->full; d *= 2, k++)
		s->doubling[k] = load_count(links, order, partner, d, count);
	look_at_scatter(s, links, order, 0, s->nranks, 1);
}

/* The fold goes back the other way. */
static void load_doubled(const rhd_shape *s, uint64_t bytes, load *out)
{
	if (s->full < s->nranks)
		load_add(out, &s->doubling[0], 2, (double)bytes);
	for (int k = 1, d = 1; d < s->full; d *= 2, k++)
		load_add(out, &s->doubling[k], 1, (double)bytes);
	out->reduced = (load_messages(out) - (s->full < s->nranks)) * (double)bytes;
}

void rhd_load(const rhd_shape *s, load_call call, uint64_t bytes, load *out)
{
	int both = call == LOAD_ALLREDUCE || call == LOAD_BROADCAST;
	double block = (double)bytes / s->nranks;
	*out = (load){0};
	if (both && bytes <= s->brief) {
		if (call == LOAD_ALLREDUCE)
			load_doubled(s, bytes, out);
		else
			tree_load(&s->tree, call, bytes, out);
		return;
	}
	for (int k = 1; k < s->nskips; k++)
		load_add(out, &s->by_skip[k], 1 + both, block * (s->skip[k - 1] - s->skip[k]));
	out->reduced = call == LOAD_ALLREDUCE || call == LOAD_REDUCE_SCATTER ? (s->nranks - 1) * block : 0;
	if (call != LOAD_BROADCAST)
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
		load_group g;
		int *order = NULL;
		gradcomp_status st = load_group_open(&g, "rhd", nranks, nnodes, err);
		if (st)
			return st;
		int each = rhd_goes_around(&g.links, g.count);
		if (each && (order = malloc((size_t)nranks * sizeof *order)))
			for (int p = 0; p < nranks; p++)
				order[p] = p % nnodes * each + p / nnodes;
		if (!each || order) {
			rhd_look(&last.shape, &g.links, order, brief, g.count);
			last.nnodes = nnodes;
		}
		free(order);
		load_group_close(&g);
		if (each && !order) {
			load_nomem("rhd", nranks, nnodes, err);
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
	load l = {0};
	gradcomp_status st;
	if (primitive == GRADCOMP_CAN_BARRIER)
		return tree_predict(nranks, nnodes, primitive, bytes, out, err);
	st = rhd_even(&s, brief, nranks, nnodes, err);
	if (st)
		return st;
	switch (primitive) {
	case GRADCOMP_CAN_ALLREDUCE:
		rhd_load(s, LOAD_ALLREDUCE, bytes, &l);
		break;
	case GRADCOMP_CAN_REDUCE_SCATTER:
		rhd_load(s, LOAD_REDUCE_SCATTER, bytes, &l);
		break;
	case GRADCOMP_CAN_ALLGATHER:
		rhd_load(s, LOAD_ALLGATHER, load_all(primitive, nranks, bytes), &l);
		break;
	case GRADCOMP_CAN_BROADCAST:
		rhd_load(s, LOAD_BROADCAST, bytes, &l);
		break;
	default:
		return load_refuse("rhd", primitive, err);
	}
	load_tell(&l, out);
	return GRADCOMP_OK;
}

void rhd_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const rhd *r = instance;
	int trips = 0;
	load l;
	rhd_load(&r->shape, LOAD_ALLREDUCE, bytes, &l);
	*messages = load_messages(&l);
	*sent = 2.0 * (r->nranks - 1) / r->nranks * (double)bytes;
	if (bytes > r->shape.brief)
		return;
	while (1 << trips < r->shape.full)
		trips++;
	*sent = (double)bytes * (r->place >= r->shape.full ? 1 : trips + (r->place + r->shape.full < r->nranks));
}
