/* Runs the gradcomp command as a child, without a shell. */
#ifndef SPANK_EXEC_HELPER_H
#define SPANK_EXEC_HELPER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define EXEC_OUTPUT_BYTES (16 * (PATH_MAX + 64)) /* a line for each source that can be staged */

typedef struct exec_helper {
	char *const *argv; /* argv[0] is an absolute path */
	char *const *env;
	int timeout;          /* s; 0: none */
	bool kill_at_timeout; /* with SIGKILL at once, not with SIGTERM first */
	bool show_output;     /* stdout is this process's; else it is kept in `output` */
	int in;               /* its stdin; 0: /dev/null */
	/* Called with every line of its stderr, printable, without its end and without
	 * a "gradcomp: " in front; `passing`: it ended in a carriage return, and the next
	 * one replaces it. */
	void (*line)(void *ctx, const char *text, bool passing);
	void *ctx;
	const struct exec_user *user;       /* the user that the child changes to; NULL: none */
	int cpu;                            /* s of CPU time; 0: no limit beside the system's */
	size_t memory;                      /* bytes of address space; 0: likewise */
	char output[EXEC_OUTPUT_BYTES + 1]; /* its stdout; "" when that is longer */
} exec_helper;

typedef struct exec_user {
	uid_t uid;
	gid_t gid;
	gid_t groups[64];
	int ngroups;
} exec_user;

/* Waits for the child to end. Returns its exit status, or -1 with the reason in
 * `why`: it could not be run, was killed by a signal, or took too long (and was
 * killed). The child cannot gain privileges, has no open files but the standard
 * ones, and is sent SIGTERM when the calling thread ends.
 *
 * A child that runs as another user is not trusted, nor are other processes of that user. They
 * cannot trace it or take its descriptors. Whatever they do, this returns at most 6 s after the
 * time limit, and a child that writes too much is stopped. All of the child's session is killed
 * with it. What is written after the child's end is never read. */
int exec_helper_run(exec_helper *r, char *why, size_t size);

#endif
