/* Two levels: making what the compressor works on, and giving it back. */
#include "reducer/hierarchical/hierarchical_internal.h"

#include "base/error.h"
#include "config/spec.h"

#include <stdlib.h>
#include <string.h>

int hierarchical_possible(const struct gradcomp_compressor_v1 *compressor, uint32_t patterns,
                    const struct gradcomp_collective_v1 *c)
{
	const uint32_t may = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED) | GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED);
	const uint32_t never = GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_PASSES_NONFINITE;
	return c->serves & GRADCOMP_CAN_SHARD && c->serves & GRADCOMP_CAN_ALLREDUCE && !(patterns & ~may) &&
	       patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) && !(compressor->traits & never);
}

int hierarchical_wanted(const gradcomp_reducer *r, const struct gradcomp_collective_v1 *c)
{
	return hierarchical_possible(r->compressor, r->layout.patterns, c);
}

static gradcomp_status ask_shard(const gradcomp_reducer *r, uint64_t numel, gradcomp_shard *out, gradcomp_error *err)
{
	*out = (gradcomp_shard){.struct_size = sizeof *out};
	gradcomp_status st = r->coll_ctx.collective->shard(r->coll_ctx.instance, numel, out, err);
	if (!st && (out->begin > numel || out->numel > numel - out->begin || out->nranks < 1 || out->rank >= out->nranks ||
	            (out->rank < 0 && out->numel)))
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "collective '%s' has a shard that is none of %llu numbers",
		               r->coll_ctx.collective->info.name, (unsigned long long)numel);
	return st;
}

/* The holders of this rank's shards are the same of all buckets, however they are cut. */
static gradcomp_status find_holders(gradcomp_reducer *r, gradcomp_error *err)
{
	struct shards *s = r->shards;
	uint64_t *bytes = calloc((size_t)s->nranks, sizeof *bytes);
	gradcomp_status st = GRADCOMP_OK;
	s->ranks = calloc((size_t)s->nranks, sizeof *s->ranks);
	if (!s->ranks || !bytes) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d holders of a shard", s->nranks);
	} else if (s->rank >= 0) {
		s->ranks[s->rank] = r->group->ranks[r->layout.rank];
		for (int p = 0; p < s->nranks; p++)
			bytes[p] = sizeof *s->ranks;
		st = r->coll_ctx.collective->shard_allgather(r->coll_ctx.instance, s->ranks, bytes, err);
	}
	for (int p = 0; !st && s->rank >= 0 && p < s->nranks; p++)
		if (s->ranks[p] < 0 || s->ranks[p] >= r->job->nranks)
			st = error_set(err, GRADCOMP_ERR_MISMATCH, "a holder of a shard says that it is rank %d of %d",
			               s->ranks[p], r->job->nranks);
	free(bytes);
	return st;
}

gradcomp_status hierarchical_open(gradcomp_reducer *r, gradcomp_error *err)
{
	gradcomp_shard any;
	gradcomp_status st = ask_shard(r, 0, &any, err);
	if (!st && (any.nranks == 1 || any.nranks >= r->layout.nranks))
		return GRADCOMP_OK;
	if (!st && !(r->shards = calloc(1, sizeof *r->shards)))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards");
	if (!st) {
		r->shards->rank = any.rank;
		r->shards->nranks = any.nranks;
		r->shards->scale = (double)any.nranks / r->layout.nranks;
		st = find_holders(r, err);
	}
	/* Others wait for this rank in find_holders(). */
	if (st)
		job_fail(r->job, st, err->text);
	return st;
}

static gradcomp_status make_arrays(bucketing *d, gradcomp_error *err)
{
	gradcomp_reducer *in = &d->shards->inner;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < d->nbuckets; i++) {
		st = bucketing_arrays(in, &in->buckets[i], err);
		d->buckets[i].part = &in->buckets[i];
	}
	return st;
}

