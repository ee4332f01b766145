/* Quantised numbers against their definition, one number at a time, in double. */
#include <float.h>
#include <math.h>

#include "plugin/operators_v1.h"
#include "tests/support/operator_input.h"

static const unsigned all_bits[] = {8, 4, 2};
static const size_t sizes[] = {0, 1, 7, 31, 33, 255, 256, 257, 4097};

static gradcomp_quantiser quantiser(unsigned bits, unsigned levels, unsigned block, unsigned norm, unsigned rounding)
{
	return (gradcomp_quantiser){.struct_size = sizeof(gradcomp_quantiser),
	                            .bits = bits,
	                            .levels = levels,
	                            .block = block,
	                            .norm = norm,
	                            .rounding = rounding,
	                            .seed = test_random(),
	                            .stream = test_random(),
	                            .first = test_random() % 1000000};
}

/* Gradients of several kinds, in runs of random length: normal, heavy-tailed,
 * zeros, denormals, near the largest float, all equal. */
static void fill_kinds(float *x, size_t n)
{
	for (size_t i = 0; i < n;) {
		unsigned kind = (unsigned)(test_random() % 7);
		size_t end = i + 1 + test_random() % 700;
		for (; i < n && i < end; i++) {
			float v = test_normal();
			x[i] = kind == 0   ? v
			       : kind == 1 ? v * v * v * 1e-3f
			       : kind == 2 ? (test_random() & 1 ? 0.0f : -0.0f)
			       : kind == 3 ? v * 1e-39f
			       : kind == 4 ? (float)(test_uniform() * 2 - 1) * FLT_MAX
			       : kind == 5 ? copysignf(FLT_MAX, v)
			                   : v * 0x1p-125f;
		}
	}
}

static int code_at(const uint8_t *codes, size_t i, unsigned bits)
{
	unsigned c = codes[i * bits / 8] >> i * bits % 8 & ((1u << bits) - 1);
	return c >> (bits - 1) ? (int)c - (1 << bits) : (int)c;
}

/* The step of a block by its definition, or the nearest to it for L2. */
static float step_expected(const float *x, size_t n, const gradcomp_quantiser *q)
{
	double most = 0, squares = 0;
	for (size_t i = 0; i < n; i++) {
		most = fabs(x[i]) > most ? fabs(x[i]) : most;
		squares += (double)x[i] * x[i];
	}
	float step = q->norm == GRADCOMP_NORM_GIVEN ? *q->given
	             : q->norm == GRADCOMP_NORM_L2  ? (float)(sqrt(squares) / q->levels)
	                                            : (float)most / (float)q->levels;
	if (q->norm != GRADCOMP_NORM_GIVEN && step * (float)q->levels > FLT_MAX)
		for (step = FLT_MAX / (float)q->levels; step * (float)q->levels > FLT_MAX;)
			step = nextafterf(step, 0);
	return step < FLT_MIN ? 0 : step;
}

static int code_expected(float x, float step, float u, const gradcomp_quantiser *q)
{
	if (step == 0)
		return 0;
	double limit = q->levels, v = x / step; /* rounded to float, as defined */
	v = v > limit ? limit : v < -limit ? -limit : v;
	if (q->rounding == GRADCOMP_TO_NEAREST)
		return (int)nearbyint(v);
	if (q->rounding == GRADCOMP_TO_ZERO)
		return (int)v;
	return (int)floor(v) + (u < (float)(v - floor(v)));
}

