/* Two levels of a block a rank: what calls of hier.h in host memory and on a device have in common.
 *
 * Blocks are taken node by node, so that a node's are one run; where ranks of a node are
 * not neighbours they are copied into that order. A shard is cut where nodes meet: what
 * of it belongs to a node is sent to, or from, that node's holder of the shard. */
#ifndef PLUGINS_COMMON_COLLECTIVES_HIER_BLOCKS_H
#define PLUGINS_COMMON_COLLECTIVES_HIER_BLOCKS_H

#include "plugins/common/collectives/hier.h"

typedef struct hier_blocks {
	hier *h;
	const gradcomp_operators *ops; /* those of the memory that the blocks are in */
	void *queue;
	const uint64_t *length; /* each rank's block, in the group's order */
	size_t size;            /* bytes of one of what they are lengths of */
	uint64_t total;
	/* in the order of nodes; the caller's where h->sorted, else the caller of these functions fills it in */
	char *buf;
} hier_blocks;

hier_blocks hier_blocks_of(hier *h, const gradcomp_operators *ops, void *queue, void *buf, const uint64_t *length,
                           size_t size);
/* Count what belongs to each node of a shard; and this node's ranks' own, in bytes. Both are h->counts, until the
 * next of them, or the next call within the node. */
const uint64_t *hier_blocks_by_node(const hier_blocks *b, int shard);
const uint64_t *hier_blocks_of_node(const hier_blocks *b);
/* Returns this node's, in b->buf. */
char *hier_blocks_here(const hier_blocks *b);
/* Copies all blocks, and this rank's, from `user` into b->buf, or `back`. */
void hier_blocks_copy(const hier_blocks *b, char *user, int back);
void hier_blocks_copy_own(const hier_blocks *b, char *user, int back);
/* Sends what is summed of this node's blocks, which is in place with the holders of shards, to its owners. `gather`
 * is an all-gather within the node, of bytes, on `inside`. */
gradcomp_status hier_blocks_to_owners(const hier_blocks *b,
                                      gradcomp_status (*gather)(void *, void *, const uint64_t *, gradcomp_error *),
                                      void *inside, gradcomp_error *err);

#endif
