/* Two levels: making what the compressor works on, and giving it back. */
#include "shards_parts.h"

#include "error.h"
#include "spec.h"

#include <stdlib.h>
#include <string.h>

int shards_possible(const struct gradcomp_compressor_v1 *compressor, uint32_t patterns,
                    const struct gradcomp_collective_v1 *c)
{
	const uint32_t may = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED) | GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED);
	const uint32_t never = GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_PASSES_NONFINITE;
	return c->serves & GRADCOMP_CAN_SHARD && c->serves & GRADCOMP_CAN_ALLREDUCE && !(patterns & ~may) &&
	       patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) && !(compressor->traits & never);
}

int shards_wanted(const gradcomp_reducer *r, const struct gradcomp_collective_v1 *c)
{
	return shards_possible(r->compressor, r->layout.patterns, c);
}

static gradcomp_status ask(const gradcomp_reducer *r, uint64_t numel, gradcomp_shard *out, gradcomp_error *err)
{
	*out = (gradcomp_shard){.struct_size = sizeof *out};
	gradcomp_status st = r->port.collective->shard(r->port.instance, numel, out, err);
	if (!st && (out->begin > numel || out->numel > numel - out->begin || out->nranks < 1 || out->rank >= out->nranks ||
	            (out->rank < 0 && out->numel)))
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "collective '%s' has a shard that is none of %llu numbers",
		               r->port.collective->info.name, (unsigned long long)numel);
	return st;
}

/* The holders of this rank's shards are the same of all buckets, however they are cut. */
static gradcomp_status meet(gradcomp_reducer *r, gradcomp_error *err)
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
		st = r->port.collective->shard_allgather(r->port.instance, s->ranks, bytes, err);
	}
	for (int p = 0; !st && s->rank >= 0 && p < s->nranks; p++)
		if (s->ranks[p] < 0 || s->ranks[p] >= r->job->nranks)
			st = error_set(err, GRADCOMP_ERR_MISMATCH, "a holder of a shard says that it is rank %d of %d",
			               s->ranks[p], r->job->nranks);
	free(bytes);
	return st;
}

gradcomp_status shards_open(gradcomp_reducer *r, gradcomp_error *err)
{
	gradcomp_shard any;
	gradcomp_status st = ask(r, 0, &any, err);
	if (!st && (any.nranks == 1 || any.nranks >= r->layout.nranks))
		return GRADCOMP_OK;
	if (!st && !(r->shards = calloc(1, sizeof *r->shards)))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards");
	if (!st) {
		r->shards->rank = any.rank;
		r->shards->nranks = any.nranks;
		r->shards->scale = (double)any.nranks / r->layout.nranks;
		st = meet(r, err);
	}
	/* Others wait for this rank in meet(). */
	if (st)
		job_fail(r->job, st, err->text);
	return st;
}

static gradcomp_status arrays(division *d, gradcomp_error *err)
{
	gradcomp_reducer *in = &d->shards->inner;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < d->nbuckets; i++) {
		st = division_arrays(in, &in->buckets[i], err);
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

gradcomp_status shards_divide(gradcomp_reducer *r, division *d, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = r->port.collective;
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
	in->port = (port){.channel = r->port.channel, .collective = &s->view, .instance = r->port.instance};
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
		st = ask(r, d->buckets[i].pub.numel, &s->of[i], err);
	if (!st)
		st = shards_cut(r, d, err);
	if (!st)
		st = reducer_allocate(in, err);
	if (!st) {
		in->grads = s->grads;
		st = arrays(d, err);
	}
	return st ? st : instance(r, in, err);
}

void shards_free(const gradcomp_reducer *r, struct shards *s)
{
	if (!s)
		return;
	gradcomp_reducer *in = &s->inner;
	if (in->instance)
		r->compressor->destroy(in->instance);
	for (uint32_t i = 0; in->state && i < r->compressor->state_arrays; i++)
		free(in->state[i]);
	for (uint32_t i = 0; in->buckets && i < in->nbuckets; i++)
		division_release(&in->buckets[i]);
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

const gradcomp_reducer *shards_inner(const struct shards *s)
{
	return &s->inner;
}

uint64_t shards_begin(const struct shards *s, uint32_t bucket)
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

const char *shards_choice(const gradcomp_reducer *r, uint32_t i)
{
	const struct shards *s = r->shards;
	uint32_t k = part_of(s, i);
	if (!r->compressor->choice)
		return r->compressor->info.name;
	return k < s->inner.layout.ntensors ? r->compressor->choice(s->inner.instance, k) : "on other ranks";
}

const struct held *shards_held(gradcomp_reducer *r, uint32_t i)
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

void shards_carry(gradcomp_reducer *r, const division *d)
{
	for (uint32_t i = 0; i < r->layout.ntensors; i++)
		d->shards->before[i] = *shards_held(r, i);
	d->shards->inner.stats = r->shards->inner.stats;
	d->shards->inner.warned = r->shards->inner.warned;
	d->shards->told = r->shards->told;
}

void shards_next(gradcomp_reducer *r)
{
	r->shards->inner.step = r->step;
}

void shards_step(gradcomp_reducer *r)
{
	gradcomp_reducer *in = &r->shards->inner;
	in->step_bad = r->step_bad;
	shards_next(r);
	held_step(in);
	r->stats.error_steps = in->stats.error_steps;
	r->stats.error_mean = in->stats.error_mean;
	r->stats.error_last = in->stats.error_last;
}
