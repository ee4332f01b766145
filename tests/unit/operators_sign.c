/* Signs and the means that stand for them, against their definition. */
#include <math.h>

#include "tests/support/operator_input.h"

enum { CANARY = 0x5a5a5a5a };

/* 65537 reaches past what is summed at a time anywhere. */
static const size_t sizes[] = {0, 1, 7, 31, 33, 255, 256, 257, 4097, 65537};
static const size_t segments[] = {1, 5, 31, 32, 33, 64, 100, 1000, (size_t)1 << 40};

static float number(void)
{
	unsigned kind = (unsigned)(test_random() % 16);
	float v = test_normal();
	return kind == 0 ? 0.0f : kind == 1 ? -0.0f : kind == 2 ? v * 1e-42f : kind == 3 ? copysignf(3e38f, v) : v;
}

static int bit_at(const uint32_t *bits, size_t i, size_t segment)
{
	size_t words = (segment + 31) / 32, in = i % segment;
	return (int)(bits[i / segment * words + in / 32] >> in % 32 & 1);
}

static size_t words_expected(size_t n, size_t segment)
{
	size_t words = 0;
	for (size_t i = 0; i < n; i += segment)
		words += ((n - i < segment ? n - i : segment) + 31) / 32;
	return words;
}

static int right_bits(const uint32_t *bits, size_t words, const float *x, size_t n, size_t segment)
{
	uint32_t *want = calloc(words + 1, sizeof *want);
	size_t perrun = (segment + 31) / 32;
	for (size_t i = 0; i < n; i++)
		if (x[i] < 0)
			want[i / segment * perrun + i % segment / 32] |= 1u << i % segment % 32;
	want[words] = CANARY;
	int right = !memcmp(bits, want, (words + 1) * sizeof *want);
	free(want);
	return right;
}

/* Means of floats of one sign, summed in double: all but exact. */
static int right_means(const float *pairs, const float *x, size_t n, size_t segment)
{
	for (size_t i = 0, s = 0; i < n; i += segment, s++) {
		double sum[2] = {0}, count[2] = {0};
		for (size_t j = i; j < n && j - i < segment; j++) {
			sum[x[j] < 0] += x[j];
			count[x[j] < 0]++;
		}
		for (int b = 0; b < 2; b++) {
			double mean = count[b] ? sum[b] / count[b] : 0, off = fabs(pairs[2 * s + (size_t)b] - mean);
			if (off > 1e-7 * fabs(mean) + 0x1p-149) {
				printf("# run %zu, %d: %a, not %a\n", s, b, pairs[2 * s + (size_t)b], mean);
				return 0;
			}
		}
	}
	return 1;
}

static int right_back(const gradcomp_operators *op, const uint32_t *bits, const float *pairs, const float *x, size_t n,
                      size_t segment, size_t odd)
{
	float *y = test_alloc(n, odd), *e = test_alloc(n, odd), *same = test_alloc(n, odd);
	int right = 1;
	for (size_t i = 0; i < n; i++)
		y[i] = (float)i * 0.75f, same[i] = x[i];
	op->sign_add(NULL, y, -0.7f, bits, pairs, n, segment);
	op->sign_error(NULL, e, x, bits, pairs, n, segment);
	op->sign_error(NULL, same, same, bits, pairs, n, segment);
	for (size_t i = 0; right && i < n; i++) {
		float v = pairs[i / segment * 2 + (size_t)bit_at(bits, i, segment)], product = -0.7f * v;
		float sum = (float)i * 0.75f + product, rest = x[i] - v;
		right = !memcmp(&y[i], &sum, 4) && !memcmp(&e[i], &rest, 4) && !memcmp(&same[i], &rest, 4);
		if (!right)
			printf("# number %zu: sum %a, not %a; error %a, not %a\n", i, y[i], sum, e[i], rest);
	}
	right &= test_free(y, n, odd);
	right &= test_free(e, n, odd);
	right &= test_free(same, n, odd);
	return right;
}

static void each(const char *name, const gradcomp_operators *op)
{
	int counted = 1, packed = 1, averaged = 1, repeated = 1, back = 1;
	for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++)
		for (size_t b = 0; b < sizeof segments / sizeof *segments; b++) {
			size_t n = sizes[a], segment = segments[b], odd = test_random() % 8;
			size_t words = op->sign_words(n, segment), runs = n / segment + (n % segment != 0);
			counted &= words == words_expected(n, segment);
			float *x = test_alloc(n, odd), *pairs = test_alloc(2 * runs, odd);
			float *again = test_alloc(2 * runs, 0);
			uint32_t *bits = malloc((words + 1) * sizeof *bits);
			for (size_t i = 0; i < n; i++)
				x[i] = number();
			for (size_t i = 0; i <= words; i++)
				bits[i] = CANARY;
			op->sign_pack(NULL, bits, x, n, segment);
			op->sign_means(NULL, pairs, x, n, segment);
			op->sign_means(NULL, again, x, n, segment);
			packed &= right_bits(bits, words, x, n, segment);
			averaged &= right_means(pairs, x, n, segment);
			repeated &= !memcmp(pairs, again, 2 * runs * sizeof *pairs);
			back &= right_back(op, bits, pairs, x, n, segment, odd);
			packed &= test_free(x, n, odd);
			averaged &= test_free(pairs, 2 * runs, odd);
			test_free(again, 2 * runs, 0);
			free(bits);
		}
	ok(counted, "%s: every run begins a word", name);
	ok(packed, "%s: one bit for x < 0, zeros of both signs are not", name);
	ok(averaged, "%s: means of each run and sign", name);
	ok(repeated, "%s: the same in every run", name);
	ok(back, "%s: sums and errors, to the bit", name);

	float pairs[2] = {5, 5}, x[40];
	uint32_t bits[2] = {CANARY, CANARY};
	for (int i = 0; i < 40; i++)
		x[i] = 2;
	op->sign_means(NULL, pairs, x, 40, 40);
	ok(pairs[0] == 2 && pairs[1] == 0, "%s: no negative number: its value is 0", name);
	for (int i = 0; i < 40; i++)
		x[i] = -0x1.fffffep127f;
	op->sign_means(NULL, pairs, x, 40, 40);
	ok(pairs[0] == 0 && pairs[1] == x[0], "%s: only negative numbers, the largest: their mean", name);
	op->sign_pairs(NULL, x, (const float[]){3, 0}, 2);
	ok(x[0] == 3 && x[1] == -3 && x[2] == 0 && signbit(x[3]) && x[4] == -0x1.fffffep127f,
	   "%s: one magnitude stands for both signs", name);
	is_int((long)op->sign_words(40, 0), 0, "%s: runs of no numbers have no words", name);
	op->sign_pack(NULL, bits, x, 40, 0);
	ok(bits[0] == CANARY, "%s: and nothing is written", name);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
