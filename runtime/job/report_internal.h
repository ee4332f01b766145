/* A report as JSON. */
#ifndef JOB_REPORT_INTERNAL_H
#define JOB_REPORT_INTERNAL_H

#include <stdio.h>

#include "job/report.h"

/* The schema is in doc/user/report.md. */
void report_write(FILE *out, const report_job *job);

#endif
