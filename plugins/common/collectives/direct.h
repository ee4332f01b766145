/* The direct collective: its calls, as in collective.h with a `direct` for an instance,
 * and the parts they are made of. Everybody sends to everybody: a buffer is cut into as
 * many stripes as there are ranks, the owner of a stripe gets all of its parts, and
 * gives out the result.
 *
 * At most DIRECT_AHEAD transfers each way are in flight, however many ranks there are,
 * and rank r meets rank r + d at the same time as all others meet theirs. */
#ifndef PLUGINS_COMMON_COLLECTIVES_DIRECT_H
#define PLUGINS_COMMON_COLLECTIVES_DIRECT_H

#include "plugins/common/collectives/tree.h"

#define DIRECT_AHEAD 8
/* Pieces of an all-gather by multicast in flight. */
#define DIRECT_GATHERS 2
/* From there on all ranks of a node read one copy of a block that goes to all of them (multicast() of
 * links; it copies shorter ones for each). Around a ring it would be copied in and out at every rank. */
#define DIRECT_ONE_COPY_LEAST (32u << 10)
/* A rank then has a connection to every other one. */
#define DIRECT_ONE_COPY_RANKS 64

/* A piece of every rank's stripe, to and from d->others. */
typedef struct direct_gather {
	gradcomp_request *recv, *send;
} direct_gather;

typedef struct direct {
	const gradcomp_host *host;
	const gradcomp_links *links;
	int rank, nranks;
	size_t piece;  /* bytes of a stripe at a time */
	tree *tree;    /* for what is short, when the ranks are many */
	char *scratch; /* for what arrives and is not in its final position */
	size_t scratch_bytes;
	gradcomp_request recv[DIRECT_AHEAD];
	gradcomp_request send[2 * DIRECT_AHEAD]; /* a coded run may take two */
	int *others;                             /* where a multicast reaches all other ranks: these; else NULL */
	gradcomp_request *requests;
	direct_gather gather[DIRECT_GATHERS];
	uint64_t offset[]; /* begins of the blocks of the call in progress: nranks + 1, twice */
} direct;

/* `host` and `links` outlive the instance. chunk: bytes of a piece; 0: what the links do
 * best. */
gradcomp_status direct_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, direct **out,
                              gradcomp_error *err);
void direct_destroy(void *instance);
gradcomp_status direct_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                 double scale, gradcomp_error *err);
gradcomp_status direct_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                      gradcomp_op op, double scale, gradcomp_error *err);
gradcomp_status direct_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status direct_alltoall(void *instance, const void *in, const uint64_t *in_bytes, void *out,
                                const uint64_t *out_bytes, gradcomp_error *err);
gradcomp_status direct_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err);
gradcomp_status direct_barrier(void *instance, gradcomp_error *err);
gradcomp_status direct_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                       const gradcomp_codec *codec, uint64_t counter, float *residual,
                                       gradcomp_error *err);
gradcomp_status direct_coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                       uint64_t counter, float *residual, gradcomp_error *err);
gradcomp_status direct_coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                            const gradcomp_codec *codec, uint64_t counter, float *residual,
                                            gradcomp_error *err);
gradcomp_status direct_exchange(void *instance, const gradcomp_exchange *x, gradcomp_error *err);
uint64_t direct_server_error(void *instance, uint64_t count);
uint64_t direct_server_error_begin(void *instance, uint64_t count);
void direct_cost(void *instance, uint64_t bytes, double *sent, double *messages);
gradcomp_status direct_predict(int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                               gradcomp_call_load *out, gradcomp_error *err);

/* Returns 1 when so many ranks of a node, which have multicast(), copy such blocks once: to one other it saves
 * nothing. */
static inline int direct_copies_once(int nranks)
{
	return nranks > 2 && nranks <= DIRECT_ONE_COPY_RANKS;
}

/* Returns 1 when these ranks do. */
int direct_has_one_copy(const gradcomp_links *links);

/* Returns true for all-reduces that go along a tree. */
static inline int direct_is_short(int nranks, uint64_t bytes)
{
	return nranks > 8 && bytes <= 8192;
}

/* Transfer i of a call: this rank sends to `to` and receives from `from`. */
typedef struct direct_step {
	uint64_t index, piece;
	int gather; /* a stripe is given out; else a part of it is brought to its owner */
	int to, from;
} direct_step;

/* A call does this at each transfer; ctx is its own. Slot `index % DIRECT_AHEAD` of any buffer is free when recv()
 * or send() of `index` is called. */
typedef struct direct_calls {
	gradcomp_status (*recv)(void *ctx, direct_step s, gradcomp_error *err); /* post */
	gradcomp_status (*send)(void *ctx, direct_step s, gradcomp_error *err);
	gradcomp_status (*arrive)(void *ctx, direct_step s, gradcomp_error *err); /* wait, and use */
	gradcomp_status (*sent)(void *ctx, direct_step s, gradcomp_error *err);
	/* All parts of a piece of this rank's stripe are here. Before it is given out. */
	gradcomp_status (*complete)(void *ctx, uint64_t piece, gradcomp_error *err);
} direct_calls;

/* Runs all transfers of stripes of `pieces` pieces: to their owners (reduces), from
 * them (gathers), or both, a piece being given out while the next is brought. */
gradcomp_status direct_run(direct *d, const direct_calls *calls, void *ctx, uint64_t pieces, int reduces, int gathers,
                           gradcomp_error *err);

/* Returns the longest of nranks blocks. */
uint64_t direct_longest(const direct *d);
/* Makes sure `scratch` holds `bytes`. */
gradcomp_status direct_reserve(direct *d, size_t bytes, gradcomp_error *err);

#endif
