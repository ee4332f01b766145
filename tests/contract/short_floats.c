/* fp8, fp4 and natural, codes whose numbers are floats of few bits: against the definitions of
 * their formats in double, on average, at both ends of the range, and what they refuse. */
#include <float.h>
#include <math.h>

#include "tests/support/codec_fixture.h"
#include "tests/support/operator_input.h"

enum { N = 3001 };

enum { GAUSSIAN, ZERO, TIED, SCALED, HUGE_ONES, DENORMAL, BITS, INPUTS };
static const char *const input_names[INPUTS] = {"Gaussian", "zero",     "tied",    "widely scaled",
                                                "huge",     "denormal", "any bits"};

static float input(int kind, int i)
{
	float v = test_normal();
	switch (kind) {
	case GAUSSIAN:
		return v;
	case ZERO:
		return i % 2 ? 0.0f : -0.0f;
	case TIED:
		return (float)((int)(test_random() % 65) - 32) / 4;
	case SCALED:
		return v * (float)pow(10, i / 40 % 13 - 6.0);
	case HUGE_ONES:
		return i % 3 ? 3e38f * (float)test_uniform() : -FLT_MAX;
	case DENORMAL:
		return v * 1e-40f;
	default:
		do
			v = test_bits((uint32_t)test_random());
		while (!isfinite(v));
		return v;
	}
}

/* Gives what a run of x comes back as; its bytes must be `want`. */
static int there_and_back(codec *c, const float *x, float *y, uint64_t n, uint64_t want)
{
	guarded wire;
	uint64_t bytes;
	float *sum = calloc(n + 1, sizeof *sum);
	int right = sum && codec_code(c, x, n, test_random(), &wire, &bytes) && bytes == want;
	right = right && !codec_decode(c, wire.data, bytes, y, n, 0) && !codec_decode(c, wire.data, bytes, sum, n, 1);
	for (uint64_t i = 0; right && i < n; i++)
		right &= sum[i] == y[i];
	right = right && (!bytes || codec_decode(c, wire.data, bytes - 1, y, n, 0) == GRADCOMP_ERR_MISMATCH);
	guard_free(&wire);
	free(sum);
	return right;
}

typedef struct format {
	int mantissa, bias, codes; /* codes that are numbers, of one sign */
	double largest;
	double values[128];
} format;

static format format_of(int e5m2)
{
	format f = e5m2 ? (format){2, 15, 0x7c, 57344, {0}} : (format){3, 7, 0x7f, 448, {0}};
	for (int code = 0; code < f.codes; code++) {
		int e = code >> f.mantissa, m = code & ((1 << f.mantissa) - 1);
		f.values[code] = e ? ldexp(1 + ldexp(m, -f.mantissa), e - f.bias) : ldexp(m, 1 - f.bias - f.mantissa);
	}
	return f;
}

/* The code next to x >= 0, the even one of two; the last one for what is larger. */
static int nearest(const format *f, double x)
{
	int at = 0;
	while (at + 1 < f->codes && f->values[at + 1] <= x)
		at++;
	if (at + 1 == f->codes)
		return at;
	double below = x - f->values[at], above = f->values[at + 1] - x;
	return below < above ? at : below > above ? at + 1 : at + (at & 1);
}

/* Returns how far a block is off, by the definition: what y is off by, in halves of the gap between codes where it
 * is; 0 where scales are powers of two and y is the very number. */
static double off(const format *f, const float *x, const float *y, int n, int e8m0)
{
	double top = 0, worst = 0;
	for (int i = 0; i < n; i++)
		top = fmax(top, fabs((double)x[i]));
	int e = (top > 0 ? ilogb(top) : -1000) - ilogb(f->largest);
	double scale = e8m0 ? ldexp(1, e < -127 ? -127 : e) : fmax(top / f->largest, FLT_MIN);
	for (int i = 0; i < n; i++) {
		double a = fabs((double)x[i]), b = fabs((double)y[i]);
		int code = nearest(f, a / scale);
		double want = f->values[code] * scale;
		double gap = (code + 1 < f->codes ? f->values[code + 1] - f->values[code]
		                                  : f->values[code] - f->values[code - 1]) *
		             scale;
		/* A block of zeroes has no signs. */
		if (signbit(x[i]) != signbit(y[i]) && (e8m0 || top > 0))
			return INFINITY;
		worst = e8m0 ? fmax(worst, b == (double)(float)want ? 0 : INFINITY)
		             : fmax(worst, fabs(a - b) / (gap / 2));
	}
	return worst;
}

