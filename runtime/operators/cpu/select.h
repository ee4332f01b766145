/* What the operators that select by magnitude share. A float without its sign,
 * read as an integer (its key), sorts like its magnitude. */
#ifndef SELECT_H
#define SELECT_H

#include "half.h"
#include "kernels.h"

/* Larger than the key of any finite float. */
#define KEY_INF 0x7f800000u

/* The k-th largest key, and how many of the elements equal to it are among the k
 * largest. */
typedef struct cut {
	uint32_t key;
	size_t ties;
} cut;

/* Elements picked out of x in one pass: their values, and their places in x. */
typedef struct picked {
	const float *val;
	const uint32_t *idx; /* NULL: as they stand */
	size_t n;
} picked;

INLINE uint32_t key_of(float x)
{
	return float_bits(x) & 0x7fffffff;
}

/* The least key of the magnitudes that are at least t. */
INLINE uint32_t reach_of(double t)
{
	if (t <= 0)
		return 0;
	if (!(t <= (double)bits_float(KEY_INF - 1)))
		return KEY_INF;
	float f = (float)t;
	return float_bits(f) + (f < t);
}

/* Bit i: the key of x[i] is at least `key`, which is below 2^31. */
INLINE unsigned reach8(const float *x, uint32_t key)
{
	const v8i reach = ((int32_t)key - 1) - ((v8i)LOAD8(x) & 0x7fffffff); /* negative: yes */
#ifdef __AVX2__
	return (unsigned)_mm256_movemask_ps((__m256)reach);
#else
	int32_t any = reach[0] | reach[1] | reach[2] | reach[3] | reach[4] | reach[5] | reach[6] | reach[7];
	unsigned mask = 0;
	for (int i = 0; any < 0 && i < 8; i++)
		mask |= ((uint32_t)reach[i] >> 31) << i;
	return mask;
#endif
}

/* The same of the elements from i to n, at most eight. */
INLINE unsigned reach_at(const float *x, size_t i, size_t n, uint32_t key)
{
	unsigned hit = 0;
	if (i + 8 <= n)
		return reach8(x + i, key);
	for (size_t t = i; t < n; t++)
		hit |= (unsigned)(key_of(x[t]) >= key) << (t - i);
	return hit;
}

/* How many reach a key below 2^31. */
size_t KERNEL(select_count)(const float *x, size_t n, uint32_t key);
/* The k-th largest of n, 1 <= k <= n. */
cut KERNEL(select_cut)(const float *x, size_t n, size_t k);
/* Writes the elements above the cut and the first ties at it, in order, and
 * returns how many. Places come from `names`; NULL: as x is. */
size_t KERNEL(select_take)(uint32_t *idx, float *val, const float *x, const uint32_t *names, size_t n, cut c);
/* Picks all elements that reach a key which k of them reach, with room in
 * scratch of select_scratch() bytes. 0: it was not worth it, or did not fit. */
size_t KERNEL(select_scratch)(size_t n, size_t k);
int KERNEL(select_pick)(picked *p, uint32_t *key, const float *x, size_t n, size_t k, void *scratch);

#endif
