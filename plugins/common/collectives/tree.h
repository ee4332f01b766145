/* The tree collective: its calls, as in collective.h with a `tree` for an instance, and
 * the parts they are made of.
 *
 * Ranks are numbered from the root of a call. With Q the largest power of two up to
 * P, ranks Q and more are folded onto rank - Q first; the rest form a binomial
 * tree. The longest way to the root is ceil(log2 P) either way. */
#ifndef PLUGINS_COMMON_COLLECTIVES_TREE_H
#define PLUGINS_COMMON_COLLECTIVES_TREE_H

#include "gradcomp/collective.h"
#include "plugins/common/collectives/call_cost.h"

#define TREE_MAX_CHILDREN 32
/* Sends of a piece to all children that may be on their way at once. */
#define TREE_AHEAD 4

/* The cost of calls follows from this. */
typedef struct tree_shape {
	int nranks, full;                     /* full: largest power of two up to nranks */
	call_senders down[TREE_MAX_CHILDREN]; /* [0] in the fold, then by bit, from root 0 */
} tree_shape;

typedef struct tree {
	const gradcomp_host *host;
	const gradcomp_links *links;
	int rank, nranks;
	tree_shape shape;
	size_t piece;  /* bytes */
	char *scratch; /* for what arrives */
	size_t scratch_bytes;
	gradcomp_request arriving[2][TREE_MAX_CHILDREN];
	gradcomp_request send[TREE_AHEAD][TREE_MAX_CHILDREN];
} tree;

/* This rank's position in a call: ranks of the group. */
typedef struct tree_position {
	int parent;                   /* -1: this is the root */
	int child[TREE_MAX_CHILDREN]; /* in the order in which they are added */
	int nchildren;
} tree_position;

tree_position tree_find(const tree *t, int root);
/* Makes sure `scratch` holds `bytes`. */
gradcomp_status tree_reserve(tree *t, size_t bytes, gradcomp_error *err);

/* `host` and `links` outlive the tree. chunk: bytes of a piece; 0: what the links do best. */
gradcomp_status tree_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, tree **out,
                            gradcomp_error *err);
void tree_destroy(void *instance);
gradcomp_status tree_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                               double scale, gradcomp_error *err);
gradcomp_status tree_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                    gradcomp_op op, double scale, gradcomp_error *err);
gradcomp_status tree_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err);
gradcomp_status tree_barrier(void *instance, gradcomp_error *err);
gradcomp_status tree_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status tree_merge(void *instance, gradcomp_payload *inout, uint64_t bound, const gradcomp_merger *merger,
                           gradcomp_error *err);
void tree_cost(void *instance, uint64_t bytes, double *sent, double *messages);
/* Returns how many ranks from `rank` on are below it in the tree of root 0, itself among them; *folded: those of
 * the ranks from rank + full on that are folded onto these. */
int tree_below(const tree_shape *s, int rank, int *folded);
/* count: an array of nnodes. */
void tree_scan(tree_shape *s, const gradcomp_links *links, int32_t *count);
/* All-reduce and broadcast. */
void tree_call_cost(const tree_shape *s, call_kind call, uint64_t bytes, call_cost *out);
gradcomp_status tree_predict(int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                             gradcomp_call_load *out, gradcomp_error *err);

#endif
