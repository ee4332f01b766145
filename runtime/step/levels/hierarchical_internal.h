/* Inside of hierarchical.h. */
#ifndef STEP_LEVELS_HIERARCHICAL_INTERNAL_H
#define STEP_LEVELS_HIERARCHICAL_INTERNAL_H

#include "step/levels/hierarchical.h"

struct hierarchical {
	engine inner;               /* works on what this rank holds; has no tensors when that is nothing */
	void *holders;              /* the collective's instance for calls among them */
	int rank, nranks;           /* among the holders; -1: none */
	double scale;               /* nodes / ranks */
	gradcomp_shard *of;         /* by bucket */
	gradcomp_tensor *tensors;   /* those of inner's layout */
	uint32_t *origin;           /* by tensor of inner: the one of the outer layout it is part of */
	void **grads;               /* by tensor of inner: where it is in this step */
	uint64_t *dims;             /* two a tensor of inner */
	int *ranks;                 /* the holders' numbers in the job */
	residual_norm *before;      /* by tensor of the outer layout: of parts there were before buckets moved */
	gradcomp_measured measured; /* the latest that the compressor was told; struct_size 0: nothing. Of it, */
	double *backward;           /* by tensor of the outer layout */
	int notified;               /* the log says that the compressor's own state began anew */
	struct gradcomp_collective_v1 view;
	gradcomp_group group;
};

/* Those of an engine's shards, the first; and the rank's next one. */
static inline struct hierarchical *hierarchical_of(engine *shards)
{
	return (struct hierarchical *)shards;
}

#endif
