/* How long chunks of a dataset take through the trees of io/transfer, on links of one speed: a simulation.
 *
 *     staging_sim NODES CHUNKS [RADIX]
 *
 * The unit of time is what a chunk takes over a link. Each node has a link that carries one chunk a unit each way,
 * which its connections share (max-min fair); so has the server, whose link the chunks that are read share. Nodes
 * begin turns as io/transfer/relay.c does. RADIX 0 is a ring of all. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/transfer/bcast_tree.h"

#define WINDOW 64  /* equal to TRANSFER_WINDOW */
#define BUFFERS 20 /* received into, of a node */
#define READERS 2  /* readers of a node, */
#define OWN 10     /* and chunks read and not sent */
#define QUEUE 512
#define STEP 0.125
#define PASSES 4 /* towards a fair share */

struct received {
	uint64_t chunk, time;
	uint32_t uses; /* 0: free */
	bool here;
};

/* In the order of turns: `at` is a buffer, or -1 for an own chunk. */
struct queue {
	struct entry {
		int at;
		uint64_t chunk;
	} entry[QUEUE];
	uint32_t head, n;
	double moved; /* part of the first that has moved */
};

struct node {
	bcast_order order;
	bcast_turn turn;
	bool more;
	struct received buffer[BUFFERS];
	struct queue in[BCAST_STRIDES], out[BCAST_STRIDES];
	uint64_t mine, begun, read, sent; /* own chunks */
	uint32_t left[QUEUE];             /* nodes that an own chunk is to go to */
	double reading[READERS];
	uint32_t nreading;
	double up, down; /* the part of its links that is left in this step */
	uint32_t nup, ndown;
};

static bcast_tree tree;
static struct node *nodes;
static uint64_t chunks;
static double *read_at;

static struct entry *first(struct queue *q)
{
	return &q->entry[q->head % QUEUE];
}

static void add(struct queue *q, int at, uint64_t chunk)
{
	q->entry[(q->head + q->n++) % QUEUE] = (struct entry){at, chunk};
}

static uint64_t oldest(struct node *a)
{
	uint64_t time = a->begun < a->mine ? a->begun * tree.n + a->order.node : UINT64_MAX;
	for (uint32_t k = 0; k < tree.nstrides; k++)
		if (a->in[k].n && a->buffer[first(&a->in[k])->at].time < time)
			time = a->buffer[first(&a->in[k])->at].time;
	return time;
}

static bool begin_turn(struct node *a)
{
	uint64_t since = oldest(a);
	uint32_t reach = bcast_reach(&tree, a->turn.offset);
	int at = -1;
	if (!a->more || (a->turn.time > since && a->turn.time - since >= WINDOW))
		return false;
	for (uint32_t k = 0; k < reach; k++)
		if (a->out[k].n == QUEUE)
			return false;
	if (a->turn.offset) {
		for (at = 0; at < BUFFERS && a->buffer[at].uses; at++)
			;
		if (at == BUFFERS)
			return false;
		a->buffer[at] = (struct received){a->turn.chunk, a->turn.time, reach + 1, false};
		add(&a->in[bcast_from(&tree, a->turn.offset)], at, a->turn.chunk);
	} else {
		a->left[a->turn.chunk / tree.n % QUEUE] = reach;
	}
	for (uint32_t k = 0; k < reach; k++)
		add(&a->out[k], at, a->turn.chunk);
	a->more = bcast_next(&a->order, &a->turn);
	return true;
}

static void read_some(double now)
{
	uint32_t all = 0;
	for (uint32_t i = 0; i < tree.n; i++) {
		struct node *a = &nodes[i];
		for (uint64_t next;
		     (next = a->read + a->nreading) < a->mine && a->nreading < READERS && next < a->sent + OWN &&
		     (next * tree.n + i < WINDOW || next * tree.n + i - WINDOW < oldest(a));
		     a->nreading++)
			a->reading[a->nreading] = 0;
		all += a->nreading;
	}
	for (uint32_t i = 0; i < tree.n; i++) {
		struct node *a = &nodes[i];
		for (uint32_t k = 0; k < a->nreading; k++)
			a->reading[k] += STEP / all;
		while (a->nreading && a->reading[0] > 1 - 1e-9) {
			read_at[a->read++ * tree.n + i] = now;
			memmove(a->reading, a->reading + 1, --a->nreading * sizeof a->reading[0]);
		}
	}
}

static struct node *behind(uint32_t i, uint32_t k)
{
	return &nodes[(i + tree.stride[k]) % tree.n];
}

