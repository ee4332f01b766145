/* Joining a job. */
#ifndef API_JOB_JOIN_H
#define API_JOB_JOIN_H

#include "job/job.h"
#include "bootstrap/bootstrap.h"

/* With `refusal`: tells the other ranks why this one cannot join, and returns its error.
 * Exchanges endpoint records and starts the transport; the job has its configuration, rank and
 * host table. On failure the transport may exist. */
gradcomp_status job_join(gradcomp_job *job, bootstrap *w, const gradcomp_error *refusal, gradcomp_error *err);

/* A rank that leaves the job waits here for the others. If a rank is lost meanwhile, whoever else calls
 * gradcomp_job_shrink() hears how far this one has come. */
void job_shrink_leaving(gradcomp_job *job);

#endif
