/* A dataset's life: agreed between the ranks, shared on each node, freed together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job/consensus.h"
#include "job/job.h"
#include "survivors/roster.h"
#include "io/dataset/dataset_internal.h"

/* The ranks compare this when a dataset is made. */
typedef struct claim {
	uint64_t count, seed;
	uint64_t shuffle;
	shm_share_name name;
} claim;

#define TOPIC "open its dataset"

/* Which ranks are on which node, and which of them are here. */
static gradcomp_status nodes_of(gradcomp_dataset *ds, gradcomp_error *err)
{
	const gradcomp_group *g = ds->group;
	const int32_t *world = transport_nodes(g->job->transport, &ds->nnodes);
	int32_t *number = calloc((size_t)ds->nnodes, sizeof *number),
		*ranks = calloc((size_t)ds->nnodes, sizeof *ranks);
	int nodes = 0;
	ds->node_of = calloc((size_t)g->nranks, sizeof *ds->node_of);
	ds->local_of = calloc((size_t)g->nranks, sizeof *ds->local_of);
	ds->began = calloc((size_t)g->nranks, sizeof *ds->began);
	if (!number || !ranks || !ds->node_of || !ds->local_of || !ds->began) {
		free(number);
		free(ranks);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a dataset of %d ranks", g->nranks);
	}
	for (int r = 0; r < g->nranks; r++) {
		int32_t *at = &number[world[g->ranks[r]]];

		if (!*at)
			*at = ++nodes;
		ds->node_of[r] = *at - 1;
		ds->local_of[r] = ranks[*at - 1]++;
		ds->began[r] = g->job->view && ds->endures ? g->job->view->ranks[r] : r;
	}
	ds->nnodes = nodes;
	ds->node = ds->node_of[g->me];
	ds->local = ds->place = ds->local_of[g->me];
	ds->nlocal = ranks[ds->node];
	free(number);
	free(ranks);
	return GRADCOMP_OK;
}

