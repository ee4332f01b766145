/* Two levels (GRADCOMP_CAN_SHARD; HiTopKComm: Shi et al. 2020): ranks of a node sum their
 * gradients, each for a shard of the bucket, and the compressor works on shards, between
 * this rank and those of other nodes that hold the same one:
 *
 *     BEGIN                    the gradient as it is, finite or not
 *     REDUCE                   the news of NaN; the shard is m / P * the sum over the node
 *     ENTER                    u = that + error memory, of the shard alone
 *     ENCODE EXCHANGE DECODE   as many rounds as the compressor plans, among m holders
 *     LEAVE  SPREAD            the average of the shard to all ranks of the node
 *     FINISH
 *
 * m nodes, P ranks: the average over holders that the compressor makes is that over
 * ranks. What it works on is a reducer of its own, without threads, whose tensors are the
 * parts of tensors that lie in this rank's shards, whose ranks are the holders and whose
 * collective is the one among them. A rank that holds nothing reduces and spreads. */
#ifndef REDUCER_SHARDS_H
#define REDUCER_SHARDS_H

#include "reducer.h"

/* Whether this compressor would go by shards over such a collective, if there are nodes. */
int shards_wanted(const gradcomp_reducer *r, const struct gradcomp_collective_v1 *c);
/* r->shards, when there are several nodes and not all of one rank. Needs the port. */
gradcomp_status shards_open(gradcomp_reducer *r, gradcomp_error *err);
/* The parts of all buckets, and the compressor on them. */
gradcomp_status shards_make(gradcomp_reducer *r, const gradcomp_value *values, gradcomp_error *err);
void shards_free(gradcomp_reducer *r);
gradcomp_status shards_task(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err);
/* With the lock held, when the step is over. */
void shards_step(gradcomp_reducer *r);

/* The reducer of the shards; where a bucket's shard begins. */
const gradcomp_reducer *shards_inner(const gradcomp_reducer *r);
uint64_t shards_begin(const gradcomp_reducer *r, uint32_t bucket);
/* For the report, of tensor i of r's layout as this rank knows it. */
const char *shards_choice(const gradcomp_reducer *r, uint32_t i);
const struct held *shards_held(gradcomp_reducer *r, uint32_t i);

#endif