static void formats(const char *spec, int e5m2, int block, int e8m0)
{
	format f = format_of(e5m2);
	static float x[N], y[N];
	static const int sizes[] = {0, 1, 31, 32, 33, 1000, N};
	double worst = 0;
	codec c;
	int right = 1;
	if (!codec_open(&c, spec, 1, 3, N))
		return codec_close(&c);
	for (int kind = 0; kind < INPUTS; kind++)
		for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
			int n = sizes[k];
			for (int i = 0; i < n; i++)
				x[i] = input(kind, i);
			int well = there_and_back(&c, x, y, (uint64_t)n,
			                          (uint64_t)((n + block - 1) / block * (e8m0 ? 1 : 4) + n));
			for (int at = 0; at < n; at += block) {
				double o = off(&f, x + at, y + at, n - at < block ? n - at : block, e8m0);
				worst = fmax(worst, o);
				well &= o <= 1 + 1e-5;
			}
			if (!well)
				printf("# %s: %d %s numbers\n", spec, n, input_names[kind]);
			right &= well;
		}
	ok(right, "%s: %s, bytes of the formula", spec,
	   e8m0 ? "every number is the format's nearest, to even" : "every number within half a gap");
	codec_close(&c);
}

static void refused_fp8(const char *spec, int type_codes, int scale_bytes)
{
	static float x[100], y[100];
	const float scales[] = {test_bits(0x7fc00001), INFINITY, -1, FLT_MAX};
	codec c;
	guarded wire;
	uint64_t bytes;
	int right = 1;
	if (!codec_open(&c, spec, 0, 2, 100))
		return codec_close(&c);
	for (int code = type_codes; code < 256; code++) {
		int number = code >= 0x80 && code < 0x80 + type_codes;
		for (int i = 0; i < 100; i++)
			x[i] = test_normal();
		right &= codec_code(&c, x, 100, 0, &wire, &bytes);
		wire.data[bytes - 7] = (unsigned char)code;
		gradcomp_status st = codec_decode(&c, wire.data, bytes, y, 100, code & 1);
		right &= st == (number ? GRADCOMP_OK : GRADCOMP_ERR_MISMATCH) &&
		         (number || strstr(c.err.text, "NaN or Inf"));
		guard_free(&wire);
	}
	for (int k = 0; k < 4; k++) {
		right &= codec_code(&c, x, 100, 0, &wire, &bytes);
		if (scale_bytes == 4)
			memcpy(wire.data, &scales[k], 4);
		else
			wire.data[0] = (unsigned char)(251 + k);
		right &= codec_decode(&c, wire.data, bytes, y, 100, 1) == GRADCOMP_ERR_MISMATCH;
		guard_free(&wire);
	}
	ok(right, "%s: codes that are NaN or Inf, and scales beyond the range, are refused; others are not", spec);
	codec_close(&c);
}

/* The magnitudes of E2M1 by code, and the code next to one, the even one of two. */
static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static int next_code(const double *values, int count, double x)
{
	int at = 0;
	while (at + 1 < count && values[at + 1] <= x)
		at++;
	if (at + 1 == count)
		return at;
	const double below = x - values[at], above = values[at + 1] - x;
	return below < above ? at : below > above ? at + 1 : at + (at & 1);
}

static double largest(const float *x, int n)
{
	double top = 0;
	for (int i = 0; i < n; i++)
		top = fmax(top, fabs((double)x[i]));
	return top;
}

