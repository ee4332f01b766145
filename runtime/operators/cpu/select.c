/* The k-th largest magnitude.
 *
 * Its key is found digit by digit with histograms of 11, 10 and 10 bits. To read
 * x once and not three times, a sample first gives a key that a little more than
 * k elements should reach; these are picked out in one pass and the exact search
 * runs among them. When the guess was too high, or let too many through (ties),
 * the search runs over x itself. Either way the result is the same. */
#include "select.h"

enum { BINS = 2048, SAMPLES = 16384 };

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
	memset(count, 0, 1024 * sizeof *count);
	for (size_t i = 0; i < n; i += 8)
		for (unsigned hit = reach_at(x, i, n, low); hit; hit &= hit - 1) {
			uint32_t key = key_of(x[i + (unsigned)__builtin_ctz(hit)]);
			count[key >> shift & 1023] += key >> (shift + 10) == prefix;
		}
}

size_t KERNEL(select_count)(const float *x, size_t n, uint32_t key)
{
	enum { BLOCK = 1 << 20 };
	size_t total = 0, i = 0;
	while (i + 16 <= n) {
		size_t end = n - i < BLOCK ? n : i + BLOCK;
		v8i a = {0}, b = {0};
		for (; i + 16 <= end; i += 16) {
			a += ((v8i)LOAD8(x + i) & 0x7fffffff) > (int32_t)key - 1;
			b += ((v8i)LOAD8(x + i + 8) & 0x7fffffff) > (int32_t)key - 1;
		}
		a += b;
		for (int j = 0; j < 8; j++)
			total += (size_t)-a[j];
	}
	for (; i < n; i++)
		total += key_of(x[i]) >= key;
	return total;
}

cut KERNEL(select_cut)(const float *x, size_t n, size_t k)
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

size_t KERNEL(select_take)(uint32_t *idx, float *val, const float *x, const uint32_t *names, size_t n, cut c)
{
	size_t j = 0;
	for (size_t i = 0; i < n; i += 8)
		for (unsigned hit = reach_at(x, i, n, c.key); hit; hit &= hit - 1) {
			size_t at = i + (unsigned)__builtin_ctz(hit);
			if (key_of(x[at]) == c.key) {
				if (!c.ties)
					continue;
				c.ties--;
			}
			val[j] = x[at];
			idx[j++] = names ? names[at] : (uint32_t)at;
		}
	return j;
}

/* All elements that reach `key`, if they are at most `most`; else most + 1. */
static size_t collect(float *val, uint32_t *idx, const float *x, size_t n, uint32_t key, size_t most)
{
	size_t j = 0;
	for (size_t i = 0; i < n; i += 8) {
		unsigned hit = reach_at(x, i, n, key);
		if (!hit)
			continue;
		if (j + (unsigned)__builtin_popcount(hit) > most)
			return most + 1;
		for (; hit; hit &= hit - 1) {
			size_t at = i + (unsigned)__builtin_ctz(hit);
			val[j] = x[at];
			idx[j++] = (uint32_t)at;
		}
	}
	return j;
}

/* How many elements are picked at most; 0: sampling does not pay. */
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
	return KERNEL(select_cut)(sample, count, at < count ? at : count).key;
}

size_t KERNEL(select_scratch)(size_t n, size_t k)
{
	size_t most = room(n, k);
	return most ? (most * (sizeof(float) + sizeof(uint32_t)) + SAMPLES * sizeof(float) + 63) / 64 * 64 : 0;
}

int KERNEL(select_pick)(picked *p, uint32_t *key, const float *x, size_t n, size_t k, void *scratch)
{
	size_t most = room(n, k);
	if (!most)
		return 0;
	float *sample = scratch, *val = sample + SAMPLES;
	uint32_t *idx = (uint32_t *)(val + most);
	*key = guess(sample, x, n, k);
	*p = (picked){val, idx, collect(val, idx, x, n, *key, most)};
	return p->n >= k && p->n <= most;
}
