/* The codes block, cast, zfp and lossless: their bytes, their errors against references in
 * double, what lossless gives back, what they refuse. */
#include <float.h>
#include <math.h>

#include "tests/support/codec_fixture.h"
#include "tests/support/operator_input.h"

enum { N = 50000 };
static const uint64_t sizes[] = {0, 1, 2, 3, 4, 5, 31, 32, 33, 100, 255, 256, 257, 4095, 4096, 4097, 16384, 16385};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

enum { GAUSSIAN, SMOOTH, ZERO, CONSTANT, SPARSE, SCALES, HUGE_ONES, DENORMAL, FROM_BF16, FROM_FP16, ANY_BITS, INPUTS };
static const char *const input_names[INPUTS] = {"Gaussian",  "smooth",        "zero",    "constant",
                                                "sparse",    "widely scaled", "huge",    "denormal",
                                                "from BF16", "from FP16",     "any bits"};

static const gradcomp_operators *op;

static float input(int kind, uint64_t i)
{
	gradcomp_dtype from = kind == FROM_BF16 ? GRADCOMP_BF16 : GRADCOMP_F16;
	float v = test_normal();
	uint16_t half;
	switch (kind) {
	case SMOOTH:
		return (float)sin((double)i * 1e-3);
	case ZERO:
		return 0;
	case CONSTANT:
		return -0.37f;
	case SPARSE:
		return test_random() % 50 ? 0 : v;
	case SCALES:
		return v * (float)pow(10, (double)(i % 13) - 6);
	case HUGE_ONES:
		return i % 3 ? 3e38f * (float)test_uniform() : FLT_MAX;
	case DENORMAL:
		return v * 1e-40f;
	case FROM_BF16:
	case FROM_FP16:
		op->cast_from_f32(NULL, &half, &v, 1, from, 0);
		op->cast_to_f32(NULL, &v, &half, 1, from);
		return v;
	case ANY_BITS:
		return test_bits((uint32_t)test_random());
	default:
		return v;
	}
}

static float *inputs(int kind, uint64_t n)
{
	float *x = malloc((n + 1) * sizeof *x);
	if (!x)
		exit(1);
	for (uint64_t i = 0; i < n; i++)
		x[i] = input(kind, i);
	return x;
}

/* The functions below check what holds for all. */

static uint64_t bytes_block(const codec *c, uint64_t n)
{
	uint64_t bits = 8u >> c->parsed.values[0].i, block = (uint64_t)c->parsed.values[1].i;
	return 4 * ((n + block - 1) / block) + (n * bits + 7) / 8;
}

static uint64_t bytes_cast(const codec *c, uint64_t n)
{
	(void)c;
	return 2 * n;
}

/* One run: bytes, bound, and that decoding twice, or onto something, is the same. */
static int run(codec *c, const float *x, uint64_t n, uint64_t (*formula)(const codec *, uint64_t), float *y)
{
	guarded wire;
	uint64_t bytes;
	int right = codec_code(c, x, n, test_random(), &wire, &bytes);
	float *sum = calloc(n + 1, sizeof *sum), *want = calloc(n + 1, sizeof *want);
	if (!sum || !want)
		exit(1);
	for (uint64_t i = 0; i < n; i++)
		sum[i] = want[i] = y[i] = (float)(i % 7);
	right &= !formula || bytes == formula(c, n);
	right &= !codec_decode(c, wire.data, bytes, y, n, 0);
	right &= !codec_decode(c, wire.data, bytes, sum, n, 1);
	c->host.operators->add(NULL, want, y, n);
	right &= !n || !memcmp(sum, want, n * sizeof *sum);
	for (uint64_t cut = bytes ? 1 : 0; right && cut && cut < bytes; cut += 1 + bytes / 7)
		right &= codec_decode(c, wire.data, bytes - cut, sum, n, cut & 1) == GRADCOMP_ERR_MISMATCH;
	guard_free(&wire);
	wire = guard("too long", bytes + 8, 8);
	right &= codec_decode(c, wire.data, bytes + 8, sum, n, 0) == GRADCOMP_ERR_MISMATCH;
	guard_free(&wire);
	free(sum), free(want);
	return right;
}

