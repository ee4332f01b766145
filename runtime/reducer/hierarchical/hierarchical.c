#include "reducer/hierarchical/hierarchical_internal.h"

#include "reducer/exchange/exchange.h"
#include "reducer/residual_norm.h"

#include "base/error.h"
#include "config/spec.h"

#include <stdlib.h>
#include <string.h>

int hierarchical_possible(const struct gradcomp_compressor_v1 *compressor, uint32_t patterns,
                          const struct gradcomp_collective_v1 *c)
{
	const uint32_t may = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED) | GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED);
	const uint32_t never = GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_PASSES_NONFINITE;
	/* What is summed without being chosen (none) is summed in two levels by the collective. */
	int chooses = patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) || compressor->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK;
	return c->serves & GRADCOMP_CAN_SHARD && c->serves & GRADCOMP_CAN_ALLREDUCE && !(patterns & ~may) && chooses &&
	       !(compressor->traits & never);
}

int hierarchical_wanted(const engine *eng, const struct gradcomp_collective_v1 *c)
{
	return hierarchical_possible(eng->compressor, eng->layout.patterns, c);
}

static gradcomp_status ask_shard(const engine *eng, uint64_t numel, gradcomp_shard *out, gradcomp_error *err)
{
	*out = (gradcomp_shard){.struct_size = sizeof *out};
	gradcomp_status st = eng->coll_ctx.collective->shard(eng->coll_ctx.instance, numel, out, err);
	if (!st && (out->begin > numel || out->numel > numel - out->begin || out->nranks < 1 ||
	            out->rank >= out->nranks || (out->rank < 0 && out->numel)))
		st = error_set(err, GRADCOMP_ERR_INTERNAL,
		               "collective '%s' has a shard that is none of %llu numbers",
		               eng->coll_ctx.collective->info.name, (unsigned long long)numel);
	return st;
}

/* The holders of this rank's shards are the same of all buckets, however they are cut. */
static gradcomp_status find_holders(engine *eng, gradcomp_error *err)
{
	struct hierarchical *s = eng->hierarchical;
	uint64_t *bytes = calloc((size_t)s->nranks, sizeof *bytes);
	gradcomp_status st = GRADCOMP_OK;
	s->ranks = calloc((size_t)s->nranks, sizeof *s->ranks);
	if (!s->ranks || !bytes) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d holders of a shard", s->nranks);
	} else if (s->rank >= 0) {
		s->ranks[s->rank] = eng->group->ranks[eng->layout.rank];
		for (int p = 0; p < s->nranks; p++)
			bytes[p] = sizeof *s->ranks;
		st = eng->coll_ctx.collective->shard_allgather(eng->coll_ctx.instance, s->ranks, bytes, err);
	}
	for (int p = 0; !st && s->rank >= 0 && p < s->nranks; p++)
		if (s->ranks[p] < 0 || s->ranks[p] >= eng->job->nranks)
			st = error_set(err, GRADCOMP_ERR_MISMATCH,
			               "a holder of a shard says that it is rank %d of %d", s->ranks[p],
			               eng->job->nranks);
	free(bytes);
	return st;
}

gradcomp_status hierarchical_open(engine *eng, gradcomp_error *err)
{
	gradcomp_shard any;
	gradcomp_status st = ask_shard(eng, 0, &any, err);
	if (!st && (any.nranks == 1 || any.nranks >= eng->layout.nranks))
		return GRADCOMP_OK;
	if (!st && !(eng->hierarchical = calloc(1, sizeof *eng->hierarchical)))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards");
	if (!st) {
		eng->hierarchical->rank = any.rank;
		eng->hierarchical->nranks = any.nranks;
		eng->hierarchical->scale = (double)any.nranks / eng->layout.nranks;
		st = find_holders(eng, err);
	}
	/* Others wait for this rank in find_holders(). */
	if (st)
		job_fail(eng->job, st, err->text);
	return st;
}

