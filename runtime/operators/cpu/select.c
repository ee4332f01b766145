/* The k-th largest magnitude, exactly, in about one pass over memory.
 *
 * A sample tells about where it is. When k is small, the elements that reach a
 * key somewhat below are picked out together with their places, and the exact
 * search runs among them. Otherwise only those between two keys are, while the ones
 * above are counted; where copies of few values crowd that interval (zeroes, ties)
 * they are counted first. The exact search takes the key digit by digit, with
 * histograms of 11, 10 and 10 bits. A guess is checked before anything stands on it; where
 * it was wrong the search runs over x itself, so the result is always the same. */
#include "operators/cpu/select.h"

enum { BINS = 2048, SAMPLES = 16384, SAMPLED = 65536 };

#if defined(__AVX2__) && !defined(__AVX512F__)
#define SET(m, b) (((m) >> (b)) % 2)
#define LANE(m, b, rest) ((rest) << 4 * SET(m, b) | SET(m, b) * (b))
#define LANES(m) LANE(m, 0u, LANE(m, 1, LANE(m, 2, LANE(m, 3, LANE(m, 4, LANE(m, 5, LANE(m, 6, LANE(m, 7, 0u))))))))
#define LANES4(m) LANES(m), LANES((m) + 1), LANES((m) + 2), LANES((m) + 3)
#define LANES16(m) LANES4(m), LANES4((m) + 4), LANES4((m) + 8), LANES4((m) + 12)
#define LANES64(m) LANES16(m), LANES16((m) + 16), LANES16((m) + 32), LANES16((m) + 48)
const uint32_t KERNEL(select_lanes)[256] = {LANES64(0u), LANES64(64u), LANES64(128u), LANES64(192u)};
#endif

size_t KERNEL(select_count)(const float *x, size_t n, uint32_t key)
{
	const int32_t below = (int32_t)(key - 1);
	size_t total = 0, i;
	v8i a = {0}, b = {0};
	/* At most 2^28 a lane. */
	for (i = 0; i + 16 <= n; i += 16) {
		a += ((v8i)LOAD8(x + i) & 0x7fffffff) > below;
		b += ((v8i)LOAD8(x + i + 8) & 0x7fffffff) > below;
	}
	a += b;
	for (int j = 0; j < 8; j++)
		total -= (size_t)a[j]; /* -1 each */
	for (i = n / 16 * 16; i < n; i++)
		total += key_of(x[i]) >= key;
	return total;
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
	const int32_t low = (int32_t)(prefix << (shift + 10)), span = 1024 << shift;
	size_t i = 0;
	memset(count, 0, 1024 * sizeof *count);
	for (; i + 8 <= n; i += 8) {
		const v8i off = ((v8i)LOAD8(x + i) & 0x7fffffff) - low, inside = (off - span) & ~off;
		for (unsigned hit = negative8(&inside); hit; hit &= hit - 1)
			count[key_of(x[i + (unsigned)__builtin_ctz(hit)]) >> shift & 1023]++;
	}
	for (; i < n; i++)
		count[key_of(x[i]) >> shift & 1023] += key_of(x[i]) >> (shift + 10) == prefix;
}

/* The counts of the first digit, which searches for several k can share. */
static void count_first(uint32_t *total, const float *x, size_t n)
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
		total[i] = count[0][i] + count[1][i] + count[2][i] + count[3][i];
}

static cut search_from(const uint32_t *first, const float *x, size_t n, size_t k)
{
	uint32_t count[1024], key = find_bin(first, BINS, &k);
	for (int shift = 10; shift >= 0; shift -= 10) {
		count_digit(count, x, n, key, shift);
		key = key << 10 | find_bin(count, 1024, &k);
	}
	return (cut){key, k};
}

static cut search(const float *x, size_t n, size_t k)
{
	uint32_t first[BINS];
	count_first(first, x, n);
	return search_from(first, x, n, k);
}

/* It holds numbers of x, and counts of their first digits. */
typedef struct sample {
	uint32_t first[BINS];
	float *x;
} sample;

/* Each of SAMPLES equal parts of x gives a number, from a place that jitters so that a period in x
 * does not matter. Nothing of x is left out: where n is no multiple, neighbours share a number. */
static void sample_take(sample *s, void *room, const float *x, size_t n)
{
	const uint64_t width = (n + SAMPLES - 1) / SAMPLES;
	uint32_t h = 1;
	s->x = room;
	for (uint64_t i = 0; i < SAMPLES; i++) {
		h = h * 1664525 + 1013904223;
		s->x[i] = x[i * n / SAMPLES + (h * width >> 32)];
	}
	count_first(s->first, s->x, SAMPLES);
}

