/* The agent of gradcomp run: one a host, a process of its own, that starts the ranks there, and ends them
 * when the command does not want them any more, or is gone. */
#ifndef TOOLS_RUN_AGENT_H
#define TOOLS_RUN_AGENT_H

#include <stdbool.h>
#include <stdio.h>

#define RUN_RANKS_MAX 4096

/* What it starts. */
typedef struct run_share {
	const char *host; /* for messages */
	int first, count, nranks;
	char **env; /* to be set, NAME=VALUE; ended by NULL */
	char **argv;
} run_share;

/* `orders` brings numbers of signals for the ranks, a byte each; at its end they are to end. The exit status: that
 * of the first rank that failed, as run_status_code() has it; of ranks that outlive each other 0 when one ended with 0. */
int run_agent(const run_share *s, int orders);
/* The same on another host: what it is to start comes through stdin, and then orders. */
int run_agent_remote(void);
/* That, in `folder` there. Whether it could be written. */
bool run_agent_tell(FILE *to, const run_share *s, const char *folder);
/* Whether ranks with this environment, beside our own, outlive each other: GRADCOMP_ON_FAILURE=shrink. */
bool run_outlives(char *const *env);
/* Of waitpid(): 128 and the signal's number where a signal has ended it. */
int run_status_code(int status);

#endif
