/* One call of gradcomp_stage(): its options, its progress, and the threads that do its work. */
#ifndef IO_CACHE_STAGE_RUN_H
#define IO_CACHE_STAGE_RUN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/dirwalk.h"
#include "base/error.h"
#include "gradcomp/stage.h"
#include "io/source/source.h"

#define STAGE_BUFFER (1u << 20)
/* Threads that copy, where nobody says how many: more read no more from one server, and take processors from the
 * job. */
#define STAGE_WORKERS 2

typedef struct stage_run {
	const gradcomp_stage_options *options;
	const struct config *config;
	const char *source; /* the resolved one, for messages */
	const char *cache_dir;
	char where[4096]; /* path of the cache area */
	uint64_t max_bytes;
	uint32_t workers;
	gradcomp_stage_phase phase;
	double phase_begin, last_call;
	atomic_uint_fast64_t files, bytes;
	uint64_t files_total, bytes_total;
	int64_t pid;
	const source *reads;    /* the source whose server is watched, or NULL */
	bool silent;            /* the user was told that it does not answer */
	atomic_bool changed;    /* the failure was a source that changed */
	atomic_bool unwritable; /* or a cache that could not be written to */
} stage_run;

/* Makes the wait for calls on the thread of gradcomp_stage() that wait for a server. */
source_wait stage_run_wait(stage_run *run);
/* The next tick of the new phase calls progress at once. */
void stage_run_phase(stage_run *run, gradcomp_stage_phase phase, uint64_t files, uint64_t bytes);
/* Calls progress when it is due. STATE when the caller wants to stop. */
gradcomp_status stage_run_tick(stage_run *run, gradcomp_error *err);
/* Writes a line for the user now. */
void stage_run_notice(stage_run *run, const char *fmt, ...) GRADCOMP_PRINTF(2, 3);

/* Each thread has one of these. */
typedef struct stage_worker {
	source_reader *from; /* NULL when there is no source */
	dirwalk to;
	unsigned char *buffer;   /* STAGE_BUFFER bytes */
	const atomic_bool *stop; /* long loops look at it and give up */
} stage_worker;

/* Calls each(ctx, worker, i) for every i < n on run->workers threads, while the
 * calling thread reports progress. `from` is what the workers read, or NULL; `to`
 * the root directory that they write below, or -1. The first failure ends it. */
gradcomp_status stage_run_each(stage_run *run, size_t n, source *from, int to,
                               gradcomp_status (*each)(void *ctx, stage_worker *w, size_t i, gradcomp_error *err),
                               void *ctx, gradcomp_error *err);

#endif
