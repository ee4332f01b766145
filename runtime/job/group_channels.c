/* The channels of a group, collectives on them, and the end of a call that all ranks must have come to. */
#include "job/job.h"

#include "base/error.h"

#include <string.h>

gradcomp_status group_channel(gradcomp_group *g, channel **out, gradcomp_error *err)
{
	return channel_open(g->job->transport, id_mix(g->id, ++g->channels), g->ranks, g->nranks, g->me, out, err);
}

/* The numbers of the others count from 1. */
static uint64_t own_id(const gradcomp_group *g, group_own which)
{
	return id_mix(g->id, UINT64_MAX - (uint64_t)which);
}

gradcomp_status group_own_channel(gradcomp_group *g, group_own which, channel **out, gradcomp_error *err)
{
	return channel_open(g->job->transport, own_id(g, which), g->ranks, g->nranks, g->me, out, err);
}

void group_dismiss(gradcomp_group *g, bool all)
{
	static const group_own own[] = {GROUP_BLOCKING, GROUP_MESSAGES};
	for (int i = 0; g->nranks > 1 && i < 2; i++)
		channel_dismiss(g->job->transport, own_id(g, own[i]), g->ranks, g->nranks, g->me,
		                all && own[i] == GROUP_BLOCKING);
}

gradcomp_status group_coll_on(gradcomp_group *g, channel *on, const plugin *collective, const spec *spec, coll_ctx *out,
                              gradcomp_error *err)
{
	gradcomp_status st;
	memset(out, 0, sizeof *out);
	st = collective->collective->create(&g->job->host, spec->values, channel_links(on), &out->instance, err);
	if (st) {
		channel_close(on);
		return st;
	}
	out->channel = on;
	out->collective = collective->collective;
	return GRADCOMP_OK;
}

gradcomp_status group_coll_open(gradcomp_group *g, const plugin *collective, const spec *spec, coll_ctx *out,
                                gradcomp_error *err)
{
	channel *on;
	gradcomp_status st = group_channel(g, &on, err);
	if (st)
		memset(out, 0, sizeof *out);
	return st ? st : group_coll_on(g, on, collective, spec, out, err);
}

void group_coll_close(coll_ctx *p)
{
	if (p->collective)
		p->collective->destroy(p->instance);
	if (p->channel)
		channel_close(p->channel);
	memset(p, 0, sizeof *p);
}

gradcomp_status group_failed(gradcomp_group *g, gradcomp_status st, const gradcomp_error *err)
{
	if (st && !group_refused(st))
		job_fail(g->job, st, err ? err->text : gradcomp_strerror(st));
	return st;
}

/* When a rank leaves it, all have entered: in round k everybody hears of 2^k more. */
gradcomp_status group_meet(channel *c, gradcomp_error *err)
{
	const gradcomp_links *l = channel_links(c);
	char out = 1, in;
	gradcomp_status st = GRADCOMP_OK;
	for (int64_t k = 1; !st && k < l->nranks; k *= 2) {
		gradcomp_request s, r;
		st = l->recv(l->ctx, (int)((l->rank + l->nranks - k) % l->nranks), &in, 1, &r, err);
		if (!st)
			st = l->send(l->ctx, (int)((l->rank + k) % l->nranks), &out, 1, &s, err);
		if (!st)
			st = l->wait(l->ctx, &r, err);
		if (!st)
			st = l->wait(l->ctx, &s, err);
	}
	return st;
}

gradcomp_status group_commit(gradcomp_group *g, gradcomp_status st, gradcomp_error *err)
{
	if (st || g != g->job->world || !g->job->transport_options.outlives)
		return st;
	pthread_mutex_lock(&g->lock);
	if (!g->commits)
		st = group_own_channel(g, GROUP_COMMITS, &g->commits, err);
	if (!st)
		st = group_meet(g->commits, err);
	if (!st)
		g->done++;
	pthread_mutex_unlock(&g->lock);
	return group_failed(g, st, err);
}
