/* slurmstepd: hands the options to the tasks and stages the dataset.
 *
 * No hook fails: a remote hook's failure drains the node, or lets srun exit 0
 * without having run anything. What is wrong is said in user_init, which srun
 * shows, and then the tasks end with status 1 before they start. */
#ifndef SPANK_STEP_H
#define SPANK_STEP_H

#include <slurm/spank.h>

int step_init(spank_t sp, int ac, char **av);
int step_user_init(spank_t sp);
int step_task_init(void);
void step_exit(void);

#endif
