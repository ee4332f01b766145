/* Error memory that is given back, see rebucket.h. */
#include "reducer/bucketing/rebucket.h"

#include "reducer/arg_errors.h"
#include "step/server_error.h"
#include "step/bucket.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Holds what there is of tensor t: n numbers, which stand for those from `at` on of the layout. */
typedef struct part {
	const gradcomp_tensor *t;
	uint64_t at, n;
	double scale;
	int stays; /* with the reducer */
} part;

/* Exports a part in host memory. */
static void export_run(const part *p, float *from, float *to)
{
	to += p->at - p->t->offset;
	for (uint64_t i = 0; i < p->n; i++)
		to[i] += (float)(from[i] * p->scale);
	if (!p->stays)
		memset(from, 0, p->n * sizeof *from);
}

/* The same of what an engine holds back from number `at` on, which may be a device's. */
static gradcomp_status export_memory(const engine *k, const part *p, uint64_t at, float *to, gradcomp_error *err)
{
	const uint32_t s = engine_held_back(k);
	float *room = malloc(p->n * sizeof *room + 1);
	gradcomp_status st;
	if (!room)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the %llu numbers of '%s'",
		                 (unsigned long long)p->n, p->t->name);
	st = engine_read(k, s, at, p->n, room, err);
	if (!st) {
		export_run(p, room, to);
		if (!p->stays)
			st = engine_write(k, s, at, p->n, room, err);
	}
	free(room);
	return st;
}

/* The reducer's own memory, wherever it is. */
static gradcomp_status export_own(reducer *r, const gradcomp_tensor *t, int stays, float *to, gradcomp_error *err)
{
	const part p = {t, t->offset, t->numel, 1, stays};
	return export_memory(&r->eng, &p, t->offset, to, err);
}

static gradcomp_status export_server_error(reducer *r, const gradcomp_tensor *t, int stays, float *to,
                                           gradcomp_error *err)
{
	const bucket *b = &r->eng.list.buckets[r->eng.list.bucket_of[t - r->eng.layout.tensors]];
	gradcomp_status st = b->nserver_error ? server_error_check(&r->eng, err) : GRADCOMP_OK;
	if (st || !b->nserver_error)
		return st;
	part p = {.t = t, .scale = 1, .stays = stays};
	uint64_t begin = server_error_offset(&r->eng, b);
	p.n = bucket_overlap(t->offset, t->numel, begin, b->nserver_error, &p.at);
	if (p.n)
		export_run(&p, b->server_error + (p.at - begin), to);
	return GRADCOMP_OK;
}

/* The mean over the holders of a shard is that over all ranks: a number of theirs weighs as
 * much more as there are fewer of them. */
static gradcomp_status export_shard(reducer *r, const gradcomp_tensor *t, int stays, float *to, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	const bucket *b = &r->eng.list.buckets[r->eng.list.bucket_of[t - r->eng.layout.tensors]];
	for (const engine *k = r->eng.list.shards; k; k = k->next) {
		const gradcomp_bucket *held = &k->list.buckets[b->pub.index].pub;
		uint64_t begin = b->pub.offset + k->list.buckets[b->pub.index].begin;
		const double scale = (double)k->layout.nranks / r->eng.layout.nranks;
		part p = {.t = t, .scale = 1 / scale, .stays = stays};
		p.n = bucket_overlap(t->offset, t->numel, begin, held->numel, &p.at);
		if (!st && p.n)
			st = export_memory(k, &p, held->offset + (p.at - begin), to, err);
	}
	return st;
}

static gradcomp_status export_tensor(reducer *r, uint32_t index, int stays, float *to, gradcomp_error *err)
{
	uint32_t n = r->eng.layout.ntensors;
	gradcomp_status st;
	if (index >= n)
		return arg_error_index(index, n, err);
	const gradcomp_tensor *t = &r->eng.layout.tensors[n - 1 - index];
	pthread_mutex_lock(&r->lock);
	run_step_replan_settle(r);
	st = run_step_between_steps(r, "give back", err);
	if (!st)
		st = export_server_error(r, t, stays, to, err);
	const engine *owner = r->eng.list.shards ? r->eng.list.shards : &r->eng;
	if (!st && engine_held_back(owner) < engine_arrays_count(owner))
		st = r->eng.list.shards ? export_shard(r, t, stays, to, err) : export_own(r, t, stays, to, err);
	pthread_mutex_unlock(&r->lock);
	return st;
}

gradcomp_status reducer_residual_export(reducer *r, uint32_t index, float *to, gradcomp_error *err)
{
	return export_tensor(r, index, 0, to, err);
}

gradcomp_status reducer_residual_copy(reducer *r, uint32_t index, float *to, gradcomp_error *err)
{
	return export_tensor(r, index, 1, to, err);
}
