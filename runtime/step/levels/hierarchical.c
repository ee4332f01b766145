#include "step/levels/hierarchical_internal.h"

#include "step/residual_norm.h"

#include "base/error.h"
#include "config/spec.h"

#include <stdlib.h>
#include <string.h>

int hierarchical_possible(const struct gradcomp_compressor_v1 *compressor, uint32_t patterns,
                          const struct gradcomp_collective_v1 *c)
{
	const uint32_t may = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED) | GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED);
	const uint32_t never = GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_PASSES_NONFINITE;
	/* A compressor that sums without choosing (none) is summed in two levels by the collective. */
	int chooses = patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) ||
	              compressor->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK;
	return c->serves & GRADCOMP_CAN_SHARD && c->serves & GRADCOMP_CAN_ALLREDUCE && !(patterns & ~may) && chooses &&
	       !(compressor->traits & never);
}

int hierarchical_wanted(const engine *eng, const struct gradcomp_collective_v1 *c)
{
	return hierarchical_possible(eng->compressor, eng->layout.patterns, c);
}

/* This rank's shard with that index; rank -1: there is none. */
static gradcomp_status ask_shard(const engine *eng, uint32_t index, uint64_t numel, gradcomp_shard *out, void **holders,
                                 gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	gradcomp_status st = GRADCOMP_OK;
	*out = (gradcomp_shard){.struct_size = sizeof *out, .rank = -1, .nranks = 1};
	*holders = eng->coll_ctx.instance;
	if (c->shard_at)
		st = c->shard_at(eng->coll_ctx.instance, index, numel, out, holders, err);
	else if (!index)
		st = c->shard(eng->coll_ctx.instance, numel, out, err);
	if (!st && (out->begin > numel || out->numel > numel - out->begin || out->nranks < 1 ||
	            out->rank >= out->nranks || (out->rank < 0 && out->numel)))
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "collective '%s' has a shard that is none of %llu numbers",
		               c->info.name, (unsigned long long)numel);
	return st;
}

/* The holders of this rank's shards are the same of all buckets, however they are cut. */
static gradcomp_status find_holders(engine *eng, struct hierarchical *s, gradcomp_error *err)
{
	uint64_t *bytes = calloc((size_t)s->nranks, sizeof *bytes);
	gradcomp_status st = GRADCOMP_OK;
	s->ranks = calloc((size_t)s->nranks, sizeof *s->ranks);
	if (!s->ranks || !bytes) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d holders of a shard", s->nranks);
	} else if (s->rank >= 0) {
		s->ranks[s->rank] = eng->group->ranks[eng->layout.rank];
		for (int p = 0; p < s->nranks; p++)
			bytes[p] = sizeof *s->ranks;
		st = eng->coll_ctx.collective->shard_allgather(s->holders, s->ranks, bytes, err);
	}
	for (int p = 0; !st && s->rank >= 0 && p < s->nranks; p++)
		if (s->ranks[p] < 0 || s->ranks[p] >= eng->job->nranks)
			st = error_set(err, GRADCOMP_ERR_MISMATCH, "a holder of a shard says that it is rank %d of %d",
			               s->ranks[p], eng->job->nranks);
	free(bytes);
	return st;
}

static const engine_ops ops;
static const engine_levels levels;

