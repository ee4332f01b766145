/* The EXCHANGE task: carries a round's payloads as its pattern says.
 *
 * With them goes the step: ranks whose steps differ, whatever the reason, never reduce together.
 * Sums in the caller's own memory have no place for it.
 *
 * Round 0 also carries the news that a rank's gradient is not finite. When it
 * comes, all ranks know it at the same point in the order of collectives, name
 * the tensor to each other, and give up the bucket's remaining rounds. */
#include "reducer/exchange/exchange.h"

#include "base/error.h"

#include <string.h>

gradcomp_status exchange_blocks(engine *eng, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	return eng->coll_ctx.collective->allgather(eng->coll_ctx.instance, buf, bytes, err);
}

gradcomp_status exchange_check_step(const engine *eng, const bucket *b, uint64_t head, int rank, gradcomp_error *err)
{
	int apart = (int16_t)((head >> HEAD_STEP_AT) - eng->step);
	const char *name = eng->layout.tensors[b->pub.first].name;
	if (!apart)
		return GRADCOMP_OK;
	if (rank < 0)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "step %llu: another rank's gradients for the bucket of '%s' are of step %llu",
		                 (unsigned long long)eng->step, name, (unsigned long long)eng->step + (uint64_t)apart);
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "step %llu: the gradients of rank %d for the bucket of '%s' are of step %llu",
	                 (unsigned long long)eng->step, eng->group->ranks[rank], name,
	                 (unsigned long long)eng->step + (uint64_t)apart);
}

/* A word of every rank's, by an all-gather or else an all-reduce. mark[] has this
 * rank's own in its place. */
static gradcomp_status share_words(engine *eng, uint64_t *mark, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	uint64_t own = mark[eng->layout.rank], *bytes = eng->lengths;
	int P = eng->layout.nranks;
	for (int p = 0; p < P; p++)
		bytes[p] = sizeof *mark;
	if (c->serves & GRADCOMP_CAN_ALLGATHER)
		return exchange_blocks(eng, mark, bytes, err);
	memset(mark, 0, (size_t)P * sizeof *mark);
	mark[eng->layout.rank] = own;
	if (c->serves & GRADCOMP_CAN_ALLREDUCE)
		return c->allreduce(eng->coll_ctx.instance, mark, (uint64_t)P, GRADCOMP_I64, GRADCOMP_MAX, 1.0, err);
	return GRADCOMP_OK;
}

gradcomp_status exchange_nonfinite(engine *eng, bucket *b, gradcomp_error *err)
{
	int P = eng->layout.nranks, named = 0;
	uint64_t *mark = eng->lengths + P;
	gradcomp_status st;
	mark[eng->layout.rank] = (uint64_t)b->local_bad;
	st = share_words(eng, mark, err);
	for (int p = 0; !st && p < P; p++) {
		if (!mark[p] || mark[p] > b->pub.ntensors)
			continue;
		named = 1;
		if (eng->warned >= 5)
			break;
		eng->warned++;
		log_line(&eng->job->log, GRADCOMP_LOG_INFO,
		         "step %llu: the gradient of '%s' on rank %d is not finite%s; this bucket's result is NaN on "
		         "all ranks and "
		         "the error memory stays as it was%s",
		         (unsigned long long)eng->step, eng->layout.tensors[b->pub.first + mark[p] - 1].name,
		         eng->group->ranks[p], eng->error ? ", or overflows with the error memory" : "",
		         eng->warned == 5 ? " (not told again)" : "");
	}
	if (!st && !named) {
		b->bad = BAD_SUM;
		task_tell_overflow(eng, b);
	}
	return st;
}

gradcomp_status exchange_largest_head(engine *eng, bucket *b, gradcomp_error *err)
{
	int64_t word = (int64_t)exchange_head(eng, b, 0);
	gradcomp_status st = eng->coll_ctx.collective->allreduce(eng->coll_ctx.instance, &word, 1, GRADCOMP_I64,
	                                                         GRADCOMP_MAX, 1.0, err);
	b->bad = !st && (uint64_t)word & HEAD_BAD;
	return st ? st : exchange_check_step(eng, b, (uint64_t)word, -1, err);
}

/* Whether a sum is finite each rank sees for itself, and all see the same, unless what gradcomp.verify
 * looks for has come. Then they would go different ways, and wait for each other. */
static gradcomp_status share_bad(engine *eng, bucket *b, const gradcomp_round *rd, gradcomp_error *err)
{
	int64_t bad = b->bad;
	gradcomp_status st;
	if (!eng->verify || (rd->pattern != GRADCOMP_CODED && rd->pattern != GRADCOMP_SUMMED))
		return GRADCOMP_OK;
	st = eng->coll_ctx.collective->allreduce(eng->coll_ctx.instance, &bad, 1, GRADCOMP_I64, GRADCOMP_MAX, 1.0, err);
	b->bad = bad == BAD_SUM ? BAD_SUM : bad != 0;
	return st;
}

gradcomp_status exchange_run(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gradcomp_round *rd = &b->plan.rounds[round];
	gradcomp_status st = GRADCOMP_ERR_INTERNAL;
	/* What a round before has made overflows, on all ranks. */
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
		st = exchange_tree_merge(eng, b, round, err);
		break;
	case GRADCOMP_CODED:
		st = exchange_codec(eng, b, err);
		break;
	}
	if (!st)
		st = share_bad(eng, b, rd, err);
	return !st && b->bad ? exchange_nonfinite(eng, b, err) : st;
}
