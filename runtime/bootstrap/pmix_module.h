/* The module bootstrap/pmix.so is asked two things: who this process is, and to keep one text a rank that never
 * changes, for as long as the step lasts.
 *
 * No more is asked of PMIx. Its fence is of no use when a step is joined again: where Slurm's servers
 * speak through slurmd it may end without the others, and what it brings may be of a join before.
 *
 * PMIx has no time limits of its own. Here each call ends within its limit, and what it left
 * behind ends with the process. One thread at a time. */
#ifndef BOOTSTRAP_PMIX_MODULE_H
#define BOOTSTRAP_PMIX_MODULE_H

#include "gradcomp/abi.h"

#include <stdbool.h>

#define PMIX_HOST_MAX 65

typedef struct pmix_module {
	uint32_t struct_size;
	uint32_t version; /* PMIX_MODULE_VERSION; the module and the library are one build */
	/* On failure nothing is open. */
	gradcomp_status (*open)(double limit, int *rank, int *nranks, gradcomp_error *err);
	/* Publishes this rank's text, for all to look up. */
	gradcomp_status (*publish)(const char *text, double limit, gradcomp_error *err);
	/* Looks up the text of `rank`, the caller's to free. NOTFOUND: there is none yet, or none came; `wait`: it
	 * may be waited for. */
	gradcomp_status (*lookup)(int rank, bool wait, double limit, char **text);
	/* Tells where it runs, as far as this node's server knows it; "" where it does not. */
	void (*host)(int rank, double limit, char out[PMIX_HOST_MAX]);
	void (*close)(double limit);
} pmix_module;

#define PMIX_MODULE_VERSION 3
/* The symbol of the module. */
#define PMIX_MODULE_SYMBOL "gradcomp_bootstrap_pmix"

#endif
