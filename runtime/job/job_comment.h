/* A line about a job in the comment that Slurm keeps of it (setting report.comment), by squeue and scontrol as the
 * user. */
#ifndef JOB_JOB_COMMENT_H
#define JOB_JOB_COMMENT_H

#include "job/report.h"

#include <stdbool.h>

#define JOB_COMMENT_LINE 240 /* bytes of a line, with its final 0 */
#define JOB_COMMENT_MAX 1000 /* bytes of a whole comment, after which it is left alone */

/* Writes "gradcomp: powersgd:rank=4, 12.3 GB sent instead of 190.1 GB, 1200 steps": bytes of rank 0, the SPEC of
 * what had the most to send. False for a job that is not Slurm's, that has one rank, or that has reduced nothing. */
bool job_comment_line(const report_job *job, char out[JOB_COMMENT_LINE]);
/* Puts the line behind what stands in the comment, "; " between. Takes some seconds at most; blocks, no locks. */
gradcomp_status job_comment_leave(const char *line, gradcomp_error *err);

#endif