/* The compressor among the holders: what it works on is there. */
static gradcomp_status instance(gradcomp_reducer *r, gradcomp_reducer *in, gradcomp_error *err)
{
	spec s = {0};
	gradcomp_status st = GRADCOMP_OK;
	if (in->layout.numel)
		st = spec_parse(&r->compressor->info, r->compressor_spec, &s, err);
	if (!st && in->layout.numel)
		st = r->compressor->create(&r->job->host, s.values, &in->layout, &in->instance, err);
	spec_clear(&s);
	return st;
}

gradcomp_status hierarchical_divide(gradcomp_reducer *r, bucketing *d, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = r->coll_ctx.collective;
	struct shards *s = d->shards = calloc(1, sizeof *s);
	gradcomp_status st = GRADCOMP_OK;
	if (!s)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards");
	gradcomp_reducer *in = &s->inner;
	s->rank = r->shards->rank;
	s->nranks = r->shards->nranks;
	s->scale = r->shards->scale;
	s->view = (struct gradcomp_collective_v1){
		.info = c->info, .serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER,
		.allreduce = c->shard_allreduce, .allgather = c->shard_allgather};
	in->coll_ctx = (coll_ctx){.channel = r->coll_ctx.channel, .collective = &s->view, .instance = r->coll_ctx.instance};
	in->job = r->job;
	in->compressor = r->compressor;
	in->compressor_spec = r->compressor_spec;
	in->layout = r->layout;
	in->layout.rank = s->rank;
	in->layout.nranks = s->nranks;
	in->step = r->step;
	s->of = calloc(d->nbuckets, sizeof *s->of);
	s->ranks = calloc((size_t)s->nranks, sizeof *s->ranks);
	s->before = calloc(r->layout.ntensors, sizeof *s->before);
	s->backward = calloc(r->layout.ntensors, sizeof *s->backward);
	if (!s->of || !s->ranks || !s->before || !s->backward)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards of %u buckets", d->nbuckets);
	memcpy(s->ranks, r->shards->ranks, (size_t)s->nranks * sizeof *s->ranks);
	s->group = (gradcomp_group){.job = r->job, .me = s->rank, .nranks = s->nranks, .ranks = s->ranks};
	in->group = &s->group;
	for (uint32_t i = 0; !st && i < d->nbuckets; i++)
		st = ask_shard(r, d->buckets[i].pub.numel, &s->of[i], err);
	if (!st)
		st = hierarchical_cut(r, d, err);
	if (!st)
		st = reducer_allocate(in, err);
	if (!st) {
		in->grads = s->grads;
		st = make_arrays(d, err);
	}
	return st ? st : instance(r, in, err);
}

void hierarchical_free(const gradcomp_reducer *r, struct shards *s)
{
	if (!s)
		return;
	gradcomp_reducer *in = &s->inner;
	if (in->instance)
		r->compressor->destroy(in->instance);
	for (uint32_t i = 0; in->state && i < r->compressor->state_arrays; i++)
		free(in->state[i]);
	for (uint32_t i = 0; in->buckets && i < in->nbuckets; i++)
		bucketing_release(&in->buckets[i]);
	free(in->buckets);
	free(in->state);
	free(in->error);
	free(in->lengths);
	free(in->held);
	free(in->tensors);
	free(s->grads);
	free(s->origin);
	free(s->dims);
	free(s->before);
	free(s->backward);
	free(s->ranks);
	free(s->of);
	free(s);
}

const gradcomp_reducer *hierarchical_inner(const struct shards *s)
{
	return &s->inner;
}

uint64_t hierarchical_shard_begin(const struct shards *s, uint32_t bucket)
{
	return s->of[bucket].begin;
}

/* The first part of tensor i on this rank, or the number of parts. */
static uint32_t part_of(const struct shards *s, uint32_t i)
{
	uint32_t k = 0;
	while (k < s->inner.layout.ntensors && s->origin[k] != i)
		k++;
	return k;
}

