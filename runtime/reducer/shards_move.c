/* Two levels: bucket boundaries move, and with them which rank of a node holds what.
 *
 * Array by array and bucket by bucket of before, the ranks of a node show one another what
 * they hold, as they spread a result, and each takes what it holds from now on. So no rank
 * needs more room than for a bucket. */
#include "shards_parts.h"

#include <string.h>

/* Of a run of numbers of the layout that is in `room`, what lies in the shards of *to. */
static void take(const division *to, const gradcomp_bucket *b, const float *room, float *into)
{
	const struct shards *s = to->shards;
	for (uint32_t k = to->bucket_of[b->first]; k < to->nbuckets && to->buckets[k].pub.first < b->first + b->ntensors; k++) {
		const gradcomp_bucket *part = &s->inner.buckets[k].pub;
		uint64_t at, begin = to->buckets[k].pub.offset + s->of[k].begin;
		uint64_t n = shards_common(b->offset, b->numel, begin, part->numel, &at);
		if (n)
			memcpy(into + part->offset + (at - begin), room + (at - b->offset), n * sizeof *into);
	}
}

static gradcomp_status move(gradcomp_reducer *r, const division *to, const float *from, float *into, float *room,
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
		st = r->port.collective->shard_spread(r->port.instance, room, b->numel, err);
		if (!st)
			take(to, b, room, into);
	}
	return st;
}

gradcomp_status shards_move(gradcomp_reducer *r, const division *d, float *room, gradcomp_error *err)
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
	shards_carry(r, d);
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
	return shards_tell(r, d->shards, err);
}