/* Puts the codes of n numbers, which stand at number `at` of a run, and returns how far they may be off, in halves of
 * the gap between codes. a = 1 / scale, as a float. */
static double put_codes(unsigned char *codes, const float *x, int at, int n, float scale)
{
	const float a = 1 / scale;
	double worst = 0;
	for (int i = at; scale > 0 && i < at + n; i++) {
		const double q = fabs((double)(x[i] * a)), exact = fabs((double)x[i]) / (double)scale;
		const int code = next_code(e2m1, 8, q), gap = code == 7 || exact < e2m1[code] ? code - 1 : code;
		if (exact < 6)
			worst = fmax(worst, fabs(exact - e2m1[code]) / ((e2m1[gap + 1] - e2m1[gap]) / 2));
		codes[i / 2] |= (unsigned char)((code | (signbit(x[i]) ? 8 : 0)) << 4 * (i % 2));
	}
	return worst;
}

/* MXFP4 by its specification: byte 127 + e stands for 2^e, with e that of the largest number less 2. */
static double coded_mx(unsigned char *out, const float *x, int n)
{
	unsigned char *codes = out + (n + 31) / 32;
	double worst = 0;
	for (int at = 0; at < n; at += 32) {
		const int some = n - at < 32 ? n - at : 32;
		const double top = largest(x + at, some);
		const int e = top > 0 && ilogb(top) - 2 > -127 ? ilogb(top) - 2 : -127;
		out[at / 32] = (unsigned char)(e + 127);
		worst = fmax(worst, put_codes(codes, x, at, some, (float)ldexp(1, e)));
	}
	return worst;
}

/* NVFP4 by its paper, of groups with a float each. */
static double coded_nv(unsigned char *out, const float *x, int n, int group)
{
	const format f = format_of(0);
	unsigned char *codes = out + (n + group - 1) / group * 4 + (n + 15) / 16;
	double worst = 0;
	for (int from = 0; from < n; from += group) {
		const int end = from + group < n ? from + group : n;
		const float top = (float)largest(x + from, end - from),
			    above = top > 0 ? fmaxf(top / 2688, 0x1p-117f) : 0;
		memcpy(out, &above, sizeof above);
		out += sizeof above;
		for (int at = from; at < end; at += 16) {
			const int some = end - at < 16 ? end - at : 16;
			const float share = above > 0 ? (float)largest(x + at, some) / (6 * above) : 0;
			const int byte = next_code(f.values, f.codes, (double)share);
			*out++ = (unsigned char)byte;
			worst = fmax(worst, put_codes(codes, x, at, some, (float)f.values[byte] * above));
		}
	}
	return worst;
}

static void formats_of_4_bits(const char *spec, int group)
{
	static float x[N], y[N];
	static unsigned char want[2 * N];
	static const int sizes[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 95, 1000, N - 1, N};
	double worst = 0;
	codec c;
	int right = 1;
	if (!codec_open(&c, spec, 1, 3, N))
		return codec_close(&c);
	for (int kind = 0; kind < INPUTS; kind++)
		for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
			const int n = sizes[k],
				  scales = group ? (n + group - 1) / group * 4 + (n + 15) / 16 : (n + 31) / 32;
			guarded wire;
			uint64_t bytes;
			for (int i = 0; i < n; i++)
				x[i] = input(kind, i);
			memset(want, 0, sizeof want);
			worst = fmax(worst, group ? coded_nv(want, x, n, group) : coded_mx(want, x, n));
			int well = codec_code(&c, x, (uint64_t)n, 0, &wire, &bytes) &&
			           bytes == (uint64_t)(scales + (n + 1) / 2) && !memcmp(wire.data, want, bytes);
			guard_free(&wire);
			well &= there_and_back(&c, x, y, (uint64_t)n, bytes);
			for (int i = 0; i < n; i++)
				well &= fabs((double)y[i]) <= fabs((double)x[i]) * 2 || !(fabsf(x[i]) >= 1e-30f);
			if (!well)
				printf("# %s: %d %s numbers\n", spec, n, input_names[kind]);
			right &= well;
		}
	ok(right && worst <= 1 + 1e-5, "%s: the payload by its definition, numbers within %.6f of half a gap", spec,
	   worst);
	codec_close(&c);
}

