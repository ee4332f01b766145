/* Inside of shards.h. */
#ifndef REDUCER_SHARDS_PARTS_H
#define REDUCER_SHARDS_PARTS_H

#include "shards.h"

struct shards {
	gradcomp_reducer inner; /* of what this rank holds; of no tensors when that is nothing */
	int rank, nranks;       /* among the holders; -1: none */
	double scale;           /* nodes / ranks */
	gradcomp_shard *of;     /* by bucket */
	uint32_t *origin;       /* by tensor of inner: the one of the outer layout it is part of */
	void **grads;           /* by tensor of inner: where it is in this step */
	uint64_t *dims;         /* two a tensor of inner */
	struct gradcomp_collective_v1 view;
	gradcomp_group group;
};

/* Fills inner's tensors and buckets, origin and dims. */
gradcomp_status shards_cut(gradcomp_reducer *r, gradcomp_error *err);

#endif
