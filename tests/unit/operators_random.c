/* The counter generator: Philox's published vectors, numbers that do not depend on
 * how they are asked for, and their distribution. */
#include <math.h>

#include "base/philox_block.h"
#include "tests/support/operator_input.h"
#include "operators/cpu/kernels.h"

/* kat_vectors of Random123 1.14, philox4x32 10. */
static const struct {
	uint32_t counter[4], key[2], out[4];
} known[] = {
	{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
	{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
	{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void vectors(void)
{
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
		uint32_t out[4];
		philox_block(known[i].counter, known[i].key, out);
		ok(!memcmp(out, known[i].out, sizeof out), "Philox4x32-10, known answer %zu", i);
	}
}

/* Whatever the start and the length, number i is number i. */
static void slices(const char *what, void (*draw)(void *, float *, size_t, uint64_t, uint64_t, uint64_t))
{
	enum { N = 300 };
	uint64_t seed = test_random(), stream = test_random(), at = test_random() >> 1;
	float whole[N], part[N];
	int same = 1;
	draw(NULL, whole, N, seed, stream, at);
	for (int k = 0; k < 200; k++) {
		size_t from = test_random() % N, n = test_random() % (N - from);
		draw(NULL, part, n, seed, stream, at + from);
		same &= !memcmp(part, whole + from, n * sizeof *part);
	}
	ok(same, "%s: any run of a stream has the same numbers", what);
	draw(NULL, part, N, seed, stream + 1, at);
	ok(memcmp(part, whole, sizeof part), "%s: streams differ", what);
	draw(NULL, part, N, seed + 1, stream, at);
	ok(memcmp(part, whole, sizeof part), "%s: seeds differ", what);
}

/* Box-Muller over the same words in libm's arithmetic. */
static void against_libm(const gradcomp_operators *op)
{
	enum { N = 20000 };
	static float got[N];
	double worst = 0;
	uint64_t seed = test_random(), stream = test_random();
	op->random_normal(NULL, got, N, seed, stream, 0);
	for (int i = 0; i < N; i += 2) {
		uint32_t counter[4] = {(uint32_t)i / 4, 0, (uint32_t)stream, (uint32_t)(stream >> 32)}, w[4];
		uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
		philox_block(counter, key, w);
		double radius = sqrt(-2 * log((w[i % 4] + 1.0) / 4294967296.0));
		double angle = 2 * M_PI * (w[i % 4 + 1] / 4294967296.0);
		worst = fmax(worst, fmax(fabs(got[i] - radius * cos(angle)), fabs(got[i + 1] - radius * sin(angle))));
	}
	ok(worst < 4e-7, "normal numbers are Box-Muller's, within %.1e of libm's", worst);
}

static void distribution(const gradcomp_operators *op)
{
	enum { N = 1 << 20 };
	float *x = malloc(N * sizeof *x);
	double m1 = 0, m2 = 0, m4 = 0, lag = 0;
	op->random_normal(NULL, x, N, test_random(), 3, 0);
	for (int i = 0; i < N; i++) {
		m1 += x[i];
		m2 += (double)x[i] * x[i];
		m4 += pow(x[i], 4);
		lag += i ? (double)x[i] * x[i - 1] : 0;
	}
	/* Six standard deviations of each estimate. */
	double s = 6 / sqrt(N);
	ok(fabs(m1 / N) < s, "normal: mean %.5f", m1 / N);
	ok(fabs(m2 / N - 1) < s * sqrt(2), "normal: variance %.5f", m2 / N);
	ok(fabs(m4 / N - 3) < s * sqrt(96), "normal: fourth moment %.4f", m4 / N);
	ok(fabs(lag / N) < s, "normal: neighbours are not correlated: %.5f", lag / N);
	free(x);
}

/* The first of a permutation: distinct, in range, the same for every k, and every place as
 * likely as any other. */
static void indices(const gradcomp_operators *op)
{
	enum { N = 1000, DRAWS = 2000, K = 10 };
	static const size_t sizes[] = {1, 2, 3, 4, 5, 97, 100, 65535, 65537};
	static uint32_t idx[65537], some[65537];
	static int seen[65537];
	unsigned count[N] = {0};
	int right = 1, fair = 1;
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		size_t n = sizes[s], k = 1 + test_random() % n;
		memset(seen, 0, sizeof seen);
		op->random_indices(NULL, idx, n, n, 7, s, 3);
		for (size_t j = 0; j < n; j++)
			right &= idx[j] < n && !seen[idx[j] < n ? idx[j] : 0]++;
		op->random_indices(NULL, some, k, n, 7, s, 3);
		right &= !memcmp(some, idx, k * sizeof *idx);
	}
	ok(right, "random indices are a permutation, and its beginning");
	for (uint64_t i = 0; i < DRAWS; i++) {
		op->random_indices(NULL, idx, K, N, 11, i % 40, i / 40);
		for (size_t j = 0; j < K; j++)
			count[idx[j]]++;
	}
	/* 20 each, and no more than six standard deviations from it. */
	for (int i = 0; i < N; i++)
		fair &= abs((int)count[i] - DRAWS * K / N) < 27;
	ok(fair, "every index is as likely as any other");
	static const uint32_t first[] = {958, 705, 899, 43};
	op->random_indices(NULL, idx, 4, 1000, 1, 2, 3);
	ok(!memcmp(idx, first, sizeof first), "as ever: %u, %u, %u, %u", idx[0], idx[1], idx[2], idx[3]);
}

int main(void)
{
	const gradcomp_operators *op = operators_cpu();
	test_seed();
	vectors();
	slices("normal", op->random_normal);
	against_libm(op);
	distribution(op);
	indices(op);
	return done_testing();
}