/* Scales of 1, and 2 for the second 16 numbers of nv. */
static void all_sixteen(const char *spec, int nv)
{
	const float above = 1;
	unsigned char in[22] = {127};
	float y[32], sum[32];
	codec c;
	int right = 1, at = 1;
	if (!codec_open(&c, spec, 0, 2, 32))
		return codec_close(&c);
	if (nv) {
		memcpy(in, &above, sizeof above);
		in[4] = 0x38, in[5] = 0x40;
		at = 6;
	}
	for (int i = 0; i < 32; i++) {
		in[at + i / 2] |= (unsigned char)((i * 5 + i / 16) % 16 << 4 * (i % 2));
		sum[i] = 100;
	}
	right &= !codec_decode(&c, in, (uint64_t)at + 16, y, 32, 0) &&
	         !codec_decode(&c, in, (uint64_t)at + 16, sum, 32, 1);
	for (int i = 0; i < 32; i++) {
		const int code = (i * 5 + i / 16) % 16;
		const double v = e2m1[code & 7] * (nv && i > 15 ? 2 : 1) * (code & 8 ? -1 : 1);
		right &= (double)y[i] == v && !signbit(y[i]) == !(code & 8) && (double)sum[i] == 100 + v;
	}
	ok(right, "%s: all 16 codes stand for what they should", spec);
	codec_close(&c);
}

/* Numbers in the middle between two codes, and of nv also scales in the middle between two bytes. */
static void ties(void)
{
	static const float middle[] = {6, 0.25f,  0.75f,  1.25f, 1.75f, 2.5f,  3.5f,
	                               5, -0.25f, -0.75f, -5,    0,     -0.0f, 5.99f};
	static const unsigned char codes[] = {7, 0, 2, 2, 4, 4, 6, 6, 8, 10, 14, 0, 8, 7};
	static const struct {
		float top;
		unsigned char byte;
	} tops[] = {{2688, 0x7e},      {6, 0x38},          {6.375f, 0x38},       {7.125f, 0x3a},
	            {6 * 0x1p-10f, 0}, {6 * 0x3p-10f, 2},  {6.1f * 0x1p-10f, 1}, {0, 0},
	            {6 * 0x1p-6f, 8},  {6 * 0x1.ep-7f, 8}, {6 * 432.0f, 0x7e},   {6 * 431.9f, 0x7d}};
	enum { TOPS = sizeof tops / sizeof *tops, COUNT = sizeof middle / sizeof *middle };
	float x[16 * TOPS] = {0};
	guarded wire;
	uint64_t bytes;
	codec c;
	int right = 1;
	if (codec_open(&c, "fp4:type=mx", 0, 2, 32)) {
		memcpy(x, middle, sizeof middle);
		x[COUNT] = 7.99f; /* beyond the largest, with the same scale */
		right &= codec_code(&c, x, 32, 0, &wire, &bytes) && wire.data[0] == 127;
		for (int i = 0; right && i < COUNT; i++)
			right &= (wire.data[1 + i / 2] >> 4 * (i % 2) & 15) == codes[i];
		right &= (wire.data[1 + COUNT / 2] & 15) == 7;
		guard_free(&wire);
		ok(right, "fp4:type=mx: ties go to the even code, what is too large becomes the largest");
	}
	codec_close(&c);
	if (codec_open(&c, "fp4:group=256", 0, 2, sizeof x / sizeof *x)) {
		right = 1;
		memset(x, 0, sizeof x);
		for (int i = 0; i < TOPS; i++)
			x[16 * i] = tops[i].top;
		memcpy(x + 16, middle, sizeof middle);
		right &= codec_code(&c, x, sizeof x / sizeof *x, 0, &wire, &bytes);
		for (int i = 0; right && i < TOPS; i++) {
			if (wire.data[4 + i] != tops[i].byte)
				printf("# largest %g: byte %#x, not %#x\n", tops[i].top, wire.data[4 + i],
				       tops[i].byte);
			right &= wire.data[4 + i] == tops[i].byte;
		}
		for (int i = 0; right && i < COUNT; i++)
			right &= (wire.data[4 + TOPS + 8 + i / 2] >> 4 * (i % 2) & 15) == codes[i];
		guard_free(&wire);
		ok(right, "fp4: ties go to the even code, and to the even byte of a scale");
	}
	codec_close(&c);
}