static void sizes_and_inputs(const char *spec, uint64_t (*formula)(const codec *, uint64_t))
{
	codec c;
	int right = 1, finite = 1;
	if (codec_open(&c, spec, 0, 3, N))
		for (int kind = 0; kind < INPUTS - !!formula; kind++)
			for (int k = 0; k < SIZES; k++) {
				float *x = inputs(kind, sizes[k]), *y = inputs(ZERO, sizes[k]);
				int one = run(&c, x, sizes[k], formula, y);
				if (!one)
					printf("# %s: %llu %s numbers\n", spec, (unsigned long long)sizes[k],
					       input_names[kind]);
				right &= one;
				for (uint64_t i = 0; i < sizes[k]; i++)
					finite &= isfinite(y[i]) || !formula;
				if (!formula)
					right &= !sizes[k] || !memcmp(x, y, sizes[k] * sizeof *x);
				free(x), free(y);
			}
	ok(right, "%s: %d sizes of %d inputs: bytes%s, bounds, decoded alike, other lengths refused", spec, SIZES,
	   INPUTS - !!formula, formula ? " of the formula" : ", every bit back");
	ok(finite, "%s: finite out of finite", spec);
	codec_close(&c);
}

/* Every number within half a step (or one) of what it was, the step from its block. */
static void block_errors(const char *spec, double steps)
{
	codec c;
	int right = 1;
	if (!codec_open(&c, spec, 1, 3, N))
		return codec_close(&c);
	uint64_t block = (uint64_t)c.parsed.values[1].i;
	double levels = (1 << ((8u >> c.parsed.values[0].i) - 1)) - 1;
	for (int kind = 0; kind <= SCALES; kind++) {
		uint64_t n = 1 + test_random() % 5000, bytes;
		float *x = inputs(kind, n), *y = inputs(ZERO, n);
		guarded wire;
		right &= codec_code(&c, x, n, 7, &wire, &bytes) && !codec_decode(&c, wire.data, bytes, y, n, 0);
		for (uint64_t from = 0; from < n; from += block) {
			double top = 0;
			for (uint64_t i = from; i < n && i < from + block; i++)
				top = fmax(top, fabs((double)x[i]));
			for (uint64_t i = from; i < n && i < from + block; i++)
				right &= fabs((double)x[i] - y[i]) <= steps * top / levels * (1 + 1e-5);
		}
		guard_free(&wire);
		free(x), free(y);
	}
	ok(right, "%s: every number within %.1f steps of its block", spec, steps);
	codec_close(&c);
}

/* Stochastic rounding, over counters: right on average, and drawn anew each time,
 * but for the same counter on the same rank. */
static void block_draws(const char *spec)
{
	enum { TIMES = 4000, NUMBERS = 64 };
	codec c, other;
	double sum[NUMBERS] = {0}, worst = 0, step;
	float *x = inputs(GAUSSIAN, NUMBERS), y[NUMBERS], top = 0;
	uint64_t bytes;
	guarded wire[4];
	if (!codec_open(&c, spec, 0, 2, N))
		return codec_close(&c);
	if (!codec_open(&other, spec, 1, 2, N))
		return codec_close(&other);
	for (int i = 0; i < NUMBERS; i++)
		top = fmaxf(top, fabsf(x[i]));
	step = top / ((1 << ((8u >> c.parsed.values[0].i) - 1)) - 1);
	for (uint64_t t = 0; t < TIMES; t++) {
		codec_code(&c, x, NUMBERS, t, &wire[0], &bytes);
		codec_decode(&c, wire[0].data, bytes, y, NUMBERS, 0);
		guard_free(&wire[0]);
		for (int i = 0; i < NUMBERS; i++)
			sum[i] += y[i];
	}
	/* A number between two steps has a variance of at most a quarter step squared. Once in 10^9
	 * runs one is 7 standard deviations off by chance. */
	for (int i = 0; i < NUMBERS; i++)
		worst = fmax(worst, fabs(sum[i] / TIMES - x[i]) / (0.5 * step / sqrt(TIMES)));
	ok(worst < 7, "%s: the mean of %d codings is the number, within %.2f standard deviations", spec, TIMES, worst);
	codec_code(&c, x, NUMBERS, 9, &wire[0], &bytes);
	codec_code(&c, x, NUMBERS, 9, &wire[1], &bytes);
	codec_code(&c, x, NUMBERS, 10, &wire[2], &bytes);
	codec_code(&other, x, NUMBERS, 9, &wire[3], &bytes);
	ok(!memcmp(wire[0].data, wire[1].data, bytes), "%s: a counter is drawn once", spec);
	ok(memcmp(wire[0].data, wire[2].data, bytes), "%s: another counter draws other numbers", spec);
	ok(memcmp(wire[0].data, wire[3].data, bytes), "%s: and so does another rank", spec);
	for (int k = 0; k < 4; k++)
		guard_free(&wire[k]);
	free(x);
	codec_close(&other);
	codec_close(&c);
}