static gradcomp_status options_of(gradcomp_dataset *ds, const gradcomp_dataset_options *o, gradcomp_error *err)
{
	reload_mode reload;
	gradcomp_status st;
	if (!o || !GRADCOMP_HAS(o, ctx))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "options of a dataset are missing, or shorter than this library knows them");
	if (!o->load)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "a dataset needs a function load() that its values come from");
	if (o->count > PERMUTATION_COUNT_MAX)
		return error_set(err, GRADCOMP_ERR_RANGE, "%llu samples: at most 2^62 can be counted",
		                 (unsigned long long)o->count);
	if (o->workers > 1024)
		return error_set(err, GRADCOMP_ERR_INVALID, "%u workers: at most 1024", o->workers);
	if (o->prefetch > 1u << 20)
		return error_set(err, GRADCOMP_ERR_INVALID, "prefetch of %u samples: at most %u", o->prefetch,
		                 1u << 20);
	memcpy(&ds->o, o, o->struct_size < sizeof ds->o ? o->struct_size : sizeof ds->o);
	reload = (reload_mode)config_int(ds->group->job->config, SET_DATASET_RELOAD);
	ds->o.reload = reload == RELOAD_AUTO ? ds->o.reload != 0 : reload == RELOAD_YES;
	if (!ds->o.prefetch)
		ds->o.prefetch = (uint32_t)config_int(ds->group->job->config, SET_DATASET_PREFETCH);
	if (o->spill && !(ds->spill = strdup(o->spill)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the name of a directory");
	ds->o.spill = ds->spill;
	permutation_init(&ds->owners.first, o->seed, 0, o->count, o->shuffle != 0);
	st = owners_init(&ds->owners, ds->node_of, ds->local_of, ds->nranks, ds->nnodes, ds->endures, err);
	if (!st)
		ds->nslots = owners_slots(&ds->owners, ds->node);
	return st;
}

/* "1, 2 and 5": the ranks whose claims differ from rank 0's, a few of them. */
static int differing(const gradcomp_dataset *ds, const claim *all, char *text, size_t bytes)
{
	int n = 0;
	size_t at = 0;
	for (int r = 1; r < ds->nranks; r++) {
		if (all[r].count == all[0].count && all[r].seed == all[0].seed && all[r].shuffle == all[0].shuffle)
			continue;
		if (n++ < 8)
			at += (size_t)snprintf(text + at, bytes - at, "%s%d (%llu samples, seed %llu, %s)",
			                       n > 1 ? ", " : "", ds->group->ranks[r], (unsigned long long)all[r].count,
			                       (unsigned long long)all[r].seed,
			                       all[r].shuffle ? "shuffled" : "in order");
		if (at >= bytes)
			break;
	}
	return n;
}

/* *all has the claims of all ranks when nothing is wrong with them. */
static gradcomp_status same_dataset(gradcomp_dataset *ds, const claim *mine, gradcomp_status st, claim **all,
                                    gradcomp_error *err)
{
	const consensus_topic topic = {.what = TOPIC, .claim = mine, .bytes = sizeof *mine, .same_status = true};
	char text[300];
	void *claims;
	*all = NULL;
	st = consensus_gather(ds->group, &topic, st, &claims, err);
	if (!st && differing(ds, claims, text, sizeof text)) {
		const claim *first = claims;

		st = error_set(err, GRADCOMP_ERR_MISMATCH,
		               "the ranks do not mean the same dataset: rank %d has %llu samples, seed %llu, "
		               "%s; differently rank %s",
		               ds->group->ranks[0], (unsigned long long)first->count, (unsigned long long)first->seed,
		               first->shuffle ? "shuffled" : "in order", text);
		free(claims);
		return st;
	}
	*all = claims;
	return st;
}

/* The ranks of a node share its memory: the first one's name of it is in its claim. */
static gradcomp_status share(gradcomp_dataset *ds, const claim *all, int listener, gradcomp_error *err)
{
	double seconds = config_float(ds->group->job->config, SET_TRANSPORT_TIMEOUT);
	int first = 0;
	while (ds->node_of[first] != ds->node)
		first++;
	if (ds->local)
		return shm_share_attach(ds, &all[first].name, seconds, err);
	return listener >= 0 ? shm_share_serve(ds, &all[first].name, listener, seconds, err) : GRADCOMP_OK;
}

/* Begins what this rank can do when the others can as well. */
static gradcomp_status begin(gradcomp_dataset *ds, const claim *all, int listener, gradcomp_error *err)
{
	gradcomp_status st = share(ds, all, listener, err);
	if (!st && ds->head)
		atomic_store(&ds->area->division, division_of(ds->rank, ds->nranks));
	if (!st && ds->head)
		st = process_register(ds, err);
	if (!st && ds->head)
		st = prefetch_start(ds, err);
	if (!st && ds->head)
		atomic_store(&ds->area->rank, atomic_load(&ds->self));
	return st;
}

static void destroy(gradcomp_dataset *ds)
{
	prefetch_stop(ds->prefetcher);
	ds->prefetcher = NULL;
	if (ds->area)
		atomic_store(&ds->area->rank, 0);
	service_free(ds);
	process_unregister(ds);
	dataset_unuse(ds);
}

static void drop(job_object *o)
{
	gradcomp_dataset *ds = dataset_of(o);
	job_count(ds->group->job, -1);
	destroy(ds);
}

gradcomp_status gradcomp_dataset_create(gradcomp_group *group, const gradcomp_dataset_options *options,
                                        gradcomp_dataset **out, gradcomp_error *err)
{
	claim mine = {0}, *all;
	gradcomp_error own = {0};
	gradcomp_dataset *ds;
	gradcomp_status st;
	int listener = -1;
	err = err ? err : &own;
	if (!group || !out)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", group ? "out" : "group");
	*out = NULL;
	ds = calloc(1, sizeof *ds);
	if (!ds) {
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for a dataset");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a dataset");
	}
	atomic_store(&ds->users, 1);
	ds->fd = ds->spill_fd = ds->wake_fd = -1;
	ds->group = group;
	ds->rank = group->me;
	ds->nranks = group->nranks;
	ds->endures = group->job->transport_options.outlives && group == group->job->world && ds->nranks > 1;
	ds->object = (job_object){.of = ds, .detach = dataset_detach, .attach = dataset_attach, .drop = drop};
	atomic_store(&ds->forks, process_forks());
	st = nodes_of(ds, err);
	if (!st && ds->nranks > 1)
		st = group_channel(group, &ds->channel, err);
	if (ds->channel)
		channel_on_demand(ds->channel);
	if (st) {
		job_fail(group->job, st, err->text);
		destroy(ds);
		return st;
	}
	st = options_of(ds, options, err);
	if (!st && !ds->local)
		st = shm_share_create(ds, &mine.name, &listener, err);
	mine.count = ds->o.count;
	mine.seed = ds->o.seed;
	mine.shuffle = ds->o.shuffle != 0;
	st = same_dataset(ds, &mine, st, &all, err);
	if (!st) {
		st = begin(ds, all, listener, err);
		st = consensus(ds->group, &(consensus_topic){.what = TOPIC, .same_status = true}, st, err);
	}
	free(all);
	if (listener >= 0)
		close(listener);
	if (!st) {
		st = service_start(ds, err);
		if (st)
			job_fail(group->job, st, err->text);
	}
	if (st) {
		destroy(ds);
		return st;
	}
	job_count(group->job, 1);
	if (ds->endures) {
		ds->object.id = group->done + 1;
		job_add_object(group->job, &ds->object);
		st = group_commit(group, st, err);
		if (st) {
			ds->object.pending = true;
			return st;
		}
	}
	*out = ds;
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_dataset_free(gradcomp_dataset *ds, gradcomp_error *err)
{
	gradcomp_status st;
	/* A forked child's copy is freed with the child. */
	if (!ds || process_is_child(ds))
		return GRADCOMP_OK;
	/* When a rank goes past this, all free it; until then it may still have to move to another epoch. */
	st = group_commit(ds->group, GRADCOMP_OK, err);
	if (ds->endures && st == GRADCOMP_ERR_PEER_LOST && !ds->group->job->shrink_failed) {
		ds->object.freeing = ds->group->done + 1;
		return st;
	}
	prefetch_stop(ds->prefetcher);
	ds->prefetcher = NULL;
	if (!st)
		st = service_drain(ds, err);
	/* First no rank requests anything any more; then none serves any more. */
	if (!st)
		st = group_barrier(ds->group, err);
	service_stop(ds);
	if (!st)
		st = group_barrier(ds->group, err);
	job_remove_object(ds->group->job, &ds->object);
	/* Whoever is lost now: it is done on all. */
	st = ds->endures && st == GRADCOMP_ERR_PEER_LOST ? GRADCOMP_OK : st;
	drop(&ds->object);
	return st;
}

void gradcomp_dataset_stop(gradcomp_dataset *ds)
{
	if (!ds || process_is_child(ds) || atomic_exchange(&ds->stopped, true))
		return;
	prefetch_halt(ds->prefetcher);
	service_halt(ds);
}