/* Returns true when the first chunk of a queue is on its way. */
static bool moves(uint32_t i, uint32_t k)
{
	struct node *a = &nodes[i], *b = behind(i, k);
	const struct entry *e = first(&a->out[k]);
	if (!a->out[k].n || !b->in[k].n || first(&b->in[k])->chunk != e->chunk)
		return false;
	return e->at < 0 ? e->chunk / tree.n < a->read : a->buffer[e->at].here;
}

static void share_links(void)
{
	for (uint32_t i = 0; i < tree.n; i++)
		nodes[i].up = nodes[i].down = STEP;
	for (int pass = 0; pass < PASSES; pass++) {
		for (uint32_t i = 0; i < tree.n; i++)
			nodes[i].nup = nodes[i].ndown = 0;
		for (int act = 0; act < 2; act++)
			for (uint32_t i = 0; i < tree.n; i++)
				for (uint32_t k = 0; k < tree.nstrides; k++) {
					struct node *a = &nodes[i], *b = behind(i, k);
					if (!moves(i, k) || a->up < 1e-9 || b->down < 1e-9)
						continue;
					if (!act) {
						a->nup++;
						b->ndown++;
						continue;
					}
					double up = a->up / a->nup, down = b->down / b->ndown,
					       n = up < down ? up : down;
					a->out[k].moved += n;
					a->up -= n;
					b->down -= n;
					a->nup--;
					b->ndown--;
				}
	}
}

static void release(struct node *a, int at)
{
	a->buffer[at].uses--;
}

/* Takes what has arrived; returns how many chunks at nodes that is. */
static uint64_t arrive(double now, uint32_t *had, double *longest)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < tree.n; i++)
		for (uint32_t k = 0; k < tree.nstrides; k++) {
			struct node *a = &nodes[i], *b = behind(i, k);
			struct queue *q = &a->out[k];
			struct entry e = *first(q);
			if (q->n && e.at < 0 && q->moved > 0 && a->begun <= e.chunk / tree.n)
				a->begun = e.chunk / tree.n + 1;
			if (!q->n || q->moved < 1 - 1e-6)
				continue;
			q->moved = 0;
			q->head++;
			q->n--;
			int at = first(&b->in[k])->at;
			b->in[k].head++;
			b->in[k].n--;
			b->buffer[at].here = true;
			release(b, at);
			if (e.at >= 0)
				release(a, e.at);
			else
				a->sent += !--a->left[e.chunk / tree.n % QUEUE];
			n++;
			if (++had[e.chunk] == tree.n - 1 && now - read_at[e.chunk] > *longest)
				*longest = now - read_at[e.chunk];
		}
	return n;
}

int main(int argc, char **argv)
{
	uint32_t n = argc > 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0,
		 radix = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : BCAST_RADIX;
	chunks = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	if (n < 2 || n > 10000 || !chunks || chunks > 1000000 || radix == 1) {
		fprintf(stderr, "usage: staging_sim NODES CHUNKS [RADIX]\n");
		return 2;
	}
	uint32_t *owners = calloc(n, sizeof *owners), *had = calloc(chunks, sizeof *had);
	uint64_t done = 0;
	double now = 0, longest = 0, half = 0;
	nodes = calloc(n, sizeof *nodes);
	read_at = calloc(chunks, sizeof *read_at);
	if (!owners || !had || !nodes || !read_at) {
		fprintf(stderr, "staging_sim: out of memory\n");
		exit(1);
	}
	bcast_tree_init(&tree, n, radix ? radix : n);
	for (uint32_t i = 0; i < n; i++)
		owners[i] = i;
	for (uint32_t i = 0; i < n; i++) {
		bcast_order_init(&nodes[i].order, &tree, owners, n, i, chunks);
		nodes[i].more = bcast_next(&nodes[i].order, &nodes[i].turn);
		nodes[i].mine = chunks > i ? (chunks - i - 1) / n + 1 : 0;
	}
	while (done < chunks * (n - 1)) {
		for (uint32_t i = 0; i < n; i++)
			while (begin_turn(&nodes[i]))
				;
		read_some(now);
		share_links();
		now += STEP;
		done += arrive(now, had, &longest);
		if (half == 0 && done >= chunks * (n - 1) / 2)
			half = now;
	}
	printf("%u nodes, %u hops: all has arrived after %.1f; in the second half %.3f a chunk; everywhere %.1f after it was read at most\n",
	       n, tree.hops, now, (now - half) / ((double)chunks / 2), longest);
	free(owners);
	free(had);
	free(nodes);
	free(read_at);
	return 0;
}
