#include "reducer/bucketing/bucketing.h"

#include "step/bucket.h"
#include "step/levels/hierarchical.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

gradcomp_status bucketing_check(const reducer *r, const step_plan *p, gradcomp_error *err)
{
	uint64_t max = r->eng.compressor->max_bucket;
	gradcomp_status st = step_plan_check(p, r->eng.layout.ntensors, err);
	for (uint32_t b = 0, first = 0; !st && max && b < p->nbuckets; first = p->end[b++]) {
		const gradcomp_tensor *last = &r->eng.layout.tensors[p->end[b] - 1];
		uint64_t numel = last->offset + last->numel - r->eng.layout.tensors[first].offset;
		if (numel > max)
			st = error_set(
				err, GRADCOMP_ERR_RANGE,
				"bucket %u of the plan, tensors '%s' to '%s', has %llu elements; compressor '%s' counts "
				"up to %llu in one bucket",
				b, r->eng.layout.tensors[first].name, last->name, (unsigned long long)numel,
				r->eng.compressor->info.name, (unsigned long long)max);
	}
	return st;
}

static gradcomp_status cut(reducer *r, const step_plan *p, bucketing *d, gradcomp_error *err)
{
	uint32_t n = r->eng.layout.ntensors;
	gradcomp_status st = GRADCOMP_OK;
	d->list.buckets = calloc(p->nbuckets, sizeof *d->list.buckets);
	d->list.bucket_of = calloc(n, sizeof *d->list.bucket_of);
	if (!d->list.buckets || !d->list.bucket_of)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u buckets", p->nbuckets);
	d->list.nbuckets = p->nbuckets;
	for (uint32_t i = 0, k = 0; i < n; i++) {
		const gradcomp_tensor *t = &r->eng.layout.tensors[i];
		k += i == p->end[k];
		gradcomp_bucket *b = &d->list.buckets[k].pub;
		if (!b->ntensors)
			*b = (gradcomp_bucket){.struct_size = sizeof *b, .index = k, .first = i, .offset = t->offset};
		b->ntensors++;
		b->numel += t->numel;
		d->list.bucket_of[i] = k;
	}
	for (uint32_t i = 0; !st && i < d->list.nbuckets; i++) {
		st = bucket_open(&r->eng, &d->list.buckets[i], err);
		if (!st)
			r->eng.ways.device->calls->place(&r->eng, &d->list.buckets[i]);
	}
	return st;
}

gradcomp_status bucketing_order(const step_plan *p, bucketing *out, gradcomp_error *err)
{
	uint32_t *tensors = calloc(p->nbuckets, sizeof *tensors);
	int rc = -1;
	for (uint32_t b = 0, first = 0; tensors && b < p->nbuckets; first = p->end[b++])
		tensors[b] = p->end[b] - first;
	if (tensors)
		rc = schedule_make(&out->schedule, p->nbuckets, tensors, p->position, REDUCER_WORKSPACES, p->lag);
	free(tensors);
	return rc ? error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the order of %u buckets", p->nbuckets)
	          : GRADCOMP_OK;
}

gradcomp_status bucketing_make(reducer *r, const step_plan *p, bucketing *out, gradcomp_error *err)
{
	*out = (bucketing){0};
	gradcomp_status st = cut(r, p, out, err);
	if (!st)
		st = bucketing_order(p, out, err);
	return st ? st : r->eng.ways.levels->divide(&r->eng, &out->list, err);
}

bucketing bucketing_current(const reducer *r)
{
	return (bucketing){r->eng.list, r->schedule};
}

void bucketing_swap(reducer *r, bucketing *d)
{
	const bucketing was = bucketing_current(r);
	r->schedule = d->schedule;
	d->schedule = was.schedule;
	if (d->list.buckets) {
		r->eng.list = d->list;
		d->list = was.list;
	}
	for (uint32_t i = 0; i < r->eng.layout.ntensors; i++)
		if (r->step.given[i])
			schedule_given(&r->schedule, r->eng.list.bucket_of[i]);
	r->eng.stats.buckets = r->eng.list.nbuckets;
}

void bucketing_free(bucketing *d)
{
	for (uint32_t i = 0; i < d->list.nbuckets; i++)
		bucket_close(&d->list.buckets[i]);
	free(d->list.buckets);
	free(d->list.bucket_of);
	free(d->list.server_error);
	schedule_free(&d->schedule);
	hierarchical_free(d->list.shards);
	*d = (bucketing){0};
}

gradcomp_status bucketing_plan(const reducer *r, step_plan *out, gradcomp_error *err)
{
	*out = (step_plan){.nbuckets = r->eng.list.nbuckets, .lag = r->schedule.lag};
	out->end = calloc(r->eng.list.nbuckets, sizeof *out->end);
	out->position = calloc(r->eng.list.nbuckets, sizeof *out->position);
	if (!out->end || !out->position) {
		step_plan_clear(out);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u buckets", r->eng.list.nbuckets);
	}
	for (uint32_t i = 0; i < r->eng.list.nbuckets; i++) {
		out->end[i] = r->eng.list.buckets[i].pub.first + r->eng.list.buckets[i].pub.ntensors;
		out->position[i] = r->schedule.bucket[i].position;
	}
	return GRADCOMP_OK;
}
