/* Two levels: making what the compressor works on, and giving it back. */
#include "shards_parts.h"

#include "error.h"

#include <stdlib.h>
#include <string.h>

int shards_wanted(const gradcomp_reducer *r, const struct gradcomp_collective_v1 *c)
{
	const uint32_t may = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED) | GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED);
	const uint32_t never = GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_PASSES_NONFINITE;
	return c->serves & GRADCOMP_CAN_SHARD && c->serves & GRADCOMP_CAN_ALLREDUCE && !(r->layout.patterns & ~may) &&
	       r->layout.patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) && !(r->compressor->traits & never);
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

gradcomp_status shards_open(gradcomp_reducer *r, gradcomp_error *err)
{
	gradcomp_shard any;
	gradcomp_status st = ask(r, 0, &any, err);
	if (st || any.nranks == 1 || any.nranks >= r->layout.nranks)
		return st;
	r->shards = calloc(1, sizeof *r->shards);
	if (!r->shards)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards");
	r->shards->rank = any.rank;
	r->shards->nranks = any.nranks;
	r->shards->scale = (double)any.nranks / r->layout.nranks;
	return GRADCOMP_OK;
}

/* The collective among the holders, and their ranks in the world. */
static gradcomp_status meet(gradcomp_reducer *r, gradcomp_error *err)
{
	struct shards *s = r->shards;
	gradcomp_reducer *in = &s->inner;
	const struct gradcomp_collective_v1 *c = r->port.collective;
	gradcomp_status st = GRADCOMP_OK;
	s->view = (struct gradcomp_collective_v1){
		.info = c->info, .serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER,
		.allreduce = c->shard_allreduce, .allgather = c->shard_allgather};
	in->port = (port){.channel = r->port.channel, .collective = &s->view, .instance = r->port.instance};
	s->group = (gradcomp_group){.job = r->job, .me = s->rank, .nranks = s->nranks};
	s->group.ranks = calloc((size_t)s->nranks, sizeof *s->group.ranks);
	in->group = &s->group;
	if (!s->group.ranks)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d holders of a shard", s->nranks);
	if (s->rank < 0)
		return GRADCOMP_OK;
	s->group.ranks[s->rank] = r->group->ranks[r->layout.rank];
	for (int p = 0; p < s->nranks; p++)
		in->lengths[p] = sizeof *s->group.ranks;
	st = c->shard_allgather(r->port.instance, s->group.ranks, in->lengths, err);
	for (int p = 0; !st && p < s->nranks; p++)
		if (s->group.ranks[p] < 0 || s->group.ranks[p] >= r->job->nranks)
			st = error_set(err, GRADCOMP_ERR_MISMATCH, "a holder of a shard says that it is rank %d of %d",
			               s->group.ranks[p], r->job->nranks);
	return st;
}

static gradcomp_status buckets(gradcomp_reducer *r, gradcomp_error *err)
{
	gradcomp_reducer *in = &r->shards->inner;
	for (uint32_t i = 0; i < r->nbuckets; i++) {
		gradcomp_status st = layout_arrays(in, &in->buckets[i], err);
		if (st)
			return st;
		r->buckets[i].part = &in->buckets[i];
	}
	return GRADCOMP_OK;
}

gradcomp_status shards_make(gradcomp_reducer *r, const gradcomp_value *values, gradcomp_error *err)
{
	struct shards *s = r->shards;
	gradcomp_reducer *in = &s->inner;
	gradcomp_status st = GRADCOMP_OK;
	in->job = r->job;
	in->compressor = r->compressor;
	in->compressor_spec = r->compressor_spec;
	in->layout = r->layout;
	in->layout.rank = s->rank;
	in->layout.nranks = s->nranks;
	s->of = calloc(r->nbuckets, sizeof *s->of);
	if (!s->of)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shards of %u buckets", r->nbuckets);
	for (uint32_t i = 0; !st && i < r->nbuckets; i++)
		st = ask(r, r->buckets[i].pub.numel, &s->of[i], err);
	if (!st)
		st = shards_cut(r, err);
	if (!st)
		st = reducer_allocate(in, err);
	if (!st)
		in->grads = s->grads;
	/* Every holder comes by here, whatever has failed on it. */
	if (in->lengths) {
		gradcomp_error own;
		gradcomp_status met = meet(r, &own);
		if (!st && met)
			st = error_set(err, met, "%s", own.text);
	}
	if (!st)
		st = buckets(r, err);
	if (!st && in->layout.numel)
		st = r->compressor->create(&r->job->host, values, &in->layout, &in->instance, err);
	return st;
}

void shards_free(gradcomp_reducer *r)
{
	struct shards *s = r->shards;
	if (!s)
		return;
	gradcomp_reducer *in = &s->inner;
	if (in->instance)
		r->compressor->destroy(in->instance);
	for (uint32_t i = 0; in->state && i < r->compressor->state_arrays; i++)
		free(in->state[i]);
	for (uint32_t i = 0; in->buckets && i < in->nbuckets; i++)
		layout_release(&in->buckets[i]);
	free(in->buckets);
	free(in->state);
	free(in->error);
	free(in->lengths);
	free(in->held);
	free(in->tensors);
	free(s->grads);
	free(s->origin);
	free(s->dims);
	free(s->group.ranks);
	free(s->of);
	free(s);
	r->shards = NULL;
}

const gradcomp_reducer *shards_inner(const gradcomp_reducer *r)
{
	return &r->shards->inner;
}

uint64_t shards_begin(const gradcomp_reducer *r, uint32_t bucket)
{
	return r->shards->of[bucket].begin;
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
	*sum = (struct held){0};
	for (uint32_t k = part_of(s, i); k < s->inner.layout.ntensors && s->origin[k] == i; k++) {
		sum->shares += s->inner.held[k].shares;
		sum->steps += s->inner.held[k].steps;
	}
	return sum;
}

void shards_step(gradcomp_reducer *r)
{
	gradcomp_reducer *in = &r->shards->inner;
	in->step_bad = r->step_bad;
	held_step(in);
	r->stats.error_steps = in->stats.error_steps;
	r->stats.error_mean = in->stats.error_mean;
	r->stats.error_last = in->stats.error_last;
}
