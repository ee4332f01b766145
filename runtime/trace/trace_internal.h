/* Inside of trace.h. */
#ifndef TRACE_TRACE_INTERNAL_H
#define TRACE_TRACE_INTERNAL_H

#include "trace/trace.h"

#include "job/job.h"

/* How far another rank's clock is ahead of rank 0's, at some time of rank 0's. */
typedef struct trace_clock {
	double at, ahead;
} trace_clock;

struct trace {
	trace_options o;
	outfile *file;
	int talks; /* ranks that take part */
	channel *channel;
	trace_clock *began;   /* rank 0: by rank */
	pthread_mutex_t lock; /* guards what follows */
	trace_event *ring;    /* o.events */
	uint64_t added;       /* so far; the latest is ring[(added - 1) % events] */
	uint32_t reducers;
	uint64_t *overwritten; /* by reducer: 1 + the last step that lost an event */
	uint32_t room;         /* slots that it has */
};

/* Begins a rank's part of the file, over the links. */
typedef struct trace_head {
	uint64_t magic;
	uint64_t events, dropped;
} trace_head;
#define TRACE_MAGIC 0x3165636172746367u
/* Events of a message. */
#define TRACE_CHUNK 1024

/* Returns 1 when an event is kept: of steps that lost some, none is. */
int trace_whole(const trace *t, const trace_event *e);

/* write.c */
typedef struct trace_writer trace_writer;
gradcomp_status trace_write_open(trace *t, const gradcomp_job *job, trace_writer **out, gradcomp_error *err);
/* Writes the head of a rank, before its events. */
void trace_write_rank(trace_writer *w, int rank, const trace_clock *began, const trace_clock *ended, uint64_t dropped);
void trace_write_event(trace_writer *w, const trace_event *e);
/* Publishes the file, which is the writer's since it was opened. */
gradcomp_status trace_write_close(trace_writer *w, int failed, uint64_t *events, gradcomp_error *err);

#endif
