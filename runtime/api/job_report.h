/* Rank 0 tells of the job as a whole: while it runs, when a signal ends it, and when it is over. */
#ifndef API_JOB_REPORT_H
#define API_JOB_REPORT_H

#include "job/job.h"
#include "job/job_comment.h"

/* Sets if SIGTERM writes the report, where the job has one, and if `gradcomp watch` is answered. When it is off,
 * nothing of the job is being read for either. */
void job_report_watch(gradcomp_job *job, bool on);
/* Writes the report and the closing line, when nothing of the job runs any more; the line for the job's comment,
 * "": none. failure: what has ended it, or NULL. */
gradcomp_status job_report_write(gradcomp_job *job, const char *failure, char comment[JOB_COMMENT_LINE],
                                 gradcomp_error *err);

#endif
