/* The order of samples: each exactly once for any number of samples and ranks, its
 * inverse, and that it is an order one would call random. */
#include "io/dataset/node/permutation.h"
#include "tests/support/tap.h"

#include <stdlib.h>
#include <time.h>

/* Every sample once over all ranks, and found again where it is. */
static int once(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t nranks)
{
	unsigned char *seen = calloc(count + 1, 1);
	uint64_t given = 0;
	int right = 1;
	permutation o;
	permutation_init(&o, seed, epoch, count, 1);
	for (uint64_t r = 0; r < nranks; r++) {
		uint64_t length = permutation_length(count, nranks, r);
		right &= length - count / nranks <= 1;
		for (uint64_t p = 0; p < length; p++, given++) {
			uint64_t at = p * nranks + r, sample = permutation_at(&o, at);
			right &= sample < count && !seen[sample]++ && permutation_find(&o, sample) == at;
			if (!right)
				goto done;
		}
	}
	right = given == count;
done:
	free(seen);
	return right;
}

static void complete(void)
{
	static const uint64_t sizes[] = {255, 256, 257, 1000, 1023, 1024, 1025, 4096, 4097, 50000};
	static const uint64_t ranks[] = {1, 2, 3, 7, 64, 1000};
	int right = 1;
	for (uint64_t count = 0; count <= 130; count++)
		for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++)
			right &= once(count * 31, count % 5, count, ranks[k]);
	ok(right, "0 to 130 samples over 1 to 1000 ranks: each exactly once");
	right = 1;
	for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
		for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++)
			right &= once(7, 3, sizes[s], ranks[k]);
	ok(right, "around powers of two and at 50000 samples: each exactly once");
}

static void large(void)
{
	static const uint64_t counts[] = {((uint64_t)1 << 40), ((uint64_t)1 << 40) - 87, ((uint64_t)1 << 32) + 1,
	                                  PERMUTATION_COUNT_MAX};
	int right = 1;
	for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
		permutation o;
		permutation_init(&o, 99, 1, counts[k], 1);
		for (uint64_t i = 0; i < 20000; i++) {
			uint64_t at = i < 100 ? i : i < 200 ? counts[k] - i : i * 0x9e3779b97f4a7c15u % counts[k];
			uint64_t sample = permutation_at(&o, at);
			right &= sample < counts[k] && permutation_find(&o, sample) == at;
		}
	}
	ok(right, "2^32 + 1 to 2^62 samples: the inverse finds the place of each one looked at");
}

static void identity(void)
{
	int right = 1;
	permutation o;
	permutation_init(&o, 5, 9, 1000, 0);
	for (uint64_t i = 0; i < 1000; i++)
		right &= permutation_at(&o, i) == i && permutation_find(&o, i) == i;
	ok(right, "without shuffle it is the identity");
}

/* Over many seeds each sample comes first as often as any other, within 5 sigma of
 * chi-square; so do pairs of the first two. */
static void uniform(uint64_t count)
{
	enum { TRIES = 40000 };
	uint64_t *first = calloc(count, sizeof *first), *pair = calloc(count * count, sizeof *pair);
	double each = (double)TRIES / (double)count, both = (double)TRIES / (double)(count * (count - 1)), chi = 0,
	       chi2 = 0;
	for (uint64_t t = 0; t < TRIES; t++) {
		permutation o;
		permutation_init(&o, t / 200, t % 200, count, 1);
		uint64_t a = permutation_at(&o, 0), b = permutation_at(&o, 1);
		first[a]++;
		pair[a * count + b]++;
	}
	for (uint64_t i = 0; i < count; i++)
		chi += ((double)first[i] - each) * ((double)first[i] - each) / each;
	for (uint64_t i = 0; i < count * count; i++)
		if (i / count != i % count)
			chi2 += ((double)pair[i] - both) * ((double)pair[i] - both) / both;
	double df = (double)count - 1, df2 = (double)(count * (count - 1)) - 1;
	ok((chi - df) * (chi - df) < 25 * 2 * df,
	   "%d samples: which one is first is even (chi-square %.1f at %g degrees)", (int)count, chi, df);
	ok((chi2 - df2) * (chi2 - df2) < 25 * 2 * df2, "%d samples: and which two (%.1f at %g)", (int)count, chi2, df2);
	free(first);
	free(pair);
}

/* No shift, no stride, no likeness of one epoch with the next. */
static void unlike(void)
{
	enum { N = 20000 };
	uint64_t same = 0, steps[64] = {0}, most = 0, fixed = 0, rising = 0;
	permutation a, b;
	permutation_init(&a, 1, 1, N, 1);
	permutation_init(&b, 1, 2, N, 1);
	double mean = 0;
	for (uint64_t i = 0; i + 1 < N; i++) {
		uint64_t x = permutation_at(&a, i), y = permutation_at(&a, i + 1);
		same += x == permutation_at(&b, i);
		fixed += x == i;
		rising += y > x;
		steps[(y - x) % 64]++;
		mean += ((double)x - N / 2.0) * ((double)i - N / 2.0);
	}
	for (int k = 0; k < 64; k++)
		most = steps[k] > most ? steps[k] : most;
	mean /= (double)N * N * N / 12;
	ok(fixed < 10 && same < 10, "%llu of %d samples stay where they are, %llu are where the next epoch has them",
	   (unsigned long long)fixed, N, (unsigned long long)same);
	ok(most < N / 64 * 14 / 10, "differences of neighbours spread (at most %llu of %d alike mod 64)",
	   (unsigned long long)most, N);
	ok(rising > N * 48 / 100 && rising < N * 52 / 100, "half of the neighbours rise (%llu of %d)",
	   (unsigned long long)rising, N);
	ok(mean * mean < 25.0 / N, "place and sample do not correlate (%.4f)", mean);
}

/* A figure, with a limit that only a different algorithm would miss. */
static void cheap(void)
{
	enum { N = 200000 };
	struct timespec a, b;
	uint64_t sum = 0;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (uint64_t i = 0; i < N; i++) {
		permutation o;
		permutation_init(&o, 3, i & 7, 1281167, 1);
		sum += permutation_at(&o, i);
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	double ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / N;
	ok(sum && ns < 20000, "one place of one epoch takes %.0f ns, keys and all", ns);
}

int main(void)
{
	complete();
	large();
	identity();
	uniform(2);
	uniform(5);
	uniform(16);
	uniform(37);
	unlike();
	cheap();
	return done_testing();
}