/* A part of a tensor: a matrix stays one, of its own rows where they are whole. */
static void add(struct hierarchical *s, const gradcomp_tensor *t, uint32_t origin, uint64_t rows, uint64_t row)
{
	engine *in = &s->inner;
	uint32_t i = in->layout.ntensors;
	uint64_t *dims = s->dims + 2 * (size_t)i;
	if (!rows || !row)
		return;
	dims[0] = t->ndim > 1 ? rows : rows * row;
	dims[1] = row;
	s->tensors[i] = (gradcomp_tensor){.name = t->name,
	                                  .numel = rows * row,
	                                  .offset = in->layout.numel,
	                                  .dims = dims,
	                                  .ndim = t->ndim > 1 ? 2 : 1,
	                                  .dtype = GRADCOMP_F32};
	s->origin[i] = origin;
	in->layout.numel += rows * row;
	in->layout.ntensors++;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Elements [from, to) of tensor t: the end of a row, whole rows, the beginning of one. */
static void cut(struct hierarchical *s, const gradcomp_tensor *t, uint32_t origin, uint64_t from, uint64_t to)
{
	engine *in = &s->inner;
	uint64_t row = t->ndim > 1 && t->dims[0] ? t->numel / t->dims[0] : 0, head, n = to - from;
	if (from == 0 && to == t->numel) {
		uint32_t i = in->layout.ntensors++;
		s->tensors[i] = *t;
		s->tensors[i].offset = in->layout.numel;
		s->tensors[i].dtype = GRADCOMP_F32;
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

/* Fills the tensors and buckets of d->hierarchical->inner, origin and dims. */
static gradcomp_status cut_buckets(const engine *eng, const bucketing *d, gradcomp_error *err)
{
	struct hierarchical *s = d->hierarchical;
	engine *in = &s->inner;
	/* A shard cuts at most two tensors of a bucket, each into three. */
	size_t most = (size_t)eng->layout.ntensors + 4 * (size_t)d->nbuckets;
	in->buckets = calloc(d->nbuckets, sizeof *in->buckets);
	s->tensors = calloc(most, sizeof *s->tensors);
	s->origin = calloc(most, sizeof *s->origin);
	s->grads = calloc(most, sizeof *s->grads);
	s->dims = calloc(2 * most, sizeof *s->dims);
	if (!in->buckets || !s->tensors || !s->origin || !s->grads || !s->dims)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards of %u tensors",
		                 eng->layout.ntensors);
	in->nbuckets = d->nbuckets;
	in->layout.tensors = s->tensors;
	in->layout.ntensors = 0;
	in->layout.numel = 0;
	for (uint32_t i = 0; i < d->nbuckets; i++) {
		const gradcomp_bucket *b = &d->buckets[i].pub;
		uint64_t begin = s->of[i].begin, end = begin + s->of[i].numel;
		gradcomp_bucket *part = &in->buckets[i].pub;
		*part = (gradcomp_bucket){.struct_size = sizeof *part,
		                          .index = i,
		                          .first = in->layout.ntensors,
		                          .offset = in->layout.numel};
		for (uint32_t k = b->first; k < b->first + b->ntensors; k++) {
			const gradcomp_tensor *t = &eng->layout.tensors[k];
			uint64_t at = t->offset - b->offset, to = least(end, at + t->numel);
			if (t->numel && begin < at + t->numel && at < end)
				cut(s, t, k, begin > at ? begin - at : 0, to - at);
		}
		part->ntensors = in->layout.ntensors - part->first;
		part->numel = in->layout.numel - part->offset;
	}
	return GRADCOMP_OK;
}

static gradcomp_status make_arrays(bucketing *d, gradcomp_error *err)
{
	engine *in = &d->hierarchical->inner;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < d->nbuckets; i++) {
		st = bucketing_arrays(in, &in->buckets[i], err);
		d->buckets[i].part = &in->buckets[i];
	}
	return st;
}

/* The compressor among the holders: what it works on is there. */
static gradcomp_status make_instance(engine *eng, engine *in, gradcomp_error *err)
{
	return in->layout.numel ? engine_create_instance(in, &eng->job->host, eng->values, err) : GRADCOMP_OK;
}

gradcomp_status hierarchical_divide(engine *eng, bucketing *d, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	struct hierarchical *s = d->hierarchical = calloc(1, sizeof *s);
	gradcomp_status st = GRADCOMP_OK;
	if (!s)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards");
	engine *in = &s->inner;
	s->rank = eng->hierarchical->rank;
	s->nranks = eng->hierarchical->nranks;
	s->scale = eng->hierarchical->scale;
	s->view = (struct gradcomp_collective_v1){.info = c->info,
	                                          .serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER,
	                                          .allreduce = c->shard_allreduce,
	                                          .allgather = c->shard_allgather};
	in->coll_ctx = (coll_ctx){
		.channel = eng->coll_ctx.channel, .collective = &s->view, .instance = eng->coll_ctx.instance};
	in->job = eng->job;
	in->compressor = eng->compressor;
	in->compressor_spec = eng->compressor_spec;
	in->values = eng->values;
	in->layout = eng->layout;
	in->layout.rank = s->rank;
	in->layout.nranks = s->nranks;
	in->step = eng->step;
	s->of = calloc(d->nbuckets, sizeof *s->of);
	s->ranks = calloc((size_t)s->nranks, sizeof *s->ranks);
	s->before = calloc(eng->layout.ntensors, sizeof *s->before);
	s->backward = calloc(eng->layout.ntensors, sizeof *s->backward);
	if (!s->of || !s->ranks || !s->before || !s->backward)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards of %u buckets", d->nbuckets);
	memcpy(s->ranks, eng->hierarchical->ranks, (size_t)s->nranks * sizeof *s->ranks);
	s->group = (gradcomp_group){.job = eng->job, .me = s->rank, .nranks = s->nranks, .ranks = s->ranks};
	in->group = &s->group;
	for (uint32_t i = 0; !st && i < d->nbuckets; i++)
		st = ask_shard(eng, d->buckets[i].pub.numel, &s->of[i], err);
	if (!st)
		st = cut_buckets(eng, d, err);
	if (!st)
		st = engine_allocate(in, err);
	if (!st) {
		in->grads = s->grads;
		in->verify = eng->verify;
		in->verify_row = s->origin;
		st = make_arrays(d, err);
	}
	return st ? st : make_instance(eng, in, err);
}

void hierarchical_free(struct hierarchical *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; s->inner.buckets && i < s->inner.nbuckets; i++)
		bucketing_release(&s->inner.buckets[i]);
	free(s->inner.buckets);
	engine_free(&s->inner);
	free(s->tensors);
	free(s->grads);
	free(s->origin);
	free(s->dims);
	free(s->before);
	free(s->backward);
	free(s->ranks);
	free(s->of);
	free(s);
}

