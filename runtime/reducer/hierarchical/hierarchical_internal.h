/* Inside of hierarchical.h. */
#ifndef REDUCER_HIERARCHICAL_HIERARCHICAL_INTERNAL_H
#define REDUCER_HIERARCHICAL_HIERARCHICAL_INTERNAL_H

#include "reducer/hierarchical/hierarchical.h"

struct hierarchical {
	engine inner;               /* of what this rank holds; of no tensors when that is nothing */
	struct hierarchical *next;  /* this rank's next shard of each bucket, on a small node; or NULL */
	void *holders;              /* the collective's instance for calls among them */
	int rank, nranks;           /* among the holders; -1: none */
	double scale;               /* nodes / ranks */
	gradcomp_shard *of;         /* by bucket */
	gradcomp_tensor *tensors;   /* of inner's layout */
	uint32_t *origin;           /* by tensor of inner: the one of the outer layout it is part of */
	void **grads;               /* by tensor of inner: where it is in this step */
	uint64_t *dims;             /* two a tensor of inner */
	int *ranks;                 /* of the holders, in the job */
	residual_norm *before;      /* by tensor of the outer layout: of parts there were before buckets moved */
	gradcomp_measured measured; /* the latest that the compressor was told; struct_size 0: nothing. Of it, */
	double *backward;           /* by tensor of the outer layout */
	int notified;               /* the log says that the compressor's own state began anew */
	struct gradcomp_collective_v1 view;
	gradcomp_group group;
};

/* How many numbers two runs of the layout have in common, from *at on. */
static inline uint64_t hierarchical_overlap(uint64_t a, uint64_t numel, uint64_t b, uint64_t more, uint64_t *at)
{
	uint64_t end = a + numel < b + more ? a + numel : b + more;
	*at = a > b ? a : b;
	return end > *at ? end - *at : 0;
}

#endif
