/* A job fails once: the first failure counts, and is told to whoever waits. */
#ifndef TRANSPORT_CONTROL_JOB_FAILURE_H
#define TRANSPORT_CONTROL_JOB_FAILURE_H

#include "gradcomp/abi.h"

#include <stdatomic.h>

typedef struct job_failure {
	atomic_int set; /* may be read at any time */
	int fd;         /* eventfd: readable for ever once the job has failed */
	/* Is written before `set`, with the transport's lock held, and does not change after it. */
	gradcomp_error error;
} job_failure;

/* NOMEM when there is no descriptor for it. */
gradcomp_status failure_open(job_failure *f);
void failure_close(job_failure *f);
/* Makes f->error the failure of the job. */
void failure_set(job_failure *f);

#endif
