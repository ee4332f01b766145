/* Messages to the user and the log: one prefix for all of them. */
#ifndef SPANK_SPANK_LOG_H
#define SPANK_SPANK_LOG_H

#include <slurm/spank.h>

#define log_error(...) slurm_error("gradcomp: " __VA_ARGS__)
/* Reaches the terminal of srun from user_init on, without "error:". */
#define log_info(...) slurm_spank_log("gradcomp: " __VA_ARGS__)
/* The same behind a few control characters for a terminal. */
#define log_rewrite(before, fmt, ...) slurm_spank_log("%sgradcomp: " fmt, before, __VA_ARGS__)

#endif