const engine *hierarchical_inner(const struct hierarchical *s)
{
	return &s->inner;
}

uint64_t hierarchical_shard_begin(const struct hierarchical *s, uint32_t bucket)
{
	return s->of[bucket].begin;
}

/* The first part of tensor i on this rank, or the number of parts. */
static uint32_t part_of(const struct hierarchical *s, uint32_t i)
{
	uint32_t k = 0;
	while (k < s->inner.layout.ntensors && s->origin[k] != i)
		k++;
	return k;
}

const char *hierarchical_choice(const engine *eng, uint32_t i)
{
	const struct hierarchical *s = eng->hierarchical;
	uint32_t k = part_of(s, i);
	if (!eng->compressor->choice)
		return eng->compressor->info.name;
	return k < s->inner.layout.ntensors ? eng->compressor->choice(s->inner.instance, k) : "on other ranks";
}

const residual_norm *hierarchical_residual_norm(engine *eng, uint32_t i)
{
	const struct hierarchical *s = eng->hierarchical;
	residual_norm *sum = &eng->norms[i];
	*sum = s->before[i];
	for (uint32_t k = part_of(s, i); k < s->inner.layout.ntensors && s->origin[k] == i; k++) {
		sum->shares += s->inner.norms[k].shares;
		sum->steps += s->inner.norms[k].steps;
	}
	return sum;
}

