/* What a ring's calls cost. */
#include "ring.h"

/* Messages that leave the busiest node when everybody sends to everybody. */
static int leavers(const ring *r)
{
	const int32_t *node = r->links->node;
	int most = 0;
	for (int k = 0; k < r->links->nnodes; k++) {
		int here = 0;
		for (int p = 0; p < r->nranks; p++)
			here += node[p] == k;
		most = here * (r->nranks - here) > most ? here * (r->nranks - here) : most;
	}
	return most;
}

void ring_load(const ring *r, int senders, load_call call, uint64_t bytes, load *out)
{
	double steps = r->nranks - 1;
	out->n = 0;
	if (r->nranks == 1)
		return;
	if (call == LOAD_ALLREDUCE && r->nranks <= RING_AHEAD && bytes <= r->small) {
		/* One trip. Posting a further message takes about half as long as a trip. */
		load_add(out, leavers(r), (steps + 1) / 2, (double)bytes);
		return;
	}
	if (call != LOAD_BROADCAST) {
		load_add(out, senders, (1 + (call == LOAD_ALLREDUCE)) * steps, (double)bytes / r->nranks);
		return;
	}
	/* A chain: the last rank gets its first piece after as many trips as there are ranks before it. */
	if (steps > 1)
		load_add(out, senders, steps - 1, (double)r->piece);
	load_add(out, senders, 1, (double)bytes);
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
