/* A bucket of an engine's, as far as it does not matter where its numbers are: what belongs to it of the engine's
 * arrays, where a step works on it, and what the log or a failure says of it. */
#ifndef STEP_BUCKET_H
#define STEP_BUCKET_H

#include "step/engine.h"

/* Points b, whose `pub` is there, to its parts of the engine's arrays in memory of the host. It is to be closed
 * either way. */
gradcomp_status bucket_open(engine *eng, bucket *b, gradcomp_error *err);
void bucket_close(bucket *b);

/* The compute thread's: what BEGIN settles before it touches a gradient: the plan, workspace, and where the compressor
 * works. */
gradcomp_status bucket_place(engine *eng, bucket *b, gradcomp_error *err);
/* A gradient that is not finite, of a compressor that passes such on: it is logged and otherwise forgotten. */
void bucket_pass_on(engine *eng, bucket *b);
/* MISMATCH: what a rank sent is damaged. */
gradcomp_status bucket_damaged(const engine *eng, const bucket *b, gradcomp_error *err);
/* Tells that the bucket's finite gradients have overflowed. */
void bucket_tell_overflow(engine *eng, const bucket *b);

/* Packs what a step that has begun leaves of the bucket's error memory, where it is kept so: nothing of a step that was
 * given up, and zeroes as they stand of one that overflowed. */
void bucket_pack(const engine *eng, bucket *b);
/* Returns, during a step, what is held back of the bucket's tensor i; NULL: nothing is. */
float *bucket_held_back(const engine *eng, const bucket *b, uint32_t i);

/* engine_ops.encode and decode, wherever the compressor works. */
engine_task bucket_encode, bucket_decode;

/* Returns the plan that a bucket's tasks follow from: the bucket's own plan, or of its shards the one with the most
 * rounds. */
const gradcomp_plan *bucket_plan(const bucket *b);
/* Returns the bytes of this rank's payloads of a round, as planned. */
double bucket_round_bytes(const bucket *b, uint32_t round);
/* All rounds of this rank's shards are given up, since none is finite. */
bool bucket_given_up(const bucket *b);

/* How many numbers two runs of the layout have in common, from *at on. */
static inline uint64_t bucket_overlap(uint64_t a, uint64_t numel, uint64_t b, uint64_t more, uint64_t *at)
{
	uint64_t end = a + numel < b + more ? a + numel : b + more;
	*at = a > b ? a : b;
	return end > *at ? end - *at : 0;
}

#endif
