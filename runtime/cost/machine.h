/* Says what is right in a machine and in a model (planning.h), wherever they come from. */
#ifndef COST_MACHINE_H
#define COST_MACHINE_H

#include "cost/planning.h"

#define MACHINE_NODES_MOST 1000000
#define MACHINE_RANKS_MOST 10000
#define MACHINE_SPECS_MOST 1000 /* compressors, and collectives */

gradcomp_status machine_check(const machine_file *m, gradcomp_error *err);
gradcomp_status model_check(const model_file *m, gradcomp_error *err);
/* Return what the passes lose beside exchanges, and beside compressing, as a share: as the model's job has found
 * out, else as the machine says. */
double model_slowed_by_exchange(const model_file *m, const machine_file *machine);
double model_slowed_by_compute(const model_file *m, const machine_file *machine);
/* Returns what a recorded job's backward pass takes by itself, as a share of what was recorded, when the job ran on
 * such a machine. */
double model_backward_alone(const model_file *m, const machine_file *machine);
/* Parameters of a tensor of a model that is right. */
uint64_t model_numel(const model_tensor *t);

#endif
