/* Messages to the user and the log: one prefix for all of them. */
#ifndef SPANK_SPANK_LOG_H
#define SPANK_SPANK_LOG_H

#include <slurm/spank.h>

#define log_error(...) slurm_error("gradcomp: " __VA_ARGS__)
/* Reaches the terminal of srun from user_init on, without "error:". */
#define log_info(...) slurm_spank_log("gradcomp: " __VA_ARGS__)
/* The same behind a few control characters for a terminal. */
#define log_rewrite(before, fmt, ...) slurm_spank_log("%sgradcomp: " fmt, before, __VA_ARGS__)

/* In a task, before it ends: returns when slurmstepd has read all that the task has
 * written to its standard error, or after 5 s.
 *
 * slurmstepd reports the end of a task in one thread and reads its output in another, and
 * under --kill-on-bad-exit srun gives up output that is still on its way when the step is
 * killed. Slurm acknowledges no output; that the pipe is empty is the last thing a task can
 * see of it. A pipe of one page, which is the smallest, can be written to again exactly when
 * it is empty. A terminal or a file has nothing to wait for. */
void log_flush(void);

#endif
