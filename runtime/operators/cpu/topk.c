/* Exact selection of the k largest magnitudes, and its inverse.
 *
 * A float without its sign, read as an integer (its key), sorts like its
 * magnitude. The k-th largest key is found digit by digit with histograms of 11,
 * 10 and 10 bits. To read x once and not three times, a sample first gives a
 * key that a little more than k elements should reach; these are collected in
 * one pass and the exact search runs among them. When the guess was too high, or
 * let too many through (ties), the search runs over x itself. Either way the
 * result is the same. */
#include <string.h>

#include "half.h"
#include "kernels.h"

enum { BINS = 2048, SAMPLES = 16384 };

/* The k-th largest key, and how many of the elements equal to it are taken. */
typedef struct cut {
	uint32_t key;
	size_t ties;
} cut;

INLINE uint32_t key_of(float x)
{
	return float_bits(x) & 0x7fffffff;
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

/* From the highest bin down to the one that holds the *k-th; *k becomes its place
 * in that bin. */
static uint32_t find_bin(const uint32_t *count, uint32_t bins, size_t *k)
{
	uint32_t b = bins - 1;
	while (b && count[b] < *k)
		*k -= count[b--];
	return b;
}

/* count[digit] over the elements whose key has `prefix` above `shift` + 10 bits. */
static void count_digit(uint32_t *count, const float *x, size_t n, uint32_t prefix, int shift)
{
	uint32_t low = prefix << (shift + 10);
	size_t i = 0;
	memset(count, 0, 1024 * sizeof *count);
	for (; i + 8 <= n; i += 8)
		for (unsigned hit = reach8(x + i, low); hit; hit &= hit - 1) {
			uint32_t key = key_of(x[i + (unsigned)__builtin_ctz(hit)]);
			count[key >> shift & 1023] += key >> (shift + 10) == prefix;
		}
	for (; i < n; i++)
		count[key_of(x[i]) >> shift & 1023] += key_of(x[i]) >> (shift + 10) == prefix;
}

static cut find_cut(const float *x, size_t n, size_t k)
{
	/* Four counters a bin: neighbours often share one, and the next increment
	 * need not wait for the last. */
	uint32_t count[4][BINS];
	memset(count, 0, sizeof count);
	size_t i = 0;
	for (; i + 4 <= n; i += 4)
		for (size_t j = 0; j < 4; j++)
			count[j][key_of(x[i + j]) >> 20]++;
	for (; i < n; i++)
		count[0][key_of(x[i]) >> 20]++;
	for (i = 0; i < BINS; i++)
		count[0][i] += count[1][i] + count[2][i] + count[3][i];
	uint32_t key = find_bin(count[0], BINS, &k);
	for (int shift = 10; shift >= 0; shift -= 10) {
		count_digit(count[1], x, n, key, shift);
		key = key << 10 | find_bin(count[1], 1024, &k);
	}
	return (cut){key, k};
}

/* Writes the elements above the cut and the first ties at it. Names of elements
 * come from `names`, or are their places when NULL. */
static void take(uint32_t *idx, float *val, const float *x, const uint32_t *names, size_t n, cut c)
{
	size_t i = 0, j = 0;
	for (; i < n; i += 8) {
		unsigned hit = 0;
		if (i + 8 <= n)
			hit = reach8(x + i, c.key);
		else
			for (size_t t = i; t < n; t++)
				hit |= (unsigned)(key_of(x[t]) >= c.key) << (t - i);
		for (; hit; hit &= hit - 1) {
			size_t at = i + (unsigned)__builtin_ctz(hit);
			if (key_of(x[at]) == c.key) {
				if (!c.ties)
					continue;
				c.ties--;
			}
			val[j] = x[at];
			idx[j++] = names ? names[at] : (uint32_t)at;
		}
	}
}

/* All elements that reach `key`, if they are at most `most`; else most + 1. */
static size_t collect(float *val, uint32_t *idx, const float *x, size_t n, uint32_t key, size_t most)
{
	size_t i = 0, j = 0;
	for (; i + 8 <= n; i += 8) {
		unsigned hit = reach8(x + i, key);
		if (!hit)
			continue;
		if (j + 8 > most)
			return most + 1;
		for (; hit; hit &= hit - 1) {
			size_t at = i + (unsigned)__builtin_ctz(hit);
			val[j] = x[at];
			idx[j++] = (uint32_t)at;
		}
	}
	for (; i < n; i++)
		if (key_of(x[i]) >= key) {
			if (j == most)
				return most + 1;
			val[j] = x[i];
			idx[j++] = (uint32_t)i;
		}
	return j;
}

/* How many elements are collected at most; 0: sampling does not pay. */
static size_t room(size_t n, size_t k)
{
	return n < 65536 || k > n / 8 ? 0 : 3 * k + n / 128 + 1024;
}

/* A key that k of n elements reach with near certainty, and not many more:
 * the sample's quantile, four standard deviations and a bit further down. The
 * sample is spread with jitter, so that a period in x does not matter. */
static uint32_t guess(float *sample, const float *x, size_t n, size_t k)
{
	size_t stride = n / SAMPLES < 4 ? 4 : n / SAMPLES, count = n / stride;
	if (count > SAMPLES)
		count = SAMPLES;
	uint32_t h = 1;
	for (size_t i = 0; i < count; i++) {
		h = h * 1664525 + 1013904223;
		sample[i] = x[i * stride + (size_t)((uint64_t)h * stride >> 32)];
	}
	double want = (double)count * (double)k / (double)n, spread = 1;
	while (spread * spread < want)
		spread++;
	size_t at = (size_t)(want + 4 * spread + 8);
	return find_cut(sample, count, at < count ? at : count).key;
}

size_t KERNEL(topk_scratch)(size_t n, size_t k)
{
	size_t most = room(n, k);
	return most ? (most * (sizeof(float) + sizeof(uint32_t)) + SAMPLES * sizeof(float) + 63) / 64 * 64 : 0;
}

void KERNEL(topk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, void *scratch)
{
	(void)queue;
	size_t most = room(n, k);
	if (!k)
		return;
	if (k >= n) {
		take(idx, val, x, NULL, n, (cut){0, n});
		return;
	}
	if (most) {
		float *sample = scratch, *values = sample + SAMPLES;
		uint32_t *names = (uint32_t *)(values + most);
		size_t got = collect(values, names, x, n, guess(sample, x, n, k), most);
		if (got >= k && got <= most) {
			take(idx, val, values, names, got, find_cut(values, got, k));
			return;
		}
	}
	take(idx, val, x, NULL, n, find_cut(x, n, k));
}

gradcomp_status KERNEL(scatter_add)(void *queue, float *y, size_t n, const uint32_t *idx, const float *val,
                                    size_t k, float a)
{
	(void)queue;
	size_t j = 0;
	if (n <= UINT32_MAX) {
		v8i out = {0};
		uint32_t limit = (uint32_t)n;
		for (; j + 8 <= k; j += 8)
			out |= (v8i)(*(const v8u_any *)(idx + j) >= limit);
		for (int i = 0; i < 8; i++)
			if (out[i])
				return GRADCOMP_ERR_RANGE;
		for (; j < k; j++)
			if (idx[j] >= limit)
				return GRADCOMP_ERR_RANGE;
	}
	for (j = 0; j < k; j++)
		y[idx[j]] += a * val[j];
	return GRADCOMP_OK;
}