const char *hierarchical_choice(const gradcomp_reducer *r, uint32_t i)
{
	const struct shards *s = r->shards;
	uint32_t k = part_of(s, i);
	if (!r->compressor->choice)
		return r->compressor->info.name;
	return k < s->inner.layout.ntensors ? r->compressor->choice(s->inner.instance, k) : "on other ranks";
}

const struct held *hierarchical_residual_norm(gradcomp_reducer *r, uint32_t i)
{
	const struct shards *s = r->shards;
	struct held *sum = &r->held[i];
	*sum = s->before[i];
	for (uint32_t k = part_of(s, i); k < s->inner.layout.ntensors && s->origin[k] == i; k++) {
		sum->shares += s->inner.held[k].shares;
		sum->steps += s->inner.held[k].steps;
	}
	return sum;
}

void hierarchical_carry(gradcomp_reducer *r, const bucketing *d)
{
	for (uint32_t i = 0; i < r->layout.ntensors; i++)
		d->shards->before[i] = *hierarchical_residual_norm(r, i);
	d->shards->inner.stats = r->shards->inner.stats;
	d->shards->inner.warned = r->shards->inner.warned;
	d->shards->told = r->shards->told;
}

void hierarchical_next_step(gradcomp_reducer *r)
{
	r->shards->inner.step = r->step;
}

void hierarchical_step_done(gradcomp_reducer *r)
{
	gradcomp_reducer *in = &r->shards->inner;
	in->step_bad = r->step_bad;
	hierarchical_next_step(r);
	residual_norm_step(in);
	r->stats.error_steps = in->stats.error_steps;
	r->stats.error_mean = in->stats.error_mean;
	r->stats.error_last = in->stats.error_last;
}

/* Two levels: what of each tensor lies in a shard, and a bucket's tasks. */



