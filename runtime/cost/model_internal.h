/* Inside of model.c and model_read.c. */
#ifndef COST_MODEL_INTERNAL_H
#define COST_MODEL_INTERNAL_H

#include "config/record_io.h"
#include "cost/planning.h"

#define NDIM_MOST 8

/* The keys of section [model]. */
record_io model_fields(const gradcomp_model *m);
/* The product of the dimensions; more than NUMEL_MAX when it, without zeroes, is. */
uint64_t model_product(const uint64_t *dims, uint32_t n);
/* What only the whole model shows: its seconds, its parameters, its layers. */
gradcomp_status model_whole(const gradcomp_model *m, gradcomp_error *err);

#endif