void hierarchical_carry(engine *eng, const bucketing *d)
{
	for (uint32_t i = 0; i < eng->layout.ntensors; i++)
		d->hierarchical->before[i] = *hierarchical_residual_norm(eng, i);
	d->hierarchical->inner.stats = eng->hierarchical->inner.stats;
	d->hierarchical->inner.warned = eng->hierarchical->inner.warned;
	d->hierarchical->notified = eng->hierarchical->notified;
}

void hierarchical_next_step(engine *eng)
{
	eng->hierarchical->inner.step = eng->step;
}

void hierarchical_step_done(engine *eng)
{
	engine *in = &eng->hierarchical->inner;
	in->step_bad = eng->step_bad;
	hierarchical_next_step(eng);
	residual_norm_step(in);
	eng->stats.error_steps = in->stats.error_steps;
	eng->stats.error_mean = in->stats.error_mean;
	eng->stats.error_last = in->stats.error_last;
}

static gradcomp_status reduce(engine *eng, bucket *b, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	gradcomp_status st = exchange_largest_head(eng, b, err);
	if (st || b->bad)
		return st ? st : exchange_nonfinite(eng, b, err);
	return c->local_reduce_scatter(eng->coll_ctx.instance, b->work.flat, b->pub.numel, eng->hierarchical->scale,
	                               err);
}

/* The compressor has its tensors where the node's sums are. */
static gradcomp_status local_begin(engine *eng, bucket *b, gradcomp_error *err)
{
	struct hierarchical *s = eng->hierarchical;
	engine *in = &s->inner;
	bucket *part = b->part;
	const task begin = {TASK_BEGIN, 0};
	part->bad = 0;
	if (!part->pub.numel)
		return GRADCOMP_OK;
	part->workspace = b->workspace;
	for (uint32_t i = part->pub.first; i < part->pub.first + part->pub.ntensors; i++)
		s->grads[i] = b->work.flat + s->of[b->pub.index].begin +
		              (in->layout.tensors[i].offset - part->pub.offset);
	return task_host(in, part, &begin, err);
}

gradcomp_status hierarchical_task(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	engine *in = &eng->hierarchical->inner;
	const task finish = {TASK_FINISH, 0};
	switch (t->kind) {
	case TASK_REDUCE_LOCAL:
		return reduce(eng, b, err);
	case TASK_LOCAL_BEGIN:
		return local_begin(eng, b, err);
	case TASK_LOCAL_END:
		return b->part->pub.numel ? task_host(in, b->part, &finish, err) : GRADCOMP_OK;
	case TASK_ALLGATHER_LOCAL:
		return eng->coll_ctx.collective->local_allgather(eng->coll_ctx.instance, b->work.flat, b->pub.numel,
		                                                 err);
	default:
		return task_host(in, b->part, t, err);
	}
}

/* s->measured, as far as it is of the parts in s, to the compressor of s. */
static gradcomp_status pass_on_measured(const engine *eng, const struct hierarchical *s, gradcomp_error *err)
{
	const gradcomp_measured *m = &s->measured;
	const engine *in = &s->inner;
	uint32_t n = in->layout.ntensors;
	gradcomp_measured part = *m;
	double *backward = calloc(n + 1, sizeof *backward);
	gradcomp_status st = GRADCOMP_OK;
	if (!backward)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the times of %u tensors", n);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t whole = eng->layout.tensors[s->origin[i]].numel;
		backward[i] =
			whole ? m->backward[s->origin[i]] * (double)in->layout.tensors[i].numel / (double)whole : 0;
	}
	part.ntensors = n;
	part.backward = backward;
	if (in->instance)
		st = eng->compressor->measured(in->instance, &part, eng->step, err);
	free(backward);
	return st;
}

