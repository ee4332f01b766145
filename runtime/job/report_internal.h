/* What a report says: the figures it derives, and its JSON. */
#ifndef JOB_REPORT_INTERNAL_H
#define JOB_REPORT_INTERNAL_H

#include <stdio.h>

#include "job/report.h"

/* dense / wire bytes; 0 when nothing was sent. */
double report_ratio(const gradcomp_reducer_stats *s);
/* The share, 0..1, of encode, exchange and decode that the application did not
 * wait for; negative when there was nothing to hide. */
double report_hidden(const gradcomp_reducer_stats *s);
/* The schema is in doc/report.md. */
void report_write(FILE *out, const report_job *job);

#endif