/* A part of a tensor: a matrix stays one, of its own rows where they are whole. */
static void add(struct shards *s, const gradcomp_tensor *t, uint32_t origin, uint64_t rows, uint64_t row)
{
	gradcomp_reducer *in = &s->inner;
	uint32_t i = in->layout.ntensors;
	uint64_t *dims = s->dims + 2 * (size_t)i;
	if (!rows || !row)
		return;
	dims[0] = t->ndim > 1 ? rows : rows * row;
	dims[1] = row;
	in->tensors[i] = (gradcomp_tensor){.name = t->name, .numel = rows * row, .offset = in->layout.numel, .dims = dims,
	                                   .ndim = t->ndim > 1 ? 2 : 1, .dtype = GRADCOMP_F32};
	s->origin[i] = origin;
	in->layout.numel += rows * row;
	in->layout.ntensors++;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Elements [from, to) of tensor t: the end of a row, whole rows, the beginning of one. */
static void cut(struct shards *s, const gradcomp_tensor *t, uint32_t origin, uint64_t from, uint64_t to)
{
	gradcomp_reducer *in = &s->inner;
	uint64_t row = t->ndim > 1 && t->dims[0] ? t->numel / t->dims[0] : 0, head, n = to - from;
	if (from == 0 && to == t->numel) {
		uint32_t i = in->layout.ntensors++;
		in->tensors[i] = *t;
		in->tensors[i].offset = in->layout.numel;
		in->tensors[i].dtype = GRADCOMP_F32;
		in->layout.numel += n;
		s->origin[i] = origin;
		return;
	}
	if (!row) {
		add(s, t, origin, 1, n);
		return;
	}
	head = (from % row) ? least(row - from % row, n) : 0;
	add(s, t, origin, 1, head);
	add(s, t, origin, (n - head) / row, row);
	add(s, t, origin, 1, (n - head) % row);
}

gradcomp_status hierarchical_cut(const gradcomp_reducer *r, const bucketing *d, gradcomp_error *err)
{
	struct shards *s = d->shards;
	gradcomp_reducer *in = &s->inner;
	/* A shard cuts at most two tensors of a bucket, each into three. */
	size_t most = (size_t)r->layout.ntensors + 4 * (size_t)d->nbuckets;
	in->buckets = calloc(d->nbuckets, sizeof *in->buckets);
	in->tensors = calloc(most, sizeof *in->tensors);
	s->origin = calloc(most, sizeof *s->origin);
	s->grads = calloc(most, sizeof *s->grads);
	s->dims = calloc(2 * most, sizeof *s->dims);
	if (!in->buckets || !in->tensors || !s->origin || !s->grads || !s->dims)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards of %u tensors", r->layout.ntensors);
	in->nbuckets = d->nbuckets;
	in->layout.tensors = in->tensors;
	in->layout.ntensors = 0;
	in->layout.numel = 0;
	for (uint32_t i = 0; i < d->nbuckets; i++) {
		const gradcomp_bucket *b = &d->buckets[i].pub;
		uint64_t begin = s->of[i].begin, end = begin + s->of[i].numel;
		gradcomp_bucket *part = &in->buckets[i].pub;
		*part = (gradcomp_bucket){.struct_size = sizeof *part, .index = i, .first = in->layout.ntensors,
		                          .offset = in->layout.numel};
		for (uint32_t k = b->first; k < b->first + b->ntensors; k++) {
			const gradcomp_tensor *t = &r->tensors[k];
			uint64_t at = t->offset - b->offset, to = least(end, at + t->numel);
			if (t->numel && begin < at + t->numel && at < end)
				cut(s, t, k, begin > at ? begin - at : 0, to - at);
		}
		part->ntensors = in->layout.ntensors - part->first;
		part->numel = in->layout.numel - part->offset;
	}
	return GRADCOMP_OK;
}

static gradcomp_status reduce(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = r->coll_ctx.collective;
	int64_t bad = b->local_bad != 0;
	gradcomp_status st = c->allreduce(r->coll_ctx.instance, &bad, 1, GRADCOMP_I64, GRADCOMP_MAX, 1.0, err);
	b->bad = bad != 0;
	if (st || b->bad)
		return st ? st : exchange_nonfinite(r, b, err);
	return c->local_reduce_scatter(r->coll_ctx.instance, b->work.flat, b->pub.numel, r->shards->scale, err);
}

/* The compressor has its tensors where the node's sums are. */
static gradcomp_status local_begin(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	struct shards *s = r->shards;
	gradcomp_reducer *in = &s->inner;
	bucket *part = b->part;
	const task begin = {TASK_BEGIN, 0};
	part->bad = 0;
	if (!part->pub.numel)
		return GRADCOMP_OK;
	part->workspace = b->workspace;
	for (uint32_t i = part->pub.first; i < part->pub.first + part->pub.ntensors; i++)
		s->grads[i] = b->work.flat + s->of[b->pub.index].begin + (in->tensors[i].offset - part->pub.offset);
	return task_host(in, part, &begin, err);
}

gradcomp_status hierarchical_task(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err)
{
	gradcomp_reducer *in = &r->shards->inner;
	const task finish = {TASK_FINISH, 0};
	switch (t->kind) {
	case TASK_REDUCE_LOCAL:
		return reduce(r, b, err);
	case TASK_LOCAL_BEGIN:
		return local_begin(r, b, err);
	case TASK_LOCAL_END:
		return b->part->pub.numel ? task_host(in, b->part, &finish, err) : GRADCOMP_OK;
	case TASK_ALLGATHER_LOCAL:
		return r->coll_ctx.collective->local_allgather(r->coll_ctx.instance, b->work.flat, b->pub.numel, err);
	default:
		return task_host(in, b->part, t, err);
	}
}

/* Two levels: what was measured of tensors, told of their parts. */



gradcomp_status hierarchical_measured(gradcomp_reducer *r, const gradcomp_measured *m, gradcomp_error *err)
{
	struct shards *s = r->shards;
	memcpy(s->backward, m->backward, r->layout.ntensors * sizeof *s->backward);
	s->measured = *m;
	s->measured.backward = s->backward;
	return hierarchical_tell_measured(r, s, err);
}

gradcomp_status hierarchical_tell_measured(const gradcomp_reducer *r, const struct shards *s, gradcomp_error *err)
{
	const gradcomp_measured *m = &s->measured;
	const gradcomp_reducer *in = &s->inner;
	uint32_t n = in->layout.ntensors;
	gradcomp_measured part = *m;
	double *backward = calloc(n + 1, sizeof *backward);
	gradcomp_status st = GRADCOMP_OK;
	if (!backward)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the times of %u tensors", n);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t whole = r->tensors[s->origin[i]].numel;
		backward[i] = whole ? m->backward[s->origin[i]] * (double)in->tensors[i].numel / (double)whole : 0;
	}
	part.ntensors = n;
	part.backward = backward;
	if (in->instance)
		st = r->compressor->measured(in->instance, &part, r->step, err);
	free(backward);
	return st;
}