/* The k-th of n is there in a sorted sample, give or take *off: four standard deviations and a bit. */
static size_t quantile(size_t *off, size_t n, size_t k)
{
	double part = (double)k / (double)n, want = SAMPLES * part, variance = want * (1 - part), deviation = 1;
	while (deviation * deviation < variance)
		deviation++;
	*off = (size_t)(4 * deviation + 8);
	return (size_t)want + 1;
}

/* The k-th key of n is at least that, with near certainty. */
static uint32_t guess_low(const sample *s, size_t n, size_t k)
{
	size_t off, at = quantile(&off, n, k);
	return at + off <= SAMPLES ? search_from(s->first, s->x, SAMPLES, at + off).key : 0;
}

/* It is less than that, likewise. */
static uint32_t guess_high(const sample *s, size_t n, size_t k)
{
	size_t off, at = quantile(&off, n, k);
	return at > off ? search_from(s->first, s->x, SAMPLES, at - off).key + 1 : KEY_INF;
}

/* Counts the elements whose keys are at least `high`, and appends those from `low`
 * on to s while there is room. *inside is how many the latter are. */
static size_t divide(sink *s, size_t *inside, const float *x, size_t n, uint32_t low, uint32_t high)
{
	const picked all = {x, NULL, n};
	size_t above = 0, in = 0;
	for (size_t i = 0; i < n; i += 32) {
		uint32_t over = reach32(x, i, n, high), hit = reach32(x, i, n, low) & ~over;
		above += (unsigned)__builtin_popcount(over);
		in += (unsigned)__builtin_popcount(hit);
		if (s->n + 32 <= s->room)
			emit32(s, &all, i, hit);
	}
	*inside = in;
	return above;
}

/* How many elements are picked at most; 0: k is too large, or n too small. */
static size_t picks(size_t n, size_t k)
{
	return n < SAMPLED || k > n / 32 ? 0 : 3 * k + n / 128 + 1024;
}

size_t KERNEL(select_scratch)(size_t n, size_t k)
{
	if (n < SAMPLED)
		return 0;
	size_t pick = picks(n, k) * (sizeof(float) + sizeof(uint32_t)), between = n / 16 * sizeof(float);
	return (SAMPLES * sizeof(float) + (pick > between ? pick : between) + 63) / 64 * 64;
}

cut KERNEL(select_cut)(const float *x, size_t n, size_t k, void *scratch)
{
	if (!scratch || n < SAMPLED)
		return search(x, n, k);
	sample some;
	sample_take(&some, scratch, x, n);
	sink s = {NULL, some.x + SAMPLES, 0, 0};
	size_t above, inside;
	uint32_t low = guess_low(&some, n, k), high = guess_high(&some, n, k);
	/* A crowd is copies of few values; the one in its middle is looked at first. */
	for (int tries = 0; tries < 3; tries++) {
		size_t higher = KERNEL(select_count)(some.x, SAMPLES, high);
		size_t crowd = KERNEL(select_count)(some.x, SAMPLES, low) - higher;
		if (crowd <= SAMPLES / 20)
			break;
		uint32_t key = search_from(some.first, some.x, SAMPLES, higher + crowd / 2).key;
		above = divide(&s, &inside, x, n, key, key + 1);
		if (above < k && k <= above + inside)
			return (cut){key, k - above};
		if (k <= above)
			low = key + 1;
		else
			high = key;
	}
	s.room = n / 16;
	above = divide(&s, &inside, x, n, low, high);
	if (above < k && k <= above + inside && inside == s.n)
		return search(s.val, s.n, k - above);
	return search(x, n, k);
}

void KERNEL(select_take)(sink *s, const picked *p, cut c)
{
	for (size_t i = 0; i < p->n; i += 32) {
		uint32_t hit = reach32(p->val, i, p->n, c.key + 1);
		if (c.ties) {
			uint32_t ties = lowest(reach32(p->val, i, p->n, c.key) & ~hit, c.ties);
			c.ties -= (unsigned)__builtin_popcount(ties);
			hit |= ties;
		}
		emit32(s, p, i, hit);
	}
}

int KERNEL(select_pick)(picked *p, uint32_t *key, const float *x, size_t n, size_t k, void *scratch)
{
	size_t most = picks(n, k);
	if (!most)
		return 0;
	sample some;
	sample_take(&some, scratch, x, n);
	sink s = {(uint32_t *)(void *)(some.x + SAMPLES + most), some.x + SAMPLES, 0, most};
	const picked all = {x, NULL, n};
	const uint32_t low = guess_low(&some, n, k);
	for (size_t i = 0; i < n; i += 32) {
		uint32_t hit = reach32(x, i, n, low);
		if (s.n + (unsigned)__builtin_popcount(hit) > most)
			return 0;
		emit32(&s, &all, i, hit);
	}
	if (s.n < k)
		return 0;
	*p = (picked){s.val, s.idx, s.n};
	*key = low;
	return 1;
}
