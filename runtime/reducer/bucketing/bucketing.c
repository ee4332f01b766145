/* What a plan makes of a layout, see division.h. */
#include "reducer/bucketing/bucketing.h"

#include "reducer/gpu/gpu.h"
#include "schedule/merge.h"
#include "reducer/hierarchical/hierarchical.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

gradcomp_status bucketing_fixed(const gradcomp_reducer *r, step_plan *out, gradcomp_error *err)
{
	uint32_t n = r->layout.ntensors;
	uint64_t *numel = calloc(n, sizeof *numel);
	uint8_t *cut = calloc(n, sizeof *cut);
	gradcomp_status st;
	if (numel && cut) {
		merge_problem p = {.n = n, .numel = numel, .max_numel = r->compressor->max_bucket};
		for (uint32_t i = 0; i < n; i++)
			numel[i] = r->tensors[i].numel;
		merge_fixed(&p, r->first_bucket_bytes / sizeof(float), r->bucket_bytes / sizeof(float), cut);
		st = step_plan_from_cut(out, cut, n, err);
	} else {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for buckets of %u tensors", n);
	}
	free(numel);
	free(cut);
	return st;
}

gradcomp_status bucketing_check(const gradcomp_reducer *r, const step_plan *p, gradcomp_error *err)
{
	uint64_t max = r->compressor->max_bucket;
	gradcomp_status st = step_plan_check(p, r->layout.ntensors, err);
	for (uint32_t b = 0, first = 0; !st && max && b < p->nbuckets; first = p->end[b++]) {
		const gradcomp_tensor *last = &r->tensors[p->end[b] - 1];
		uint64_t numel = last->offset + last->numel - r->tensors[first].offset;
		if (numel > max)
			st = error_set(err, GRADCOMP_ERR_RANGE,
			               "bucket %u of the plan, tensors '%s' to '%s', has %llu elements; compressor '%s' counts "
			               "up to %llu in one bucket",
			               b, r->tensors[first].name, last->name, (unsigned long long)numel,
			               r->compressor->info.name, (unsigned long long)max);
	}
	return st;
}

