/* Logarithmic levels of quantised numbers: against the formula in double, both widths, ends of
 * blocks, ties, zeros and the largest floats; what peers send. */
#include "gradcomp/sdk/log_levels.h"

#include "operators/operator_tables.h"
#include "tests/support/operator_input.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1000, BLOCK = 96 };

static gradcomp_quantiser quantiser(uint32_t bits)
{
	return (gradcomp_quantiser){.struct_size = sizeof(gradcomp_quantiser),
	                            .bits = bits,
	                            .levels = (1u << (bits - 1)) - 1,
	                            .block = BLOCK,
	                            .norm = GRADCOMP_NORM_ABSMAX};
}

static double level(double alpha, uint32_t c, uint32_t levels)
{
	return (pow(1 + alpha, (double)c / levels) - 1) / alpha;
}

static void table(uint32_t bits, double alpha)
{
	gradcomp_quantiser q = quantiser(bits);
	gradcomp_levels l;
	double worst = 0;
	sdk_log_levels_make(&l, &q, alpha);
	for (uint32_t c = 0; c <= q.levels; c++) {
		double want = level(alpha, c, q.levels);
		worst = fmax(worst, want > 0 ? fabs(l.value[c] / want - 1) : fabs((double)l.value[c]));
	}
	ok(worst < 1e-7 && l.value[q.levels] == 1,
	   "%u bits, alpha %g: levels of the formula within %.1e, the last is 1", bits, alpha, worst);
}

/* How far each number is from the level next to it, in halves of the gap. */
static void there_and_back(uint32_t bits, double alpha, int kind, uint64_t n)
{
	gradcomp_quantiser q = quantiser(bits);
	const gradcomp_operators *op = operators_cpu();
	gradcomp_levels l;
	size_t bytes = op->quantised_bytes(&q, n);
	unsigned char *packed = malloc(bytes + 1);
	float *x = malloc((n + 1) * sizeof *x), *y = malloc((n + 1) * sizeof *y), *sum = malloc((n + 1) * sizeof *sum);
	int right = 1, bad = 0;
	if (!packed || !x || !y || !sum)
		exit(1);
	packed[bytes] = 0xa5;
	for (uint64_t i = 0; i < n; i++) {
		float v = test_normal();
		x[i] = kind == 0   ? v
		       : kind == 1 ? 0
		       : kind == 2 ? v * (float)pow(10, (double)(i % 9) - 4)
		       : kind == 3 ? (i % 2 ? FLT_MAX : -FLT_MAX) * (float)test_uniform()
		                   : 1e-41f * v;
		sum[i] = (float)(i % 5);
	}
	sdk_log_levels_make(&l, &q, alpha);
	operators_cpu()->levels_pack(NULL, packed, x, n, &l);
	right &= packed[bytes] == 0xa5;
	op->quantised_check(NULL, &bad, packed, n, &q);
	operators_cpu()->levels_read(NULL, y, packed, n, &l);
	operators_cpu()->levels_add(NULL, sum, 0.5f, packed, n, &l);
	for (uint64_t i = 0; i < n; i++) {
		double top = 0, off = INFINITY;
		for (uint64_t j = i / BLOCK * BLOCK; j < n && j < (i / BLOCK + 1) * BLOCK; j++)
			top = fmax(top, fabs((double)x[j]));
		for (uint32_t c = 0; c <= q.levels; c++)
			off = fmin(off, fabs(fabs((double)x[i]) - top * level(alpha, c, q.levels)));
		right &= fabs((double)x[i] - y[i]) <= off + 3e-7 * top + 2e-45;
		right &= fabs((double)x[i]) < top || y[i] == x[i];
		right &= sum[i] == (float)(i % 5) + 0.5f * y[i];
	}
	ok(right && !bad, "%u bits, alpha %g, %llu numbers of kind %d: each is the level next to it, the largest exact",
	   bits, alpha, (unsigned long long)n, kind);
	free(packed), free(x), free(y), free(sum);
}

/* Relative error of many numbers of very different sizes. */
static double relative(const gradcomp_levels *l, const gradcomp_quantiser *q, const float *x, uint64_t n)
{
	const gradcomp_operators *op = operators_cpu();
	unsigned char packed[2 * N];
	float y[N];
	double off = 0;
	if (l) {
		operators_cpu()->levels_pack(NULL, packed, x, n, l);
		operators_cpu()->levels_read(NULL, y, packed, n, l);
	} else {
		op->quantise(NULL, packed, x, n, q);
		op->dequantise(NULL, y, packed, n, q);
	}
	for (uint64_t i = 0; i < n; i++)
		off += fabs((double)x[i] - y[i]) / fabs((double)x[i]) / (double)n;
	return off;
}

static void small_numbers(void)
{
	gradcomp_quantiser q = quantiser(4);
	float x[N];
	gradcomp_levels l;
	for (int i = 0; i < N; i++)
		x[i] = (float)exp(1.5 * test_normal());
	sdk_log_levels_make(&l, &q, 100);
	double linear = relative(NULL, &q, x, N), logarithmic = relative(&l, &q, x, N);
	ok(logarithmic < 0.6 * linear, "of numbers of many sizes 4 bits lose %.2f of each, in even steps %.2f",
	   logarithmic, linear);
}

/* Codes that are no level's are those of the last one; they are refused elsewhere. */
static void anything(void)
{
	gradcomp_quantiser q = quantiser(4);
	unsigned char in[4 + BLOCK / 2];
	float y[BLOCK], top = 2;
	gradcomp_levels l;
	int right = 1, bad = 0;
	sdk_log_levels_make(&l, &q, 10);
	memset(in, 0x88, sizeof in);
	memcpy(in, &top, sizeof top);
	operators_cpu()->levels_read(NULL, y, in, BLOCK, &l);
	for (int i = 0; i < BLOCK; i++)
		right &= y[i] == -2;
	operators_cpu()->quantised_check(NULL, &bad, in, BLOCK, &q);
	ok(right && bad, "a code of -8 reads no memory beyond the levels, and the check refuses it");
}

int main(void)
{
	static const uint64_t sizes[] = {0, 1, 2, 95, 96, 97, N};
	test_seed();
	for (uint32_t bits = 4; bits <= 8; bits += 4)
		for (int a = 0; a < 3; a++) {
			double alpha = (double[]){0.01, 10, 1e6}[a];
			table(bits, alpha);
			for (int kind = 0; kind < 5; kind++)
				there_and_back(bits, alpha, kind, sizes[(size_t)(a + kind) % 7]);
			there_and_back(bits, alpha, 0, N);
		}
	small_numbers();
	anything();
	return done_testing();
}