/* A step or a code that quantise() cannot make. */
static void block_lies(void)
{
	codec c;
	guarded wire;
	uint64_t bytes;
	float *x = inputs(GAUSSIAN, 1000), *y = inputs(ZERO, 1000);
	const float steps[] = {test_bits(0x7fc00001), INFINITY, -1};
	if (!codec_open(&c, "block", 0, 2, 1000))
		return codec_close(&c);
	for (int k = 0; k < 3; k++) {
		codec_code(&c, x, 1000, 0, &wire, &bytes);
		memcpy(wire.data + 4 * k, &steps[k], 4);
		is_int(codec_decode(&c, wire.data, bytes, y, 1000, k & 1), GRADCOMP_ERR_MISMATCH,
		       "block: a step of %g is refused: %s", steps[k], c.err.text);
		guard_free(&wire);
	}
	codec_code(&c, x, 1000, 0, &wire, &bytes);
	wire.data[bytes - 1] = -128;
	is_int(codec_decode(&c, wire.data, bytes, y, 1000, 1), GRADCOMP_ERR_MISMATCH,
	       "block: a code of -128 is refused");
	int same = 1;
	for (int i = 0; i < 1000; i++)
		same &= y[i] == 0;
	ok(same, "block: what is refused is not written");
	guard_free(&wire);
	free(x), free(y);
	codec_close(&c);
}

/* Blocks (of zfp pieces) with what is not finite come back as NaN, here and where that is coded anew; the others as
 * they would. */
static void overflown(const char *spec, uint64_t block)
{
	static const float odd[] = {INFINITY, -INFINITY, NAN};
	codec c;
	int right = 1;
	if (!codec_open(&c, spec, 1, 3, N))
		return codec_close(&c);
	for (int k = 0; k < 40; k++) {
		uint64_t n = 1 + test_random() % 9000, at = test_random() % n, bytes, same;
		float *x = inputs(k % 3 == 2 ? HUGE_ONES : GAUSSIAN, n), *y = inputs(ZERO, n), *z = inputs(ZERO, n),
		      *sum = inputs(ZERO, n);
		guarded wire, plain, again;
		right &= codec_code(&c, x, n, 5, &plain, &same) && !codec_decode(&c, plain.data, same, z, n, 0);
		x[at] = odd[k % 3];
		right &= codec_code(&c, x, n, 5, &wire, &bytes) && bytes == same &&
		         !codec_decode(&c, wire.data, bytes, y, n, 0);
		right &= !codec_decode(&c, wire.data, bytes, sum, n, 1);
		for (uint64_t i = 0; i < n; i++)
			right &= i / block == at / block ? isnan(y[i]) && isnan(sum[i])
			                                 : !memcmp(&y[i], &z[i], 4) && sum[i] == z[i];
		right &= codec_code(&c, y, n, 6, &again, &bytes) && !codec_decode(&c, again.data, bytes, y, n, 0);
		for (uint64_t i = at / block * block; i < n && i < (at / block + 1) * block; i++)
			right &= isnan(y[i]) != 0;
		guard_free(&wire), guard_free(&plain), guard_free(&again);
		free(x), free(y), free(z), free(sum);
	}
	ok(right, "%s: a block with an Inf or a NaN is NaN, the others are as without", spec);
	codec_close(&c);
}

