/* Messages to the user and the log: one prefix for all of them. */
#ifndef SPANK_SAY_H
#define SPANK_SAY_H

#include <slurm/spank.h>

#define say_error(...) slurm_error("gradcomp: " __VA_ARGS__)
/* Reaches the terminal of srun from user_init on, without "error:". */
#define say(...) slurm_spank_log("gradcomp: " __VA_ARGS__)
/* The same behind a few control characters for a terminal. */
#define say_over(before, fmt, ...) slurm_spank_log("%sgradcomp: " fmt, before, __VA_ARGS__)

#endif