/* Returns true when all is as defined: steps, codes, unused bits, nothing written behind. */
static int right_bytes(const uint8_t *out, const float *x, size_t n, const gradcomp_quantiser *q, size_t bytes)
{
	size_t blocks = q->norm == GRADCOMP_NORM_GIVEN ? 0 : (n + q->block - 1) / q->block;
	const uint8_t *codes = out + 4 * blocks;
	float *u = malloc((n + 1) * sizeof *u);
	int right = bytes == 4 * blocks + (n * q->bits + 7) / 8;
	operators_v1()->random_uniform(NULL, u, n, q->seed, q->stream, q->first);
	for (size_t i = 0; right && i < n; i += q->block) {
		size_t count = n - i < q->block ? n - i : q->block;
		float step = step_expected(x + i, count, q), got = step;
		if (blocks)
			memcpy(&got, out + i / q->block * 4, 4);
		right = q->norm == GRADCOMP_NORM_L2 ? fabs((double)got - step) <= 2e-7 * step : got == step;
		if (!right)
			printf("# block at %zu: step %a, not %a\n", i, got, step);
		for (size_t j = i; right && j < i + count; j++) {
			int want = code_expected(x[j], got, u[j], q), code = code_at(codes, j, q->bits);
			right = code == want;
			if (!right)
				printf("# number %zu, %a / %a (random %a): code %d, not %d\n", j, x[j], got, u[j], code,
				       want);
		}
	}
	free(u);
	if (n * q->bits % 8)
		right &= !(out[bytes - 1] >> n * q->bits % 8);
	for (size_t i = bytes; i < bytes + 64; i++)
		right &= out[i] == 0xa5;
	return right;
}

/* The three ways back. */
static int right_values(const gradcomp_operators *op, const uint8_t *in, const float *x, size_t n,
                        const gradcomp_quantiser *q, size_t odd)
{
	size_t blocks = q->norm == GRADCOMP_NORM_GIVEN ? 0 : (n + q->block - 1) / q->block;
	const uint8_t *codes = in + 4 * blocks;
	float *y = test_alloc(n, odd), *sum = test_alloc(n, odd), *e = test_alloc(n, odd), *same = test_alloc(n, odd);
	int right = 1;
	for (size_t i = 0; i < n; i++)
		sum[i] = (float)i * 0.25f;
	if (n)
		memcpy(same, x, n * sizeof *x);
	op->dequantise(NULL, y, in, n, q);
	op->dequantise_add(NULL, sum, 0.3f, in, n, q);
	op->dequantise_error(NULL, e, x, in, n, q);
	op->dequantise_error(NULL, same, same, in, n, q);
	for (size_t i = 0; right && i < n; i++) {
		float step = blocks ? 0 : *q->given, added = (float)i * 0.25f;
		if (blocks)
			memcpy(&step, in + i / q->block * 4, 4);
		float v = (float)((double)code_at(codes, i, q->bits) * step), product = 0.3f * v;
		right = (isfinite(v) || !blocks) && y[i] == v && sum[i] == added + product && e[i] == x[i] - v &&
		        same[i] == e[i];
		if (!right)
			printf("# number %zu: %a, sum %a, error %a, for code %d of %a\n", i, y[i], sum[i], e[i],
			       code_at(codes, i, q->bits), step);
	}
	right &= test_free(y, n, odd);
	right &= test_free(sum, n, odd);
	right &= test_free(e, n, odd);
	right &= test_free(same, n, odd);
	return right;
}

static int right_at(const gradcomp_operators *op, size_t n, const gradcomp_quantiser *q)
{
	size_t odd = test_random() % 8, bytes = op->quantised_bytes(q, n);
	float *x = test_alloc(n, odd);
	uint8_t *room = malloc(bytes + 64 + 8), *out = room + test_random() % 8;
	fill_kinds(x, n);
	memset(out, 0xa5, bytes + 64);
	op->quantise(NULL, out, x, n, q);
	int fault = 0, right = right_bytes(out, x, n, q, bytes) && right_values(op, out, x, n, q, odd);
	op->quantised_check(NULL, &fault, out, n, q);
	if (fault)
		printf("# a fault was found in what was just quantised\n");
	right &= test_free(x, n, odd) && !fault;
	free(room);
	return right;
}

