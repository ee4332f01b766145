/* The cost of a call, for choosing among algorithms and for predict(): rounds, one after
 * another. Equal on all ranks.
 *
 * Ranks of a node share its network interface, so bytes between nodes are those of all
 * ranks of the busiest node that send at once. */
#ifndef PLUGINS_COMMON_COLLECTIVES_CALL_COST_H
#define PLUGINS_COMMON_COLLECTIVES_CALL_COST_H

#include "gradcomp/collective.h"

enum { CALL_WITHIN, CALL_BETWEEN, CALL_LEVELS };
/* The most kinds of rounds in a call: one for each bit of a rank, and two more. */
#define CALL_ROUNDS 34
/* The piece where links give none, as transport.h has it. */
#define CALL_CHUNK ((size_t)256 << 10)

/* Says who sends in a round. */
typedef struct call_senders {
	int most;    /* ranks of the busiest node that send to other nodes; 0: all stays within nodes */
	double left; /* the mean over nodes of these */
	double sent; /* the share of all ranks that send */
} call_senders;

typedef struct call_cost {
	int n;
	struct {
		int level;           /* CALL_WITHIN or CALL_BETWEEN */
		double times, bytes; /* bytes of one round */
		double further;      /* messages that a rank posts at once beside the first of a round */
	} round[CALL_ROUNDS];
	/* These are as gradcomp_call_load has them. */
	double sent, left, reduced, coded;
	double uncoded[CALL_LEVELS], uncoded_sent;
} call_cost;

typedef enum call_kind { CALL_ALLREDUCE, CALL_REDUCE_SCATTER, CALL_ALLGATHER, CALL_BROADCAST } call_kind;

/* A round: the position that position p of n sends to, or -1; d says how far. */
typedef int call_peer(int p, int d, int n);

/* order[p] is the rank at position p, NULL: p. `count` is an array of nnodes. */
call_senders call_count_senders(const gradcomp_links *links, const int *order, call_peer *to, int d, int32_t *count);

/* Everybody to the position d further on. */
call_peer call_shift;
/* The same, but for those at the end. */
call_peer call_chain;
/* Down a binomial tree, in the round of bit d. */
call_peer call_halving;

/* Adds so many rounds of `bytes` each. */
static inline void call_cost_add(call_cost *l, const call_senders *s, double times, double bytes)
{
	l->round[l->n].level = s->most ? CALL_BETWEEN : CALL_WITHIN;
	l->round[l->n].times = times;
	l->round[l->n].further = 0;
	l->round[l->n++].bytes = bytes * (s->most > 1 ? s->most : 1);
	l->sent += times * bytes * s->sent;
	l->left += times * bytes * s->left;
}

/* Everybody sends to everybody at once: `sent` and `left` count messages, `most` those of the
 * busiest node. */
call_senders call_scan_to_all(const gradcomp_links *links, int32_t *count);

/* `bytes` to each of nranks - 1 at once. */
static inline void call_cost_add_to_all(call_cost *l, const call_senders *s, int nranks, double bytes)
{
	call_cost_add(l, s, 1, bytes);
	l->round[l->n - 1].further = nranks - 2;
	if (!s->most)
		l->round[l->n - 1].bytes *= nranks - 1;
}

/* Where only the cost of a message is known, posting a further one takes about half as long. */
#define CALL_FURTHER 0.5

static inline double call_cost_messages(const call_cost *l)
{
	double sum = 0;
	for (int k = 0; k < l->n; k++)
		sum += l->round[k].times + CALL_FURTHER * l->round[k].further;
	return sum;
}

/* Adds the barrier of barrier.h. */
void call_cost_barrier(const gradcomp_links *links, int32_t *count, call_cost *out);

/* Links that only have nranks, nnodes, node and chunk. Ranks of a node are neighbours; the
 * first nodes have one more where the ranks do not divide evenly. */
typedef struct call_group {
	gradcomp_links links;
	int32_t *count; /* one for each of nnodes */
} call_group;

/* Opens a group that is not there; `who` names the plugin in messages. */
gradcomp_status call_group_open(call_group *g, const char *who, int32_t nranks, int32_t nnodes, gradcomp_error *err);
void call_group_close(call_group *g);
/* Fills *err with GRADCOMP_ERR_NOMEM. */
void call_cost_nomem(const char *who, int32_t nranks, int32_t nnodes, gradcomp_error *err);

#define CALL_CODED \
	(GRADCOMP_CAN_CODED_ALLREDUCE | GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_CODED_REDUCE_SCATTER | \
	 GRADCOMP_CAN_EXCHANGE)

/* Bytes of the whole call, of those that predict() is asked for. */
static inline uint64_t call_bytes(uint32_t primitive, int32_t nranks, uint64_t bytes)
{
	return primitive == GRADCOMP_CAN_ALLGATHER || primitive == GRADCOMP_CAN_CODED_ALLGATHER
	               ? bytes * (uint64_t)nranks
	               : bytes;
}

/* Returns the numbers that a rank codes or decodes, blocks of so many at a time: for every other rank its part,
 * what that lost and what came; then the complete sum, and what all take of it. */
static inline double call_coded_numbers(int nranks, uint32_t primitive, double block)
{
	double others = nranks - 1.0, there = 3 * others, back = 2 + others;
	if (nranks == 1)
		return 0;
	return block * (primitive == GRADCOMP_CAN_CODED_REDUCE_SCATTER ? there
	                : primitive == GRADCOMP_CAN_CODED_ALLGATHER    ? back
	                                                               : there + back);
}

void call_cost_export(const call_cost *l, gradcomp_call_load *out);
/* Fails: `who` does not serve a primitive. */
gradcomp_status call_cost_refuse(const char *who, uint32_t primitive, gradcomp_error *err);

#endif
