/* What stands between the begin and the end of a call, for choosing among algorithms:
 * trips one after another. Equal on all ranks.
 *
 * Ranks of a node share its way out, so bytes between nodes are those of all ranks of
 * the busiest node that send at once. */
#ifndef LOAD_H
#define LOAD_H

#include "gradcomp/collective.h"

enum { LOAD_WITHIN, LOAD_BETWEEN, LOAD_WAYS };
/* Kinds of trips there can be in a call: one for each bit of a rank, and two more. */
#define LOAD_TRIPS 34

typedef struct load {
	int n;
	struct {
		int way;
		double times, bytes; /* bytes of one trip */
	} trip[LOAD_TRIPS];
} load;

typedef enum load_call { LOAD_ALLREDUCE, LOAD_REDUCE_SCATTER, LOAD_ALLGATHER, LOAD_BROADCAST } load_call;

/* A trip: the place that place p of n sends to, or -1; d says how far. */
typedef int load_trip(int p, int d, int n);

/* Most ranks of one node that send to other nodes in a trip; order[p] is the rank at
 * place p, NULL: p. `count` has room for nnodes numbers. */
int load_senders(const gradcomp_links *links, const int *order, load_trip *to, int d, int32_t *count);

/* Everybody to the place d further on. */
load_trip load_shift;

/* So many trips of `bytes` each, of which `senders` of a node leave it. */
static inline void load_add(load *l, int senders, double times, double bytes)
{
	l->trip[l->n].way = senders ? LOAD_BETWEEN : LOAD_WITHIN;
	l->trip[l->n].times = times;
	l->trip[l->n++].bytes = bytes * (senders > 1 ? senders : 1);
}

static inline double load_messages(const load *l)
{
	double sum = 0;
	for (int k = 0; k < l->n; k++)
		sum += l->trip[k].times;
	return sum;
}

#endif