#if defined HAVE_ZFP || defined HAVE_ZSTD || defined HAVE_LZ4
/* |x - decoded| / |x|, and the bytes a number. */
static double relative_error(const char *spec, const float *x, uint64_t n, double *bytes_each)
{
	codec c;
	guarded wire;
	uint64_t bytes;
	double off = 0, all = 0;
	float *y = inputs(ZERO, n);
	if (!codec_open(&c, spec, 0, 1, n) || !codec_code(&c, x, n, 1, &wire, &bytes) ||
	    codec_decode(&c, wire.data, bytes, y, n, 0)) {
		codec_close(&c);
		return NAN;
	}
	for (uint64_t i = 0; i < n; i++) {
		off += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
		all += (double)x[i] * x[i];
	}
	*bytes_each = (double)bytes / (double)n;
	guard_free(&wire);
	free(y);
	codec_close(&c);
	return sqrt(off / all);
}
#endif

#ifdef HAVE_ZFP
static uint64_t bytes_zfp(const codec *c, uint64_t n)
{
	uint64_t bits = 4 * (uint64_t)c->parsed.values[0].i;
	return ((n + 3) / 4 * (bits < 9 ? 9 : bits) + 7) / 8;
}

static void zfp_against_block(void)
{
	double zfp_bytes = 0, block_bytes = 0;
	float *noise = inputs(GAUSSIAN, 1 << 20), *wave = inputs(SMOOTH, 1 << 20);
	double z = relative_error("zfp:rate=8", noise, 1 << 20, &zfp_bytes),
	       b = relative_error("block", noise, 1 << 20, &block_bytes);
	ok(z > 0.04 && z < 0.07, "zfp at 8 bits on Gaussian numbers: an error of %.2f %%, %.3f bytes each", 100 * z,
	   zfp_bytes);
	ok(b > 0.005 && b < 0.009, "block at 8 bits: %.2f %%, %.3f bytes each", 100 * b, block_bytes);
	z = relative_error("zfp:rate=8", wave, 1 << 20, &zfp_bytes);
	b = relative_error("block", wave, 1 << 20, &block_bytes);
	ok(z < b, "on a smooth wave zfp wins: %.4f %% against %.4f %%", 100 * z, 100 * b);
	free(noise), free(wave);
}

static void zfp_tests(void)
{
	char spec[40];
	double last = INFINITY, bytes;
	float *x = inputs(GAUSSIAN, 8191);
	int falls = 1;
	for (int rate = 1; rate <= 32; rate++) {
		snprintf(spec, sizeof spec, "zfp:rate=%d", rate);
		double e = relative_error(spec, x, 8191, &bytes);
		falls &= rate <= 3 || e <= last; /* with less there is no room for a mantissa */
		last = e;
		if (rate == 1 || rate == 5 || rate == 8 || rate == 32)
			sizes_and_inputs(spec, bytes_zfp);
	}
	ok(falls && last < 1e-6, "zfp: the error falls with the rate, to %.1e at 32 bits", last);
	free(x);
	zfp_against_block();
	overflown("zfp:rate=8", 4096);
	overflown("zfp:rate=1", 4096);
}
#else
static void zfp_tests(void)
{
	skip("built without libzfp", "zfp");
}
#endif

/* Checks that a SPEC is refused before there is an instance, in words that have `names`. */
static void refused(const char *spec, gradcomp_status want, const char *names)
{
	codec c;
	is_int(codec_load(&c, spec), want, "%s is refused: %s", spec, c.err.text);
	like(c.err.text, names, spec);
	codec_close(&c);
}

#if defined HAVE_ZSTD || defined HAVE_LZ4
static void lossless_with(const char *name, double gaussian)
{
	static const int levels[] = {1, 3, 9};
	char spec[60];
	double bytes = 0;
	float *noise = inputs(GAUSSIAN, 1 << 18), *half = inputs(FROM_BF16, 1 << 18), *bits = inputs(ANY_BITS, 1 << 18);
	for (int k = 0; k < 3; k++) {
		snprintf(spec, sizeof spec, "lossless:codec=%s,level=%d", name, levels[k]);
		sizes_and_inputs(spec, NULL);
	}
	snprintf(spec, sizeof spec, "lossless:codec=%s", name);
	relative_error(spec, noise, 1 << 18, &bytes);
	ok(bytes < gaussian, "%s: %.3f bytes for a Gaussian number", spec, bytes);
	relative_error(spec, half, 1 << 18, &bytes);
	ok(bytes < gaussian - 2 + 0.01, "%s: %.3f bytes for one that was BF16", spec, bytes);
	relative_error(spec, bits, 1 << 18, &bytes);
	ok(bytes <= 4 + 9.0 / 16384, "%s: %.5f bytes for random bits", spec, bytes);
	free(noise), free(half), free(bits);
}

