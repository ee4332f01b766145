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

/* Elements of x in its order: values, and places in x (NULL: all of x). */
typedef struct picked {
	const float *val;
	const uint32_t *idx;
	size_t n;
} picked;

/* Where chosen elements go, without places when idx is NULL: n so far, never more
 * than `room`. What lies behind the last may be overwritten up to there. */
typedef struct sink {
	uint32_t *idx;
	float *val;
	size_t n, room;
} sink;

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

/* Bit i: lane i is negative. */
INLINE unsigned negative8(const v8i *v)
{
#ifdef __AVX2__
	return (unsigned)_mm256_movemask_ps((__m256)*v);
#else
	const v8i a = *v;
	int32_t any = a[0] | a[1] | a[2] | a[3] | a[4] | a[5] | a[6] | a[7];
	unsigned mask = 0;
	for (int i = 0; any < 0 && i < 8; i++)
		mask |= ((uint32_t)a[i] >> 31) << i;
	return mask;
#endif
}

/* Bit i: the key of x[i] is at least `key`, which is below 2^31. */
INLINE unsigned reach8(const float *x, uint32_t key)
{
	const v8i below = ((int32_t)key - 1) - ((v8i)LOAD8(x) & 0x7fffffff);
	return negative8(&below);
}

/* The same of elements i to i + 31 of n; those past the end do not reach it. */
INLINE uint32_t reach32(const float *x, size_t i, size_t n, uint32_t key)
{
	uint32_t hit = 0;
	if (i + 32 <= n)
		return reach8(x + i, key) | reach8(x + i + 8, key) << 8 | reach8(x + i + 16, key) << 16 |
		       reach8(x + i + 24, key) << 24;
	for (size_t j = i; j < n; j++)
		hit |= (uint32_t)(key_of(x[j]) >= key) << (j - i);
	return hit;
}

/* The lowest bits of a mask, at most so many. */
INLINE uint32_t lowest(uint32_t mask, size_t most)
{
	while ((size_t)__builtin_popcount(mask) > most)
		mask &= ~(0x80000000u >> __builtin_clz(mask));
	return mask;
}

#ifdef __AVX2__
/* The lanes that are set in a byte, in order, four bits each. */
extern const uint32_t KERNEL(select_lanes)[256];

INLINE void emit8(sink *s, const float *val, __m256i idx, unsigned hit)
{
	__m256i lanes = _mm256_srlv_epi32(_mm256_set1_epi32((int)KERNEL(select_lanes)[hit]),
	                                  _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
	_mm256_storeu_ps(s->val + s->n, _mm256_permutevar8x32_ps(_mm256_loadu_ps(val), lanes));
	if (s->idx)
		_mm256_storeu_si256((__m256i *)(s->idx + s->n), _mm256_permutevar8x32_epi32(idx, lanes));
	s->n += (unsigned)__builtin_popcount(hit);
}
#endif

/* Appends those of p's elements i to i + 31 that `hit` names. */
INLINE void emit32(sink *s, const picked *p, size_t i, uint32_t hit)
{
	if (!hit)
		return;
#ifdef __AVX2__
	if (i + 32 <= p->n && s->n + 32 <= s->room) {
		const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
		UNROLL
		for (size_t j = 0; j < 32; j += 8) {
			__m256i idx = p->idx ? _mm256_loadu_si256((const __m256i *)(p->idx + i + j))
			                     : _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)(i + j)), lane);
			emit8(s, p->val + i + j, idx, hit >> j & 255);
		}
		return;
	}
#endif
	for (; hit; hit &= hit - 1) {
		size_t at = i + (unsigned)__builtin_ctz(hit);
		s->val[s->n] = p->val[at];
		if (s->idx)
			s->idx[s->n] = p->idx ? p->idx[at] : (uint32_t)at;
		s->n++;
	}
}

/* The sum of n magnitudes as if it were exact, rounded once, and the largest. */
double KERNEL(exact_sum)(float *top, const float *x, size_t n);
/* How many of n reach a key below 2^31. */
size_t KERNEL(select_count)(const float *x, size_t n, uint32_t key);
/* The k-th largest of n, 1 <= k <= n. With scratch of select_scratch() bytes the
 * search is quick for large n; NULL: n is small. */
cut KERNEL(select_cut)(const float *x, size_t n, size_t k, void *scratch);
/* Appends the elements above the cut and the first ties at it. */
void KERNEL(select_take)(sink *s, const picked *p, cut c);
/* Picks all elements that reach *key, which k of them do, into scratch of
 * select_scratch() bytes. 0: it was not worth it, or they did not fit. */
size_t KERNEL(select_scratch)(size_t n, size_t k);
int KERNEL(select_pick)(picked *p, uint32_t *key, const float *x, size_t n, size_t k, void *scratch);

#endif
