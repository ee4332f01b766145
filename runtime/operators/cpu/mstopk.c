/* MSTopK (Shi et al. 2020), whose thresholds are found by bisection.
 *
 * How many magnitudes reach a threshold t is never counted: the bisection only
 * asks whether more than k do, and that is whether the (k+1)-th largest does. So
 * the exact selection answers for all samplings at once. The mean is that of the
 * exact sum, so that it depends on no order. */
#include "select.h"

enum { EXPONENTS = 255 };

/* The sum of n magnitudes, rounded once. Exponent e >= 1 stands for units of
 * 2^(e - 150). */
static double exact_sum(const float *x, size_t n)
{
	uint64_t part[4][EXPONENTS + 1];
	size_t i = 0;
	memset(part, 0, sizeof part);
	for (; i + 4 <= n; i += 4)
		for (size_t j = 0; j < 4; j++) {
			uint32_t key = key_of(x[i + j]), e = key >> 23;
			part[j][e] += (key & 0x7fffff) | (uint32_t)(e != 0) << 23;
		}
	for (; i < n; i++) {
		uint32_t key = key_of(x[i]), e = key >> 23;
		part[0][e] += (key & 0x7fffff) | (uint32_t)(e != 0) << 23;
	}
	for (i = 0; i <= EXPONENTS; i++)
		part[0][i] += part[1][i] + part[2][i] + part[3][i];
	/* Denormals have the unit of exponent 1. Bit i of the sum is worth 2^(i - 149). */
	uint8_t bit[EXPONENTS + 64];
	uint64_t rest = part[0][0];
	size_t top = 0;
	for (i = 0; i < sizeof bit; i++) {
		rest += i + 1 < EXPONENTS ? part[0][i + 1] : 0;
		bit[i] = rest & 1;
		rest >>= 1;
		top = bit[i] ? i : top;
	}
	size_t low = top < 53 ? 0 : top - 52;
	uint64_t mantissa = 0;
	int beyond = 0;
	for (i = top + 1; i-- > low;)
		mantissa = mantissa << 1 | bit[i];
	for (i = 0; low && i < low - 1; i++)
		beyond |= bit[i];
	if (low && bit[low - 1] && (beyond || mantissa & 1))
		mantissa++;
	return __builtin_ldexp((double)mantissa, (int)low - 149);
}

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
static void take_run(uint32_t *idx, float *val, const float *x, const uint32_t *names, size_t n, uint32_t taken,
                     uint32_t open, size_t offset, size_t run)
{
	size_t j = 0, place = 0;
	for (size_t i = 0; i < n; i += 8)
		for (unsigned hit = reach_at(x, i, n, open); hit; hit &= hit - 1) {
			size_t at = i + (unsigned)__builtin_ctz(hit);
			if (key_of(x[at]) < taken && place++ - offset >= run)
				continue;
			val[j] = x[at];
			idx[j++] = names ? names[at] : (uint32_t)at;
		}
}

size_t KERNEL(mstopk_scratch)(size_t n, size_t k)
{
	return KERNEL(select_scratch)(n, k + 1);
}

void KERNEL(mstopk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, int samplings,
                    uint64_t seed, uint64_t stream, void *scratch)
{
	float top;
	if (!k)
		return;
	if (k >= n) {
		KERNEL(select_take)(idx, val, x, NULL, n, (cut){0, n});
		return;
	}
	KERNEL(absmax)(queue, &top, x, n, NULL);
	double mean = exact_sum(x, n) / (double)n;
	picked p;
	uint32_t guess, taken = KEY_INF, open = 0;
	int some = KERNEL(select_pick)(&p, &guess, x, n, k + 1, scratch);
	if (!some)
		p = (picked){x, NULL, n};
	double v = bits_float(KERNEL(select_cut)(p.val, p.n, k + 1).key);
	if (v < mean && KERNEL(select_count)(p.val, p.n, reach_of(mean)) < k) {
		taken = reach_of(mean);
		bisect(&taken, &open, 0, mean, v, samplings);
	} else
		bisect(&taken, &open, mean, top - mean, v, samplings);
	if (some && open < guess)
		p = (picked){x, NULL, n};
	size_t sure = KERNEL(select_count)(p.val, p.n, taken);
	size_t slack = KERNEL(select_count)(p.val, p.n, open) - k;
	uint32_t counter[4] = {0, 0, (uint32_t)stream, (uint32_t)(stream >> 32)}, word[4];
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	random_philox(counter, key, word);
	size_t offset = (size_t)((uint64_t)(word[0] >> 8) * (slack + 1) >> 24);
	take_run(idx, val, p.val, p.idx, p.n, taken, open, offset, k - sure);
}
