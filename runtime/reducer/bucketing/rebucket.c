/* Moving bucket boundaries, see rebucket.h. Whatever can fail on a rank alone is done before
 * the ranks agree, on what is put in the place of the old one at the end. */
#include "reducer/bucketing/rebucket.h"

#include "reducer/bucketing/bucketing.h"
#include "step/server_error.h"
#include "reducer/word_sync.h"

#include "base/error.h"

#include <stdlib.h>

static int64_t hash(const step_plan *p)
{
	uint64_t h = id_mix(p->nbuckets, p->lag);
	for (uint32_t b = 0; b < p->nbuckets; b++)
		h = id_mix(id_mix(h, p->end[b]), p->position ? p->position[b] : b);
	return (int64_t)(h >> 2);
}

/* Checks that all ranks can, and were given the same plan. */
static gradcomp_status agreed(reducer *r, const step_plan *p, gradcomp_status mine, gradcomp_error *err)
{
	const int64_t h = mine ? 0 : hash(p);
	int64_t word[3] = {mine ? INT64_MIN : h, mine ? INT64_MIN : -h, mine ? r->eng.layout.rank + 1 : 0};
	gradcomp_status st = word_sync_max(r, word, 3, err);
	if (st || mine)
		return st;
	if (word[2] > 0 && word[2] <= r->eng.layout.nranks) {
		int world = r->eng.group->ranks[word[2] - 1];
		return error_set(err, GRADCOMP_ERR_PEER, "rank %d on %s cannot divide its gradients anew", world,
		                 transport_host(r->eng.job->transport, world));
	}
	if (word[0] != -word[1] || word[2])
		return error_set(err, GRADCOMP_ERR_MISMATCH, "the ranks were given different plans of buckets");
	return GRADCOMP_OK;
}

static int same_ends(const reducer *r, const step_plan *p)
{
	int same = r->eng.list.nbuckets == p->nbuckets;
	for (uint32_t b = 0; same && b < p->nbuckets; b++)
		same = r->eng.list.buckets[b].pub.first + r->eng.list.buckets[b].pub.ntensors == p->end[b];
	return same;
}

/* Prepares this rank's part of it: *d, and room for what moves. */
static gradcomp_status prepare(reducer *r, const step_plan *p, bucketing *d, float **room, gradcomp_error *err)
{
	uint64_t most = 0;
	gradcomp_status st = bucketing_check(r, p, err);
	if (!st && same_ends(r, p))
		return bucketing_order(p, d, err);
	if (!st)
		st = bucketing_make(r, p, d, err);
	if (!st)
		st = server_error_make(&r->eng, &d->list, err);
	if (!st && r->eng.list.server_error)
		st = server_error_check(&r->eng, err);
	for (uint32_t b = 0; !st && b < r->eng.list.nbuckets; b++) {
		const bool apart = r->eng.arrays.arena || r->eng.arrays.packed;
		uint64_t n = r->eng.list.shards ? r->eng.list.buckets[b].pub.numel
		             : apart            ? r->eng.list.buckets[b].nserver_error
		                                : 0;
		most = n > most ? n : most;
	}
	if (!st && most && !(*room = malloc(most * sizeof **room)))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the %llu numbers of a bucket",
		               (unsigned long long)most);
	return st;
}

/* Carries over what is by position in a bucket. All ranks do it: that one cannot ends the job. */
static gradcomp_status carry(reducer *r, const bucketing *d, float *room, gradcomp_error *err)
{
	gradcomp_status st = r->eng.list.server_error ? server_error_fold(&r->eng, room, err) : GRADCOMP_OK;
	if (!st)
		st = r->eng.ways.levels->move(&r->eng, &d->list, room, err);
	if (st)
		job_fail(r->eng.job, st, err->text);
	return st;
}

gradcomp_status reducer_rebucket(reducer *r, const step_plan *p, gradcomp_error *err)
{
	bucketing d = {0};
	float *room = NULL;
	gradcomp_error own = {0};
	gradcomp_status st, mine;
	if (!word_sync_supported(r))
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "collective '%s' has neither an all-reduce nor an all-gather, by "
		                 "which ranks agree on buckets: they stay as they are",
		                 r->eng.coll_ctx.collective->info.name);
	mine = prepare(r, p, &d, &room, &own);
	st = agreed(r, p, mine, err);
	if (!st && mine)
		st = error_set(err, mine, "%s", own.text);
	if (!st && d.list.buckets)
		st = carry(r, &d, room, err);
	if (!st) {
		pthread_mutex_lock(&r->lock);
		bucketing_swap(r, &d);
		pthread_mutex_unlock(&r->lock);
	}
	bucketing_free(&d);
	free(room);
	return st;
}
