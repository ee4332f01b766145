/* The process below gradcomp run that starts the ranks, and ends them when the command does not want them any more,
 * or is gone: it holds the end of a pipe. */
#ifndef TOOLS_RUN_RANKS_H
#define TOOLS_RUN_RANKS_H

/* Starts `count` ranks of `argv` with `env` (NAME=VALUE, ended by NULL) set, and returns when all have ended.
 * `orders` brings numbers of signals for the ranks, a byte each; at its end they are to end. The exit status: that
 * of the first rank that failed, as run_status_code() has it; of ranks that outlive each other 0 when one ended
 * with 0. */
int run_ranks(int count, char **env, char **argv, int orders);
/* Returns the exit status for a status of waitpid(): 128 and the signal's number where a signal has ended it. */
int run_status_code(int status);

#endif
