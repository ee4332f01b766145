/* Groups of ranks and their channels. */
#include "job/device_coll.h"
#include "job/group_calls.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

gradcomp_status group_create(gradcomp_job *job, uint64_t id, const int *ranks, int n, int me, gradcomp_group **out,
                             gradcomp_error *err)
{
	gradcomp_group *g = calloc(1, sizeof *g);
	if (g) {
		g->job = job;
		g->ranks = malloc((size_t)n * sizeof *g->ranks);
		g->calls = group_calls_create(g);
	}
	if (!g || !g->ranks || !g->calls) {
		if (g) {
			free(g->ranks);
			group_calls_free(g->calls);
		}
		free(g);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a group of %d ranks", n);
	}
	memcpy(g->ranks, ranks, (size_t)n * sizeof *g->ranks);
	g->id = id;
	g->nranks = n;
	g->me = me;
	pthread_mutex_init(&g->lock, NULL);
	pthread_mutex_init(&g->device_lock, NULL);
	*out = g;
	return GRADCOMP_OK;
}

void group_close(gradcomp_group *g)
{
	group_calls_close(g->calls);
	if (g->commits)
		channel_close(g->commits);
	g->commits = NULL;
	device_coll_close(g->device);
	g->device = NULL;
}

void group_destroy(gradcomp_group *g)
{
	if (!g)
		return;
	group_close(g);
	group_calls_free(g->calls);
	pthread_mutex_destroy(&g->lock);
	pthread_mutex_destroy(&g->device_lock);
	free(g->lists);
	free(g->ranks);
	free(g);
}

gradcomp_status group_renew(gradcomp_group *world, uint64_t id, int nranks, int me, gradcomp_error *err)
{
	int *ranks = malloc((size_t)nranks * sizeof *ranks);
	if (!ranks)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a group of %d ranks", nranks);
	for (int r = 0; r < nranks; r++)
		ranks[r] = r;
	free(world->ranks);
	free(world->lists);
	world->ranks = ranks;
	world->lists = NULL;
	world->nlists = 0;
	world->id = id;
	world->nranks = nranks;
	world->me = me;
	world->splits = world->channels = 0;
	world->turns = (launch_turns){.joined = 0};
	return GRADCOMP_OK;
}

bool group_has_levels(const gradcomp_group *g)
{
	int nnodes;
	const int32_t *node = transport_nodes(g->job->transport, &nnodes);
	bool *seen = calloc((size_t)nnodes, sizeof *seen), several = false, shared = false;
	for (int i = 0; seen && i < g->nranks; i++) {
		int32_t at = node[g->ranks[i]];
		several |= at != node[g->ranks[0]];
		shared |= seen[at];
		seen[at] = true;
	}
	free(seen);
	return several && shared;
}

gradcomp_status group_exchange(gradcomp_group *g, const void *mine, void *all, size_t bytes, gradcomp_error *err)
{
	uint64_t *counts = malloc((size_t)g->nranks * sizeof *counts);
	gradcomp_status st;
	if (!counts) {
		job_fail(g->job, GRADCOMP_ERR_NOMEM, "no memory to exchange messages with its group");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d counts", g->nranks);
	}
	for (int r = 0; r < g->nranks; r++)
		counts[r] = bytes;
	st = group_allgather(g, mine, all, counts, GRADCOMP_U8, err);
	free(counts);
	return st;
}

struct claim {
	int32_t colour, key, rank;
};

static int by_key(const void *a, const void *b)
{
	const struct claim *x = a, *y = b;
	return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (x->rank > y->rank) - (x->rank < y->rank);
}

gradcomp_status group_split(gradcomp_group *parent, int colour, int key, gradcomp_group **out, gradcomp_error *err)
{
	struct claim mine = {colour, key, 0}, *all = NULL;
	int *ranks = NULL, n = 0, me = 0;
	gradcomp_status st;
	if (!out)
		return error_set(err, GRADCOMP_ERR_INVALID, "out is NULL");
	*out = NULL;
	if (!parent)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	all = calloc((size_t)parent->nranks, sizeof *all);
	ranks = calloc((size_t)parent->nranks, sizeof *ranks);
	if (!all || !ranks) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to split a group of %d ranks", parent->nranks);
		job_fail(parent->job, st, "no memory to split a group");
		goto done;
	}
	st = group_exchange(parent, &mine, all, sizeof mine, err);
	if (st)
		goto done;
	parent->splits++;
	/* On all ranks alike: a rank that gave up alone would leave the others waiting. */
	for (int r = 0; !st && r < parent->nranks; r++) {
		all[r].rank = r;
		if (all[r].colour < -1)
			st = error_set(err, GRADCOMP_ERR_INVALID,
			               "colour %d of rank %d: must be -1 (in no group) or more", all[r].colour,
			               parent->ranks[r]);
	}
	if (st || colour < 0)
		goto done;
	qsort(all, (size_t)parent->nranks, sizeof *all, by_key);
	for (int r = 0; r < parent->nranks; r++) {
		if (all[r].colour != colour)
			continue;
		if (all[r].rank == parent->me)
			me = n;
		ranks[n++] = parent->ranks[all[r].rank];
	}
	st = group_create(parent->job, id_mix(id_mix(parent->id, parent->splits), (uint64_t)colour), ranks, n, me, out,
	                  err);
	if (!st)
		job_count(parent->job, 1);
