/* slurmstepd: hands the options to the tasks and stages the dataset.
 *
 * No hook fails: a remote hook's failure drains the node, and in Slurm 22.05 srun
 * exits 0 without having run anything (doc/dev/architecture.md). An error is logged in user_init
 * or in task_init, where srun shows it, and the tasks end with status 1 before they start. */
#ifndef SPANK_STEP_H
#define SPANK_STEP_H

#include <slurm/spank.h>

int step_init(spank_t sp, int ac, char **av);
int step_options_end(spank_t sp);
int step_user_init(spank_t sp);
int step_task_post_fork(void);
int step_task_init(spank_t sp);
void step_exit(void);

#endif
