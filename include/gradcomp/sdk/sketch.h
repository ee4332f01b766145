/* Count-sketch: a table of rows x columns floats that stands for a vector of any length
 * (Charikar, Chen, Farach-Colton: Finding frequent items in data streams, ICALP 2002; for
 * gradients: Rothchild et al., FetchSGD, ICML 2020).
 *
 *     table[r][h_r(i)] += s_r(i) x[i]        estimate of x[i] = median over r of s_r(i) table[r][h_r(i)]
 *
 * h_r(i) is a column and s_r(i) is 1 or -1, both from a hash of i, r and the seed. The table is linear
 * in x: the sum of ranks' tables is the table of their sum, so it is a payload that is SUMMED. A
 * row's estimate is right on average, with a variance of at most ||x||^2 / columns. Host memory. */
#ifndef GRADCOMP_SDK_SKETCH_H
#define GRADCOMP_SDK_SKETCH_H

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SDK_SKETCH_ROWS = 15 };

typedef struct sdk_sketch {
	uint32_t rows;    /* odd, at most SDK_SKETCH_ROWS */
	uint32_t columns; /* not 0 */
	uint64_t seed;    /* equal on all ranks: the layout's, mixed with what may differ from step to step */
} sdk_sketch;

/* Floats of a table. */
static inline uint64_t sdk_sketch_floats(const sdk_sketch *s)
{
	return (uint64_t)s->rows * s->columns;
}

/* Adds a * x[0..n) to a table, which begins as zeroes; x[0] is number `first` of the vector (a
 * number's place in the layout, so that buckets do not matter). Numbers are added in their order,
 * each product and sum rounded to float: equal x give equal bits. */
void sdk_sketch_add(const sdk_sketch *s, float *table, float a, const float *x, uint64_t n, uint64_t first);
/* Estimates: out[j] = the estimate of number first + j. Of a table with NaN the estimates are anything. */
void sdk_sketch_estimate(const sdk_sketch *s, const float *table, float *out, uint64_t n, uint64_t first);

#ifdef __cplusplus
}
#endif
#endif
