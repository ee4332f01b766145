/* What stands between the begin and the end of a call, for choosing among algorithms:
 * messages one after another, and bytes through the busiest way. Equal on all ranks.
 *
 * Ranks of a node share its way out, so bytes between nodes are those of all ranks of
 * the busiest node that send at once. */
#ifndef LOAD_H
#define LOAD_H

#include "gradcomp/collective.h"

enum { LOAD_WITHIN, LOAD_BETWEEN, LOAD_WAYS };

typedef struct load {
	double messages[LOAD_WAYS], bytes[LOAD_WAYS];
} load;

typedef enum load_call { LOAD_ALLREDUCE, LOAD_REDUCE_SCATTER, LOAD_ALLGATHER, LOAD_BROADCAST } load_call;

/* A trip: the place that place p of n sends to, or -1; d says how far. */
typedef int load_trip(int p, int d, int n);

/* Most ranks of one node that send to other nodes in a trip; order[p] is the rank at
 * place p, NULL: p. `count` has room for nnodes numbers. */
int load_senders(const gradcomp_links *links, const int *order, load_trip *to, int d, int32_t *count);

/* Everybody to the place d further on. */
load_trip load_shift;

/* One trip of `bytes`, of which `senders` of a node leave it. */
static inline void load_add(load *sum, int senders, double times, double bytes)
{
	int way = senders ? LOAD_BETWEEN : LOAD_WITHIN;
	sum->messages[way] += times;
	sum->bytes[way] += bytes * (senders > 1 ? senders : 1);
}

#endif
