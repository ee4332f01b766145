/* Tells the job's timeline (trace.h) what a reducer does; without one it costs a branch. */
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

/* Returns what the reducer's channel has sent, for timeline_task(). */
static inline uint64_t timeline_sent(const reducer *r)
{
	return r->trace ? channel_sent(r->eng.coll_ctx.channel) : 0;
}

_Static_assert((int)TASK_BEGIN == TRACE_BEGIN && (int)TASK_ENCODE == TRACE_ENCODE &&
                       (int)TASK_EXCHANGE == TRACE_EXCHANGE_ROUND && (int)TASK_DECODE == TRACE_DECODE &&
                       (int)TASK_FINISH == TRACE_FINISH && (int)TASK_REDUCE_LOCAL == TRACE_REDUCE_LOCAL &&
                       (int)TASK_LOCAL_BEGIN == TRACE_LOCAL_BEGIN && (int)TASK_LOCAL_END == TRACE_LOCAL_END &&
                       (int)TASK_ALLGATHER_LOCAL == TRACE_ALLGATHER_LOCAL,
               "an event of a task has the task's number");

/* A task of a step that may be over. */
static inline void timeline_task_of(reducer *r, uint64_t step, uint32_t bucket, const task *t, double start, double end,
                                    uint64_t bytes)
{
	if (r->trace)
		trace_add(r->trace, &(trace_event){.start = start,
		                                   .end = end,
		                                   .step = step,
		                                   .index = bucket,
		                                   .round = (uint8_t)t->round,
		                                   .reducer = r->trace_id,
		                                   .what = (uint8_t)t->kind,
		                                   .bytes = bytes});
}

/* A task; an exchange sent what it has sent since it was `sent`. */
static inline void timeline_task(reducer *r, const bucket *b, const task *t, double start, double end, uint64_t sent)
{
	if (r->trace)
		timeline_task_of(r, r->eng.step, b->pub.index, t, start, end,
		                 task_exchanges(t->kind) ? channel_sent(r->eng.coll_ctx.channel) - sent
		                                         : b->pub.numel * sizeof(float));
}

#endif
