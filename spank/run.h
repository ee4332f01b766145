/* Runs the gradcomp command as a child, without a shell. */
#ifndef SPANK_RUN_H
#define SPANK_RUN_H

#include <limits.h>
#include <stddef.h>

typedef struct run {
	char *const *argv; /* argv[0] is an absolute path */
	char *const *env;
	int timeout;     /* s; 0: none */
	int show_output; /* stdout is ours; else it is kept in `output` */
	/* Called with every line of its stderr, printable, without newline and without
	 * a "gradcomp: " in front. */
	void (*line)(void *ctx, const char *text);
	void *ctx;
	char output[PATH_MAX + 1]; /* first line of its stdout; "" when that is longer */
} run;

/* Waits for the child to end. Returns its exit status, or -1 with the reason in
 * `why`: it could not be run, was killed by a signal, or took too long (and was
 * killed). The child cannot gain privileges, has no open files but the standard
 * ones, and is sent SIGTERM when the calling thread ends. */
int run_command(run *r, char *why, size_t size);

#endif