/* A code of a run is those of its parts, cut where the layout says. */
static void parts_of_code(const char *spec)
{
	static float x[N];
	gradcomp_code_layout all = {.struct_size = sizeof all}, before = all, part = all;
	guarded wire, piece;
	uint64_t bytes;
	codec c;
	int right = 1;
	if (!codec_open(&c, spec, 0, 2, N))
		return codec_close(&c);
	for (int i = 0; i < N; i++)
		x[i] = input(SCALED, i);
	right &= codec_code(&c, x, N, 0, &wire, &bytes);
	c.plugin->code_layout(c.instance, N, &all);
	right &= all.values + all.codes == bytes && all.grain % 32 == 0;
	for (uint64_t from = 0; right && from < N; from += all.grain) {
		const uint64_t left = N - from, n = left < 3 * all.grain ? left : 3 * all.grain;
		c.plugin->code_layout(c.instance, from, &before);
		c.plugin->code_layout(c.instance, n, &part);
		right &= codec_code(&c, x + from, n, 0, &piece, &bytes) && bytes == part.values + part.codes;
		right &= !memcmp(piece.data, wire.data + before.values, part.values) &&
		         !memcmp(piece.data + part.values, wire.data + all.values + before.codes, part.codes);
		guard_free(&piece);
	}
	guard_free(&wire);
	ok(right, "%s: the code of a run is those of its parts", spec);
	codec_close(&c);
}

static void refused_fp4(void)
{
	static const float scales[] = {-1, INFINITY, FLT_MAX / 2687};
	static float x[100], y[100];
	codec c;
	guarded wire;
	uint64_t bytes;
	int right = 1;
	for (int i = 0; i < 100; i++)
		x[i] = test_normal();
	if (codec_open(&c, "fp4:group=64", 0, 2, 100)) {
		/* Each of these once: a float, a byte of it, and what is beside the range and is right. */
		for (int k = 0; k < 8; k++) {
			const float nan = test_bits(0x7fc00001), most = FLT_MAX / 2688;
			right &= codec_code(&c, x, 100, 0, &wire, &bytes) && bytes == 8 + 7 + 50;
			if (k < 3)
				memcpy(wire.data + 8, &scales[k], 4);
			else if (k == 3)
				memcpy(wire.data, &nan, 4);
			else if (k == 4)
				memcpy(wire.data, &most, 4);
			else
				wire.data[k == 5 ? 4 : 14] = (unsigned char)(k == 5 ? 0x7f : k == 6 ? 0x80 : 0x7e);
			gradcomp_status st = codec_decode(&c, wire.data, bytes, y, 100, k & 1);
			right &= st == (k == 4 || k == 7 ? GRADCOMP_OK : GRADCOMP_ERR_MISMATCH);
			right &= !st || strstr(c.err.text, "fp4: a run of 100 numbers came with a scale that is none");
			guard_free(&wire);
		}
		ok(right, "fp4: scales that cannot have been written are refused, others are not");
	}
	codec_close(&c);
	if (codec_open(&c, "fp4:type=mx", 0, 2, 100)) {
		right = codec_code(&c, x, 100, 0, &wire, &bytes) && bytes == 4 + 50;
		for (int byte = 0; right && byte < 256; byte++) {
			wire.data[3] = (unsigned char)byte;
			right &= codec_decode(&c, wire.data, bytes, y, 100, byte & 1) ==
			         (byte == 253 || byte == 254 ? GRADCOMP_ERR_MISMATCH : GRADCOMP_OK);
		}
		guard_free(&wire);
		ok(right, "fp4:type=mx: of all scales two are refused, with which the largest code would be Inf");
	}
	codec_close(&c);
	is_int(codec_load(&c, "fp4:group=48"), GRADCOMP_ERR_INVALID, "fp4:group=48 is refused: %s", c.err.text);
	codec_close(&c);
	is_int(codec_load(&c, "fp4:type=mx,group=64"), GRADCOMP_ERR_INVALID, "fp4:type=mx,group=64 is refused: %s",
	       c.err.text);
	codec_close(&c);
}

