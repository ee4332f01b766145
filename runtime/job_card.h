/* Joining a job. */
#ifndef JOB_CARD_H
#define JOB_CARD_H

#include "job.h"
#include "wireup/wireup.h"

/* Exchanges cards and starts the transport; the job has its configuration, rank and
 * host table. On failure the transport may exist. */
gradcomp_status job_join(gradcomp_job *job, wireup *w, gradcomp_error *err);

#endif
