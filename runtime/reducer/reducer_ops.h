/* A reducer as its user sees it: one that reduces, or one that stands in front of others and
 * hands on (delay.h, choice.h). Then only `calls` and `front` of it are set. */
#ifndef REDUCER_REDUCER_OPS_H
#define REDUCER_REDUCER_OPS_H

#include "reducer/reducer.h"

/* As the public functions of the same names. */
typedef struct reducer_ops {
	gradcomp_status (*ready)(void *front, uint32_t index, void *gradient, gradcomp_error *err);
	gradcomp_status (*wait)(void *front, gradcomp_error *err);
	gradcomp_status (*wait_for)(void *front, uint32_t index, gradcomp_error *err);
	gradcomp_status (*drain)(void *front, void *const *corrections, void *const *weights, double rate,
	                         gradcomp_error *err);
	gradcomp_status (*save)(void *front, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
	gradcomp_status (*load)(void *front, const void *buf, uint64_t bytes, gradcomp_error *err);
	void (*get_stats)(void *front, gradcomp_reducer_stats *stats);
	void (*free)(void *front);
} reducer_ops;

/* The reducer that reduces. `options` are whole, whatever headers the caller had. */
gradcomp_status reducer_create(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                               const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err);
gradcomp_status reducer_ready(gradcomp_reducer *r, uint32_t index, void *gradient, gradcomp_error *err);
gradcomp_status reducer_wait(gradcomp_reducer *r, gradcomp_error *err);
gradcomp_status reducer_wait_for(gradcomp_reducer *r, uint32_t index, gradcomp_error *err);
gradcomp_status reducer_save(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
gradcomp_status reducer_load(gradcomp_reducer *r, const void *buf, uint64_t bytes, gradcomp_error *err);
void reducer_get_stats(gradcomp_reducer *r, gradcomp_reducer_stats *stats);
void reducer_free(gradcomp_reducer *r);

#endif
