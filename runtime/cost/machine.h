/* What is right in a machine and in a model (planning.h), wherever they come from. */
#ifndef COST_MACHINE_H
#define COST_MACHINE_H

#include "cost/planning.h"

#define MACHINE_NODES_MOST 1000000
#define MACHINE_RANKS_MOST 10000
#define MACHINE_SPECS_MOST 1000 /* compressors, and collectives */

gradcomp_status machine_check(const gradcomp_machine *m, gradcomp_error *err);
gradcomp_status model_check(const gradcomp_model *m, gradcomp_error *err);
/* Parameters of a tensor of a model that is right. */
uint64_t model_numel(const gradcomp_model_tensor *t);

#endif
