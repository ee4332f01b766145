/* Ternary numbers against their definition. */
#include <float.h>
#include <math.h>

#include "plugin/operators_v1.h"
#include "tests/support/operator_input.h"

static const size_t sizes[] = {0, 1, 4, 5, 7, 31, 33, 255, 256, 257, 639, 640, 641, 4097};

static int digit(const uint8_t *in, size_t i)
{
	static const int power[] = {1, 3, 9, 27, 81};
	return in[i / 5] > 242 ? 0 : in[i / 5] / power[i % 5] % 3 - 1;
}

static int right_pack(const gradcomp_operators *op, size_t n, float scale, int kind)
{
	size_t odd = test_random() % 8, bytes = (n + 4) / 5;
	uint64_t seed = test_random(), stream = test_random(), first = test_random() % 100000;
	float *x = test_alloc(n, odd), *u = test_alloc(n, 0);
	uint8_t *out = malloc(bytes + 8);
	int right = 1;
	for (size_t i = 0; i < n; i++)
		x[i] = kind == 0 ? test_normal() : kind == 1 ? 0 : test_normal() * scale;
	memset(out, 0xa5, bytes + 8);
	operators_v1()->random_uniform(NULL, u, n, seed, stream, first);
	op->ternary_pack(NULL, out, x, n, &scale, seed, stream, first);
	for (size_t i = 0; i < bytes * 5; i++) {
		int want = i >= n || scale == 0 || !(u[i] < fabsf(x[i]) / scale) ? 0 : x[i] < 0 ? -1 : 1;
		if (out[i / 5] > 242 || digit(out, i) != want) {
			if (right)
				printf("# %zu of %zu: byte %d, digit %d, not %d\n", i, n, out[i / 5], digit(out, i),
				       want);
			right = 0;
		}
	}
	for (size_t i = bytes; i < bytes + 8; i++)
		right &= out[i] == 0xa5;
	right &= test_free(x, n, odd);
	test_free(u, n, 0);
	free(out);
	return right;
}

static int right_add(const gradcomp_operators *op, size_t n, float scale, int broken)
{
	size_t odd = test_random() % 8, bytes = (n + 4) / 5;
	uint8_t *in = malloc(bytes + 1);
	float *y = test_alloc(n, odd);
	int fault = 0, right, bad = 0;
	for (size_t i = 0; i < bytes; i++) {
		in[i] = (uint8_t)(test_random() % (broken ? 256 : 243));
		bad |= in[i] > 242;
	}
	in[bytes] = 255; /* not a part of it */
	for (size_t i = 0; i < n; i++)
		y[i] = (float)i * -0.5f;
	op->ternary_add(NULL, y, 0.3f, in, &scale, n, &fault);
	right = fault == bad;
	for (size_t i = 0; i < n; i++) {
		float v = scale * (float)digit(in, i), product = 0.3f * v, sum = (float)i * -0.5f + product;
		right &= !memcmp(&sum, &y[i], sizeof sum);
	}
	right &= test_free(y, n, odd);
	free(in);
	return right;
}

/* The mean of many draws is the number itself. */
static void unbiased(const char *name, const gradcomp_operators *op)
{
	enum { N = 37, DRAWS = 20000 };
	float x[N], sum[N] = {0}, scale = 2.5f;
	uint8_t packed[(N + 4) / 5];
	int fault = 0, right = 1;
	uint64_t seed = test_random();
	for (int i = 0; i < N; i++)
		x[i] = (float)(test_uniform() * 2 - 1) * scale;
	for (uint64_t d = 0; d < DRAWS; d++) {
		op->ternary_pack(NULL, packed, x, N, &scale, seed, 3, d * N);
		op->ternary_add(NULL, sum, 0x1p-6f, packed, &scale, N, &fault);
	}
	for (int i = 0; i < N; i++) {
		double p = fabs(x[i]) / scale, mean = sum[i] * 64.0 / DRAWS;
		right &= fabs(mean - x[i]) <= scale * test_mean_off(p * (1 - p), 1, DRAWS) + 1e-4;
	}
	ok(right && !fault, "%s: the mean of %d draws is the number", name, DRAWS);
}

static void large(const char *name, const gradcomp_operators *op)
{
	enum { N = (1 << 20) + 3 };
	float *x = test_alloc(N, 1), scale = 3;
	uint8_t *a = malloc(N / 5 + 1), *b = malloc(N / 5 + 1);
	uint64_t first = UINT64_MAX - test_random() % N;
	for (size_t i = 0; i < N; i++)
		x[i] = test_normal();
	op->ternary_pack(NULL, a, x, N, &scale, 1, 2, first);
	operators_cpu_variant("portable")->ternary_pack(NULL, b, x, N, &scale, 1, 2, first);
	ok(!memcmp(a, b, N / 5 + 1), "%s: as portable code, also where the count of numbers begins again", name);
	test_free(x, N, 1);
	free(a), free(b);
}

static void each(const char *name, const gradcomp_operators *op)
{
	static const float scales[] = {0, 1, 2.5f, 1e-40f, FLT_MIN, FLT_MAX};
	int packed = 1, added = 1, checked = 1;
	for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++)
		for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
			for (int kind = 0; kind < 3; kind++)
				packed &= right_pack(op, sizes[a], scales[s], kind);
			added &= right_add(op, sizes[a], scales[s], 0);
			checked &= right_add(op, sizes[a], scales[s], 1);
		}
	ok(packed, "%s: five to a byte, drawn as defined, the last filled up with zeros", name);
	ok(added, "%s: added to the bit", name);
	ok(checked, "%s: a byte above 242 is five zeros and a fault", name);
	unbiased(name, op);
	large(name, op);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
