/* A job that runs, for `gradcomp watch`: rank 0 listens at an abstract local socket, and whoever connects to it as the
 * job's user gets a report of what has been done so far. Nothing is done while nobody asks, and nothing of it
 * outlives the process. */
#ifndef JOB_LIVE_H
#define JOB_LIVE_H

#include <stdio.h>

#include "job/report.h"

/* The socket's name is this, "JOB.STEP/" (job_path.h) and LIVE_RANDOM hexadecimal digits. */
#define LIVE_NAME "gradcomp-live/"
#define LIVE_RANDOM 16
#define LIVE_BYTES_MAX 262144 /* the longest answer */

typedef struct live_server live_server;

/* tell() runs in a thread of the server, one at a time, and writes the answer. */
gradcomp_status live_open(void (*tell)(void *ctx, FILE *out), void *ctx, live_server **out, gradcomp_error *err);
/* No tell() is running when it returns. NULL is fine. */
void live_close(live_server *l);
/* A report (doc/user/report.md) without what is long: hosts, links, tensors, buckets, the times of each rank. */
void live_write(FILE *out, const report_job *job);

#endif