static void definition(const char *name, const gradcomp_operators *op)
{
	static const char *const norms[] = {"absmax", "L2", "given", "absmax or NaN"};
	static const char *const roundings[] = {"nearest", "either", "zero"};
	static const unsigned blocks[] = {32, 256, 65536};
	for (unsigned norm = 0; norm < 4; norm++)
		for (unsigned rounding = 0; rounding < 3; rounding++) {
			int right = 1;
			float given[] = {0.01f, 0, 1e-39f, 0x1p126f};
			for (size_t b = 0; b < 3; b++)
				for (size_t s = 0; s < 9 * 3; s++) {
					unsigned bits = all_bits[b], most = (1u << (bits - 1)) - 1;
					unsigned levels = s % 2 ? most : 1 + (unsigned)(test_random() % most);
					gradcomp_quantiser q = quantiser(bits, levels, blocks[s / 9], norm, rounding);
					q.given = &given[test_random() % 4];
					if (!right_at(op, sizes[s % 9], &q)) {
						printf("# size %zu, bits %u, levels %u, block %u\n", sizes[s % 9], bits,
						       levels, q.block);
						right = 0;
					}
				}
			ok(right, "%s: %s, to %s: steps, codes and values as defined", name, norms[norm],
			   roundings[rounding]);
		}
}

/* Blocks with what is not finite, among others. */
static void or_nan(const char *name, const gradcomp_operators *op)
{
	enum { N = 5000 };
	static const float odd[] = {INFINITY, -INFINITY, NAN, -NAN};
	float *x = test_alloc(N, 1), *sane = test_alloc(N, 2), *y = test_alloc(N, 3);
	uint8_t *out = malloc(2 * N), *want = malloc(2 * N);
	int right = 1;
	for (int k = 0; k < 60; k++) {
		unsigned bits = all_bits[k % 3], block = 32 << k % 9;
		size_t n = 1 + test_random() % N, blocks = (n + block - 1) / block;
		gradcomp_quantiser q = quantiser(bits, (1u << (bits - 1)) - 1, block, GRADCOMP_NORM_ABSMAX_OR_NAN,
		                                 (unsigned)k / 3 % 3);
		size_t bytes = op->quantised_bytes(&q, n);
		uint64_t odd_blocks = test_random() | 1;
		int fault = 0;
		fill_kinds(x, n);
		memcpy(sane, x, n * sizeof *x);
		for (size_t b = 0; b < blocks; b++) {
			size_t from = b * block, count = n - from < block ? n - from : block;
			if (!(odd_blocks >> b % 64 & 1))
				continue;
			x[from + test_random() % count] = odd[test_random() % 4];
			memset(sane + from, 0, count * sizeof *sane);
		}
		op->quantise(NULL, out, x, n, &q);
		op->quantise(NULL, want, sane, n, &q);
		for (size_t b = 0; b < blocks; b++) {
			static const uint32_t nan = 0x7fc00000;
			if (odd_blocks >> b % 64 & 1)
				memcpy(want + 4 * b, &nan, 4);
		}
		right &= !memcmp(out, want, bytes);
		op->quantised_check(NULL, &fault, out, n, &q);
		op->dequantise(NULL, y, out, n, &q);
		for (size_t i = 0; i < n; i++)
			right &= (odd_blocks >> i / block % 64 & 1) == !!isnan(y[i]);
		q.norm = GRADCOMP_NORM_ABSMAX;
		right &= !fault;
		op->quantised_check(NULL, &fault, out, n, &q);
		right &= fault;
	}
	ok(right, "%s: a block with an Inf or a NaN has the step NaN and codes of 0, comes back as NaN and is let pass",
	   name);
	right = test_free(x, N, 1) && test_free(sane, N, 2) && test_free(y, N, 3);
	ok(right, "%s: and nothing written beside", name);
	free(out), free(want);
}

