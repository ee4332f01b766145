/* Clocks compared, and the events of all ranks brought to rank 0. The others answer what it
 * asks. */
#include "trace/trace_internal.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ASK_CLOCK = 1, ASK_EVENTS, ASK_NOTHING };
/* The quickest quarter of them tells: what was held up on its way is not among them. */
#define PINGS 32
/* No clock has run for longer than thirty million years. */
#define SECONDS_FARTHEST 1e15

static gradcomp_status ask(trace *t, int rank, uint64_t what, gradcomp_error *err)
{
	return channel_put(t->channel, rank, &what, sizeof what, err);
}

static gradcomp_status give(trace *t, gradcomp_error *err)
{
	uint64_t n = t->added < t->o.events ? t->added : t->o.events, kept = 0, sent = 0;
	trace_event chunk[TRACE_CHUNK];
	gradcomp_status st;
	for (uint64_t i = t->added - n; i < t->added; i++)
		kept += (uint64_t)trace_whole(t, &t->ring[i % t->o.events]);
	st = channel_put(t->channel, 0, &(trace_head){TRACE_MAGIC, kept, t->added - kept}, sizeof(trace_head), err);
	for (uint64_t i = t->added - n; !st && i < t->added; i++) {
		const trace_event *e = &t->ring[i % t->o.events];
		if (!trace_whole(t, e))
			continue;
		chunk[sent++ % TRACE_CHUNK] = *e;
		if (sent % TRACE_CHUNK == 0 || sent == kept)
			st = channel_put(t->channel, 0, chunk, ((sent - 1) % TRACE_CHUNK + 1) * sizeof *chunk, err);
	}
	return st;
}

/* Answers until rank 0 asks for no more. */
static gradcomp_status answer(trace *t, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	uint64_t what = ASK_CLOCK;
	while (!st && what == ASK_CLOCK) {
		st = channel_get(t->channel, 0, &what, sizeof what, err);
		double now = clock_now();
		if (!st && what == ASK_CLOCK)
			st = channel_put(t->channel, 0, &now, sizeof now, err);
	}
	return !st && what == ASK_EVENTS ? give(t, err) : st;
}

typedef struct ping {
	double took, ahead;
} ping;

static int by_took(const void *a, const void *b)
{
	const ping *x = a, *y = b;
	return (x->took > y->took) - (x->took < y->took);
}

static int by_ahead(const void *a, const void *b)
{
	const ping *x = a, *y = b;
	return (x->ahead > y->ahead) - (x->ahead < y->ahead);
}

static gradcomp_status compare(trace *t, int rank, trace_clock *out, gradcomp_error *err)
{
	ping p[PINGS];
	for (int k = 0; k < PINGS; k++) {
		double before = clock_now(), there, after;
		gradcomp_status st = ask(t, rank, ASK_CLOCK, err);
		if (!st)
			st = channel_get(t->channel, rank, &there, sizeof there, err);
		if (st)
			return st;
		after = clock_now();
		if (!(fabs(there) <= SECONDS_FARTHEST))
			return error_set(err, GRADCOMP_ERR_MISMATCH, "rank %d has sent a clock that is none", rank);
		p[k] = (ping){after - before, there - (before + after) / 2};
	}
	qsort(p, PINGS, sizeof *p, by_took);
	qsort(p, PINGS / 4, sizeof *p, by_ahead);
	*out = (trace_clock){clock_now(), p[PINGS / 8].ahead};
	return GRADCOMP_OK;
}

static int sane(const trace_event *e)
{
	return e->what < TRACE_WHATS && e->start >= -SECONDS_FARTHEST && e->end <= SECONDS_FARTHEST &&
	       e->start <= e->end;
}

