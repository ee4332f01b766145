/* The job's log: lines on stderr with one prefix. Rank 0 speaks for the job, so
 * its lines start "gradcomp: "; other ranks add "rank R: ". Errors and warnings
 * are written by every rank, info by rank 0 alone, debug by all. A line is one
 * write(2), so lines of different ranks do not mix. Any thread. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "gradcomp/abi.h"

typedef struct log_sink {
	gradcomp_log_level level; /* the most verbose level written */
	int rank;                 /* -1: not known yet, spoken as rank 0 */
} log_sink;

void log_line(const log_sink *log, gradcomp_log_level level, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);
void log_vline(const log_sink *log, gradcomp_log_level level, const char *fmt, va_list ap);
/* "error", "warn", "info", "debug" -> *level. */
gradcomp_status log_level_parse(const char *text, gradcomp_log_level *level, gradcomp_error *err);

#endif