/* Compares with the portable table, in long vectors; everything but the norm is REPLICATED. */
static void replicated(const char *name, const gradcomp_operators *op)
{
	enum { N = (1 << 20) + 3 };
	const gradcomp_operators *plain = operators_cpu_variant("portable");
	float *x = test_alloc(N, 1), *y = test_alloc(N, 3), *z = test_alloc(N, 2), given = 0.05f;
	uint8_t *a = malloc(2 * N), *b = malloc(2 * N);
	int quantised = 1, back = 1;
	fill_kinds(x, N);
	for (unsigned k = 0; k < 18; k++) {
		unsigned bits = all_bits[k % 3];
		gradcomp_quantiser q = quantiser(bits, (1u << (bits - 1)) - 1, 256, k / 9 ? 2 : 0, k / 3 % 3);
		q.given = &given;
		size_t bytes = op->quantised_bytes(&q, N);
		op->quantise(NULL, a + k % 2, x, N, &q);
		plain->quantise(NULL, b, x, N, &q);
		quantised &= !memcmp(a + k % 2, b, bytes);
		memset(y, 0, N * sizeof *y);
		memset(z, 0, N * sizeof *z);
		op->dequantise_add(NULL, y, 0.1f, a + k % 2, N, &q);
		plain->dequantise_add(NULL, z, 0.1f, b, N, &q);
		op->dequantise_error(NULL, y, y, a + k % 2, N, &q);
		plain->dequantise_error(NULL, z, z, b, N, &q);
		back &= !memcmp(y, z, N * sizeof *y);
	}
	ok(quantised, "%s: the same bytes as from portable code", name);
	ok(back, "%s: the same numbers from them", name);
	ok(test_free(x, N, 1) && test_free(y, N, 3) && test_free(z, N, 2), "%s: and nothing written beside", name);
	free(a), free(b);
}

/* To the nearest: half a step; to zero: a step, and never further from 0. */
static void bounds(const char *name, const gradcomp_operators *op)
{
	enum { N = 4096 };
	static float x[N], e[N], y[N];
	static uint8_t out[2 * N];
	int near = 1, cut = 1;
	for (size_t i = 0; i < N; i++)
		x[i] = test_normal();
	for (unsigned b = 0; b < 3; b++) {
		gradcomp_quantiser q = quantiser(all_bits[b], (1u << (all_bits[b] - 1)) - 1, 64, 0, 0);
		for (q.rounding = 0; q.rounding < 3; q.rounding += 2) {
			op->quantise(NULL, out, x, N, &q);
			op->dequantise_error(NULL, e, x, out, N, &q);
			op->dequantise(NULL, y, out, N, &q);
			for (size_t i = 0; i < N; i++) {
				float step;
				memcpy(&step, out + i / 64 * 4, 4);
				near &= q.rounding || fabsf(e[i]) <= step * 0.50001f;
				cut &= !q.rounding ||
				       (fabsf(e[i]) <= step * 1.00001f && fabsf(y[i]) <= fabsf(x[i]) * 1.000001f);
			}
		}
	}
	ok(near, "%s: the nearest is within half a step", name);
	ok(cut, "%s: to zero is within a step, and not away from 0", name);
}

/* The mean of many draws is the number itself. */
static void unbiased(const char *name, const gradcomp_operators *op)
{
	enum { N = 75, DRAWS = 10000 };
	for (unsigned b = 0; b < 3; b++)
		for (unsigned norm = 0; norm < 2; norm++) {
			gradcomp_quantiser q =
				quantiser(all_bits[b], (1u << (all_bits[b] - 1)) - 1, 32, norm, GRADCOMP_TO_EITHER);
			float x[N], y[N];
			double sum[N] = {0};
			uint8_t out[256];
			int right = 1;
			for (int i = 0; i < N; i++)
				x[i] = test_normal();
			for (int d = 0; d < DRAWS; d++, q.first += N) {
				op->quantise(NULL, out, x, N, &q);
				op->dequantise(NULL, y, out, N, &q);
				for (int i = 0; i < N; i++)
					sum[i] += y[i];
			}
			for (int i = 0; i < N; i++) {
				float step;
				memcpy(&step, out + i / 32 * 4, 4);
				double f = x[i] / step - floor(x[i] / step), off = fabs(sum[i] / DRAWS - x[i]) / step;
				right &= off <= test_mean_off(f * (1 - f), 1, DRAWS) + 1e-4;
			}
			ok(right, "%s: %u bits, norm %u: the mean of %d draws is the number", name, q.bits, norm,
			   DRAWS);
		}
}

