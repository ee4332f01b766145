/* A job, or a stager on a node, leaves this for the site to sum up: one small file in the directory of the setting
 * report.metrics. `gradcomp metrics` reads and removes it. Whoever may start a job writes such files, so their
 * reader believes nothing but their form. */
#ifndef JOB_SITE_USAGE_H
#define JOB_SITE_USAGE_H

#include "job/report.h"

#include <stdbool.h>

#define SITE_USAGE_NAME_MAX 32  /* a compressor's, with its final 0 */
#define SITE_USAGE_FILE_MAX 512 /* bytes */
#define SITE_USAGE_SUFFIX ".usage"

typedef struct site_usage {
	char compressor[SITE_USAGE_NAME_MAX]; /* that the job had the most to send with; "" : of a stager */
	bool failed;
	uint64_t steps;
	uint64_t dense_bytes, wire_bytes; /* rank 0's, of all reducers and coders */
	uint64_t stages, hits;            /* datasets that were asked for, and that were in the cache */
	uint64_t read_bytes;              /* from their sources */
	slow_kind held_up;                /* by what one rank held up the others; NOTHING: none did */
	uint64_t lost_steps;              /* that could have been done in that time */
} site_usage;

/* False when the job has reduced nothing. */
bool site_usage_of_job(const report_job *job, site_usage *out);
/* Leaves a file of a random name in `dir`, which need not be readable. */
gradcomp_status site_usage_leave(const char *dir, const site_usage *u, gradcomp_error *err);
/* Reads the text of a file; it is hostile. False when it is none of ours. */
bool site_usage_parse(const char *text, site_usage *out);

#endif
