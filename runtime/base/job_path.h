/* Names of files of a job: %j and %s filled in. `what` the file is, for messages. */
#ifndef BASE_JOB_PATH_H
#define BASE_JOB_PATH_H

#include "gradcomp/abi.h"

/* The form of the name alone: its directory may exist on another node only. */
gradcomp_status job_path_check(const char *what, const char *path, gradcomp_error *err);
/* %j becomes SLURM_JOB_ID, or the process id outside of Slurm; %s becomes
 * SLURM_STEP_ID, or 0; %% becomes '%'. *out is the caller's. */
gradcomp_status job_path_expand(const char *what, const char *path, char **out, gradcomp_error *err);

#endif