/* MISMATCH: what it said is no timeline, or not all of it. */
static gradcomp_status take(trace *t, trace_writer *w, int rank, gradcomp_error *err)
{
	trace_event chunk[TRACE_CHUNK];
	trace_head head;
	trace_clock ended;
	uint64_t bad = 0;
	gradcomp_status st = compare(t, rank, &ended, err);
	if (!st)
		st = ask(t, rank, ASK_EVENTS, err);
	if (!st)
		st = channel_get(t->channel, rank, &head, sizeof head, err);
	if (!st && (head.magic != TRACE_MAGIC || head.events > t->o.events))
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "what rank %d sent is no timeline of at most %u events",
		               rank, t->o.events);
	if (st)
		return st;
	trace_write_rank(w, rank, &t->began[rank], &ended, head.dropped);
	for (uint64_t left = head.events; !st && left;) {
		size_t n = left < TRACE_CHUNK ? (size_t)left : TRACE_CHUNK;
		st = channel_get(t->channel, rank, chunk, n * sizeof *chunk, err);
		for (size_t i = 0; !st && i < n; i++) {
			if (sane(&chunk[i]))
				trace_write_event(w, &chunk[i]);
			else
				bad++;
		}
		left -= n;
	}
	if (!st && bad)
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "rank %d has sent %llu events that are none", rank,
		               (unsigned long long)bad);
	return st;
}

static void write_own(trace *t, trace_writer *w)
{
	uint64_t n = t->added < t->o.events ? t->added : t->o.events, kept = 0;
	const trace_clock same = {0};
	for (uint64_t i = t->added - n; i < t->added; i++)
		kept += (uint64_t)trace_whole(t, &t->ring[i % t->o.events]);
	trace_write_rank(w, 0, &same, &same, t->added - kept);
	for (uint64_t i = t->added - n; i < t->added; i++)
		if (trace_whole(t, &t->ring[i % t->o.events]))
			trace_write_event(w, &t->ring[i % t->o.events]);
}

gradcomp_status trace_begin(gradcomp_job *job, gradcomp_error *err)
{
	trace *t = job->trace;
	/* Every rank opens it, so that channels stay in step. */
	gradcomp_status st = group_channel(job->world, &t->channel, err);
	t->talks = job->nranks < (int)t->o.ranks ? job->nranks : (int)t->o.ranks;
	if (st || job->rank >= t->talks)
		return st;
	if (job->rank)
		return answer(t, err);
	t->began = calloc((size_t)t->talks, sizeof *t->began);
	if (!t->began)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the clocks of %d ranks", t->talks);
	for (int r = 1; !st && r < t->talks; r++) {
		st = compare(t, r, &t->began[r], err);
		if (!st)
			st = ask(t, r, ASK_NOTHING, err);
	}
	return st;
}

/* Asks all others. What one of them says wrongly the rest does not wait for. */
static gradcomp_status take_all(trace *t, trace_writer *w, gradcomp_error *err)
{
	gradcomp_status first = GRADCOMP_OK;
	for (int r = 1; r < t->talks && (!first || first == GRADCOMP_ERR_MISMATCH); r++) {
		gradcomp_error why = {0};
		/* Without memory for the file they are told not to wait. */
		gradcomp_status st = w ? take(t, w, r, &why) : ask(t, r, ASK_NOTHING, &why);
		if (st && (!first || st != GRADCOMP_ERR_MISMATCH))
			first = error_set(err, st, "%s", why.text);
	}
	return first;
}

gradcomp_status trace_end(gradcomp_job *job, int failed, gradcomp_error *err)
{
	trace *t = job->trace;
	trace_writer *w = NULL;
	gradcomp_error lost = {0};
	uint64_t events = 0;
	gradcomp_status st = GRADCOMP_OK, got = GRADCOMP_OK;
	if (job->rank && !failed && job->rank < t->talks)
		st = answer(t, err);
	if (!job->rank) {
		char *path = strdup(outfile_path(t->file));
		st = trace_write_open(t, job, &w, err);
		if (!st)
			write_own(t, w);
		if (!failed)
			got = take_all(t, w, &lost);
		if (!st)
			st = trace_write_close(w, failed || got, &events, err);
		if (!st)
			log_line(&job->log, GRADCOMP_LOG_INFO, "timeline of %s%d of %d ranks: %s, %llu events",
			         got ? "not all of " : "", failed ? 1 : t->talks, job->nranks, path ? path : "",
			         (unsigned long long)events);
		free(path);
		if (!st && got)
			st = error_set(err, got, "the timeline is not whole: %s", lost.text);
	}
	trace_abandon(t);
	job->trace = NULL;
	return st;
}
