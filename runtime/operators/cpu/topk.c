/* Selection: the k largest magnitudes, and its parts: bins of magnitudes, the k-th of
 * them, and what a given threshold lets through. */
#include "operators/cpu/select.h"

size_t KERNEL(topk_scratch)(size_t n, size_t k)
{
	return KERNEL(select_scratch)(n, k);
}

void KERNEL(topk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, void *scratch)
{
	(void)queue;
	picked p = {x, NULL, n};
	sink s = {idx, val, 0, k};
	uint32_t key;
	if (!k)
		return;
	if (k >= n)
		KERNEL(select_take)(&s, &p, (cut){0, n});
	else if (KERNEL(select_pick)(&p, &key, x, n, k, scratch))
		KERNEL(select_take)(&s, &p, KERNEL(select_cut)(p.val, p.n, k, NULL));
	else
		KERNEL(select_take)(&s, &p, KERNEL(select_cut)(x, n, k, scratch));
}

void KERNEL(histogram)(void *queue, uint32_t *counts, const float *x, size_t n)
{
	(void)queue;
	/* Neighbours often share a bin, and the next increment need not wait for the last. */
	uint32_t more[3][GRADCOMP_HISTOGRAM_BINS];
	size_t i = 0;
	memset(counts, 0, GRADCOMP_HISTOGRAM_BINS * sizeof *counts);
	memset(more, 0, sizeof more);
	for (; i + 4 <= n; i += 4) {
		counts[key_of(x[i]) >> 19]++;
		for (size_t j = 0; j < 3; j++)
			more[j][key_of(x[i + 1 + j]) >> 19]++;
	}
	for (; i < n; i++)
		counts[key_of(x[i]) >> 19]++;
	for (i = 0; i < GRADCOMP_HISTOGRAM_BINS; i++)
		counts[i] += more[0][i] + more[1][i] + more[2][i];
}

void KERNEL(kth_magnitude)(void *queue, float *out, const float *x, size_t n, size_t k, void *scratch)
{
	(void)queue;
	if (k && k <= n)
		*out = bits_float(KERNEL(select_cut)(x, n, k, scratch).key);
}

void KERNEL(count_above)(void *queue, uint64_t *count, const float *x, size_t n, const float *threshold)
{
	(void)queue;
	*count = KERNEL(select_count)(x, n, reach_of(*threshold));
}

void KERNEL(compact)(void *queue, uint32_t *idx, float *val, uint64_t *count, const float *x, size_t n,
                     const float *threshold, size_t k, void *scratch)
{
	(void)queue;
	(void)scratch;
	const float t = *threshold;
	const picked all = {x, NULL, n};
	sink s = {idx, val, 0, k};
	uint32_t key = reach_of(t), above = t < 0 || key == KEY_INF ? key : key + 1;
	size_t more = KERNEL(select_count)(x, n, above);
	if (more < k)
		KERNEL(select_take)(&s, &all, (cut){key, above == key ? n : k - more});
	else
		for (size_t i = 0; i < n && s.n < k; i += 32)
			emit32(&s, &all, i, lowest(reach32(x, i, n, above), k - s.n));
	*count = s.n;
}
