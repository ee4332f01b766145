/* The job's timeline: what every rank's reducers did when, of the ranks a person can look at,
 * on rank 0's clock, as a file for Perfetto or chrome://tracing (doc/user/schedule.md).
 *
 * Each rank keeps its latest events in a ring. When the job ends rank 0 asks the others for
 * theirs, one after another. Clocks are compared over links when the job begins and when it
 * ends. Rank 0's settings count for all, from its endpoint record: so no rank waits for one that keeps
 * no timeline. */
#ifndef TRACE_TRACE_H
#define TRACE_TRACE_H

#include "base/outfile.h"

#include <stdint.h>

typedef enum trace_what {
	/* A bucket's tasks. */
	TRACE_BEGIN,
	TRACE_ENCODE,
	TRACE_EXCHANGE_ROUND,
	TRACE_DECODE,
	TRACE_FINISH,
	TRACE_REDUCE_LOCAL,
	TRACE_LOCAL_BEGIN,
	TRACE_LOCAL_END,
	TRACE_ALLGATHER_LOCAL,
	TRACE_READY, /* an instant */
	TRACE_STEP,
	TRACE_WAIT,
	TRACE_WAIT_FOR,
	TRACE_REPLAN,
	/* These are a coder's. */
	TRACE_REDUCE_SCATTER,
	TRACE_ALL_GATHER,
	TRACE_CODER_WAIT,
	TRACE_WHATS
} trace_what;

/* The thread of a reducer or a coder that an event is told of. */
typedef enum trace_thread { TRACE_STEPS, TRACE_APPLICATION, TRACE_COMPUTE, TRACE_EXCHANGE, TRACE_THREADS } trace_thread;

/* It goes over the links in this form, too. */
typedef struct trace_event {
	double start, end; /* this rank's clock */
	uint64_t step;     /* a coder's: the number of calls before */
	uint64_t bytes;    /* sent by an exchange; of the bucket's gradients as floats, otherwise */
	uint32_t index;    /* bucket, or tensor as it was declared; of a coder: slot */
	uint16_t reducer;
	uint8_t round, what;
} trace_event;

typedef struct trace trace;
struct gradcomp_job;

typedef struct trace_options {
	uint32_t events; /* kept of a rank; 0: there is no timeline */
	uint32_t ranks;  /* the first so many */
} trace_options;
#define TRACE_EVENTS_MAX 100000000
#define TRACE_RANKS_MAX 65536
/* More ranks than these nobody looks at, and their events are sent to rank 0 one after another. */
#define TRACE_RANKS 256

/* Taken on the disk when the job begins. */
#define TRACE_ROOM (1 << 20)
/* Write and read the options as an endpoint record carries them: hostile text. */
#define TRACE_OPTIONS_TEXT 32
void trace_options_write(const trace_options *o, char out[TRACE_OPTIONS_TEXT]);
gradcomp_status trace_options_read(const char *text, trace_options *o, gradcomp_error *err);

/* `file` is rank 0's and the trace's from now on, also on failure; NULL on others. */
gradcomp_status trace_open(const trace_options *o, outfile *file, trace **out, gradcomp_error *err);
/* Frees without a trace. NULL is fine. */
void trace_abandon(trace *t);
/* Returns 1 when this rank's timeline is kept. */
int trace_keeps(const trace *t, int rank);
/* Returns the number of a new reducer or coder. */
uint16_t trace_reducer(trace *t);
/* Adds an event. Any thread. */
void trace_add(trace *t, const trace_event *e);
static inline trace_thread trace_thread_of(uint8_t what)
{
	if (what == TRACE_EXCHANGE_ROUND || what == TRACE_REDUCE_LOCAL || what == TRACE_ALLGATHER_LOCAL ||
	    what == TRACE_REPLAN || what == TRACE_REDUCE_SCATTER || what == TRACE_ALL_GATHER)
		return TRACE_EXCHANGE;
	if (what < TRACE_READY)
		return TRACE_COMPUTE;
	return what == TRACE_STEP ? TRACE_STEPS : TRACE_APPLICATION;
}

/* Both are called by every rank of the job; neither thread nor reducer is left at the end.
 * At the beginning: compares clocks. */
gradcomp_status trace_begin(struct gradcomp_job *job, gradcomp_error *err);
/* Ends the trace: gathers and writes it, and frees the trace. `failed`: the job has, and rank 0 writes what it has
 * itself. */
gradcomp_status trace_end(struct gradcomp_job *job, int failed, gradcomp_error *err);

#endif
