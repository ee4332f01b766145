/* Quantised numbers against their definition, one number at a time, in double. */
#include <float.h>
#include <math.h>

#include "operators.h"

static const unsigned all_bits[] = {8, 4, 2};
static const size_t sizes[] = {0, 1, 7, 31, 33, 255, 256, 257, 4097};

static gradcomp_quantiser quantiser(unsigned bits, unsigned levels, unsigned block, unsigned norm,
                                    unsigned rounding)
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
	while (q->norm != GRADCOMP_NORM_GIVEN && step * (float)q->levels > FLT_MAX)
		step = isinf(step) ? FLT_MAX : nextafterf(step, 0);
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

/* Whether all is as defined: steps, codes, unused bits, nothing written behind. */
static int right_bytes(const uint8_t *out, const float *x, size_t n, const gradcomp_quantiser *q, size_t bytes)
{
	size_t blocks = q->norm == GRADCOMP_NORM_GIVEN ? 0 : (n + q->block - 1) / q->block;
	const uint8_t *codes = out + 4 * blocks;
	float *u = malloc((n + 1) * sizeof *u);
	int right = bytes == 4 * blocks + (n * q->bits + 7) / 8;
	operators_cpu_variant("portable")->random_uniform(NULL, u, n, q->seed, q->stream, q->first);
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
		right = (isfinite(v) || !blocks) && y[i] == v && sum[i] == added + product && e[i] == x[i] - v && same[i] == e[i];
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
	static const char *const norms[] = {"absmax", "L2", "given"};
	static const char *const roundings[] = {"nearest", "either", "zero"};
	static const unsigned blocks[] = {32, 256, 65536};
	for (unsigned norm = 0; norm < 3; norm++)
		for (unsigned rounding = 0; rounding < 3; rounding++) {
			int right = 1;
			float given[] = {0.01f, 0, 1e-39f, 0x1p126f};
			for (size_t b = 0; b < 3; b++)
				for (size_t s = 0; s < 9 * 3; s++) {
					unsigned bits = all_bits[b], most = (1u << (bits - 1)) - 1;
					unsigned levels = s % 2 ? most : 1 + (unsigned)(test_random() % most);
					gradcomp_quantiser q =
						quantiser(bits, levels, blocks[s / 9], norm, rounding);
					q.given = &given[test_random() % 4];
					if (!right_at(op, sizes[s % 9], &q)) {
						printf("# size %zu, bits %u, levels %u, block %u\n", sizes[s % 9],
						       bits, levels, q.block);
						right = 0;
					}
				}
			ok(right, "%s: %s, to %s: steps, codes and values as defined", name, norms[norm],
			   roundings[rounding]);
		}
}

static void each(const char *name, const gradcomp_operators *op)
{
	definition(name, op);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
