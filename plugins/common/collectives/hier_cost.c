/* Says what calls of two levels cost. */
#include "plugins/common/collectives/hier.h"

#include <stdlib.h>

static int node_of(const gradcomp_links *l, int ranks_per_node, int rank)
{
	return ranks_per_node ? rank / ranks_per_node : l->node[rank];
}

/* How many times a node of r ranks goes around with n shards. There is no node without ranks. */
static int times_around(int n, int r)
{
	return r > 0 ? (n + r - 1) / r : 0;
}

/* Returns the shards of nodes with so many ranks, see hier.h. */
static int shards_of(const int *ranks, int nodes)
{
	int least = ranks[0], largest = ranks[0], best = 0;
	int64_t best_load = 1;
	for (int k = 1; k < nodes; k++) {
		least = ranks[k] < least ? ranks[k] : least;
		largest = ranks[k] > largest ? ranks[k] : largest;
	}
	for (int n = least; n <= largest; n++) {
		int64_t load = 0;
		for (int k = 0; k < nodes; k++) {
			int64_t of_node = (int64_t)times_around(n, ranks[k]) * ranks[k];
			load = of_node > load ? of_node : load;
		}
		if (!best || load * best <= best_load * n) {
			best = n;
			best_load = load;
		}
	}
	return best;
}

int hier_nodes(const gradcomp_links *l, int ranks_per_node, int nodes, int *order, int *first)
{
	int shards;
	for (int r = 0; r < l->nranks; r++)
		first[node_of(l, ranks_per_node, r) + 1]++;
	shards = shards_of(first + 1, nodes);
	for (int k = 0; k < nodes; k++)
		first[k + 1] += first[k];
	/* first[k] counts up as indices are given, and comes out as first[k + 1]. */
	for (int r = 0; r < l->nranks; r++)
		order[first[node_of(l, ranks_per_node, r)]++] = r;
	for (int k = nodes; k > 0; k--)
		first[k] = first[k - 1];
	first[0] = 0;
	return shards;
}

static void note(call_senders *s, const gradcomp_links *l, int from, int to, double share, int32_t *count)
{
	s->sent += share / l->nranks;
	if (l->node[from] == l->node[to])
		return;
	s->left += share / l->nnodes;
	if (++count[l->node[from]] > s->most)
		s->most = count[l->node[from]];
}

static void clear(const gradcomp_links *l, int32_t *count)
{
	for (int k = 0; k < l->nnodes; k++)
		count[k] = 0;
}

static int holder(const int *order, const int *first, int node, int shard)
{
	return order[first[node] + shard % (first[node + 1] - first[node])];
}

/* Posting a further message takes about half as long as a round (CALL_FURTHER). */
static double steps_of_gather(int n)
{
	return direct_copies_once(n) ? n / 2.0 : n - 1;
}

void hier_scan(hier_shape *s, const gradcomp_links *l, const int *order, const int *first, int nodes, int shards,
               size_t chunk, int32_t *count)
{
	*s = (hier_shape){.nranks = l->nranks, .nodes = nodes, .shards = shards};
	ring_scan(&s->across, l, HIER_SMALL, chunk, count);
	s->across.nranks = nodes;
	s->across.right = s->across.to_all = (call_senders){0};
	for (int k = 0; k < nodes; k++) {
		int n = first[k + 1] - first[k], around = times_around(shards, n);
		s->largest = n > s->largest ? n : s->largest;
		s->turns = around > s->turns ? around : s->turns;
		s->steps = around * (n - 1) > s->steps ? around * (n - 1) : s->steps;
		double out = around * steps_of_gather(n);
		s->steps_out = out > s->steps_out ? out : s->steps_out;
	}
	/* Each of n ranks sends all shards but its own, at times it has nothing to send. */
	clear(l, count);
	for (int k = 0; k < nodes; k++) {
		int n = first[k + 1] - first[k];
		for (int j = 0; n > 1 && j < n; j++)
			note(&s->within, l, order[first[k] + j], order[first[k] + (j + 1) % n],
			     (double)shards / n * (n - 1) / s->steps, count);
	}
	clear(l, count);
	for (int k = 0; k < nodes; k++) {
		int n = first[k + 1] - first[k];
		for (int j = 0; n > 1 && j < n; j++)
			note(&s->own, l, order[first[k] + j], order[first[k] + (j + 1) % n], n - 1, count);
	}
	clear(l, count);
	for (int k = 0; nodes > 1 && k < nodes; k++)
		for (int j = 0; j < shards; j++)
			note(&s->across.right, l, holder(order, first, k, j), holder(order, first, (k + 1) % nodes, j),
			     1, count);
	clear(l, count);
	for (int k = 0; nodes <= RING_AHEAD && k < nodes; k++)
		for (int j = 0; j < shards; j++)
			for (int other = 1; other < nodes; other++)
				note(&s->across.to_all, l, holder(order, first, k, j),
				     holder(order, first, (k + other) % nodes, j), 1, count);
}

