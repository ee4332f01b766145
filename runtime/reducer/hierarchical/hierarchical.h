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
#ifndef REDUCER_HIERARCHICAL_HIERARCHICAL_H
#define REDUCER_HIERARCHICAL_HIERARCHICAL_H

#include "reducer/bucketing/bucketing.h"

/* Whether a compressor, of whose patterns it uses some, would go by shards over such a
 * collective, if there are nodes. */
int hierarchical_possible(const struct gradcomp_compressor_v1 *compressor, uint32_t patterns,
                    const struct gradcomp_collective_v1 *c);
int hierarchical_wanted(const gradcomp_reducer *r, const struct gradcomp_collective_v1 *c);
/* r->shards, when there are several nodes and not all of one rank. Needs the port. */
gradcomp_status hierarchical_open(gradcomp_reducer *r, gradcomp_error *err);
/* d->shards: the parts of all of d's buckets, and the compressor on them. */
gradcomp_status hierarchical_divide(gradcomp_reducer *r, bucketing *d, gradcomp_error *err);
void hierarchical_free(const gradcomp_reducer *r, struct shards *s);
/* What the ranks of a node hold goes to those of them that hold it in d->shards. `room`
 * for the largest bucket. Every rank calls it; what has arrived is the same to the bit. */
gradcomp_status hierarchical_move(gradcomp_reducer *r, const bucketing *d, float *room, gradcomp_error *err);
gradcomp_status hierarchical_task(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err);
/* What has been counted so far goes on in d->shards. */
void hierarchical_carry(gradcomp_reducer *r, const bucketing *d);
/* The step that comes next is r->step. */
void hierarchical_next_step(gradcomp_reducer *r);
/* With the lock held, when the step is over and r->step the next one. */
void hierarchical_step_done(gradcomp_reducer *r);

/* measured() of the compressor on the shards: m is of r's layout. */
gradcomp_status hierarchical_measured(gradcomp_reducer *r, const gradcomp_measured *m, gradcomp_error *err);

/* The reducer of the shards; where a bucket's shard begins. */
const gradcomp_reducer *hierarchical_inner(const struct shards *s);
uint64_t hierarchical_shard_begin(const struct shards *s, uint32_t bucket);
/* For the report, of tensor i of r's layout as this rank knows it. */
const char *hierarchical_choice(const gradcomp_reducer *r, uint32_t i);
const struct held *hierarchical_residual_norm(gradcomp_reducer *r, uint32_t i);

#endif
