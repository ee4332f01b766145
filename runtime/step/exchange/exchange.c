/* The EXCHANGE task: carries a round's payloads as its pattern says.
 *
 * With them goes the step: ranks whose steps differ, whatever the reason, never reduce together.
 * Sums in the caller's own memory have no place for it.
 *
 * Round 0 also carries the news that a rank's gradient is not finite. When it
 * comes, all ranks know it at the same point in the order of collectives, name
 * the tensor to each other, and give up the bucket's remaining rounds. */
#include "step/exchange/exchange.h"

/* Lets all ranks agree on whether a sum is finite. Each rank sees it for itself, and all see the same, unless an
 * error that gradcomp.verify looks for has come. Then they would go different ways, and wait for each other. */
static gradcomp_status share_bad(engine *eng, bucket *b, const gradcomp_round *rd, gradcomp_error *err)
{
	int64_t bad = b->bad;
	gradcomp_status st;
	if (!eng->checks.verify || (rd->pattern != GRADCOMP_CODED && rd->pattern != GRADCOMP_SUMMED))
		return GRADCOMP_OK;
	st = eng->coll_ctx.collective->allreduce(eng->coll_ctx.instance, &bad, 1, GRADCOMP_I64, GRADCOMP_MAX, 1.0, err);
	b->bad = bad == BAD_SUM ? BAD_SUM : bad != 0;
	return st;
}

gradcomp_status exchange_run(engine *eng, bucket *b, uint32_t round, exchange_merge *merge, gradcomp_error *err)
{
	const gradcomp_round *rd = &b->plan.rounds[round];
	gradcomp_status st = GRADCOMP_ERR_INTERNAL;
	/* A round before has made what overflows, on all ranks. */
	if (b->bad)
		return GRADCOMP_OK;
	switch (rd->pattern) {
	case GRADCOMP_SUMMED:
		st = exchange_allreduce(eng, b, round, err);
		break;
	case GRADCOMP_GATHERED:
		st = exchange_allgather(eng, b, round, err);
		break;
	case GRADCOMP_MERGED:
		st = exchange_tree_merge(eng, b, round, merge, err);
		break;
	case GRADCOMP_CODED:
		st = exchange_codec(eng, b, err);
		break;
	}
	if (!st)
		st = share_bad(eng, b, rd, err);
	return !st && b->bad ? exchange_nonfinite(eng, b, err) : st;
}