/* Adds the way of shards around the nodes to their holders; together they have `bytes`. */
static void add_in(const hier_shape *s, double bytes, call_cost *out)
{
	if (s->steps)
		call_cost_add(out, &s->within, s->steps, bytes / s->shards);
}

/* Returns 1 when blocks that go to all ranks of a node do so by one copy, see hier_gather(). A node that is not one
 * has links that leave it. */
static int copied_once(const hier_shape *s, double block)
{
	return !s->within.most && block >= DIRECT_ONE_COPY_LEAST;
}

/* Shards to all ranks of their node. */
static double steps_out(const hier_shape *s, double bytes)
{
	return copied_once(s, bytes / s->largest) ? s->steps_out : s->steps;
}

static void add_out(const hier_shape *s, double bytes, call_cost *out)
{
	double steps = steps_out(s, bytes);
	if (s->steps)
		call_cost_add(out, &s->within, steps, bytes / s->shards * s->steps / steps);
}

static void add_in_and_out(const hier_shape *s, double bytes, call_cost *out)
{
	add_in(s, bytes, out);
	add_out(s, bytes, out);
}

/* Adds the way of the blocks of a node's own ranks around it, in so many hops and rounds; those of all nodes
 * together have `bytes`. */
static void add_own(const hier_shape *s, int hops, double rounds, double bytes, call_cost *out)
{
	if (!hops)
		return;
	const call_senders each = {.most = s->own.most, .left = s->own.left / hops, .sent = s->own.sent / hops};
	call_cost_add(out, &each, rounds, bytes / s->nranks * hops / rounds);
}

/* *out is that of a shard. A rank that holds several takes them in turn; what goes through the
 * interface of a node stays as much, since it is that of all its shards. */
static void take_turns(const hier_shape *s, call_cost *out)
{
	for (int k = 0; k < out->n; k++) {
		out->round[k].times *= s->turns;
		out->round[k].further *= s->turns;
		if (out->round[k].level == CALL_BETWEEN)
			out->round[k].bytes /= s->turns;
	}
	out->reduced *= s->turns;
}

void hier_call_cost(const hier_shape *s, uint64_t bytes, call_cost *out)
{
	ring_call_cost(&s->across, CALL_ALLREDUCE, bytes / (uint64_t)s->shards, out);
	take_turns(s, out);
	add_in_and_out(s, (double)bytes, out);
	out->reduced += s->steps * (double)bytes / s->shards;
}

/* Leaves uncoded what goes within the nodes. */
static void leave_uncoded(const call_cost *within, call_cost *out)
{
	gradcomp_call_load uncoded = {.struct_size = sizeof uncoded};
	call_cost_export(within, &uncoded);
	out->uncoded[0] = uncoded.bytes[0];
	out->uncoded[1] = uncoded.bytes[1];
	out->uncoded_sent = uncoded.sent;
}