/* Gives it what a peer might send. */
static void check(const char *name, const gradcomp_operators *op)
{
	static const uint32_t bad_steps[] = {0x7f800000, 0x7fc00000, 0xff800000, 0x80000001, 0xbf800000, 0x7f800001};
	enum { N = 301 };
	uint8_t in[2 * N];
	float y[N] = {0};
	int found = 1, silent = 1, survived = 1;
	for (int k = 0; k < 3000; k++) {
		unsigned bits = all_bits[k % 3], most = (1u << (bits - 1)) - 1;
		unsigned norm = k % 4 == 1 ? GRADCOMP_NORM_ABSMAX_OR_NAN
		                : k % 2    ? GRADCOMP_NORM_ABSMAX
		                           : GRADCOMP_NORM_GIVEN;
		gradcomp_quantiser q = quantiser(bits, 1 + (unsigned)(test_random() % most), 64, norm, 0);
		float given = 1;
		q.given = &given;
		size_t n = 1 + test_random() % N, blocks = k % 2 ? (n + 63) / 64 : 0,
		       bytes = op->quantised_bytes(&q, n);
		uint8_t *codes = in + 4 * blocks;
		int fault = 0, bad = 0;
		for (size_t i = 0; i < sizeof in; i++)
			in[i] = 0xff; /* the bits behind are no part of it */
		memset(codes, 0, bytes - 4 * blocks);
		for (size_t i = 0; i < n; i++) {
			int wild = test_random() % 1000 == 0, levels = (int)q.levels;
			int code = wild ? -(int)most - 1 : (int)(test_random() % (2 * q.levels + 1)) - levels;
			bad |= wild;
			codes[i * bits / 8] |= (uint8_t)(((unsigned)code & ((1u << bits) - 1)) << i * bits % 8);
		}
		for (size_t i = 0; i < blocks; i++) {
			int wild = test_random() % 20 == 0;
			float step = (float)test_uniform();
			const uint32_t *bad_step = &bad_steps[test_random() % 6];
			memcpy(in + 4 * i, wild ? (const void *)bad_step : &step, 4);
			bad |= wild && !(norm == GRADCOMP_NORM_ABSMAX_OR_NAN && *bad_step == 0x7fc00000);
		}
		op->quantised_check(NULL, &fault, in, n, &q);
		if (fault != bad)
			printf("# %zu numbers of %u bits, %u levels: fault %d, not %d\n", n, bits, q.levels, fault,
			       bad);
		found &= !bad || fault;
		silent &= bad || !fault;
		for (size_t i = 0; i < sizeof in; i++)
			in[i] = (uint8_t)test_random();
		op->dequantise_add(NULL, y, 1, in, n, &q);
		fault = 7;
		op->quantised_check(NULL, &fault, codes, 0, &q);
		survived &= fault == 7;
	}
	ok(found, "%s: wrong steps and codes are found", name);
	ok(silent, "%s: right ones are not reported, nor what lies behind them", name);
	ok(survived, "%s: a fault word is left alone without a fault", name);
}

static void refusals(const char *name, const gradcomp_operators *op)
{
	const gradcomp_quantiser right = quantiser(8, 127, 256, 0, 0);
	gradcomp_quantiser q[12];
	uint8_t out[64] = {7};
	float x[8] = {1}, y[8] = {7};
	int none = 1, untouched = 1;
	for (int i = 0; i < 12; i++)
		q[i] = right;
	q[0].bits = 3, q[1].bits = 16, q[2].levels = 0, q[3].levels = 128, q[4].block = 0, q[5].block = 100;
	q[6].block = 65536 + 32, q[7].norm = 4, q[8].rounding = 3, q[9].struct_size = 8;
	q[10].bits = 4, q[10].levels = 8, q[11].bits = 2, q[11].levels = 2;
	for (int i = 0; i < 12; i++) {
		none &= op->quantised_bytes(&q[i], 8) == 0;
		op->quantise(NULL, out, x, 8, &q[i]);
		op->dequantise(NULL, y, out, 8, &q[i]);
		untouched &= out[0] == 7 && y[0] == 7;
	}
	is_int((long)op->quantised_bytes(&right, 8), 12, "%s: 8 numbers in a block are 12 bytes", name);
	ok(none, "%s: settings out of their range have no size", name);
	ok(untouched, "%s: and nothing is done with them", name);
}

static void each(const char *name, const gradcomp_operators *op)
{
	definition(name, op);
	or_nan(name, op);
	replicated(name, op);
	bounds(name, op);
	unbiased(name, op);
	check(name, op);
	refusals(name, op);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