static void lossless_tests(void)
{
#ifdef HAVE_ZSTD
	lossless_with("zstd", 3.5);
	sizes_and_inputs("lossless:codec=zstd,level=19", NULL);
#else
	refused("lossless:codec=zstd", GRADCOMP_ERR_UNSUPPORTED, "codec=zstd");
#endif
#ifdef HAVE_LZ4
	lossless_with("lz4", 3.8);
	refused("lossless:codec=lz4,level=10", GRADCOMP_ERR_INVALID, "level=10");
#else
	refused("lossless:codec=lz4", GRADCOMP_ERR_UNSUPPORTED, "codec=lz4");
#endif
}
#else
static void lossless_tests(void)
{
	skip("built without LZ4 and zstd", "lossless");
}
#endif

/* A number is what the operators cast it to, whatever its bits are; a decoder adds that to what is there. */
static void cast_numbers(void)
{
	static const char *const specs[] = {"cast", "cast:type=fp16", "cast:type=fp16,saturate=yes"};
	for (int k = 0; k < 3; k++) {
		const gradcomp_dtype type = k ? GRADCOMP_F16 : GRADCOMP_BF16;
		const uint64_t n = 20001;
		float *x = inputs(ANY_BITS, n), *y = inputs(ZERO, n), *want = inputs(ZERO, n),
		      *sum = inputs(GAUSSIAN, n), *all = inputs(ZERO, n);
		uint16_t *h = calloc(n, sizeof *h);
		uint64_t bytes;
		guarded wire;
		codec c;
		op->cast_from_f32(NULL, h, x, n, type, k == 2);
		op->cast_to_f32(NULL, want, h, n, type);
		memcpy(all, sum, n * sizeof *all);
		op->add(NULL, all, want, n);
		int right = codec_open(&c, specs[k], 2, 5, n) && codec_code(&c, x, n, 3, &wire, &bytes);
		right = right && bytes == 2 * n && !memcmp(wire.data, h, bytes);
		right = right && !codec_decode(&c, wire.data, bytes, y, n, 0) &&
		        !codec_decode(&c, wire.data, bytes, sum, n, 1) && !memcmp(y, want, n * sizeof *y);
		for (uint64_t i = 0; right && i < n; i++)
			right = sum[i] == all[i] || (isnan(sum[i]) && isnan(all[i]));
		ok(right, "%s: %llu numbers of any bits are cast, and added", specs[k], (unsigned long long)n);
		if (right)
			guard_free(&wire);
		codec_close(&c);
		free(x), free(y), free(want), free(sum), free(all), free(h);
	}
}

int main(void)
{
	static const char *const blocks[] = {"block",
	                                     "block:bits=4",
	                                     "block:bits=2",
	                                     "block:block=32",
	                                     "block:block=65536,bits=4",
	                                     "block:block=96,bits=2",
	                                     "block:rounding=stochastic",
	                                     "block:rounding=stochastic,bits=4,block=32",
	                                     "block:rounding=stochastic,bits=2"};
	test_seed();
	op = operators_cpu();
	for (int k = 0; k < 9; k++) {
		sizes_and_inputs(blocks[k], bytes_block);
		block_errors(blocks[k], k < 6 ? 0.5 : 1);
		if (k >= 6)
			block_draws(blocks[k]);
	}
	block_lies();
	overflown("block", 256);
	overflown("block:bits=4,block=32,rounding=stochastic", 32);
	overflown("block:bits=2,block=65536", 65536);
	refused("block:block=33", GRADCOMP_ERR_INVALID, "block=33");
	sizes_and_inputs("cast:saturate=yes", bytes_cast);
	sizes_and_inputs("cast:type=fp16,saturate=yes", bytes_cast);
	cast_numbers();
	zfp_tests();
	lossless_tests();
	return done_testing();
}
