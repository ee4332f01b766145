/* The public calls on reducers. */
#include "reducer/reducer.h"

#include "kinds/delay/delay.h"
#include "kinds/enduring.h"
#include "kinds/kinds.h"
#include "reducer/reducer_consensus.h"
#include "reducer/phases.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Reads the caller's options, however old the headers it was built with. */
static gradcomp_reducer_options read_options(const gradcomp_reducer_options *o)
{
	gradcomp_reducer_options full = {0};
	if (o)
		memcpy(&full, o, o->struct_size < sizeof full ? o->struct_size : sizeof full);
	return full;
}

static gradcomp_status check_delay(const gradcomp_reducer_options *o, gradcomp_error *err)
{
	if (o->delay > DELAY_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "a delay of %u steps: must be 0..%d", o->delay, DELAY_MAX);
	return GRADCOMP_OK;
}

static void row(void *of, report_reducer *out)
{
	gradcomp_reducer *r = of;
	r->ops->row(r, out);
	out->stats.struct_size = sizeof out->stats;
	r->ops->get_stats(r, &out->stats);
}

/* Whatever kind of reducer a rank makes, the first thing that the ranks say to each other is
 * reducer_consensus(): so ranks that make different kinds find it out there. */
gradcomp_status gradcomp_reducer_create(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                                        const gradcomp_reducer_options *options, gradcomp_reducer **out,
                                        gradcomp_error *err)
{
	gradcomp_reducer_options o = read_options(options);
	gradcomp_error own = {0};
	*out = NULL;
	if (!group)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	gradcomp_status st = group->job->roster ? enduring_check(group, &o, &own) : check_delay(&o, &own);
	if (st) {
		st = reducer_consensus(group, &(reducer_request){.delay = o.delay}, st, &own);
		return error_set(err, st, "%s", own.text);
	}
	st = group->job->roster ? enduring_open(group, tensors, ntensors, &o, out, err)
	     : o.delay          ? delay_open(group, tensors, ntensors, &o, out, err)
	                        : kinds_open(group, tensors, ntensors, &o, out, err);
	if (!st) {
		(*out)->part = (job_part){.of = *out, .reducer = row};
		job_show(group->job, &(*out)->part);
		st = group->job->roster ? group_commit(group, st, err) : st;
		if (st) {
			enduring_pend(*out);
			*out = NULL;
		}
	}
	return st;
}

gradcomp_status gradcomp_reducer_ready(gradcomp_reducer *r, uint32_t index, void *gradient, gradcomp_error *err)
{
	return r->ops->ready(r, index, gradient, err);
}

gradcomp_status gradcomp_reducer_wait(gradcomp_reducer *r, gradcomp_error *err)
{
	return r->ops->wait(r, err);
}

gradcomp_status gradcomp_reducer_wait_for(gradcomp_reducer *r, uint32_t index, gradcomp_error *err)
{
	return r->ops->wait_for(r, index, err);
}

gradcomp_status gradcomp_reducer_follow(gradcomp_reducer *r, uint32_t index, void *queue, gradcomp_error *err)
{
	return r->ops->follow(r, index, queue, err);
}

gradcomp_status gradcomp_reducer_drain(gradcomp_reducer *r, void *const *corrections, void *const *weights, double rate,
                                       gradcomp_error *err)
{
	return r->ops->drain(r, corrections, weights, rate, err);
}

gradcomp_status gradcomp_reducer_save(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes,
                                      gradcomp_error *err)
{
	return r->ops->save(r, buf, capacity, bytes, err);
}

gradcomp_status gradcomp_reducer_save_shared(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes,
                                             gradcomp_error *err)
{
	return r->ops->save_shared(r, buf, capacity, bytes, err);
}

gradcomp_status gradcomp_reducer_load(gradcomp_reducer *r, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	return r->ops->load(r, buf, bytes, err);
}

void gradcomp_reducer_get_stats(const gradcomp_reducer *reducer, gradcomp_reducer_stats *stats)
{
	gradcomp_reducer *r = (gradcomp_reducer *)reducer; /* it takes the lock, and changes nothing */
	r->ops->get_stats(r, stats);
}

void gradcomp_watch_phases(gradcomp_phase_watcher *watch, void *ctx)
{
	phases_watch(watch, ctx);
}

void gradcomp_reducer_free(gradcomp_reducer *r)
{
	if (!r)
		return;
	job_hide(&r->part);
	r->ops->free(r);
}
