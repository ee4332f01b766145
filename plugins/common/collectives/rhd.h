/* The rhd collective, recursive halving and doubling: its calls, as in collective.h with
 * an `rhd` for an instance, and the parts they are made of.
 *
 * Halving and doubling of blocks go over a circulant graph (Traff 2024, "Optimal,
 * non-pipelined reduce-scatter and allreduce algorithms"): with skips P = s0 > s1 > ...
 * > 1, each at least half of the one before, the rank at position v of a circle sends what
 * it has of the blocks of positions v + s1 to v + s0 - 1 to position v + s1, then those from
 * v + s2 on to v + s2, and so on: ceil(log2 P) rounds and P - 1 blocks for any P. Every
 * block is summed along one tree whose root is its owner, and the owner's bytes are
 * handed out the same way back, so all ranks have the same bits.
 *
 * Where nodes have equally many ranks, positions go around the nodes, and skips are multiples
 * of the number of nodes m as long as they can be: the long rounds stay within nodes, and
 * over the network goes about what a two-level scheme would send. */
#ifndef PLUGINS_COMMON_COLLECTIVES_RHD_H
#define PLUGINS_COMMON_COLLECTIVES_RHD_H

#include "gradcomp/collective.h"
#include "plugins/common/collectives/call_cost.h"
#include "plugins/common/collectives/tree.h"

/* Pieces on their way at once, each way. */
#define RHD_AHEAD 8
/* Skips there can be: one halving more than bits of a rank. */
#define RHD_SKIPS 34

/* The cost of calls follows from this. */
typedef struct rhd_shape {
	tree_shape tree; /* for short broadcasts */
	int nranks;
	int full;                    /* largest power of two up to nranks */
	int skip[RHD_SKIPS], nskips; /* nranks ... 1 */
	call_senders by_skip[RHD_SKIPS];
	call_senders doubling[RHD_SKIPS];  /* by the bit of the position; [0] is the fold */
	call_senders scattered[RHD_SKIPS]; /* a broadcast's way out by skip: left and sent in blocks */
	uint64_t brief;                    /* bytes; up to it whole buffers are doubled */
} rhd_shape;

typedef struct rhd {
	const gradcomp_host *host;
	const gradcomp_links *links;
	tree *tree;                 /* for short broadcasts */
	int rank, nranks, position; /* position: this rank's on the circle */
	size_t piece;               /* bytes */
	rhd_shape shape;
	char *scratch;
	size_t scratch_bytes;
	gradcomp_request send[RHD_AHEAD], recv[RHD_AHEAD];
	uint64_t *offset; /* nranks + 1, the first is 0 */
	int *order;       /* order[position] is a rank; NULL: the position itself */
	int *position_of; /* a rank's position; NULL likewise */
} rhd;

/* `host` and `links` outlive it. chunk: bytes of a piece; 0: what the links do best. */
gradcomp_status rhd_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, uint64_t brief,
                           rhd **out, gradcomp_error *err);
void rhd_destroy(void *instance);
gradcomp_status rhd_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                              double scale, gradcomp_error *err);
gradcomp_status rhd_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                   gradcomp_op op, double scale, gradcomp_error *err);
gradcomp_status rhd_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status rhd_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err);
gradcomp_status rhd_barrier(void *instance, gradcomp_error *err);
void rhd_cost(void *instance, uint64_t bytes, double *sent, double *messages);
/* The ranks of a node when there are several nodes and all have as many: positions then go
 * around the nodes. Else 0. count: an array of nnodes. */
int rhd_goes_around(const gradcomp_links *l, int32_t *count);
/* order[position] is a rank; NULL: the position itself. */
void rhd_scan(rhd_shape *s, const gradcomp_links *links, const int *order, uint64_t brief, int32_t *count);
/* Adds up a call of `bytes` in all. */
void rhd_call_cost(const rhd_shape *s, call_kind call, uint64_t bytes, call_cost *out);
/* Describes a group that is not there (call_cost.h), until this thread asks for another one. */
gradcomp_status rhd_even(rhd_shape **out, uint64_t brief, int32_t nranks, int32_t nnodes, gradcomp_error *err);
gradcomp_status rhd_predict(uint64_t brief, int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                            gradcomp_call_load *out, gradcomp_error *err);

/* A short all-reduce; count is not 0 and nranks not 1. */
gradcomp_status rhd_doubled(rhd *r, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                            gradcomp_error *err);

/* Blocks of a call: block b, from offset[b] on, is that of position_of[b] (NULL: b). */
typedef struct rhd_blocks {
	char *buf;
	const uint64_t *offset;
	const int *position_of;
	int reduce; /* 1: all that comes is reduced into the blocks, else it replaces them */
	gradcomp_dtype dtype;
	gradcomp_op op;
} rhd_blocks;

/* The blocks of positions begin ... begin + n - 1 around the circle, which go to, or come
 * from, the rank at position `peer`. n = 0: nothing. */
typedef struct rhd_run {
	int peer, begin, n;
} rhd_run;

/* Does one round: sends the blocks of `out` and receives those of `in`. */
gradcomp_status rhd_round(rhd *r, const rhd_blocks *c, const rhd_run *out, const rhd_run *in, gradcomp_error *err);

#endif