/* Returns the numbers that a rank codes and decodes of its shards, in all. */
static double coded_of_shards(const hier_shape *s, uint32_t primitive, double shard)
{
	return s->turns * call_coded_numbers(s->nodes, primitive, shard / sizeof(float) / s->nodes);
}

static void cost_of_coded_allreduce(const hier_shape *s, uint64_t bytes, call_cost *out)
{
	call_cost within = {0};
	ring_shape across = s->across;
	double shard = (double)bytes / s->shards;
	add_in_and_out(s, (double)bytes, &within);
	across.small = 0;
	ring_call_cost(&across, CALL_ALLREDUCE, (uint64_t)shard, out);
	take_turns(s, out);
	add_in_and_out(s, (double)bytes, out);
	out->reduced = s->steps * shard;
	out->coded = coded_of_shards(s, GRADCOMP_CAN_CODED_ALLREDUCE, shard);
	leave_uncoded(&within, out);
}

/* Adds what goes within the nodes to cost_of_blocks(). */
static void add_blocks_within(const hier_shape *s, int reduces, double bytes, call_cost *out)
{
	if (reduces) {
		add_in(s, bytes, out);
		add_own(s, s->steps, s->steps, bytes, out);
	} else {
		int once = copied_once(s, bytes / s->nranks);
		add_out(s, bytes, out);
		add_own(s, s->largest - 1, once ? steps_of_gather(s->largest) : s->largest - 1, bytes, out);
	}
}

/* Adds up a call of `bytes` in all: to the holders, among them to the nodes, there to the owners; or the other way. */
static void cost_of_blocks(const hier_shape *s, int reduces, uint64_t bytes, call_cost *out)
{
	ring_call_cost(&s->across, reduces ? CALL_REDUCE_SCATTER : CALL_ALLGATHER, bytes / (uint64_t)s->shards, out);
	take_turns(s, out);
	add_blocks_within(s, reduces, (double)bytes, out);
	if (reduces)
		out->reduced += s->steps * (double)bytes / s->shards;
}

static void cost_of_coded_blocks(const hier_shape *s, uint32_t primitive, uint64_t bytes, call_cost *out)
{
	call_cost within = {0};
	int reduces = primitive == GRADCOMP_CAN_CODED_REDUCE_SCATTER;
	double shard = (double)bytes / s->shards;
	add_blocks_within(s, reduces, (double)bytes, &within);
	cost_of_blocks(s, reduces, bytes, out);
	out->reduced = reduces * s->steps * shard;
	out->coded = coded_of_shards(s, primitive, shard);
	leave_uncoded(&within, out);
}

/* A ring's broadcast in n ranks, without what is sent. */
static void add_broadcast(const hier_shape *s, int n, const call_senders *who, double bytes, call_cost *out)
{
	const call_senders quiet = {.most = who->most};
	double rounds = 0;
	for (int64_t d = 1; d < n; d *= 2)
		rounds++;
	if (bytes <= (double)s->across.piece) {
		call_cost_add(out, &quiet, rounds, bytes);
	} else if (n > 1) {
		call_cost_add(out, &quiet, n - 2, (double)s->across.piece);
		call_cost_add(out, &quiet, 1, bytes);
	}
}

static void cost_of_broadcast(const hier_shape *s, uint64_t bytes, call_cost *out)
{
	double shard = (double)bytes / s->shards;
	*out = (call_cost){0};
	add_broadcast(s, s->largest, &s->within, (double)bytes, out);
	add_broadcast(s, s->nodes, &s->across.right, shard, out);
	/* Further shards of a rank come right behind. */
	if (s->turns > 1)
		call_cost_add(out, &(call_senders){.most = s->across.right.most}, s->turns - 1,
		              s->across.right.most ? 0 : shard);
	if (s->nodes > 1)
		add_out(s, (double)bytes, out);
	/* Everybody but the root gets each byte once. */
	out->sent = (double)bytes * (s->nranks - 1) / s->nranks;
	out->left = s->across.right.left * shard * (s->nodes - 1) / s->nodes;
}

