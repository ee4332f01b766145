/* What a reducer tells the job's timeline (trace.h); without one it costs a branch. */
#ifndef REDUCER_TIMELINE_H
#define REDUCER_TIMELINE_H

#include "reducer/reducer.h"

#include "trace/trace.h"

static inline void timeline(reducer *r, trace_what what, uint64_t step, uint32_t index, double start, double end)
{
	if (r->trace)
		trace_add(r->trace, &(trace_event){.start = start,
		                                   .end = end,
		                                   .step = step,
		                                   .index = index,
		                                   .reducer = r->trace_id,
		                                   .what = (uint8_t)what});
}

/* What the reducer's channel has sent, for timeline_task(). */
static inline uint64_t timeline_sent(const reducer *r)
{
	return r->trace ? channel_sent(r->eng.coll_ctx.channel) : 0;
}

/* A task; an exchange sent what it has sent since it was `sent`. */
static inline void timeline_task(reducer *r, const bucket *b, const task *t, double start, double end,
                                 uint64_t sent)
{
	if (r->trace)
		trace_add(r->trace, &(trace_event){.start = start,
		                                   .end = end,
		                                   .step = r->eng.step,
		                                   .index = b->pub.index,
		                                   .round = (uint8_t)t->round,
		                                   .reducer = r->trace_id,
		                                   .what = (uint8_t)t->kind,
		                                   .bytes = task_exchanges(t->kind)
		                                                    ? channel_sent(r->eng.coll_ctx.channel) - sent
		                                                    : b->pub.numel * sizeof(float)});
}

#endif
