/* SUMMED rounds: payloads add element by element, so an all-reduce carries them.
 * In round 0 a few more elements say whether a rank's gradient is not finite, and whether all ranks
 * are at one step: sums of zeros are exact in any type and order, so each step has a place. */
#include "step/exchange/exchange.h"
#include "step/memops.h"

#include "base/error.h"

#include <stdbool.h>
#include <math.h>

static bool is_zero(const unsigned char *p, size_t n)
{
	while (n && !*p)
		p++, n--;
	return !n;
}

/* Writes 1.0 in any summed type. */
static void put_one(void *p, gradcomp_dtype dtype)
{
	static const uint16_t half = 0x3c00, bhalf = 0x3f80;
	float f = 1;
	double d = 1;
	int64_t i = 1;
	switch (dtype) {
	case GRADCOMP_F32:
		memcpy(p, &f, 4);
		return;
	case GRADCOMP_F64:
		memcpy(p, &d, 8);
		return;
	case GRADCOMP_F16:
		memcpy(p, &half, 2);
		return;
	case GRADCOMP_BF16:
		memcpy(p, &bhalf, 2);
		return;
	default:
		memcpy(p, &i, gradcomp_dtype_bytes(dtype)); /* little-endian hosts only, as the wire */
	}
}

gradcomp_status exchange_allreduce(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gradcomp_round *rd = &b->plan.rounds[round];
	double scale = rd->flags & GRADCOMP_ROUND_MEAN ? 1.0 / eng->layout.nranks : 1.0;
	int passes = !!(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE);
	size_t size = gradcomp_dtype_bytes(rd->dtype);
	const float overflow = NAN;
	gradcomp_status st;
	if (rd->flags & GRADCOMP_ROUND_IN_PLACE) {
		st = eng->coll_ctx.collective->allreduce(eng->coll_ctx.instance, b->work.flat, rd->count, GRADCOMP_F32,
		                                         GRADCOMP_SUM, scale, err);
		if (!st && !passes)
			st = memops_nonfinite(eng, b->work.flat, b->pub.numel, &b->bad, err);
		b->own = (gradcomp_payload){b->work.flat, rd->count * 4, rd->count * 4};
		return st;
	}
	unsigned char *at = (unsigned char *)b->own.data + rd->count * size, marks[SUMMED_MARKS * 8] = {0};
	int flagged = round == 0 && !passes;
	st = GRADCOMP_OK;
	if (!flagged && b->local_bad == LOCAL_OVERFLOW) {
		st = rd->dtype == GRADCOMP_F32
		             ? memops_put(eng, b->own.data, &overflow, sizeof overflow, err)
		             : error_set(
				       err, GRADCOMP_ERR_UNSUPPORTED,
				       "compressor '%s' says in round %u that numbers overflow: of sums that are not of "
				       "floats it can do so in round 0",
				       eng->compressor->info.name, round);
	}
	if (flagged && b->local_bad) {
		put_one(marks, rd->dtype);
		st = memops_zero(eng, b->own.data, rd->count * size, err);
	}
	if (flagged && !st) {
		put_one(marks + (1 + eng->step % SUMMED_STEPS) * size, rd->dtype);
		st = memops_put(eng, at, marks, SUMMED_MARKS * size, err);
	}
	if (!st)
		st = eng->coll_ctx.collective->allreduce(eng->coll_ctx.instance, b->own.data,
		                                         rd->count + (flagged ? SUMMED_MARKS : 0), rd->dtype,
		                                         GRADCOMP_SUM, scale, err);
	if (!st && !passes && rd->dtype == GRADCOMP_F32)
		st = memops_nonfinite(eng, b->own.data, rd->count, &b->bad, err);
	if (st || !flagged)
		return st;
	st = memops_get(eng, marks, at, SUMMED_MARKS * size, err);
	b->bad |= !st && !is_zero(marks, size);
	for (uint64_t ahead = 1; !st && ahead < SUMMED_STEPS; ahead++)
		if (!is_zero(marks + (1 + (eng->step + ahead) % SUMMED_STEPS) * size, size))
			st = exchange_check_step(eng, b, (eng->step + ahead) << HEAD_STEP_AT, -1, err);
	return st;
}
