#include "conformance/bucket_run.h"

#include <stdlib.h>
#include <string.h>

/* More than a bucket of these checks can need. */
#define MEMORY_MAX ((uint64_t)1 << 32)
#define FLAGS (GRADCOMP_ROUND_MEAN | GRADCOMP_ROUND_IN_PLACE | GRADCOMP_ROUND_FIXED)

/* Checks what the host demands of a plan. */
static gradcomp_status plan_ok(ranks *s, const gradcomp_bucket *b, const gradcomp_plan *p)
{
	if (!p->nrounds || p->nrounds > GRADCOMP_MAX_ROUNDS)
		return ranks_broke(s, RULE_DESCRIPTOR, "plan() wants %u rounds, 1 to %d are possible", p->nrounds,
		                   GRADCOMP_MAX_ROUNDS);
	if (p->scratch_bytes > MEMORY_MAX)
		return ranks_broke(s, RULE_DESCRIPTOR,
		                   "plan() wants %llu bytes of scratch for a bucket of %llu numbers",
		                   (unsigned long long)p->scratch_bytes, (unsigned long long)b->numel);
	for (uint32_t k = 0; k < p->nrounds; k++) {
		const gradcomp_round *rd = &p->rounds[k];
		int summed = rd->pattern == GRADCOMP_SUMMED, coded = rd->pattern == GRADCOMP_CODED;
		if ((int)rd->pattern < 0 || rd->pattern > GRADCOMP_CODED ||
		    !(s->patterns & GRADCOMP_PATTERN_BIT(rd->pattern)))
			return ranks_broke(s, RULE_DESCRIPTOR,
			                   "plan() wants pattern %d, which is none of those it may use",
			                   (int)rd->pattern);
		if (rd->reserved0 || rd->reserved[0] || rd->reserved[1])
			return ranks_broke(s, RULE_DESCRIPTOR, "plan() has set a reserved word of round %u", k);
		if (rd->flags & ~FLAGS)
			return ranks_broke(s, RULE_DESCRIPTOR, "plan() has set flags 0x%x of round %u; there are 0x%x",
			                   rd->flags, k, FLAGS);
		if (rd->count > MEMORY_MAX || rd->bound > MEMORY_MAX)
			return ranks_broke(s, RULE_DESCRIPTOR,
			                   "plan() wants a payload of %llu for a bucket of %llu numbers",
			                   (unsigned long long)(rd->count > MEMORY_MAX ? rd->count : rd->bound),
			                   (unsigned long long)b->numel);
		if (summed &&
		    (!gradcomp_dtype_bytes(rd->dtype) || rd->dtype == GRADCOMP_F8E4M3 || rd->dtype == GRADCOMP_F8E5M2))
			return ranks_broke(s, RULE_DESCRIPTOR, "plan() sums elements of type %d", (int)rd->dtype);
		if (rd->flags & GRADCOMP_ROUND_MEAN && (!summed || rd->dtype > GRADCOMP_F64))
			return ranks_broke(s, RULE_DESCRIPTOR,
			                   "plan() wants the mean in round %u, which is not a sum of floats", k);
		if ((rd->flags & GRADCOMP_ROUND_IN_PLACE) &&
		    (!summed || rd->dtype != GRADCOMP_F32 || rd->count != b->numel))
			return ranks_broke(s, RULE_DESCRIPTOR,
			                   "plan() wants an in-place round that is not the bucket's floats");
		if (coded && (p->nrounds != 1 || rd->count != b->numel))
			return ranks_broke(
				s, RULE_DESCRIPTOR,
				"plan() wants a coded round of %llu floats among %u; it is the only one, of %llu",
				(unsigned long long)rd->count, p->nrounds, (unsigned long long)b->numel);
	}
	return GRADCOMP_OK;
}

static gradcomp_status begin_bucket(ranks *s, bucket_run *f, uint32_t b, gradcomp_plan *plan, float **grad)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int w = 0; !st && w < s->P; w++) {
		gradcomp_plan mine = {.struct_size = sizeof mine};
		st = ranks_call(s, &(call){.which = CALL_PLAN, .rank = w, .bucket = &s->buckets[b], .plan = &mine});
		if (!st && w && memcmp(&mine, plan, sizeof mine))
			st = ranks_broke(s, RULE_AGREEMENT, "ranks 0 and %d have different plans", w);
		*plan = mine;
		if (!st)
			st = plan_ok(s, &s->buckets[b], &mine);
		if (!st)
			bucket_run_begin(s, &f[w], w, &s->buckets[b], plan, grad[w]);
	}
	return st;
}

static gradcomp_status run_round(ranks *s, bucket_run *f, const gradcomp_plan *plan, uint32_t first, uint32_t end,
                                 uint32_t round)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t b = first; !st && b < end; b++)
		for (int w = 0; !st && round < plan[b].nrounds && w < s->P; w++) {
			bucket_run *mine = &f[b * (uint32_t)s->P + (uint32_t)w];
			st = bucket_run_encode(s, mine, w, &plan[b].rounds[round], round);
			if (plan[b].rounds[round].pattern != GRADCOMP_CODED)
				s->sent_of[w] += mine->out.bytes;
		}
	for (uint32_t b = end; !st && b-- > first;)
		if (round < plan[b].nrounds && !s->abandon)
			st = bucket_run_exchange(s, &f[b * (uint32_t)s->P], &plan[b].rounds[round], round);
	return st;
}

gradcomp_status ranks_step(ranks *s, float **grad, int interleave)
{
	uint32_t P = (uint32_t)s->P, together = interleave ? s->nbuckets : 1;
	bucket_run *f = calloc((size_t)s->nbuckets * P + 1, sizeof *f);
	gradcomp_plan *plan = calloc(s->nbuckets + 1, sizeof *plan);
	gradcomp_status st = f && plan ? GRADCOMP_OK : GRADCOMP_ERR_NOMEM;
	guard_light = s->light && s->step % 8 && !s->device;
	memset(s->sent_of, 0, sizeof s->sent_of);
	for (uint32_t first = 0; !st && first < s->nbuckets; first += together) {
		for (uint32_t b = first; !st && b < first + together; b++)
			st = begin_bucket(s, &f[b * P], b, &plan[b], grad);
		for (uint32_t round = 0; !st && round < (s->abandon ? 1 : GRADCOMP_MAX_ROUNDS); round++)
			st = run_round(s, f, plan, first, first + together, round);
	}
	s->sent = s->sent_of[0];
	for (uint32_t i = 0; f && i < s->nbuckets * P; i++)
		if (f[i].work.bucket)
			bucket_run_end(s, &f[i], (int)(i % P), st || s->abandon ? NULL : grad[i % P]);
	guard_light = false;
	free(f);
	free(plan);
	s->step += !st;
	return st;
}