/* Two levels: bucket boundaries move, and with them which rank of a node holds what.
 *
 * Array by array and bucket by bucket of before, the ranks of a node show one another what
 * they hold, as they spread a result, and each takes what it holds from now on. So no rank
 * needs more room than for a bucket. */


/* Of a run of numbers of the layout that is in `room`, what lies in the shards of *to. */
static void take(const bucketing *to, const gradcomp_bucket *b, const float *room, float *into)
{
	const struct shards *s = to->shards;
	for (uint32_t k = to->bucket_of[b->first]; k < to->nbuckets && to->buckets[k].pub.first < b->first + b->ntensors; k++) {
		const gradcomp_bucket *part = &s->inner.buckets[k].pub;
		uint64_t at, begin = to->buckets[k].pub.offset + s->of[k].begin;
		uint64_t n = hierarchical_overlap(b->offset, b->numel, begin, part->numel, &at);
		if (n)
			memcpy(into + part->offset + (at - begin), room + (at - b->offset), n * sizeof *into);
	}
}

static gradcomp_status move(gradcomp_reducer *r, const bucketing *to, const float *from, float *into, float *room,
                            gradcomp_error *err)
{
	const struct shards *s = r->shards;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < r->nbuckets; i++) {
		const gradcomp_bucket *b = &r->buckets[i].pub, *part = &s->inner.buckets[i].pub;
		if (!b->numel)
			continue;
		if (part->numel)
			memcpy(room + s->of[i].begin, from + part->offset, part->numel * sizeof *room);
		st = r->coll_ctx.collective->local_allgather(r->coll_ctx.instance, room, b->numel, err);
		if (!st)
			take(to, b, room, into);
	}
	return st;
}

gradcomp_status hierarchical_move(gradcomp_reducer *r, const bucketing *d, float *room, gradcomp_error *err)
{
	const gradcomp_reducer *from = &r->shards->inner;
	gradcomp_reducer *to = &d->shards->inner;
	gradcomp_status st = GRADCOMP_OK;
	if (from->error)
		st = move(r, d, from->error, to->error, room, err);
	for (uint32_t k = 0; !st && k < r->compressor->state_arrays; k++)
		st = move(r, d, from->state[k], to->state[k], room, err);
	if (st)
		return st;
	hierarchical_carry(r, d);
	if (r->compressor->save && !d->shards->told) {
		d->shards->told = 1;
		log_line(&r->job->log, GRADCOMP_LOG_INFO,
		         "step %llu: buckets moved, and with them the parts of tensors that ranks of a node hold: what '%s' "
		         "keeps of its own about those begins anew (error memory has moved along)",
		         (unsigned long long)r->step, r->compressor->info.name);
	}
	if (!r->shards->measured.struct_size)
		return GRADCOMP_OK;
	d->shards->measured = r->shards->measured;
	d->shards->measured.backward = d->shards->backward;
	memcpy(d->shards->backward, r->shards->backward, r->layout.ntensors * sizeof *d->shards->backward);
	return hierarchical_tell_measured(r, d->shards, err);
}
