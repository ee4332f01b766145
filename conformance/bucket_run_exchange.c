#include "conformance/bucket_run.h"

#include <stdlib.h>
#include <string.h>

/* Sums as a ring does: chunk c begins at rank c + 1 and ends at rank c. */
static void sum(ranks *s, bucket_run *f, const gradcomp_round *rd)
{
	size_t size = gradcomp_dtype_bytes(rd->dtype);
	char *total = malloc(rd->count * size + 1);
	for (uint64_t c = 0; total && c < (uint64_t)s->P; c++) {
		uint64_t from = rd->count * c / (uint64_t)s->P, n = rd->count * (c + 1) / (uint64_t)s->P - from;
		for (int k = 0; n && k < s->P; k++) {
			const char *in = (char *)f[(c + 1 + (uint64_t)k) % (uint64_t)s->P].out.data + from * size;
			if (k)
				s->host.operators->reduce(NULL, total + from * size, in, n, rd->dtype, GRADCOMP_SUM);
			else
				memcpy(total + from * size, in, n * size);
		}
	}
	if (total && rd->flags & GRADCOMP_ROUND_MEAN)
		s->host.operators->scale_as(NULL, total, 1.0 / s->P, rd->count, rd->dtype);
	for (int w = 0; total && rd->count && w < s->P; w++)
		memcpy(f[w].out.data, total, rd->count * size);
	free(total);
}

static gradcomp_status decode(ranks *s, bucket_run *f, int w, uint32_t round, const gradcomp_payload *in, uint32_t n)
{
	gradcomp_status st = ranks_call(s, &(call){.which = CALL_DECODE,
	                                           .rank = w,
	                                           .round = round,
	                                           .work = &f[w].work,
	                                           .in = in,
	                                           .n = n});
	if (st == GRADCOMP_ERR_OVERFLOW || (!st && f[w].work.fault[1])) {
		f[w].overflown = true;
		return GRADCOMP_OK;
	}
	if (!st && *f[w].work.fault)
		st = host_fail(&s->err, GRADCOMP_ERR_MISMATCH, "the fault word was set by what peers sent");
	return st;
}

static gradcomp_status gathered(ranks *s, bucket_run *f, uint32_t round)
{
	gradcomp_payload in[RANKS_MAX], mine[RANKS_MAX];
	gradcomp_status st = GRADCOMP_OK;
	for (int w = 0; w < s->P; w++)
		in[w] = f[w].out;
	if (s->tamper)
		s->tamper(s, in, (uint32_t)s->P);
	for (int w = 0; !st && w < s->P; w++) {
		memcpy(mine, in, sizeof mine);
		mine[w] = f[w].out;
		st = decode(s, f, w, round, mine, (uint32_t)s->P);
	}
	return st;
}

/* Does one merge of rank w: *acc and a peer's become a new *acc. Which of the two comes first does not show whose
 * it is. */
static gradcomp_status merge_pair(ranks *s, bucket_run *f, int w, uint32_t round, guarded *acc, const guarded *peer,
                                  uint64_t bound, int swapped)
{
	gradcomp_payload in[2] = {{acc->data, bound, bound}, {peer->data, bound, bound}}, out;
	guarded room = guard("the merged payload", bound, 8);
	if (s->device)
		guard_to_device(&room);
	out = (gradcomp_payload){room.data, bound, 0};
	guard_lock(acc, 1);
	if (s->tamper)
		s->tamper(s, in, 2);
	bucket_run_lock(&f[w], 1);
	gradcomp_status st = ranks_call(s, &(call){.which = CALL_MERGE,
	                                           .rank = w,
	                                           .round = round,
	                                           .work = &f[w].work,
	                                           .in = &in[swapped],
	                                           .peer = &in[!swapped],
	                                           .out = &out});
	bucket_run_lock(&f[w], 0);
	if (!st && (out.data != room.data || out.bytes != bound))
		st = ranks_broke(s, RULE_BYTES, "merge() gave a payload of %llu bytes, all have %llu",
		                 (unsigned long long)out.bytes, (unsigned long long)bound);
	s->intact &= guard_intact(&room);
	guard_free(acc);
	*acc = room;
	return st;
}

/* Along a binomial tree to rank 0; what is there goes to all. */
static gradcomp_status merged(ranks *s, bucket_run *f, const gradcomp_round *rd, uint32_t round)
{
	guarded acc[RANKS_MAX];
	gradcomp_status st = GRADCOMP_OK;
	int level = 0;
	for (int w = 0; w < s->P; w++) {
		acc[w] = guard("a payload to be merged", rd->bound, 8);
		memcpy(acc[w].data, f[w].out.data, rd->bound);
		guard_lock(&acc[w], 1);
		if (s->device)
			guard_to_device(&acc[w]);
	}
	for (int far = 1; far < s->P; far *= 2, level++)
		for (int w = 0; !st && w + far < s->P; w += 2 * far) {
			st = merge_pair(s, f, w, round, &acc[w], &acc[w + far], rd->bound, level & 1);
			guard_lock(&acc[w], 1);
		}
	gradcomp_payload all = {acc[0].data, rd->bound, rd->bound};
	if (!st && s->tamper)
		s->tamper(s, &all, 1);
	for (int w = 0; !st && w < s->P; w++)
		st = decode(s, f, w, round, &all, 1);
	for (int w = 0; w < s->P; w++)
		guard_free(&acc[w]);
	return st;
}

/* Lets all ranks' result do what one rank's numbers do; what decode() finds, it finds on all of them. */
static gradcomp_status share_overflow(ranks *s, bucket_run *f, bool decoded)
{
	int found = 0;
	for (int w = 0; w < s->P; w++)
		found += f[w].overflown;
	for (int w = 0; decoded && found && w < s->P; w++)
		if (!f[w].overflown)
			return ranks_broke(s, RULE_AGREEMENT,
			                   "decode() says of %d ranks that numbers overflow, and not of rank %d", found,
			                   w);
	for (int w = 0; found && w < s->P; w++)
		f[w].overflown = true;
	return GRADCOMP_OK;
}

gradcomp_status bucket_run_exchange(ranks *s, bucket_run *f, const gradcomp_round *rd, uint32_t round)
{
	gradcomp_status st = share_overflow(s, f, false);
	if (f->overflown)
		return st;
	if (rd->pattern == GRADCOMP_CODED)
		return bucket_run_exchange_coded(s, f, rd);
	if (rd->pattern == GRADCOMP_SUMMED)
		sum(s, f, rd);
	for (int w = 0; w < s->P; w++) {
		s->intact &= !f[w].payload.map || guard_intact(&f[w].payload);
		guard_lock(&f[w].payload, 1);
	}
	if (rd->pattern == GRADCOMP_GATHERED)
		st = gathered(s, f, round);
	else if (rd->pattern == GRADCOMP_MERGED)
		st = merged(s, f, rd, round);
	for (int w = 0; !st && rd->pattern == GRADCOMP_SUMMED && w < s->P; w++) {
		gradcomp_payload in = f[w].out;
		if (s->tamper)
			s->tamper(s, &in, 1);
		st = decode(s, f, w, round, &in, 1);
	}
	for (int w = 0; w < s->P; w++)
		guard_lock(&f[w].payload, 0);
	return st ? st : share_overflow(s, f, !s->tamper);
}