static void neighbours(void)
{
	static float x[N], y[N];
	codec c;
	int right = 1;
	if (!codec_open(&c, "natural", 0, 2, N))
		return codec_close(&c);
	for (int kind = 0; kind < INPUTS; kind++)
		for (int n = 0; n <= N; n = n < 34 ? n + 1 : n < N ? N : N + 1) {
			for (int i = 0; i < n; i++)
				x[i] = input(kind, i);
			int well = there_and_back(&c, x, y, (uint64_t)n, (uint64_t)(n + (n + 7) / 8));
			for (int i = 0; i < n; i++) {
				double a = fabs((double)x[i]), b = fabs((double)y[i]),
				       low = a > 0 ? ldexp(1, ilogb(a)) : 0;
				int is = b == low || (b == 2 * low && a > low);
				if (a < FLT_MIN)
					is = b == 0 || (a > 0 && b == FLT_MIN);
				else if (a > 0x1p127)
					is = b == 0x1p127;
				well &= is && (a == 0 || signbit(x[i]) == signbit(y[i]));
			}
			if (!well)
				printf("# natural: %d %s numbers\n", n, input_names[kind]);
			right &= well;
		}
	ok(right, "natural: every number is one of the powers of two beside it, n + ceil(n / 8) bytes");
	codec_close(&c);
}

/* Over many runs: right on average, with the variance (2^(e+1) - x) (x - 2^e). */
static void on_average(void)
{
	enum { TIMES = 20000, NUMBERS = 40 };
	float x[NUMBERS], y[NUMBERS];
	double sum[NUMBERS] = {0}, squares[NUMBERS] = {0}, worst = 0, spread = 0, most = 0;
	codec c;
	if (!codec_open(&c, "natural", 0, 2, N))
		return codec_close(&c);
	for (int i = 0; i < NUMBERS; i++)
		x[i] = i == 0 ? 1e-39f : i == 1 ? 0 : i == 2 ? 1.5f : test_normal() * (float)pow(10, i % 7 - 3);
	for (uint64_t t = 0; t < TIMES; t++) {
		guarded wire;
		uint64_t bytes;
		codec_code(&c, x, NUMBERS, t, &wire, &bytes);
		codec_decode(&c, wire.data, bytes, y, NUMBERS, 0);
		guard_free(&wire);
		for (int i = 0; i < NUMBERS; i++) {
			sum[i] += y[i];
			squares[i] += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
		}
	}
	for (int i = 0; i < NUMBERS; i++) {
		double a = fabs((double)x[i]), low = a < FLT_MIN ? 0 : ldexp(1, ilogb(a)),
		       high = a < FLT_MIN ? FLT_MIN : 2 * low;
		double variance = a > 0 ? (high - a) * (a - low) : 0, sd = sqrt(variance / TIMES);
		if (variance > 0)
			worst = fmax(worst, fabs(sum[i] / TIMES - x[i]) / sd);
		else
			worst = fmax(worst, sum[i] == (double)x[i] * TIMES ? 0 : INFINITY);
		if (i) {
			spread = fmax(spread, fabs(squares[i] / TIMES - variance) / (a * a / 8 + DBL_MIN));
			most = fmax(most, a > 0 ? variance / (a * a) : 0);
		}
	}
	/* 7 standard deviations: once in 10^9 runs of 40 numbers by chance. */
	ok(worst < 7, "natural: the mean of %d codings is the number, within %.2f standard deviations", TIMES, worst);
	ok(spread < 0.15 && most <= 0.125 && most > 0.1,
	   "natural: the variance is the formula's, at most %.4f of the square", most);
	codec_close(&c);
}

