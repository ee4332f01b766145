/* What stands between the begin and the end of a call, for choosing among algorithms and
 * for predict(): trips one after another. Equal on all ranks.
 *
 * Ranks of a node share its way out, so bytes between nodes are those of all ranks of
 * the busiest node that send at once. */
#ifndef LOAD_H
#define LOAD_H

#include "gradcomp/collective.h"

enum { LOAD_WITHIN, LOAD_BETWEEN, LOAD_WAYS };
/* Kinds of trips there can be in a call: one for each bit of a rank, and two more. */
#define LOAD_TRIPS 34
/* A piece where neither the user nor links have said: transport.chunk as it comes. */
#define LOAD_CHUNK ((size_t)256 << 10)

/* Who sends in a trip. */
typedef struct load_senders {
	int most;    /* ranks of the busiest node that send to other nodes; 0: all stays within nodes */
	double left; /* the mean over nodes of these */
	double sent; /* the share of all ranks that send */
} load_senders;

typedef struct load {
	int n;
	struct {
		int way;
		double times, bytes; /* bytes of one trip */
	} trip[LOAD_TRIPS];
	/* As in gradcomp_call_load. */
	double sent, left, reduced, coded;
	double plain[LOAD_WAYS], plain_sent;
} load;

typedef enum load_call { LOAD_ALLREDUCE, LOAD_REDUCE_SCATTER, LOAD_ALLGATHER, LOAD_BROADCAST } load_call;

/* A trip: the place that place p of n sends to, or -1; d says how far. */
typedef int load_trip(int p, int d, int n);

/* order[p] is the rank at place p, NULL: p. `count` has room for nnodes numbers. */
load_senders load_count(const gradcomp_links *links, const int *order, load_trip *to, int d, int32_t *count);

/* Everybody to the place d further on. */
load_trip load_shift;
/* The same, but for those at the end. */
load_trip load_chain;
/* Down a binomial tree, in the trip of bit d. */
load_trip load_halving;

/* So many trips of `bytes` each. */
static inline void load_add(load *l, const load_senders *s, double times, double bytes)
{
	l->trip[l->n].way = s->most ? LOAD_BETWEEN : LOAD_WITHIN;
	l->trip[l->n].times = times;
	l->trip[l->n++].bytes = bytes * (s->most > 1 ? s->most : 1);
	l->sent += times * bytes * s->sent;
	l->left += times * bytes * s->left;
}

/* Everybody sends to everybody at once: `sent` and `left` count messages, `most` those of the
 * busiest node. */
load_senders load_look_to_all(const gradcomp_links *links, int32_t *count);

/* `bytes` to each. Posting a further message takes about half as long as a trip. */
static inline void load_add_to_all(load *l, const load_senders *s, int nranks, double bytes)
{
	double times = nranks / 2.0;
	load_add(l, s, times, bytes / times);
	if (!s->most)
		l->trip[l->n - 1].bytes *= nranks - 1;
}

static inline double load_messages(const load *l)
{
	double sum = 0;
	for (int k = 0; k < l->n; k++)
		sum += l->trip[k].times;
	return sum;
}

/* The barrier of disseminate.h. */
void load_barrier(const gradcomp_links *links, int32_t *count, load *out);

/* ---- predict(): a group that is not there ---- */

/* Links that cannot be used, to ask nranks, nnodes, node and chunk of; ranks of a node are
 * neighbours, the first nodes have one more where they do not go evenly. */
typedef struct load_group {
	gradcomp_links links;
	int32_t *count; /* room for nnodes numbers */
} load_group;

/* `who` for messages. */
gradcomp_status load_group_open(load_group *g, const char *who, int32_t nranks, int32_t nnodes, gradcomp_error *err);
void load_group_close(load_group *g);
/* Fills *err with GRADCOMP_ERR_NOMEM. */
void load_nomem(const char *who, int32_t nranks, int32_t nnodes, gradcomp_error *err);

#define LOAD_CODED \
	(GRADCOMP_CAN_CODED_ALLREDUCE | GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_CODED_REDUCE_SCATTER | \
	 GRADCOMP_CAN_EXCHANGE)

/* Bytes of the whole call, of those that predict() is asked for. */
static inline uint64_t load_all(uint32_t primitive, int32_t nranks, uint64_t bytes)
{
	return primitive == GRADCOMP_CAN_ALLGATHER || primitive == GRADCOMP_CAN_CODED_ALLGATHER ? bytes * (uint64_t)nranks
	                                                                                       : bytes;
}

/* Numbers that a rank codes or decodes, blocks of so many at a time: for every other rank its
 * part, what that lost and what came; then the complete sum, and what all take of it. */
static inline double load_coded(int nranks, uint32_t primitive, double block)
{
	double others = nranks - 1.0, there = 3 * others, back = 2 + others;
	if (nranks == 1)
		return 0;
	return block * (primitive == GRADCOMP_CAN_CODED_REDUCE_SCATTER ? there
	                : primitive == GRADCOMP_CAN_CODED_ALLGATHER    ? back
	                                                               : there + back);
}

void load_tell(const load *l, gradcomp_call_load *out);
/* That `who` does not serve a primitive. */
gradcomp_status load_refuse(const char *who, uint32_t primitive, gradcomp_error *err);

#endif
