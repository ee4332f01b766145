/* A head goes ahead of payloads: it has the step, and the news that a gradient is not finite. */
#include "step/bucket.h"
#include "step/exchange/exchange.h"

#include "base/error.h"

#include <string.h>

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

/* Shares a word of every rank's, by an all-gather or else an all-reduce. mark[] has this rank's own in its place. */
static gradcomp_status share_words(engine *eng, uint64_t *mark, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	uint64_t own = mark[eng->layout.rank], *bytes = eng->room.lengths;
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
	uint64_t *mark = eng->room.lengths + P;
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
		         eng->group->ranks[p], engine_has_error(eng) ? ", or overflows with the error memory" : "",
		         eng->warned == 5 ? " (not told again)" : "");
	}
	if (!st && !named) {
		b->bad = BAD_SUM;
		bucket_tell_overflow(eng, b);
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
