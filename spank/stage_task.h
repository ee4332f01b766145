/* --gradcomp-stage: the gradcomp command copies datasets to this node's cache.
 *
 * It runs in task_init as a child of the node's first task: by then Slurm has
 * made the process the user's, with the job's limits, and whatever ends a task
 * (scancel, a time limit, srun interrupted) ends the copying too. In user_init
 * it would be out of reach: a step that has not started its tasks takes no
 * signal. The node's other tasks wait for the first one. */
#ifndef SPANK_STAGE_TASK_H
#define SPANK_STAGE_TASK_H

#include <slurm/spank.h>
#include <stddef.h>

#include "spank/arguments.h"

/* Is called from user_init, before the tasks are forked. -1 with the reason in `why`. */
int stage_task_prepare(spank_t sp, char *why, size_t size);
/* Is called from task_post_fork. */
void stage_task_forked(void);
/* Is called from task_init. Returns when the copies are complete and GRADCOMP_DATA and so on are set. Relative
 * sources are in the working directory. -1 with the reason in `why`, which is empty where another task of the node,
 * or another node, has logged it. */
int stage_task_run(spank_t sp, const char *spec, const arguments *args, char *why, size_t size);

#endif
