/* The timeline's file: JSON as Perfetto and chrome://tracing read it. A process is a rank, a
 * thread one of a reducer. */
#include "trace/trace_internal.h"

#include "base/error.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct trace_writer {
	outfile *file;
	const gradcomp_job *job;
	jsonw j;
	int rank;
	trace_clock began, ended;
	uint64_t events;
	unsigned char named[(UINT16_MAX + 1) * TRACE_THREADS]; /* threads of this rank */
};

gradcomp_status trace_write_open(trace *t, const gradcomp_job *job, trace_writer **out, gradcomp_error *err)
{
	trace_writer *w = calloc(1, sizeof *w);
	if (!w)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to write the timeline");
	w->file = t->file;
	t->file = NULL;
	w->job = job;
	json_put_start(&w->j, outfile_stream(w->file));
	w->j.flat = 2;
	json_put_object(&w->j, NULL);
	json_put_string(&w->j, "displayTimeUnit", "ms");
	json_put_array(&w->j, "traceEvents");
	*out = w;
	return GRADCOMP_OK;
}

/* Writes a "metadata event": the name of a process or thread. */
static void name(trace_writer *w, const char *what, uint32_t tid, const char *key, const char *text)
{
	json_put_object(&w->j, NULL);
	json_put_string(&w->j, "name", what);
	json_put_string(&w->j, "ph", "M");
	json_put_int(&w->j, "pid", w->rank);
	json_put_uint(&w->j, "tid", tid);
	json_put_object(&w->j, "args");
	json_put_string(&w->j, key, text);
	json_put_end(&w->j);
	json_put_end(&w->j);
}

void trace_write_rank(trace_writer *w, int rank, const trace_clock *began, const trace_clock *ended, uint64_t dropped)
{
	char text[200];
	w->rank = rank;
	w->began = *began;
	w->ended = *ended;
	memset(w->named, 0, sizeof w->named);
	snprintf(text, sizeof text, "rank %d on %s", rank, transport_host(w->job->transport, rank));
	name(w, "process_name", 0, "name", text);
	if (!dropped)
		return;
	snprintf(text, sizeof text, "%llu older events dropped (trace.events)", (unsigned long long)dropped);
	name(w, "process_labels", 0, "labels", text);
}

/* Microseconds since the job began, on rank 0's clock. Between the two times that the clocks
 * were compared one may have run faster. */
static double time_of(const trace_writer *w, double there)
{
	double ahead = w->ended.ahead, apart = w->ended.at - w->began.at;
	double at = there - ahead;
	if (apart > 0 && fabs(w->ended.ahead - w->began.ahead) < 1e-3 * apart)
		ahead += (w->ended.ahead - w->began.ahead) * (at - w->ended.at) / apart;
	return (there - ahead - w->job->started) * 1e6;
}

/* Rounds to the nanosecond. */
static double rounded(double us)
{
	return floor(us * 1e3 + 0.5) / 1e3;
}

static const char *const threads[] = {"steps", "application", "compute", "exchange"};

static int of_coder(const trace_event *e)
{
	return e->what >= TRACE_REDUCE_SCATTER;
}

static uint32_t thread_of(trace_writer *w, const trace_event *e)
{
	trace_thread thread = trace_thread_of(e->what);
	uint32_t n = e->reducer * TRACE_THREADS + thread;
	char text[64];
	if (!w->named[n]) {
		w->named[n] = 1;
		snprintf(text, sizeof text,
		         of_coder(e)  ? "%s, coder %u"
		         : e->reducer ? "%s, reducer %u"
		                      : "%s",
		         threads[thread], e->reducer);
		name(w, "thread_name", n + 1, "name", text);
	}
	return n + 1;
}

void trace_write_event(trace_writer *w, const trace_event *e)
{
	static const char *const names[] = {[TRACE_BEGIN] = "begin",
	                                    [TRACE_ENCODE] = "encode",
	                                    [TRACE_EXCHANGE_ROUND] = "exchange",
	                                    [TRACE_DECODE] = "decode",
	                                    [TRACE_FINISH] = "finish",
	                                    [TRACE_REDUCE_LOCAL] = "reduce_local",
	                                    [TRACE_LOCAL_BEGIN] = "local_begin",
	                                    [TRACE_LOCAL_END] = "local_end",
	                                    [TRACE_ALLGATHER_LOCAL] = "allgather_local",
	                                    [TRACE_READY] = "ready",
	                                    [TRACE_STEP] = "step",
	                                    [TRACE_WAIT] = "wait",
	                                    [TRACE_WAIT_FOR] = "wait_for",
	                                    [TRACE_REPLAN] = "replan",
	                                    [TRACE_REDUCE_SCATTER] = "reduce_scatter",
	                                    [TRACE_ALL_GATHER] = "all_gather",
	                                    [TRACE_CODER_WAIT] = "wait"};
	jsonw *j = &w->j;
	uint32_t tid = thread_of(w, e);
	double start = rounded(time_of(w, e->start));
	json_put_object(j, NULL);
	json_put_string(j, "name", names[e->what]);
	json_put_string(j, "cat", threads[trace_thread_of(e->what)]);
	json_put_string(j, "ph", e->what == TRACE_READY ? "i" : "X");
	json_put_float(j, "ts", start);
	if (e->what == TRACE_READY)
		json_put_string(j, "s", "t");
	else
		/* On the same clock, so that a slice does not reach into the next one. */
		json_put_float(j, "dur", rounded(rounded(time_of(w, e->end)) - start));
	json_put_int(j, "pid", w->rank);
	json_put_uint(j, "tid", tid);
	json_put_object(j, "args");
	json_put_uint(j, of_coder(e) ? "call" : "step", e->step);
	if (of_coder(e) && e->index != UINT32_MAX)
		json_put_uint(j, "slot", e->index);
	if (e->what == TRACE_REDUCE_SCATTER || e->what == TRACE_ALL_GATHER)
		json_put_uint(j, "bytes", e->bytes);
	if (e->what < TRACE_READY) {
		json_put_uint(j, "bucket", e->index);
		json_put_uint(j, "round", e->round);
		json_put_uint(j, "bytes", e->bytes);
	} else if (e->what == TRACE_READY || e->what == TRACE_WAIT_FOR) {
		json_put_uint(j, "tensor", e->index);
	}
	json_put_end(j);
	json_put_end(j);
	w->events++;
}

gradcomp_status trace_write_close(trace_writer *w, int failed, uint64_t *events, gradcomp_error *err)
{
	gradcomp_status st;
	json_put_end(&w->j);
	json_put_object(&w->j, "otherData");
	json_put_string(&w->j, "gradcomp", GRADCOMP_VERSION_STRING);
	json_put_int(&w->j, "ranks", w->job->nranks);
	json_put_bool(&w->j, "failed", failed);
	json_put_end(&w->j);
	json_put_end(&w->j);
	json_put_finish(&w->j);
	*events = w->events;
	st = outfile_close(w->file, err);
	free(w);
	return st;
}
