/* Joining a job. */
#ifndef API_JOB_JOIN_H
#define API_JOB_JOIN_H

#include "job/job.h"
#include "bootstrap/bootstrap.h"

/* Exchanges endpoint records and starts the transport; the job has its configuration, rank and
 * host table. On failure the transport may exist. */
gradcomp_status job_join(gradcomp_job *job, bootstrap *w, gradcomp_error *err);

#endif
