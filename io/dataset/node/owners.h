/* Says who owns a sample: the node whose memory keeps its value.
 *
 * At first that is the node of the rank that the order of epoch 0 gives it to. When a node is lost, its samples go
 * to those that are left, in pieces of some slots; all others stay where they are. Whose a sample is follows from its
 * index and from which nodes are lost, not from the order in which they were, so that nobody tells anybody.
 *
 * The slots of a node that may outlive others are a table for all samples, in sections: the samples that were each
 * node's at first. It takes memory where it is written to, so pieces are pages of it, unless there are few samples. */
#ifndef IO_DATASET_NODE_OWNERS_H
#define IO_DATASET_NODE_OWNERS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "io/dataset/node/permutation.h"

typedef struct owners {
	permutation first; /* that of epoch 0 */
	int nranks, nnodes;
	int32_t *node_of, *local_of; /* every rank's node at first, and its local rank there */
	int32_t *nlocal;             /* for every node: its ranks at first */
	uint64_t *section;           /* for every node: its first slot; NULL: it cannot be lost */
	/* for every node: 1 when it is lost; in the shared memory, for forked children */
	atomic_uchar *lost;
} owners;

typedef struct sample_owner {
	int node;
	uint64_t slot;
} sample_owner;

/* Takes the nodes of ranks, and their local ranks there. `first` has been set. With `endures` `lost` is to be set. */
gradcomp_status owners_init(owners *o, const int32_t *node_of, const int32_t *local_of, int nranks, int nnodes,
                            bool endures, gradcomp_error *err);
void owners_clear(owners *o);
void owners_find(const owners *o, uint64_t index, sample_owner *out);
/* Slots of a node: for its own samples, and for all that it may own. */
uint64_t owners_slots(const owners *o, int node);
uint64_t owners_table(const owners *o, int node);

#endif