done:
	free(all);
	free(ranks);
	return st;
}

gradcomp_status gradcomp_group_split(gradcomp_group *parent, int colour, int key, gradcomp_group **out,
                                     gradcomp_error *err)
{
	gradcomp_status st = group_split(parent, colour, key, out, err);
	if (st)
		return st;
	st = group_commit(parent, st, err);
	if (st) {
		gradcomp_group_free(*out);
		*out = NULL;
	}
	return st;
}

/* Finds the ranks in the world; in *me this rank's place. */
static gradcomp_status check_list(const gradcomp_group *parent, const int *ranks, int n, int *world, int *me,
                                  gradcomp_error *err)
{
	*me = -1;
	for (int i = 0; i < n; i++) {
		if (ranks[i] < 0 || ranks[i] >= parent->nranks)
			return error_set(err, GRADCOMP_ERR_INVALID, "ranks[%d] is %d: must be 0..%d", i, ranks[i],
			                 parent->nranks - 1);
		for (int k = 0; k < i; k++)
			if (ranks[k] == ranks[i])
				return error_set(err, GRADCOMP_ERR_INVALID, "rank %d is ranks[%d] and ranks[%d]",
				                 ranks[i], k, i);
		if (ranks[i] == parent->me)
			*me = i;
		world[i] = parent->ranks[ranks[i]];
	}
	return *me >= 0 ? GRADCOMP_OK
	                : error_set(err, GRADCOMP_ERR_INVALID, "this rank, %d, is none of the %d ranks of the group",
	                            parent->me, n);
}

/* Returns the next id for this list. */
static uint64_t list_id(gradcomp_group *parent, const int *world, int n)
{
	uint64_t id = id_mix(parent->id, UINT64_MAX), next = 0;
	struct group_list *l = NULL;
	for (int i = 0; i < n; i++)
		id = id_mix(id, (uint64_t)world[i]);
	pthread_mutex_lock(&parent->lock);
	for (uint32_t i = 0; i < parent->nlists; i++)
		if (parent->lists[i].id == id)
			l = &parent->lists[i];
	if (!l) {
		struct group_list *more = realloc(parent->lists, (parent->nlists + 1) * sizeof *more);
		if (more) {
			parent->lists = more;
			l = &more[parent->nlists++];
			*l = (struct group_list){.id = id};
		}
	}
	if (l)
		next = id_mix(id, ++l->made);
	pthread_mutex_unlock(&parent->lock);
	return next;
}

gradcomp_status gradcomp_group_create(gradcomp_group *parent, const int *ranks, int nranks, gradcomp_group **out,
                                      gradcomp_error *err)
{
	gradcomp_status st;
	uint64_t id;
	int *world, me;
	if (!out)
		return error_set(err, GRADCOMP_ERR_INVALID, "out is NULL");
	*out = NULL;
	if (!parent || !ranks)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", parent ? "ranks" : "group");
	if (nranks < 1 || nranks > parent->nranks)
		return error_set(err, GRADCOMP_ERR_INVALID, "a group of %d ranks: must be 1..%d", nranks,
		                 parent->nranks);
	world = malloc((size_t)nranks * sizeof *world);
	if (!world)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a group of %d ranks", nranks);
	st = check_list(parent, ranks, nranks, world, &me, err);
	id = st ? 0 : list_id(parent, world, nranks);
	if (!st && !id)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a group of %d ranks", nranks);
	if (!st)
		st = group_create(parent->job, id, world, nranks, me, out, err);
	if (!st)
		job_count(parent->job, 1);
	free(world);
	return st;
}

void gradcomp_group_free(gradcomp_group *g)
{
	if (!g || g == g->job->world)
		return;
	job_count(g->job, -1);
	group_destroy(g);
}

int gradcomp_group_rank(const gradcomp_group *g)
{
	return g->me;
}

int gradcomp_group_nranks(const gradcomp_group *g)
{
	return g->nranks;
}

int gradcomp_group_world_rank(const gradcomp_group *g, int r)
{
	return r >= 0 && r < g->nranks ? g->ranks[r] : -1;
}

gradcomp_status gradcomp_links_open(gradcomp_group *g, const gradcomp_links **out, gradcomp_error *err)
{
	channel *c;
	gradcomp_status st;
	if (!out)
		return error_set(err, GRADCOMP_ERR_INVALID, "out is NULL");
	*out = NULL;
	if (!g)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	st = group_channel(g, &c, err);
	if (st)
		return st;
	job_count(g->job, 1);
	*out = channel_links(c);
	return GRADCOMP_OK;
}

void gradcomp_links_close(gradcomp_group *g, const gradcomp_links *links)
{
	if (!links)
		return;
	channel_close(links->ctx);
	job_count(g->job, -1);
}
