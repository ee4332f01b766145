/* The public calls on reducers. */
#include "reducer/reducer.h"

#include "reducer/autotune/tuner.h"
#include "reducer/delayed/delayed.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* The caller's options, however old the headers it was built with. */
static gradcomp_reducer_options read_options(const gradcomp_reducer_options *o)
{
	gradcomp_reducer_options full = {0};
	if (o)
		memcpy(&full, o, o->struct_size < sizeof full ? o->struct_size : sizeof full);
	return full;
}

/* The kind of reducer must be the same on all ranks: each shows what it is about
 * to make, and whether it can. */
static gradcomp_status same_kind(gradcomp_group *g, const gradcomp_reducer_options *o, gradcomp_error *err)
{
	struct claim {
		int32_t status, automatic;
		uint32_t delay;
	} mine = {0, tuner_requested(g->job->config, o->compressor), o->delay},
	  *all = calloc((size_t)g->nranks, sizeof *all);
	gradcomp_error own = {0};
	gradcomp_status st = GRADCOMP_OK;
	if (!all) {
		job_fail(g->job, GRADCOMP_ERR_NOMEM, "no memory for what the ranks declare");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what %d ranks declare", g->nranks);
	}
	if (o->delay > DELAY_MAX)
		mine.status = error_set(&own, GRADCOMP_ERR_INVALID, "a delay of %u steps: must be 0..%d", o->delay,
		                        DELAY_MAX);
	else if (o->delay && o->device != GRADCOMP_HOST)
		mine.status = error_set(&own, GRADCOMP_ERR_UNSUPPORTED,
		                        "a delay of %u steps with gradients in GPU memory: delayed averages need "
		                        "them in host memory",
		                        o->delay);
	st = group_exchange(g, &mine, all, sizeof mine, err);
	if (!st && mine.status)
		st = error_set(err, mine.status, "%s", own.text);
	for (int p = 0; !st && p < g->nranks; p++) {
		const char *host = transport_host(g->job->transport, g->ranks[p]);
		if (all[p].status)
			st = error_set(err, GRADCOMP_ERR_PEER,
			               "rank %d on %s cannot make its reducer with a delay of %u steps: %s",
			               g->ranks[p], host, all[p].delay, gradcomp_strerror(all[p].status));
		else if (all[p].delay != all[0].delay)
			st = error_set(err, GRADCOMP_ERR_MISMATCH,
			               "rank %d on %s asks for a delay of %u steps, rank %d for %u", g->ranks[p],
			               host, all[p].delay, g->ranks[0], all[0].delay);
		else if (all[p].automatic != all[0].automatic)
			st = error_set(err, GRADCOMP_ERR_MISMATCH, "rank %d on %s asks for '%s', rank %d for '%s'",
			               g->ranks[p], host, all[p].automatic ? "auto" : "a compressor", g->ranks[0],
			               all[0].automatic ? "auto" : "a compressor");
	}
	free(all);
	return st;
}

gradcomp_status gradcomp_reducer_create(gradcomp_group *group, const gradcomp_tensor_desc *tensors,
                                        uint32_t ntensors, const gradcomp_reducer_options *options,
                                        gradcomp_reducer **out, gradcomp_error *err)
{
	gradcomp_reducer_options o = read_options(options);
	*out = NULL;
	if (!group)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	gradcomp_status st = same_kind(group, &o, err);
	if (st)
		return st;
	if (o.delay)
		return delay_open(group, tensors, ntensors, &o, out, err);
	if (tuner_requested(group->job->config, o.compressor))
		return tuner_open(group, tensors, ntensors, &o, out, err);
	reducer *r = NULL;
	st = reducer_create(group, tensors, ntensors, &o, &r, err);
	if (!st)
		*out = &r->base;
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

gradcomp_status gradcomp_reducer_drain(gradcomp_reducer *r, void *const *corrections, void *const *weights,
                                       double rate, gradcomp_error *err)
{
	return r->ops->drain(r, corrections, weights, rate, err);
}

gradcomp_status gradcomp_reducer_save(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes,
                                      gradcomp_error *err)
{
	return r->ops->save(r, buf, capacity, bytes, err);
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

void gradcomp_reducer_free(gradcomp_reducer *r)
{
	if (r)
		r->ops->free(r);
}
