/* Which gradients to merge into one message.
 *
 * Tensors are in backward order: 0 is ready first. A merge plan cuts them into buckets,
 * runs of neighbours. One link carries one bucket after another, in order:
 *
 *     ready(B) = ready(B-1) + backward of B's tensors + select(numel(B))
 *     end(B)   = max(end(B-1), ready(B)) + exchange(numel(B))
 *
 * and the plan is good when the last one ends early. exchange(x) = a + b x (x in numbers,
 * after whatever the compressor makes of them); select(x) is what encoding costs where
 * that keeps the next layers' backward pass from going on (one stream), else 0.
 *
 * wfbp     every tensor by itself (Poseidon: Zhang et al., ATC 2017)
 * single   all at the end
 * fixed    buckets of so many bytes (PyTorch DDP)
 * mgwfbp   Shi, Chu, Li: MG-WFBP, INFOCOM 2019, algorithm 1: greedy. Where a is longer than every
 *          gap between two layers it merges all of them, whatever b is; so does omgs
 * omgs     Shi et al.: Communication-Efficient Distributed Deep Learning with Merged
 *          Gradient Sparsification on GPUs, INFOCOM 2020
 * best     the least end there is, by dynamic programming over where the last bucket
 *          begins: an earlier end of what is before is never worse. Of the plans that
 *          end then, one of the fewest buckets (where those are at most 64). O(n^2) for
 *          each number of buckets that is tried.
 */
#ifndef SCHEDULE_MERGE_H
#define SCHEDULE_MERGE_H

#include "gradcomp/abi.h"

typedef struct merge_problem {
	uint32_t n;
	const double *backward; /* seconds, of each tensor */
	const uint64_t *numel;
	double a, b;               /* exchange: seconds, seconds a number */
	double select_a, select_b; /* select: likewise; 0: it delays nobody */
	uint64_t max_numel;        /* limit of a bucket of several tensors; 0: none */
} merge_problem;

/* cut[i] = 1: a bucket ends with tensor i. cut[n-1] is always 1. Every method keeps
 * to max_numel. Only best allocates: -1 without memory. The other two that return an int
 * always return 0 and have its type, so that a caller may choose one. */
void merge_wfbp(const merge_problem *p, uint8_t *cut);
void merge_single(const merge_problem *p, uint8_t *cut);
/* A bucket is full when it has `first` numbers (the first) or `numel` (the others). */
void merge_fixed(const merge_problem *p, uint64_t first, uint64_t numel, uint8_t *cut);
int merge_mgwfbp(const merge_problem *p, uint8_t *cut);
int merge_omgs(const merge_problem *p, uint8_t *cut);
int merge_dp(const merge_problem *p, uint8_t *cut);

/* When the last bucket has been exchanged, from the start of the backward pass. */
double merge_end(const merge_problem *p, const uint8_t *cut);

#endif
