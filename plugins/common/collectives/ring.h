/* The ring collective: its calls, as in collective.h with a `ring` for an instance, and
 * the parts they are made of. */
#ifndef PLUGINS_COMMON_COLLECTIVES_RING_H
#define PLUGINS_COMMON_COLLECTIVES_RING_H

#include "gradcomp/collective.h"
#include "plugins/common/collectives/call_cost.h"

#include <stdbool.h>

/* Receives posted ahead of the piece being worked on. */
#define RING_AHEAD 8
/* A block is cut into at most this many pieces; longer blocks get longer
 * pieces. */
#define RING_MAX_PIECES 256
/* Sums that are not to go around do where ranks are more than this: a rank would have a connection to each, and
 * often may have no more than 1024 files. */
#define RING_OWNERS_MOST 512

typedef struct ring {
	const gradcomp_host *host;
	const gradcomp_links *links;
	int rank, nranks;
	size_t piece;          /* bytes, before RING_MAX_PIECES stretches it */
	int piece_given;       /* by the user: kept as it is */
	int hop;               /* code at every hop */
	int one_run;           /* a block is coded in one run */
	int two_steps;         /* what is coded goes to all peers at once */
	struct direct *direct; /* ... by it, made by the first call that does */
	struct hier *levels;   /* the plugin's, for sums in two levels; made by the first one */
	uint64_t small;        /* all-reduces up to this many bytes go to all peers at once */
	char *pieces;          /* for arriving pieces */
	size_t pieces_cap;     /* its bytes */
	gradcomp_request recv[RING_AHEAD];
	gradcomp_request send[RING_MAX_PIECES + RING_AHEAD];
	uint64_t offset[]; /* begins of the blocks of the call in progress; nranks + 1, the first is 0 */
} ring;

typedef struct ring_options {
	size_t chunk;             /* bytes of a piece; 0: what the links do best */
	uint64_t small;           /* bytes */
	int hop, one_run, direct; /* how codes are sent, see ring_coded.c */
} ring_options;

/* `host` and `links` outlive the ring. */
gradcomp_status ring_create(const gradcomp_host *host, const gradcomp_links *links, const ring_options *o, ring **out,
                            gradcomp_error *err);
void ring_destroy(void *instance);
gradcomp_status ring_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                               double scale, gradcomp_error *err);
gradcomp_status ring_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                    gradcomp_op op, double scale, gradcomp_error *err);
gradcomp_status ring_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status ring_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err);
gradcomp_status ring_barrier(void *instance, gradcomp_error *err);
gradcomp_status ring_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                     const gradcomp_codec *codec, uint64_t counter, float *residual,
                                     gradcomp_error *err);
gradcomp_status ring_coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err);
gradcomp_status ring_coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                          const gradcomp_codec *codec, uint64_t counter, float *residual,
                                          gradcomp_error *err);
void ring_cost(void *instance, uint64_t bytes, double *sent, double *messages);
/* Tells the same of a ring of so many ranks. */
void ring_cost_of(int nranks, uint64_t small, uint64_t bytes, double *sent, double *messages);

/* The cost of calls follows from this. */
typedef struct ring_shape {
	int nranks;
	call_senders right;  /* to the right neighbour */
	call_senders chain;  /* the same, but for the last one */
	call_senders to_all; /* everybody to everybody at once */
	uint64_t small;
	size_t piece;
} ring_shape;

/* count: an array of nnodes. chunk and small as in ring_options. */
void ring_scan(ring_shape *s, const gradcomp_links *links, uint64_t small, size_t chunk, int32_t *count);
/* Adds up a call of `bytes` in all. */
void ring_call_cost(const ring_shape *s, call_kind call, uint64_t bytes, call_cost *out);
/* Takes GRADCOMP_CAN_OWNED_SUMS out of a primitive, and describes for ring_predict() how such a call goes. Returns true
 * for a sum that is not to go around. */
bool ring_sum_options(ring_options *o, int nranks, uint32_t *primitive);
/* Returns true when a coded sum is not to go around. */
bool ring_owns_sums(const ring *r, const gradcomp_codec *codec, const float *residual);
gradcomp_status ring_predict(const ring_options *o, int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                             gradcomp_call_load *out, gradcomp_error *err);

/* Blocks that are sent around the ring, one step a neighbour at a time. In step s
 * this rank sends block (start - s) and receives block (start - s - 1), both mod
 * nranks; in the first `reduce_steps` steps what arrives is reduced into the
 * block, later it replaces it. */
typedef struct ring_route {
	char *buf;
	const uint64_t *offset; /* begin of each block in buf, bytes; nranks + 1 entries */
	int start, steps, reduce_steps;
	gradcomp_dtype dtype;
	gradcomp_op op;
	double scale; /* applied to the block of the last reducing step */
} ring_route;

gradcomp_status ring_pipeline(ring *r, const ring_route *route, gradcomp_error *err);

/* Bytes of a piece of blocks of which the longest has `longest` bytes. */
size_t ring_piece(const ring *r, uint64_t longest);
/* offset[] of nranks blocks of about the same length, count numbers of `size` in all. */
void ring_split(ring *r, uint64_t count, size_t size);

/* offset[] of nranks blocks of counts[b] things of `size`. */
void ring_offsets(ring *r, const uint64_t *counts, size_t size);

/* Describes blocks like a route does, of floats under a code. */
typedef struct ring_codes {
	float *buf;
	const uint64_t *offset; /* in floats */
	int start, steps, reduce_steps;
	double scale;
	const gradcomp_codec *codec;
	uint64_t counter;
	float *residual; /* belongs to buf from element residual_from on; or NULL */
	uint64_t residual_from;
} ring_codes;

/* Makes sure `pieces` holds `bytes`. */
gradcomp_status ring_reserve(ring *r, size_t bytes, gradcomp_error *err);

gradcomp_status ring_small_allreduce(ring *r, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                     double scale, gradcomp_error *err);

#endif
