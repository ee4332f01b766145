/* The events of a rank, and the word of its endpoint record. */
#include "trace/trace_internal.h"

#include "base/error.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void trace_options_write(const trace_options *o, char out[TRACE_OPTIONS_TEXT])
{
	snprintf(out, TRACE_OPTIONS_TEXT, "T%u/%u", o->events, o->ranks);
}

gradcomp_status trace_options_read(const char *text, trace_options *o, gradcomp_error *err)
{
	const char *slash = strchr(text, '/');
	char events[TRACE_OPTIONS_TEXT] = "";
	int64_t n = -1, ranks = -1;
	if (text[0] == 'T' && slash && slash - text < TRACE_OPTIONS_TEXT)
		memcpy(events, text + 1, (size_t)(slash - text) - 1);
	if (number_int(events, &n) != NUMBER_OK || number_int(slash + 1, &ranks) != NUMBER_OK || n < 0 ||
	    n > TRACE_EVENTS_MAX || ranks < 1 || ranks > TRACE_RANKS_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "'%.40s' on the endpoint record of rank 0 says nothing of a timeline", text);
	*o = (trace_options){.events = (uint32_t)n, .ranks = (uint32_t)ranks};
	return GRADCOMP_OK;
}

gradcomp_status trace_open(const trace_options *o, outfile *file, trace **out, gradcomp_error *err)
{
	trace *t = calloc(1, sizeof *t);
	if (t) {
		t->o = *o;
		t->file = file;
		t->ring = calloc(o->events, sizeof *t->ring);
		pthread_mutex_init(&t->lock, NULL);
	}
	if (!t || !t->ring) {
		if (t)
			trace_abandon(t);
		else
			outfile_abandon(file);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u events of the timeline (trace.events)",
		                 o->events);
	}
	*out = t;
	return GRADCOMP_OK;
}

void trace_abandon(trace *t)
{
	if (!t)
		return;
	if (t->channel)
		channel_close(t->channel);
	outfile_abandon(t->file);
	pthread_mutex_destroy(&t->lock);
	free(t->began);
	free(t->ring);
	free(t->overwritten);
	free(t);
}

int trace_keeps(const trace *t, int rank)
{
	return rank < t->talks;
}

uint16_t trace_reducer(trace *t)
{
	uint32_t n;
	pthread_mutex_lock(&t->lock);
	n = t->reducers;
	/* A program that makes reducers without end has the last of them share a number. */
	if (n < UINT16_MAX && n >= t->room) {
		uint64_t *more = realloc(t->overwritten, (n + 16) * sizeof *more);
		if (more) {
			memset(more + t->room, 0, (n + 16 - t->room) * sizeof *more);
			t->overwritten = more;
			t->room = n + 16;
		}
	}
	if (n < t->room)
		t->reducers++;
	else
		n = t->room ? t->room - 1 : 0;
	pthread_mutex_unlock(&t->lock);
	return (uint16_t)n;
}

void trace_add(trace *t, const trace_event *e)
{
	pthread_mutex_lock(&t->lock);
	trace_event *at = &t->ring[t->added % t->o.events];
	if (t->added >= t->o.events && at->reducer < t->room && t->overwritten[at->reducer] <= at->step)
		t->overwritten[at->reducer] = at->step + 1;
	*at = *e;
	t->added++;
	pthread_mutex_unlock(&t->lock);
}

int trace_whole(const trace *t, const trace_event *e)
{
	return e->reducer >= t->room || e->step >= t->overwritten[e->reducer];
}