gradcomp_status bucketing_arrays(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	uint32_t n = b->pub.ntensors, states = r->compressor->state_arrays;
	b->x = calloc(n, sizeof *b->x);
	b->error = calloc(n, sizeof *b->error);
	b->state = calloc(states + 1, sizeof *b->state);
	b->parts = calloc((size_t)r->layout.nranks, sizeof *b->parts);
	if (!b->x || !b->error || !b->state || !b->parts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for bucket %u", b->pub.index);
	for (uint32_t i = 0; r->error && i < n; i++)
		b->error[i] = r->error + r->tensors[b->pub.first + i].offset;
	for (uint32_t s = 0; s < states; s++)
		b->state[s] = r->state[s] ? r->state[s] + b->pub.offset : NULL;
	b->work = (gradcomp_work){.struct_size = sizeof b->work, .device = GRADCOMP_HOST, .bucket = &b->pub, .x = b->x,
	                          .error = r->error ? b->error : NULL,
	                          .error_flat = r->error ? r->error + b->pub.offset : NULL, .state = b->state,
	                          .operators = r->job->host.operators, .fault = &b->fault};
	if (r->gpu)
		gpu_work(r, b);
	return GRADCOMP_OK;
}

void bucketing_release(bucket *b)
{
	free(b->x);
	free(b->error);
	free(b->state);
	free(b->parts);
}

static gradcomp_status cut(gradcomp_reducer *r, const step_plan *p, bucketing *d, gradcomp_error *err)
{
	uint32_t n = r->layout.ntensors;
	gradcomp_status st = GRADCOMP_OK;
	d->buckets = calloc(p->nbuckets, sizeof *d->buckets);
	d->bucket_of = calloc(n, sizeof *d->bucket_of);
	if (!d->buckets || !d->bucket_of)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u buckets", p->nbuckets);
	d->nbuckets = p->nbuckets;
	for (uint32_t i = 0, k = 0; i < n; i++) {
		const gradcomp_tensor *t = &r->tensors[i];
		k += i == p->end[k];
		gradcomp_bucket *b = &d->buckets[k].pub;
		if (!b->ntensors)
			*b = (gradcomp_bucket){.struct_size = sizeof *b, .index = k, .first = i, .offset = t->offset};
		b->ntensors++;
		b->numel += t->numel;
		d->bucket_of[i] = k;
	}
	for (uint32_t i = 0; !st && i < d->nbuckets; i++)
		st = bucketing_arrays(r, &d->buckets[i], err);
	return st;
}

gradcomp_status bucketing_order(const step_plan *p, bucketing *out, gradcomp_error *err)
{
	uint32_t *tensors = calloc(p->nbuckets, sizeof *tensors);
	int rc = -1;
	for (uint32_t b = 0, first = 0; tensors && b < p->nbuckets; first = p->end[b++])
		tensors[b] = p->end[b] - first;
	if (tensors)
		rc = schedule_make(&out->schedule, p->nbuckets, tensors, p->place, REDUCER_WORKSPACES, p->lag);
	free(tensors);
	return rc ? error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the order of %u buckets", p->nbuckets) : GRADCOMP_OK;
}

gradcomp_status bucketing_make(gradcomp_reducer *r, const step_plan *p, bucketing *out, gradcomp_error *err)
{
	*out = (bucketing){0};
	gradcomp_status st = cut(r, p, out, err);
	if (!st)
		st = bucketing_order(p, out, err);
	return !st && r->shards ? hierarchical_divide(r, out, err) : st;
}

bucketing bucketing_current(const gradcomp_reducer *r)
{
	return (bucketing){.buckets = r->buckets, .nbuckets = r->nbuckets, .bucket_of = r->bucket_of,
	                  .schedule = r->schedule, .server_error = r->server_error, .nserver_error = r->nserver_error,
	                  .shards = r->shards};
}

void bucketing_swap(gradcomp_reducer *r, bucketing *d)
{
	const bucketing was = bucketing_current(r);
	r->schedule = d->schedule;
	d->schedule = was.schedule;
	if (d->buckets) {
		r->buckets = d->buckets;
		r->nbuckets = d->nbuckets;
		r->bucket_of = d->bucket_of;
		r->server_error = d->server_error;
		r->nserver_error = d->nserver_error;
		r->shards = d->shards;
		*d = was;
	}
	for (uint32_t i = 0; i < r->layout.ntensors; i++)
		if (r->given[i])
			schedule_given(&r->schedule, r->bucket_of[i]);
	r->stats.buckets = r->nbuckets;
}

void bucketing_free(const gradcomp_reducer *r, bucketing *d)
{
	for (uint32_t i = 0; i < d->nbuckets; i++)
		bucketing_release(&d->buckets[i]);
	free(d->buckets);
	free(d->bucket_of);
	free(d->server_error);
	schedule_free(&d->schedule);
	hierarchical_free(r, d->shards);
	*d = (bucketing){0};
}

gradcomp_status bucketing_plan(const gradcomp_reducer *r, step_plan *out, gradcomp_error *err)
{
	*out = (step_plan){.nbuckets = r->nbuckets, .lag = r->schedule.lag};
	out->end = calloc(r->nbuckets, sizeof *out->end);
	out->place = calloc(r->nbuckets, sizeof *out->place);
	if (!out->end || !out->place) {
		step_plan_clear(out);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u buckets", r->nbuckets);
	}
	for (uint32_t i = 0; i < r->nbuckets; i++) {
		out->end[i] = r->buckets[i].pub.first + r->buckets[i].pub.ntensors;
		out->place[i] = r->schedule.bucket[i].place;
	}
	return GRADCOMP_OK;
}
