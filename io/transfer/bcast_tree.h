/* Which way chunks go through the nodes, and in which order a node has to do with them.
 *
 * A chunk goes down a tree that begins at the node which reads it. A node's offset is how many nodes it is behind
 * that one, modulo their number. Written in base `radix`, the lowest digit of an offset that is not 0 says from
 * where the chunk comes: from the offset where that digit is one less. So a node sends to those 1, radix, radix^2
 * ... behind it alone, and a chunk makes at most (radix - 1) log n hops. An offset that ends in k zeroes sends a
 * chunk k or k + 1 times, which is once on average. As nodes read in turn, each has all offsets in turn, and sends
 * every byte about once. With a radix of n or more the tree is a ring.
 *
 * All nodes put chunks in one order: by number, plus two for each hop. What a node sends on it
 * has received two earlier, and has had that time to. Each link has this order, so nobody has to say
 * what comes next. */
#ifndef IO_TRANSFER_BCAST_TREE_H
#define IO_TRANSFER_BCAST_TREE_H

#include <stdbool.h>
#include <stdint.h>

#define BCAST_RADIX 16u
#define BCAST_STRIDES 32 /* at most: n is below 2^31, the radix 2 or more */
#define BCAST_GAP 2u     /* chunks from a hop to the next */

typedef struct bcast_tree {
	uint32_t n, radix;
	uint32_t hops;     /* most hops of a chunk */
	uint32_t nstrides; /* a node sends to those `stride` behind it, and receives from those before it */
	uint32_t stride[BCAST_STRIDES];
} bcast_tree;

void bcast_tree_init(bcast_tree *t, uint32_t n, uint32_t radix);
uint32_t bcast_hops(const bcast_tree *t, uint32_t offset);
/* The stride over which a chunk comes to an offset, which is not 0. */
uint32_t bcast_from(const bcast_tree *t, uint32_t offset);
/* An offset sends chunks over so many strides, from the shortest on. */
uint32_t bcast_reach(const bcast_tree *t, uint32_t offset);

/* A chunk at a node. */
typedef struct bcast_turn {
	uint64_t chunk, time; /* turns are in the order of time, then of chunks */
	uint32_t owner, offset;
} bcast_turn;

/* The turns of a node. */
typedef struct bcast_order {
	const bcast_tree *tree;
	const uint32_t *owners; /* nodes that read chunks in turn */
	uint32_t nowners, node;
	uint64_t chunks; /* may become less */
	uint64_t time;   /* time of the next turn, which has so many hops or fewer */
	uint32_t hops;
} bcast_order;

void bcast_order_init(bcast_order *o, const bcast_tree *t, const uint32_t *owners, uint32_t nowners, uint32_t node,
                      uint64_t chunks);
/* False behind the last one. */
bool bcast_next(bcast_order *o, bcast_turn *out);
/* How many turns a node may have within BCAST_GAP + 1 of time. The node needs as many buffers: it
 * keeps what it has received until it has sent it. 0: no memory to find out. */
uint32_t bcast_crowd(const bcast_order *o);

#endif
