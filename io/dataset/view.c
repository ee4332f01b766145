/* Values by index: lent, released, counted. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/dataset/net/fetch.h"
#include "job/job.h"

void dataset_unuse(gradcomp_dataset *ds)
{
	if (atomic_fetch_sub(&ds->users, 1) > 1)
		return;
	shm_share_detach(ds);
	if (ds->wake_fd >= 0)
		close(ds->wake_fd);
	owners_clear(&ds->owners);
	free(ds->node_of);
	free(ds->local_of);
	free(ds->began);
	free(ds->spill);
	free(ds);
}

gradcomp_status view_value_obtain(gradcomp_dataset *ds, uint64_t index, unsigned flags, gradcomp_value_view *view,
                                  gradcomp_error *err)
{
	sample_owner at;
	owner_of(ds, index, &at);
	if (at.node != ds->node)
		return fetch_obtain(ds, index, flags, view, err);
	return slot_obtain(ds, index, at.slot, view, err);
}

gradcomp_status view_value_check(gradcomp_dataset *ds, gradcomp_value_view *view, gradcomp_error *err)
{
	if (!ds || !view)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", ds ? "view" : "dataset");
	if (!GRADCOMP_HAS(view, hold))
		return error_set(err, GRADCOMP_ERR_INVALID, "the view's struct_size is %u: must be sizeof of it, %zu",
		                 view->struct_size, sizeof *view);
	view->data = NULL;
	view->hold = NULL;
	view->bytes = 0;
	return process_enter(ds, err);
}

static gradcomp_status in_range(const gradcomp_dataset *ds, uint64_t index, gradcomp_error *err)
{
	if (index < ds->o.count)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_RANGE, "there is no sample %llu: the dataset has %llu",
	                 (unsigned long long)index, (unsigned long long)ds->o.count);
}

gradcomp_status gradcomp_dataset_get(gradcomp_dataset *ds, uint64_t index, gradcomp_value_view *view,
                                     gradcomp_error *err)
{
	gradcomp_status st = view_value_check(ds, view, err);
	if (!st)
		st = in_range(ds, index, err);
	return st ? st : view_value_obtain(ds, index, 0, view, err);
}

void gradcomp_dataset_release(gradcomp_dataset *ds, gradcomp_value_view *view)
{
	if (!ds || !view || !view->data)
		return;
	if (fetch_holds(ds, view->hold))
		fetch_release(ds, view->hold);
	else
		free(view->hold);
	view->data = view->hold = NULL;
	dataset_unuse(ds);
}

gradcomp_status gradcomp_dataset_expect(gradcomp_dataset *ds, const uint64_t *indices, uint64_t n, gradcomp_error *err)
{
	gradcomp_status st;
	if (!ds || (n && !indices))
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", ds ? "indices" : "dataset");
	st = process_enter(ds, err);
	for (uint64_t i = 0; !st && i < n; i++) {
		sample_owner at;

		st = in_range(ds, indices[i], err);
		if (st || !ds->tickets)
			continue;
		owner_of(ds, indices[i], &at);
		if (at.node != ds->node)
			fetch_expect(ds, indices[i], 0);
	}
	return st;
}

uint64_t gradcomp_dataset_length(const gradcomp_dataset *ds)
{
	uint64_t now = atomic_load_explicit(&ds->area->division, memory_order_relaxed);
	return permutation_length(ds->o.count, division_nranks(now), division_rank(now));
}

gradcomp_status gradcomp_dataset_order(const gradcomp_dataset *ds, uint64_t epoch, uint64_t position, uint64_t *index,
                                       gradcomp_error *err)
{
	permutation o;
	uint64_t now, length;
	if (!ds || !index)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", ds ? "index" : "dataset");
	now = atomic_load_explicit(&ds->area->division, memory_order_relaxed);
	length = permutation_length(ds->o.count, division_nranks(now), division_rank(now));
	if (position >= length)
		return error_set(err, GRADCOMP_ERR_RANGE,
		                 "there is no position %llu: rank %d has %llu samples an epoch",
		                 (unsigned long long)position, (int)division_rank(now), (unsigned long long)length);
	permutation_init(&o, ds->o.seed, epoch, ds->o.count, ds->o.shuffle != 0);
	*index = permutation_at(&o, position * division_nranks(now) + division_rank(now));
	return GRADCOMP_OK;
}

void gradcomp_dataset_get_stats(const gradcomp_dataset *ds, gradcomp_dataset_stats *stats)
{
	gradcomp_dataset_stats s = {0};
	const counters *c;
	if (!ds || !stats)
		return;
	c = &ds->area->counts;
	s.struct_size = stats->struct_size < sizeof s ? stats->struct_size : (uint32_t)sizeof s;
	s.local = atomic_load(&c->local);
	s.remote = atomic_load(&c->remote);
	s.loaded = atomic_load(&c->loaded);
	s.spilled = atomic_load(&c->spilled);
	s.remote_bytes = atomic_load(&c->remote_bytes);
	s.damaged = atomic_load(&c->damaged);
	s.unkept = atomic_load(&c->unkept);
	s.memory_used = atomic_load(&ds->head->arena_used);
	s.memory_limit = ds->head->memory;
	s.wait_s = 1e-9 * (double)atomic_load(&c->wait_ns);
	s.load_s = 1e-9 * (double)atomic_load(&c->load_ns);
	memcpy(stats, &s, s.struct_size);
}
