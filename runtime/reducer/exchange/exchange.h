/* The EXCHANGE task: carries a round's payloads as its pattern says. For the exchange thread. */
#ifndef REDUCER_EXCHANGE_H
#define REDUCER_EXCHANGE_H

#include "reducer/engine.h"
#include "reducer/memops.h"

gradcomp_status exchange_run(engine *eng, bucket *b, uint32_t round, gradcomp_error *err);
/* One file for each pattern: SUMMED, GATHERED, MERGED, CODED. */
gradcomp_status exchange_allreduce(engine *eng, bucket *b, uint32_t round, gradcomp_error *err);
gradcomp_status exchange_allgather(engine *eng, bucket *b, uint32_t round, gradcomp_error *err);
gradcomp_status exchange_tree_merge(engine *eng, bucket *b, uint32_t round, gradcomp_error *err);
gradcomp_status exchange_codec(engine *eng, bucket *b, gradcomp_error *err);
/* Tells which rank's gradient, and which tensor's, is not finite: an exchange that only a
 * bad step pays. */
gradcomp_status exchange_nonfinite(engine *eng, bucket *b, gradcomp_error *err);
/* An all-gather of blocks of these lengths. */
gradcomp_status exchange_blocks(engine *eng, void *buf, const uint64_t *bytes, gradcomp_error *err);

/* A word in front of gathered and merged payloads; what a merged one takes with it. */
#define PAYLOAD_HEAD sizeof(uint64_t)
static inline uint64_t merged_bytes(uint64_t bound)
{
	return PAYLOAD_HEAD + ((bound + 7) & ~(uint64_t)7);
}
/* What payloads of a gather are a multiple of, with their heads: NCCL moves single bytes where one
 * does not stand on a boundary of 16. */
static inline size_t payload_stride(const engine *eng, uint64_t bytes)
{
	size_t grain = memops_on_device(eng) ? 16 : 8;

	return (bytes + grain - 1) & ~(grain - 1);
}
/* From one payload of fixed length to the next. */
static inline size_t payload_fixed_stride(const engine *eng, uint64_t bound)
{
	return payload_stride(eng, PAYLOAD_HEAD + bound);
}

#endif
