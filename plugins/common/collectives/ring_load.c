/* What a ring's calls cost. */
#include "ring.h"

#include "direct.h"

void ring_look(ring_shape *s, const gradcomp_links *links, uint64_t small, size_t chunk, int32_t *count)
{
	s->nranks = links->nranks;
	s->small = small;
	s->piece = ((chunk ? chunk : links->chunk) + 63) & ~(size_t)63;
	s->right = load_count(links, NULL, load_shift, 1, count);
	s->chain = load_count(links, NULL, load_chain, 1, count);
	s->to_all = load_look_to_all(links, count);
}

void ring_load(const ring_shape *s, load_call call, uint64_t bytes, load *out)
{
	double steps = s->nranks - 1, block = (double)bytes / s->nranks;
	*out = (load){0};
	if (s->nranks == 1)
		return;
	if (call == LOAD_ALLREDUCE && s->nranks <= RING_AHEAD && bytes <= s->small) {
		load_add_to_all(out, &s->to_all, s->nranks, (double)bytes);
		out->reduced = steps * (double)bytes;
		return;
	}
	if (call != LOAD_BROADCAST) {
		load_add(out, &s->right, (1 + (call == LOAD_ALLREDUCE)) * steps, block);
		out->reduced = call == LOAD_ALLGATHER ? 0 : steps * block;
		return;
	}
	/* A chain: the last rank gets its first piece after as many trips as there are ranks before it. */
	if (steps > 1)
		load_add(out, &s->chain, steps - 1, (double)s->piece);
	load_add(out, &s->chain, 1, (double)bytes);
	out->sent = s->chain.sent * (double)bytes;
	out->left = s->chain.left * (double)bytes;
}

/* mode=hop codes what it hands on, too. */
static double coded_floats(const ring_options *o, int nranks, uint32_t primitive, double block)
{
	double coded = load_coded(nranks, primitive, block);
	return o->hop && primitive != GRADCOMP_CAN_CODED_REDUCE_SCATTER ? coded + (nranks - 2) * block : coded;
}

/* Short: a binomial tree. */
static void load_short_broadcast(const load_group *g, uint64_t bytes, load *out)
{
	*out = (load){0};
	for (int d = 1; d < g->links.nranks && d > 0; d *= 2) {
		load_senders s = load_count(&g->links, NULL, load_halving, d, g->count);
		load_add(out, &s, 1, (double)bytes);
	}
}

gradcomp_status ring_predict(const ring_options *o, int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                             gradcomp_call_load *out, gradcomp_error *err)
{
	load_group g;
	ring_shape s;
	load l = {0};
	if (o->direct && primitive & LOAD_CODED)
		return direct_predict(nranks, nnodes, primitive, bytes, out, err);
	gradcomp_status st = load_group_open(&g, "ring", nranks, nnodes, err);
	if (st)
		return st;
	uint64_t all = load_all(primitive, nranks, bytes);
	ring_look(&s, &g.links, o->small, o->chunk, g.count);
	switch (primitive) {
	case GRADCOMP_CAN_BROADCAST:
		if (bytes <= s.piece)
			load_short_broadcast(&g, bytes, &l);
		else
			ring_load(&s, LOAD_BROADCAST, bytes, &l);
		break;
	case GRADCOMP_CAN_BARRIER:
		load_barrier(&g.links, g.count, &l);
		break;
	case GRADCOMP_CAN_ALLREDUCE:
	case GRADCOMP_CAN_CODED_ALLREDUCE:
	case GRADCOMP_CAN_EXCHANGE:
		s.small = primitive == GRADCOMP_CAN_ALLREDUCE ? s.small : 0;
		ring_load(&s, LOAD_ALLREDUCE, all, &l);
		break;
	case GRADCOMP_CAN_REDUCE_SCATTER:
	case GRADCOMP_CAN_CODED_REDUCE_SCATTER:
		ring_load(&s, LOAD_REDUCE_SCATTER, all, &l);
		break;
	case GRADCOMP_CAN_ALLGATHER:
	case GRADCOMP_CAN_CODED_ALLGATHER:
		ring_load(&s, LOAD_ALLGATHER, all, &l);
		break;
	default:
		st = load_refuse("ring", primitive, err);
	}
	load_group_close(&g);
	if (st)
		return st;
	if (primitive & LOAD_CODED) {
		l.reduced = 0;
		l.coded = coded_floats(o, nranks, primitive, (double)all / sizeof(float) / nranks);
	}
	load_tell(&l, out);
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
