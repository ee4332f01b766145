/* Selection in parts: bins of magnitudes, the k-th of them, and what a given
 * threshold lets through. */
#include "select.h"

void KERNEL(histogram)(void *queue, uint32_t *counts, const float *x, size_t n)
{
	(void)queue;
	memset(counts, 0, GRADCOMP_HISTOGRAM_BINS * sizeof *counts);
	for (size_t i = 0; i < n; i++)
		counts[key_of(x[i]) >> 19]++;
}

void KERNEL(kth_magnitude)(void *queue, float *out, const float *x, size_t n, size_t k, void *scratch)
{
	(void)queue;
	picked p;
	uint32_t key;
	if (!k || k > n)
		return;
	if (KERNEL(select_pick)(&p, &key, x, n, k, scratch))
		*out = bits_float(KERNEL(select_cut)(p.val, p.n, k).key);
	else
		*out = bits_float(KERNEL(select_cut)(x, n, k).key);
}

void KERNEL(count_above)(void *queue, uint64_t *count, const float *x, size_t n, const float *threshold)
{
	(void)queue;
	*count = KERNEL(select_count)(x, n, reach_of(*threshold));
}

/* The k lowest-indexed of those that reach `key`. */
static size_t take_first(uint32_t *idx, float *val, const float *x, size_t n, uint32_t key, size_t k)
{
	size_t j = 0;
	for (size_t i = 0; i < n && j < k; i += 8)
		for (unsigned hit = reach_at(x, i, n, key); hit && j < k; hit &= hit - 1) {
			size_t at = i + (unsigned)__builtin_ctz(hit);
			val[j] = x[at];
			idx[j++] = (uint32_t)at;
		}
	return j;
}

void KERNEL(compact)(void *queue, uint32_t *idx, float *val, uint64_t *count, const float *x, size_t n,
                     const float *threshold, size_t k, void *scratch)
{
	(void)queue;
	(void)scratch;
	const float t = *threshold;
	uint32_t key = reach_of(t), above = t < 0 || key == KEY_INF ? key : key + 1;
	size_t more = KERNEL(select_count)(x, n, above);
	if (more >= k)
		*count = take_first(idx, val, x, n, above, k);
	else
		*count = KERNEL(select_take)(idx, val, x, NULL, n, (cut){key, above == key ? n : k - more});
}
