/* srun, sbatch and salloc: refuse a user's mistakes before anything is submitted.
 *
 * The options are checked by the gradcomp command, run as the user who types;
 * this object loads no plugin. A mistake ends the program with status 1 here
 * rather than by a return value, which Slurm heeds only when plugstack.conf says
 * "required" and then wraps in two lines of its own. */
#ifndef SPANK_LOCAL_CONTEXT_H
#define SPANK_LOCAL_CONTEXT_H

#include <slurm/spank.h>

int local_init(spank_t sp, int ac, char **av);
/* All options of a command, or of one component of a heterogeneous one, are in. */
int local_options_end(void);
/* srun alone: the step is about to be launched. */
int local_launch(spank_t sp);
void local_exit(void);

#endif