static void cost_of_barrier(const hier_shape *s, call_cost *out)
{
	*out = (call_cost){0};
	for (int64_t d = 1; d < s->largest; d *= 2)
		call_cost_add(out, &(call_senders){.most = s->within.most, .sent = 1}, 2, 1);
	for (int64_t d = 1; d < s->nodes; d *= 2)
		call_cost_add(out, &(call_senders){.most = 1, .left = 1, .sent = (double)s->nodes / s->nranks}, 1, 1);
}

gradcomp_status hier_even(hier_shape *s, size_t chunk, int ranks_per_node, int32_t nranks, int32_t nnodes,
                          gradcomp_error *err)
{
	call_group g;
	int nodes = ranks_per_node ? (nranks - 1) / ranks_per_node + 1 : nnodes;
	gradcomp_status st = call_group_open(&g, "hier", nranks, nnodes, err);
	if (st)
		return st;
	int *order = calloc((size_t)nranks, sizeof *order), *first = calloc((size_t)nodes + 1, sizeof *first);
	if (order && first) {
		hier_scan(s, &g.links, order, first, nodes, hier_nodes(&g.links, ranks_per_node, nodes, order, first),
		          chunk, g.count);
	} else {
		call_cost_nomem("hier", nranks, nnodes, err);
		st = GRADCOMP_ERR_NOMEM;
	}
	free(order);
	free(first);
	call_group_close(&g);
	return st;
}

gradcomp_status hier_predict(size_t chunk, int ranks_per_node, int32_t nranks, int32_t nnodes, uint32_t primitive,
                             uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	hier_shape s;
	call_cost l = {0};
	gradcomp_status st = hier_even(&s, chunk, ranks_per_node, nranks, nnodes, err);
	if (st)
		return st;
	switch (primitive) {
	case GRADCOMP_CAN_ALLREDUCE:
		hier_call_cost(&s, bytes, &l);
		break;
	case GRADCOMP_CAN_CODED_ALLREDUCE:
		cost_of_coded_allreduce(&s, bytes, &l);
		break;
	case GRADCOMP_CAN_REDUCE_SCATTER:
	case GRADCOMP_CAN_ALLGATHER:
		cost_of_blocks(&s, primitive == GRADCOMP_CAN_REDUCE_SCATTER, call_bytes(primitive, nranks, bytes), &l);
		break;
	case GRADCOMP_CAN_CODED_REDUCE_SCATTER:
	case GRADCOMP_CAN_CODED_ALLGATHER:
		cost_of_coded_blocks(&s, primitive, call_bytes(primitive, nranks, bytes), &l);
		break;
	case GRADCOMP_CAN_BROADCAST:
		cost_of_broadcast(&s, bytes, &l);
		break;
	case GRADCOMP_CAN_BARRIER:
		cost_of_barrier(&s, &l);
		break;
	case GRADCOMP_CAN_SHARD:
		add_in_and_out(&s, (double)bytes, &l);
		l.reduced = s.steps * (double)bytes / s.shards;
		break;
	default:
		return call_cost_refuse("hier", primitive, err);
	}
	call_cost_export(&l, out);
	return GRADCOMP_OK;
}

/* Within a node every shard but one goes out of a rank each way: on the way in its own
 * stays, on the way out its neighbour's. */
void hier_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const hier *h = instance;
	double shard = (double)bytes / h->shards, across, rounds;
	int next = (h->local + 1) % h->locals, of_next = times_around(h->shards - next, h->locals);
	ring_cost_of(h->nodes, h->inner->small, bytes / (uint64_t)h->shards, &across, &rounds);
	*sent = h->held * across;
	if (h->locals > 1)
		*sent +=
			(double)bytes - shard * h->held +
			(hier_one_copy(h, bytes) ? (h->locals - 1) * shard * h->held : (double)bytes - shard * of_next);
	*messages = h->shape.steps + steps_out(&h->shape, (double)bytes) + rounds * h->shape.turns;
}
