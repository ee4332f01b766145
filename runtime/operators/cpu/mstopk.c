/* MSTopK (Shi et al. 2020), whose thresholds are found by bisection.
 *
 * How many magnitudes reach a threshold t is never counted: the bisection only
 * asks whether more than k do, and that is whether the (k+1)-th largest does. So
 * the exact selection answers for all samplings at once. */
#include "operators/cpu/philox.h"
#include "operators/cpu/select.h"

/* From the mean or from 0 upwards; *taken and *open are the lowest threshold that at most k
 * reach and the highest that more do. v is the (k+1)-th magnitude. */
static void bisect(uint32_t *taken, uint32_t *open, double from, double span, double v, int samplings)
{
	double lo = 0, hi = 1;
	for (int s = 0; s < samplings; s++) {
		double q = (lo + hi) / 2, t = from + q * span;
		if (q == lo || q == hi)
			return;
		if (v >= t) {
			lo = q;
			*open = reach_of(t);
		} else {
			hi = q;
			*taken = reach_of(t);
		}
	}
}

/* All that reach `taken`, and a run of the others that reach `open`. */
static void take_run(sink *s, const picked *p, uint32_t taken, uint32_t open, size_t offset, size_t run)
{
	size_t place = 0;
	for (size_t i = 0; i < p->n; i += 32) {
		uint32_t sure = reach32(p->val, i, p->n, taken), others = reach32(p->val, i, p->n, open) & ~sure;
		size_t end = place + (unsigned)__builtin_popcount(others);
		if (place < offset + run)
			others = lowest(others, offset + run - place);
		else
			others = 0;
		if (place < offset)
			others &= ~lowest(others, offset - place);
		place = end;
		emit32(s, p, i, sure | others);
	}
}

size_t KERNEL(mstopk_scratch)(size_t n, size_t k)
{
	return KERNEL(select_scratch)(n, k + 1);
}

void KERNEL(mstopk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, int samplings,
                    uint64_t seed, uint64_t stream, void *scratch)
{
	(void)queue;
	const picked all = {x, NULL, n};
	picked p = all;
	sink s = {idx, val, 0, k};
	float top;
	if (!k)
		return;
	if (k >= n) {
		KERNEL(select_take)(&s, &all, (cut){0, n});
		return;
	}
	double mean = KERNEL(exact_sum)(&top, x, n) / (double)n;
	/* No threshold lies among numbers that are none, and more than k may reach any. */
	if (key_of(top) >= KEY_INF) {
		KERNEL(topk)(queue, idx, val, x, n, k, scratch);
		return;
	}
	uint32_t guess, taken = KEY_INF, open = 0;
	int some = KERNEL(select_pick)(&p, &guess, x, n, k + 1, scratch);
	double v = bits_float(KERNEL(select_cut)(p.val, p.n, k + 1, some ? NULL : scratch).key);
	if (v < mean && KERNEL(select_count)(p.val, p.n, reach_of(mean)) < k) {
		taken = reach_of(mean);
		bisect(&taken, &open, 0, mean, v, samplings);
	} else
		bisect(&taken, &open, mean, top - mean, v, samplings);
	if (some && open < guess)
		p = all;
	size_t sure = KERNEL(select_count)(p.val, p.n, taken);
	size_t slack = KERNEL(select_count)(p.val, p.n, open) - k;
	uint32_t word[4];
	random_draw(word, seed, stream, 0);
	size_t offset = (size_t)((uint64_t)(word[0] >> 8) * (slack + 1) >> 24);
	take_run(&s, &p, taken, open, offset, k - sure);
}
