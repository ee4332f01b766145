/* Two levels: what of each tensor lies in a shard, and a bucket's tasks. */
#include "shards_parts.h"

#include "error.h"

#include <stdlib.h>

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

gradcomp_status shards_cut(const gradcomp_reducer *r, const division *d, gradcomp_error *err)
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
	const struct gradcomp_collective_v1 *c = r->port.collective;
	int64_t bad = b->local_bad != 0;
	gradcomp_status st = c->allreduce(r->port.instance, &bad, 1, GRADCOMP_I64, GRADCOMP_MAX, 1.0, err);
	b->bad = bad != 0;
	if (st || b->bad)
		return st ? st : exchange_tell(r, b, err);
	return c->shard_reduce(r->port.instance, b->work.flat, b->pub.numel, r->shards->scale, err);
}

/* The compressor has its tensors where the node's sums are. */
static gradcomp_status enter(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	struct shards *s = r->shards;
	gradcomp_reducer *in = &s->inner;
	bucket *part = b->part;
	const task begin = {TASK_BEGIN, 0};
	part->bad = 0;
	if (!part->pub.numel)
		return GRADCOMP_OK;
	part->slot = b->slot;
	for (uint32_t i = part->pub.first; i < part->pub.first + part->pub.ntensors; i++)
		s->grads[i] = b->work.flat + s->of[b->pub.index].begin + (in->tensors[i].offset - part->pub.offset);
	return task_host(in, part, &begin, err);
}

gradcomp_status shards_task(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err)
{
	gradcomp_reducer *in = &r->shards->inner;
	const task finish = {TASK_FINISH, 0};
	switch (t->kind) {
	case TASK_REDUCE:
		return reduce(r, b, err);
	case TASK_ENTER:
		return enter(r, b, err);
	case TASK_LEAVE:
		return b->part->pub.numel ? task_host(in, b->part, &finish, err) : GRADCOMP_OK;
	case TASK_SPREAD:
		return r->port.collective->shard_spread(r->port.instance, b->work.flat, b->pub.numel, err);
	default:
		return task_host(in, b->part, t, err);
	}
}
