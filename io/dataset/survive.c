/* A dataset whose job goes on without ranks that are lost. Its memory, and what is in it, stay where they are: what
 * a lost node kept is loaded again by those that own it now. Other threads may be in get() and next() meanwhile. */
#include <stdlib.h>
#include <string.h>

#include "survivors/roster.h"
#include "io/dataset/dataset_internal.h"

void dataset_detach(job_object *o)
{
	gradcomp_dataset *ds = dataset_of(o);
	gradcomp_error why;
	/* The service may not have come to see it. */
	if (transport_failure(ds->group->job->transport, &why))
		process_failed(ds, &why);
	service_detach(ds);
}

/* Which ranks are on which node now. */
static gradcomp_status nodes_of(gradcomp_dataset *ds, gradcomp_error *err)
{
	const gradcomp_job *job = ds->group->job;
	int n = job->nranks;
	int32_t *node_of = malloc((size_t)n * sizeof *node_of), *local_of = malloc((size_t)n * sizeof *local_of);
	int32_t *ranks = calloc((size_t)ds->nnodes, sizeof *ranks);
	int *began = malloc((size_t)n * sizeof *began);
	if (!node_of || !local_of || !ranks || !began) {
		free(node_of);
		free(local_of);
		free(ranks);
		free(began);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a dataset of %d ranks", n);
	}
	for (int r = 0, was = 0; r < n; r++) {
		began[r] = job->view->ranks[r];
		while (ds->began[was] != began[r])
			was++;
		node_of[r] = ds->node_of[was];
		local_of[r] = ranks[node_of[r]]++;
	}
	ds->rank = job->rank;
	ds->nranks = n;
	ds->local = local_of[ds->rank];
	ds->nlocal = ranks[ds->node];
	for (int k = 0; ds->nnodes > 1 && k < ds->nnodes; k++)
		if (!ranks[k])
			atomic_store(&ds->owners.lost[k], 1);
	free(ds->node_of);
	free(ds->local_of);
	free(ds->began);
	free(ranks);
	ds->node_of = node_of;
	ds->local_of = local_of;
	ds->began = began;
	return GRADCOMP_OK;
}

typedef struct standing {
	uint64_t epoch, place;
} standing;

/* Finds the first place of this rank's epoch that some rank that is left has not handed out. A lost rank counts for
 * as far as the one of them that has come least far. */
static gradcomp_status reached(gradcomp_dataset *ds, uint64_t *place, gradcomp_error *err)
{
	standing mine, *all = malloc((size_t)ds->nranks * sizeof *all);
	gradcomp_status st;
	if (!all)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a dataset of %d ranks", ds->nranks);
	prefetch_reached(ds->prefetcher, &mine.epoch, &mine.place);
	st = group_exchange(ds->group, &mine, all, sizeof mine, err);
	*place = mine.place;
	for (int r = 0; !st && r < ds->nranks; r++) {
		if (all[r].epoch < mine.epoch)
			*place = 0;
		else if (all[r].epoch == mine.epoch && all[r].place < *place)
			*place = all[r].place;
	}
	free(all);
	return st;
}

gradcomp_status dataset_attach(job_object *o, gradcomp_error *err)
{
	gradcomp_dataset *ds = dataset_of(o);
	gradcomp_status st = nodes_of(ds, err);
	uint64_t place = 0;
	if (!st)
		st = group_channel(ds->group, &ds->channel, err);
	if (!st) {
		channel_on_demand(ds->channel);
		st = reached(ds, &place, err);
	}
	if (!st) {
		atomic_store(&ds->area->division, division_of(ds->rank, ds->nranks));
		prefetch_divide(ds->prefetcher, place);
		process_mended(ds);
		st = service_attach(ds, err);
	}
	/* Something wrong on this rank alone ends the job for all. */
	if (st && !transport_failure(ds->group->job->transport, NULL))
		job_fail(ds->group->job, st, err->text);
	return st;
}