gradcomp_status hierarchical_open(engine *eng, gradcomp_error *err)
{
	gradcomp_shard any;
	engine **to = &eng->list.shards;
	void *holders;
	gradcomp_status st = ask_shard(eng, 0, 0, &any, &holders, err);
	if (!st && (any.nranks == 1 || any.nranks >= eng->layout.nranks))
		return GRADCOMP_OK;
	/* A rank that holds nothing has the first, too. */
	for (uint32_t k = 0; !st && (!k || any.rank >= 0); k++, to = &(*to)->next) {
		struct hierarchical *s = calloc(1, sizeof *s);
		if (!s) {
			st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards");
			break;
		}
		*to = &s->inner;
		s->holders = holders;
		s->rank = any.rank;
		s->nranks = any.nranks;
		s->scale = (double)any.nranks / eng->layout.nranks;
		st = find_holders(eng, s, err);
		if (!st)
			st = ask_shard(eng, k + 1, 0, &any, &holders, err);
	}
	/* Others wait for this rank in find_holders(). */
	if (st)
		job_fail(eng->job, st, err->text);
	eng->ways.ops = &ops;
	eng->ways.levels = &levels;
	/* On a GPU it was made to know whether it works there; what works is on shards. */
	if (!st && eng->instance) {
		eng->compressor->destroy(eng->instance);
		eng->instance = NULL;
	}
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

/* Fills the tensors and buckets of s->inner, origin and dims. */
static gradcomp_status cut_buckets(const engine *eng, const bucket_list *d, struct hierarchical *s, gradcomp_error *err)
{
	engine *in = &s->inner;
	/* A shard cuts at most two tensors of a bucket, each into three. */
	size_t most = (size_t)eng->layout.ntensors + 4 * (size_t)d->nbuckets;
	in->list.buckets = calloc(d->nbuckets, sizeof *in->list.buckets);
	s->tensors = calloc(most, sizeof *s->tensors);
	s->origin = calloc(most, sizeof *s->origin);
	s->grads = calloc(most, sizeof *s->grads);
	s->dims = calloc(2 * most, sizeof *s->dims);
	if (!in->list.buckets || !s->tensors || !s->origin || !s->grads || !s->dims)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards of %u tensors", eng->layout.ntensors);
	in->list.nbuckets = d->nbuckets;
	in->layout.tensors = s->tensors;
	in->layout.ntensors = 0;
	in->layout.numel = 0;
	for (uint32_t i = 0; i < d->nbuckets; i++) {
		const gradcomp_bucket *b = &d->buckets[i].pub;
		uint64_t begin = s->of[i].begin, end = begin + s->of[i].numel;
		gradcomp_bucket *part = &in->list.buckets[i].pub;
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

static gradcomp_status make_arrays(bucket_list *d, struct hierarchical *s, gradcomp_error *err)
{
	engine *in = &s->inner;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < d->nbuckets; i++) {
		bucket **to = &d->buckets[i].part;
		st = bucket_open(in, &in->list.buckets[i], err);
		if (!st)
			in->ways.device->calls->place(in, &in->list.buckets[i]);
		in->list.buckets[i].whole = &d->buckets[i];
		in->list.buckets[i].begin = s->of[i].begin;
		while (*to)
			to = &(*to)->beside;
		*to = &in->list.buckets[i];
	}
	return st;
}

/* The compressor among the holders: what it works on is there. */
static gradcomp_status make_instance(engine *eng, engine *in, gradcomp_error *err)
{
	return in->layout.numel ? eng->ways.device->calls->create(in, eng, err) : GRADCOMP_OK;
}

/* The shards with that index, whose holders are those of `like`. */
static gradcomp_status divide(engine *eng, bucket_list *d, const struct hierarchical *like, uint32_t index,
                              struct hierarchical *s, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	gradcomp_status st = GRADCOMP_OK;
	void *holders;
	engine *in = &s->inner;
	s->holders = like->holders;
	s->rank = like->rank;
	s->nranks = like->nranks;
	s->scale = like->scale;
	s->view = (struct gradcomp_collective_v1){.info = c->info,
	                                          .serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER,
	                                          .allreduce = c->shard_allreduce,
	                                          .allgather = c->shard_allgather};
	in->coll_ctx = (coll_ctx){.channel = eng->coll_ctx.channel, .collective = &s->view, .instance = s->holders};
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
	memcpy(s->ranks, like->ranks, (size_t)s->nranks * sizeof *s->ranks);
	s->group = (gradcomp_group){.job = eng->job, .me = s->rank, .nranks = s->nranks, .ranks = s->ranks};
	in->group = &s->group;
	for (uint32_t i = 0; !st && i < d->nbuckets; i++)
		st = ask_shard(eng, index, d->buckets[i].pub.numel, &s->of[i], &holders, err);
	if (!st)
		st = cut_buckets(eng, d, s, err);
	in->ways.ops = in->ways.whole = &host_ops;
	in->ways.device = &host_device;
	in->ways.levels = &engine_one_level;
	if (!st)
		st = eng->ways.device->calls->share(in, eng, err);
	if (!st)
		st = engine_allocate(in, err);
	if (!st)
		st = in->ways.device->calls->share_arrays(in, d->nbuckets, err);
	if (!st) {
		in->grads = s->grads;
		in->checks.verify = eng->checks.verify;
		in->checks.row = s->origin;
		st = make_arrays(d, s, err);
	}
	return st ? st : make_instance(eng, in, err);
}

static gradcomp_status divide_all(engine *eng, bucket_list *d, gradcomp_error *err)
{
	engine **to = &d->shards;
	gradcomp_status st = GRADCOMP_OK;
	uint32_t index = 0;
	for (engine *like = eng->list.shards; !st && like; like = like->next, to = &(*to)->next) {
		struct hierarchical *s = calloc(1, sizeof *s);
		if (!s)
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards");
		*to = &s->inner;
		st = divide(eng, d, hierarchical_of(like), index++, s, err);
	}
	return st;
}

void hierarchical_free(engine *shards)
{
	struct hierarchical *s = hierarchical_of(shards);
	if (!s)
		return;
	hierarchical_free(s->inner.next);
	for (uint32_t i = 0; s->inner.list.buckets && i < s->inner.list.nbuckets; i++)
		bucket_close(&s->inner.list.buckets[i]);
	free(s->inner.list.buckets);
	engine_free(&s->inner);
	if (s->inner.ways.device)
		s->inner.ways.device->calls->close(&s->inner);
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

/* Finds the first part of tensor i in a shard, or the number of parts. */
static uint32_t part_of(const struct hierarchical *s, uint32_t i)
{
	uint32_t k = 0;
	while (k < s->inner.layout.ntensors && s->origin[k] != i)
		k++;
	return k;
}

static const char *choice(const engine *eng, uint32_t i)
{
	if (!eng->compressor->choice)
		return eng->compressor->info.name;
	for (const struct hierarchical *s = hierarchical_of(eng->list.shards); s; s = hierarchical_of(s->inner.next)) {
		uint32_t k = part_of(s, i);
		if (k < s->inner.layout.ntensors)
			return eng->compressor->choice(s->inner.instance, k);
	}
	return "on other ranks";
}

static const residual_norm *norm_of(engine *eng, uint32_t i)
{
	residual_norm *sum = &eng->meter.norms[i];
	*sum = hierarchical_of(eng->list.shards)->before[i];
	for (const struct hierarchical *s = hierarchical_of(eng->list.shards); s; s = hierarchical_of(s->inner.next))
		for (uint32_t k = part_of(s, i); k < s->inner.layout.ntensors && s->origin[k] == i; k++) {
			sum->shares += s->inner.meter.norms[k].shares;
			sum->steps += s->inner.meter.norms[k].steps;
		}
	return sum;
}

static void carry(engine *eng, const bucket_list *d)
{
	struct hierarchical *to = hierarchical_of(d->shards);
	for (uint32_t i = 0; i < eng->layout.ntensors; i++)
		to->before[i] = *norm_of(eng, i);
	to->notified = hierarchical_of(eng->list.shards)->notified;
	engine *next = d->shards;
	for (const engine *in = eng->list.shards; in; in = in->next, next = next->next) {
		next->stats = in->stats;
		next->warned = in->warned;
	}
}

/* The compressor has its tensors where the node's sums are. */
static void place(struct hierarchical *s, const bucket *b, const bucket *part)
{
	const engine *in = &s->inner;
	for (uint32_t i = part->pub.first; i < part->pub.first + part->pub.ntensors; i++)
		s->grads[i] =
			b->work.flat + s->of[b->pub.index].begin + (in->layout.tensors[i].offset - part->pub.offset);
}

/* Does a task of all this rank's shards, in their order. */
static gradcomp_status each_part(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	const int rounds = t->kind == TASK_ENCODE || t->kind == TASK_EXCHANGE || t->kind == TASK_DECODE;
	workspace *w = b->workspace;
	bucket *part = b->part;
	gradcomp_status st = GRADCOMP_OK;
	for (struct hierarchical *s = hierarchical_of(eng->list.shards); !st && s;
	     s = hierarchical_of(s->inner.next), part = part->beside) {
		/* On a GPU a shard that stands on no boundary may need a copy, beside the bucket's. */
		if ((part != b->part || eng->arrays.arena) && !(w = workspace_beside(w)))
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a workspace");
		if (!part->pub.numel || (rounds && (t->round >= part->plan.nrounds || part->bad)))
			continue;
		part->workspace = w;
		if (t->kind == TASK_LOCAL_BEGIN)
			place(s, b, part);
		st = engine_do(&s->inner, part, t, err);
	}
	return st;
}

static gradcomp_status begin(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	return t->kind == TASK_BEGIN ? eng->ways.whole->begin(eng, b, t, err) : each_part(eng, b, t, err);
}

static gradcomp_status finish(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	return t->kind == TASK_FINISH ? eng->ways.whole->finish(eng, b, t, err) : each_part(eng, b, t, err);
}

static gradcomp_status exchange(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	void *on = eng->coll_ctx.instance;
	if (t->kind == TASK_EXCHANGE)
		return each_part(eng, b, t, err);
	if (t->kind == TASK_ALLGATHER_LOCAL)
		return c->local_allgather(on, b->work.flat, b->pub.numel, err);
	gradcomp_status st = eng->ways.whole->announce(eng, b, err);
	return st || b->bad ? st
	                    : c->local_reduce_scatter(on, b->work.flat, b->pub.numel,
	                                              hierarchical_of(eng->list.shards)->scale, err);
}

static const engine_ops ops = {begin, each_part, exchange, each_part, finish, NULL};

/* *m, as far as it is of the parts in s, to the compressor of s. */
static gradcomp_status pass_on_measured(const engine *eng, const struct hierarchical *s, const gradcomp_measured *m,
                                        gradcomp_error *err)
{
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

/* Passes what the first knows on to all of them. */
static gradcomp_status tell_measured(const engine *eng, const struct hierarchical *first, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (const struct hierarchical *s = first; !st && s; s = hierarchical_of(s->inner.next))
		st = pass_on_measured(eng, s, &first->measured, err);
	return st;
}

static gradcomp_status measured(engine *eng, const gradcomp_measured *m, gradcomp_error *err)
{
	struct hierarchical *s = hierarchical_of(eng->list.shards);
	memcpy(s->backward, m->backward, eng->layout.ntensors * sizeof *s->backward);
	s->measured = *m;
	s->measured.backward = s->backward;
	return tell_measured(eng, s, err);
}

/* Copies the part of a run of numbers of the layout that is in `room` which lies in shards of `to`, to *into. */
static gradcomp_status take(const bucket_list *to, const struct hierarchical *s, const gradcomp_bucket *b,
                            const float *room, uint32_t array, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t k = to->bucket_of[b->first];
	     !st && k < to->nbuckets && to->buckets[k].pub.first < b->first + b->ntensors; k++) {
		const gradcomp_bucket *part = &s->inner.list.buckets[k].pub;
		uint64_t at, begin = to->buckets[k].pub.offset + s->of[k].begin;
		uint64_t n = bucket_overlap(b->offset, b->numel, begin, part->numel, &at);
		if (n)
			st = engine_write(&s->inner, array, part->offset + (at - begin), n, room + (at - b->offset),
			                  err);
	}
	return st;
}

/* Moves array k of all shards. */
static gradcomp_status move_array(engine *eng, const bucket_list *to, uint32_t k, float *room, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < eng->list.nbuckets; i++) {
		const gradcomp_bucket *b = &eng->list.buckets[i].pub;
		if (!b->numel)
			continue;
		for (const struct hierarchical *s = hierarchical_of(eng->list.shards); !st && s;
		     s = hierarchical_of(s->inner.next)) {
			const gradcomp_bucket *part = &s->inner.list.buckets[i].pub;
			if (part->numel)
				st = engine_read(&s->inner, k, part->offset, part->numel, room + s->of[i].begin, err);
		}
		if (!st)
			st = eng->coll_ctx.collective->local_allgather(eng->coll_ctx.instance, room, b->numel, err);
		for (const struct hierarchical *s = hierarchical_of(to->shards); !st && s;
		     s = hierarchical_of(s->inner.next))
			st = take(to, s, b, room, k, err);
	}
	return st;
}

/* Array by array and bucket by bucket of before, the ranks of a node gather what they hold, as
 * they do with a result, and each takes what it holds from now on. So no rank needs more room
 * than for a bucket. */
static gradcomp_status move(engine *eng, const bucket_list *d, float *room, gradcomp_error *err)
{
	struct hierarchical *from = hierarchical_of(eng->list.shards), *to = hierarchical_of(d->shards);
	uint32_t arrays = engine_arrays_count(eng->list.shards);
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t k = 0; !st && k < arrays; k++)
		st = move_array(eng, d, k, room, err);
	if (st)
		return st;
	carry(eng, d);
	if (eng->compressor->save && !to->notified) {
		to->notified = 1;
		log_line(&eng->job->log, GRADCOMP_LOG_INFO,
		         "step %llu: buckets moved, and with them the parts of tensors that ranks of a node hold: "
		         "what '%s' "
		         "keeps of its own about those begins anew (error memory has moved along)",
		         (unsigned long long)eng->step, eng->compressor->info.name);
	}
	if (!from->measured.struct_size)
		return GRADCOMP_OK;
	to->measured = from->measured;
	to->measured.backward = to->backward;
	memcpy(to->backward, from->backward, eng->layout.ntensors * sizeof *to->backward);
	return tell_measured(eng, to, err);
}

static const engine_levels levels = {divide_all, move, carry, measured, choice, norm_of};
