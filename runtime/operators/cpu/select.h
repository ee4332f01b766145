/* The operators that select by magnitude share this. A float without its sign, read as an integer (its key), sorts
 * like its magnitude. */
#ifndef OPERATORS_CPU_SELECT_H
#define OPERATORS_CPU_SELECT_H

#include "operators/cpu/half.h"
#include "operators/cpu/kernels.h"

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

/* The larger and the smaller of two vectors. */
#ifdef __AVX2__
#define LARGER8(a, b) ((v8i)_mm256_max_epi32((__m256i)(a), (__m256i)(b)))
#define SMALLER8(a, b) ((v8i)_mm256_min_epi32((__m256i)(a), (__m256i)(b)))
#else
#define LARGER8(a, b) (((b) & ((b) > (a))) | ((a) & ((b) <= (a))))
#define SMALLER8(a, b) (((b) & ((b) < (a))) | ((a) & ((b) >= (a))))
#endif

/* Bit i: lane i is negative. Quick when none is. */
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

/* Bit i: the key of x[i] is at least `key`, which is at most 2^31. */
INLINE uint32_t reach16(const float *x, uint32_t key)
{
#ifdef __AVX512F__
	__m512i v = _mm512_and_epi32(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff));
	return _mm512_cmpgt_epi32_mask(v, _mm512_set1_epi32((int32_t)(key - 1)));
#else
	const int32_t below = (int32_t)(key - 1);
	const v8i a = below - ((v8i)LOAD8(x) & 0x7fffffff), b = below - ((v8i)LOAD8(x + 8) & 0x7fffffff);
	return negative8(&a) | negative8(&b) << 8;
#endif
}

/* The same of elements i to i + 31 of n; those past the end do not reach it. */
INLINE uint32_t reach32(const float *x, size_t i, size_t n, uint32_t key)
{
	uint32_t hit = 0;
	if (i + 32 <= n)
		return reach16(x + i, key) | reach16(x + i + 16, key) << 16;
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

#ifdef __AVX512F__
/* Sixteen elements, called at, at + 1, ... or as in `names`. */
INLINE void emit16(sink *s, const float *val, const uint32_t *names, uint32_t at, unsigned hit)
{
	const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __mmask16 mask = (__mmask16)hit;
	_mm512_storeu_ps(s->val + s->n, _mm512_maskz_compress_ps(mask, _mm512_loadu_ps(val)));
	if (s->idx) {
		__m512i idx =
			names ? _mm512_loadu_si512(names) : _mm512_add_epi32(_mm512_set1_epi32((int32_t)at), lane);
		_mm512_storeu_si512(s->idx + s->n, _mm512_maskz_compress_epi32(mask, idx));
	}
	s->n += (unsigned)__builtin_popcount(hit);
}
#elif defined(__AVX2__)
/* The lanes that are set in a byte, in order, four bits each. */
extern const uint32_t KERNEL(select_lanes)[256];

INLINE void emit8(sink *s, const float *val, const uint32_t *names, uint32_t at, unsigned hit)
{
	const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), four = _mm256_slli_epi32(lane, 2);
	__m256i lanes = _mm256_srlv_epi32(_mm256_set1_epi32((int32_t)KERNEL(select_lanes)[hit]), four);
	_mm256_storeu_ps(s->val + s->n, _mm256_permutevar8x32_ps(_mm256_loadu_ps(val), lanes));
	if (s->idx) {
		__m256i idx = names ? _mm256_loadu_si256((const __m256i *)(const void *)names)
		                    : _mm256_add_epi32(_mm256_set1_epi32((int32_t)at), lane);
		_mm256_storeu_si256((__m256i *)(void *)(s->idx + s->n), _mm256_permutevar8x32_epi32(idx, lanes));
	}
	s->n += (unsigned)__builtin_popcount(hit);
}

INLINE void emit16(sink *s, const float *val, const uint32_t *names, uint32_t at, unsigned hit)
{
	emit8(s, val, names, at, hit & 255);
	emit8(s, val + 8, names ? names + 8 : NULL, at + 8, hit >> 8);
}
#endif

/* Appends those of p's elements i to i + 31 that `hit` names. */
INLINE void emit32(sink *s, const picked *p, size_t i, uint32_t hit)
{
	if (!hit)
		return;
#ifdef __AVX2__
	if (i + 32 <= p->n && s->n + 32 <= s->room) {
		const uint32_t *names = p->idx ? p->idx + i : NULL;
		emit16(s, p->val + i, names, (uint32_t)i, hit & 65535);
		emit16(s, p->val + i + 16, names ? names + 16 : NULL, (uint32_t)i + 16, hit >> 16);
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
/* How many of n reach a key of up to 2^31. */
size_t KERNEL(select_count)(const float *x, size_t n, uint32_t key);
/* The k-th largest of n, 1 <= k <= n. With scratch of select_scratch() bytes the
 * search is quick for large n; NULL: n is small. */
cut KERNEL(select_cut)(const float *x, size_t n, size_t k, void *scratch);
/* Appends the elements above the cut and the first ties at it. */
void KERNEL(select_take)(sink *s, const picked *p, cut c);
/* Picks all elements that reach *key, which at least k of them do, into scratch of
 * select_scratch() bytes. 0: it was not worth it, fewer do, or they did not fit; *p and *key
 * are as they were. */
size_t KERNEL(select_scratch)(size_t n, size_t k);
int KERNEL(select_pick)(picked *p, uint32_t *key, const float *x, size_t n, size_t k, void *scratch);

#endif
