/* The EXCHANGE task: carries a round's payloads as its pattern says. For the exchange thread. */
#ifndef STEP_EXCHANGE_EXCHANGE_H
#define STEP_EXCHANGE_EXCHANGE_H

#include "step/engine.h"
#include "step/memops.h"

/* Makes one payload of two, in the memory that the collective merges in; `work` is the bucket's. As the
 * compressor's merge(). */
typedef gradcomp_status exchange_merge(const engine *eng, const gradcomp_work *work, uint32_t round,
                                       const gradcomp_payload *a, const gradcomp_payload *b, gradcomp_payload *out,
                                       gradcomp_error *err);

gradcomp_status exchange_run(engine *eng, bucket *b, uint32_t round, exchange_merge *merge, gradcomp_error *err);
/* One file for each pattern: SUMMED, GATHERED, MERGED, CODED. */
gradcomp_status exchange_allreduce(engine *eng, bucket *b, uint32_t round, gradcomp_error *err);
gradcomp_status exchange_allgather(engine *eng, bucket *b, uint32_t round, gradcomp_error *err);
gradcomp_status exchange_tree_merge(engine *eng, bucket *b, uint32_t round, exchange_merge *merge, gradcomp_error *err);
gradcomp_status exchange_codec(engine *eng, bucket *b, gradcomp_error *err);
/* Tells which rank's gradient, and which tensor's, is not finite: an exchange that only a
 * bad step pays. */
gradcomp_status exchange_nonfinite(engine *eng, bucket *b, gradcomp_error *err);
/* The largest head of all ranks, in an all-reduce of one word: who is behind learns it, and b->bad. */
gradcomp_status exchange_largest_head(engine *eng, bucket *b, gradcomp_error *err);
/* Does an all-gather of blocks of these lengths. */
static inline gradcomp_status exchange_blocks(engine *eng, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	return eng->coll_ctx.collective->allgather(eng->coll_ctx.instance, buf, bytes, err);
}

/* Returns the number of a bucket's first coded run in a step. There is room for 2^24 of a bucket; no two runs share
 * one, however buckets move. */
static inline uint64_t exchange_counter(const engine *eng, const bucket *b)
{
	return (eng->step * eng->layout.ntensors + b->pub.first) << 24;
}

/* A word goes ahead of round 0 and later ones: in front of gathered and merged payloads, and before coded sums,
 * where it is the largest over ranks. Never negative as an int64_t. */
#define PAYLOAD_HEAD sizeof(uint64_t)
#define HEAD_BAD ((uint64_t)1 << 62) /* the rank's gradient is not finite */
#define HEAD_STEP_AT 46              /* 16 bits of the step; below them the payload's length */
static inline uint64_t exchange_head(const engine *eng, const bucket *b, uint64_t bytes)
{
	return (b->local_bad ? HEAD_BAD : 0) | (eng->step & 0xffff) << HEAD_STEP_AT | bytes;
}

static inline uint64_t head_bytes(uint64_t head)
{
	return head & (((uint64_t)1 << HEAD_STEP_AT) - 1);
}

/* MISMATCH unless a head is of this rank's step. rank: who sent it, in the group; -1: it is of several. */
gradcomp_status exchange_check_step(const engine *eng, const bucket *b, uint64_t head, int rank, gradcomp_error *err);
/* Returns the bytes that a merged payload takes with its head. */
static inline uint64_t merged_bytes(uint64_t bound)
{
	return PAYLOAD_HEAD + ((bound + 7) & ~(uint64_t)7);
}
/* Returns what payloads of a gather are a multiple of, with their heads: NCCL moves single bytes where one does not
 * stand on a boundary of 16. */
static inline size_t payload_stride(const engine *eng, uint64_t bytes)
{
	size_t grain = memops_on_device(eng) ? 16 : 8;
	return (bytes + grain - 1) & ~(grain - 1);
}
/* Returns the distance from one payload of fixed length to the next. */
static inline size_t payload_fixed_stride(const engine *eng, uint64_t bound)
{
	return payload_stride(eng, PAYLOAD_HEAD + bound);
}

#endif