gradcomp_status hierarchical_measured(engine *eng, const gradcomp_measured *m, gradcomp_error *err)
{
	struct hierarchical *s = eng->hierarchical;
	memcpy(s->backward, m->backward, eng->layout.ntensors * sizeof *s->backward);
	s->measured = *m;
	s->measured.backward = s->backward;
	return pass_on_measured(eng, s, err);
}

/* Of a run of numbers of the layout that is in `room`, what lies in the shards of *to. */
static void take(const bucketing *to, const gradcomp_bucket *b, const float *room, float *into)
{
	const struct hierarchical *s = to->hierarchical;
	for (uint32_t k = to->bucket_of[b->first];
	     k < to->nbuckets && to->buckets[k].pub.first < b->first + b->ntensors; k++) {
		const gradcomp_bucket *part = &s->inner.buckets[k].pub;
		uint64_t at, begin = to->buckets[k].pub.offset + s->of[k].begin;
		uint64_t n = hierarchical_overlap(b->offset, b->numel, begin, part->numel, &at);
		if (n)
			memcpy(into + part->offset + (at - begin), room + (at - b->offset), n * sizeof *into);
	}
}

static gradcomp_status move_array(engine *eng, const bucketing *to, const float *from, float *into, float *room,
                                  gradcomp_error *err)
{
	const struct hierarchical *s = eng->hierarchical;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < eng->nbuckets; i++) {
		const gradcomp_bucket *b = &eng->buckets[i].pub, *part = &s->inner.buckets[i].pub;
		if (!b->numel)
			continue;
		if (part->numel)
			memcpy(room + s->of[i].begin, from + part->offset, part->numel * sizeof *room);
		st = eng->coll_ctx.collective->local_allgather(eng->coll_ctx.instance, room, b->numel, err);
		if (!st)
			take(to, b, room, into);
	}
	return st;
}

/* Array by array and bucket by bucket of before, the ranks of a node gather what they hold, as
 * they do with a result, and each takes what it holds from now on. So no rank needs more room
 * than for a bucket. */
gradcomp_status hierarchical_move(engine *eng, const bucketing *d, float *room, gradcomp_error *err)
{
	const engine *from = &eng->hierarchical->inner;
	engine *to = &d->hierarchical->inner;
	gradcomp_status st = GRADCOMP_OK;
	if (from->error)
		st = move_array(eng, d, from->error, to->error, room, err);
	for (uint32_t k = 0; !st && k < eng->compressor->state_arrays; k++)
		st = move_array(eng, d, from->state[k], to->state[k], room, err);
	if (st)
		return st;
	hierarchical_carry(eng, d);
	if (eng->compressor->save && !d->hierarchical->notified) {
		d->hierarchical->notified = 1;
		log_line(&eng->job->log, GRADCOMP_LOG_INFO,
		         "step %llu: buckets moved, and with them the parts of tensors that ranks of a node hold: "
		         "what '%s' "
		         "keeps of its own about those begins anew (error memory has moved along)",
		         (unsigned long long)eng->step, eng->compressor->info.name);
	}
	if (!eng->hierarchical->measured.struct_size)
		return GRADCOMP_OK;
	d->hierarchical->measured = eng->hierarchical->measured;
	d->hierarchical->measured.backward = d->hierarchical->backward;
	memcpy(d->hierarchical->backward, eng->hierarchical->backward,
	       eng->layout.ntensors * sizeof *d->hierarchical->backward);
	return pass_on_measured(eng, d->hierarchical, err);
}
