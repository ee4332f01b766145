/* Says what a ring's calls cost. */
#include "plugins/common/collectives/ring.h"

#include "plugins/common/collectives/direct.h"

void ring_scan(ring_shape *s, const gradcomp_links *links, uint64_t small, size_t chunk, int32_t *count)
{
	s->nranks = links->nranks;
	s->small = small;
	s->piece = ((chunk ? chunk : links->chunk) + 63) & ~(size_t)63;
	s->right = call_count_senders(links, NULL, call_shift, 1, count);
	s->chain = call_count_senders(links, NULL, call_chain, 1, count);
	s->to_all = call_scan_to_all(links, count);
}

void ring_call_cost(const ring_shape *s, call_kind call, uint64_t bytes, call_cost *out)
{
	double steps = s->nranks - 1, block = (double)bytes / s->nranks;
	*out = (call_cost){0};
	if (s->nranks == 1)
		return;
	if (call == CALL_ALLREDUCE && s->nranks <= RING_AHEAD && bytes <= s->small) {
		call_cost_add_to_all(out, &s->to_all, s->nranks, (double)bytes);
		out->reduced = steps * (double)bytes;
		return;
	}
	if (call != CALL_BROADCAST) {
		call_cost_add(out, &s->right, (1 + (call == CALL_ALLREDUCE)) * steps, block);
		out->reduced = call == CALL_ALLGATHER ? 0 : steps * block;
		return;
	}
	/* A chain: the last rank gets its first piece after as many rounds as there are ranks before it. */
	if (steps > 1)
		call_cost_add(out, &s->chain, steps - 1, (double)s->piece);
	call_cost_add(out, &s->chain, 1, (double)bytes);
	out->sent = s->chain.sent * (double)bytes;
	out->left = s->chain.left * (double)bytes;
}

/* mode=hop codes what it hands on, too. */
static double coded_floats(const ring_options *o, int nranks, uint32_t primitive, double block)
{
	double coded = call_coded_numbers(nranks, primitive, block);
	return o->hop && primitive != GRADCOMP_CAN_CODED_REDUCE_SCATTER ? coded + (nranks - 2) * block : coded;
}

/* Short ones go along a binomial tree. */
static void cost_of_short_broadcast(const call_group *g, uint64_t bytes, call_cost *out)
{
	*out = (call_cost){0};
	for (int d = 1; d < g->links.nranks && d > 0; d *= 2) {
		call_senders s = call_count_senders(&g->links, NULL, call_halving, d, g->count);
		call_cost_add(out, &s, 1, (double)bytes);
	}
}

bool ring_sum_options(ring_options *o, int nranks, uint32_t *primitive)
{
	const bool owned = *primitive & GRADCOMP_CAN_OWNED_SUMS && !o->hop && !o->direct;
	*primitive &= ~GRADCOMP_CAN_OWNED_SUMS;
	if (!owned || *primitive == GRADCOMP_CAN_CODED_ALLGATHER)
		return false;
	o->direct = nranks <= RING_OWNERS_MOST;
	return true;
}

gradcomp_status ring_predict(const ring_options *o, int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                             gradcomp_call_load *out, gradcomp_error *err)
{
	call_group g;
	ring_shape s;
	call_cost l = {0};
	if (o->direct && primitive & CALL_CODED)
		return direct_predict(nranks, nnodes, primitive, bytes, out, err);
	gradcomp_status st = call_group_open(&g, "ring", nranks, nnodes, err);
	if (st)
		return st;
	uint64_t all = call_bytes(primitive, nranks, bytes);
	ring_scan(&s, &g.links, o->small, o->chunk, g.count);
	switch (primitive) {
	case GRADCOMP_CAN_BROADCAST:
		if (bytes <= s.piece)
			cost_of_short_broadcast(&g, bytes, &l);
		else
			ring_call_cost(&s, CALL_BROADCAST, bytes, &l);
		break;
	case GRADCOMP_CAN_BARRIER:
		call_cost_barrier(&g.links, g.count, &l);
		break;
	case GRADCOMP_CAN_ALLREDUCE:
	case GRADCOMP_CAN_CODED_ALLREDUCE:
	case GRADCOMP_CAN_EXCHANGE:
		s.small = primitive == GRADCOMP_CAN_ALLREDUCE ? s.small : 0;
		ring_call_cost(&s, CALL_ALLREDUCE, all, &l);
		break;
	case GRADCOMP_CAN_REDUCE_SCATTER:
	case GRADCOMP_CAN_CODED_REDUCE_SCATTER:
		ring_call_cost(&s, CALL_REDUCE_SCATTER, all, &l);
		break;
	case GRADCOMP_CAN_ALLGATHER:
	case GRADCOMP_CAN_CODED_ALLGATHER:
		ring_call_cost(&s, CALL_ALLGATHER, all, &l);
		break;
	default:
		st = call_cost_refuse("ring", primitive, err);
	}
	call_group_close(&g);
	if (st)
		return st;
	if (primitive & CALL_CODED) {
		l.reduced = 0;
		l.coded = coded_floats(o, nranks, primitive, (double)all / sizeof(float) / nranks);
	}
	call_cost_export(&l, out);
	return GRADCOMP_OK;
}

void ring_cost_of(int nranks, uint64_t small, uint64_t bytes, double *sent, double *messages)
{
	int peers = nranks <= RING_AHEAD && bytes <= small;
	*sent = (nranks - 1.0) * (double)bytes * (peers ? 1 : 2.0 / nranks);
	*messages = (nranks - 1.0) * (peers ? 1 : 2);
}

void ring_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const ring *r = instance;
	ring_cost_of(r->nranks, r->small, bytes, sent, messages);
}