/* Checks that a number that is not finite, and with it its block, is not finite again, here and where that is coded
 * anew; other numbers are as they would be. */
static void overflown(const char *spec, int block)
{
	static const float odd[] = {INFINITY, -INFINITY, NAN};
	static float x[N], y[N], z[N], sum[N];
	codec c;
	int right = 1;
	if (!codec_open(&c, spec, 1, 3, N))
		return codec_close(&c);
	for (int k = 0; k < 40; k++) {
		int n = 1 + (int)(test_random() % N), at = (int)(test_random() % (uint64_t)n);
		uint64_t bytes, same;
		guarded wire, plain, again;
		for (int i = 0; i < n; i++) {
			x[i] = input(k % 2 ? HUGE_ONES : GAUSSIAN, i);
			sum[i] = 0;
		}
		right &= codec_code(&c, x, (uint64_t)n, 5, &plain, &same) &&
		         !codec_decode(&c, plain.data, same, z, (uint64_t)n, 0);
		x[at] = odd[k % 3];
		right &= codec_code(&c, x, (uint64_t)n, 5, &wire, &bytes) && bytes == same;
		right &= !codec_decode(&c, wire.data, bytes, y, (uint64_t)n, 0) &&
		         !codec_decode(&c, wire.data, bytes, sum, (uint64_t)n, 1);
		for (int i = 0; i < n; i++)
			right &= i / block == at / block ? !isfinite(y[i]) && !isfinite(sum[i])
			                                 : y[i] == z[i] && sum[i] == z[i];
		right &= codec_code(&c, y, (uint64_t)n, 6, &again, &bytes) &&
		         !codec_decode(&c, again.data, bytes, y, (uint64_t)n, 0);
		right &= !isfinite(y[at]);
		guard_free(&wire), guard_free(&plain), guard_free(&again);
	}
	ok(right, "%s: what is not finite stays so, other blocks are as without", spec);
	codec_close(&c);
}

int main(void)
{
	codec c;
	test_seed();
	formats("fp8", 0, 128, 0);
	formats("fp8:type=e5m2,block=32", 1, 32, 0);
	formats("fp8:block=65536", 0, 65536, 0);
	formats("fp8:scales=e8m0,block=32", 0, 32, 1);
	formats("fp8:type=e5m2,scales=e8m0,block=96", 1, 96, 1);
	refused_fp8("fp8", 0x7f, 4);
	refused_fp8("fp8:type=e5m2", 0x7c, 4);
	refused_fp8("fp8:scales=e8m0", 0x7f, 1);
	is_int(codec_load(&c, "fp8:block=33"), GRADCOMP_ERR_INVALID, "fp8:block=33 is refused: %s", c.err.text);
	codec_close(&c);
	formats_of_4_bits("fp4", 4096);
	formats_of_4_bits("fp4:group=32", 32);
	formats_of_4_bits("fp4:group=96,type=nv", 96);
	formats_of_4_bits("fp4:type=mx", 0);
	all_sixteen("fp4:type=mx", 0);
	all_sixteen("fp4", 1);
	ties();
	parts_of_code("fp4:group=128");
	parts_of_code("fp4:type=mx");
	parts_of_code("fp8");
	refused_fp4();
	neighbours();
	on_average();
	overflown("natural", 1);
	overflown("fp8", 128);
	overflown("fp8:type=e5m2,block=65536", 65536);
	overflown("fp8:scales=e8m0,block=32", 32);
	overflown("fp8:type=e5m2,scales=e8m0,block=96", 96);
	overflown("fp4", 4096);
	overflown("fp4:group=64", 64);
	overflown("fp4:type=mx", 32);
	return done_testing();
}
