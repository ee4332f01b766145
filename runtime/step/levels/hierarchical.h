/* Hierarchical reduction, in two levels (GRADCOMP_CAN_SHARD; HiTopKComm: Shi et al. 2020): ranks of a node sum their
 * gradients, each for a shard of the bucket, and the compressor works on shards, between
 * this rank and those of other nodes that hold the same one:
 *
 *     BEGIN                    the gradient as it is, finite or not
 *     REDUCE_LOCAL             the news of NaN; the shard is m / P * the sum over the node
 *     LOCAL_BEGIN              u = that + error memory, of the shard alone
 *     ENCODE EXCHANGE DECODE   as many rounds as the compressor plans, among m holders
 *     LOCAL_END                the average is in the shard
 *     ALLGATHER_LOCAL          it goes to all ranks of the node
 *     FINISH
 *
 * m nodes, P ranks: the average over holders that the compressor makes is that over
 * ranks. What it works on is an engine of its own, whose tensors are the parts of tensors that
 * lie in this rank's shards, whose ranks are the holders and whose collective is the one among
 * them. A rank that holds nothing takes part in the node's tasks alone. One that holds several shards of a
 * bucket has an engine for each, since each has other holders: they encode one after another, then
 * exchange, then decode. */
#ifndef STEP_LEVELS_HIERARCHICAL_H
#define STEP_LEVELS_HIERARCHICAL_H

#include "step/bucket.h"

#include <stdbool.h>

/* Returns 1 when a compressor, of whose patterns it uses some, would go by shards over such a collective, if there
 * are nodes. */
int hierarchical_possible(const struct gradcomp_compressor_v1 *compressor, uint32_t patterns,
                          const struct gradcomp_collective_v1 *c);
int hierarchical_wanted(const engine *eng, const struct gradcomp_collective_v1 *c);
/* eng->list.shards, and the ways of two levels, when there are several nodes and not all of one rank. Needs the
 * collective. */
gradcomp_status hierarchical_open(engine *eng, gradcomp_error *err);
/* NULL is fine. */
void hierarchical_free(engine *shards);

#endif
