/* Casts to and from the 16-bit types, against rounding done in double, and to and
 * from the 8-bit ones, against a search among all their values. */
#include <math.h>

#include "tests/support/operator_input.h"

static double half_value(uint16_t h, gradcomp_dtype t)
{
	int ebits = t == GRADCOMP_F16 ? 5 : 8, mbits = 15 - ebits, bias = (1 << (ebits - 1)) - 1;
	int e = h >> mbits & ((1 << ebits) - 1), m = h & ((1 << mbits) - 1);
	double v = e == (1 << ebits) - 1 ? (m ? NAN : INFINITY)
	           : e                   ? ldexp(m + (1 << mbits), e - bias - mbits)
	                                 : ldexp(m, 1 - bias - mbits);
	return h & 0x8000 ? -v : v;
}

/* x rounded to nearest even in type t. */
static double rounded(float x, gradcomp_dtype t, int saturate)
{
	int mbits = t == GRADCOMP_F16 ? 10 : 7, least = t == GRADCOMP_F16 ? -14 : -126, e;
	if (isnan(x) || isinf(x) || x == 0)
		return x;
	frexp(x, &e);
	int unit = (e - 1 > least ? e - 1 : least) - mbits;
	double v = ldexp(nearbyint(ldexp(x, -unit)), unit);
	double most = t == GRADCOMP_F16 ? 65504 : half_value(0x7f7f, t);
	if (fabs(v) > most)
		v = copysign(saturate ? most : INFINITY, v);
	return v;
}

static int same(double a, double b)
{
	return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b);
}

static void back(const char *name, const gradcomp_operators *op, gradcomp_dtype t)
{
	static uint16_t h[65536], again[65536];
	static float f[65536];
	int right = 1, identical = 1;
	for (int i = 0; i < 65536; i++)
		h[i] = (uint16_t)i;
	op->cast_to_f32(NULL, f, h, 65536, t);
	op->cast_from_f32(NULL, again, f, 65536, t, (int)(test_random() & 1));
	for (int i = 0; i < 65536; i++) {
		right &= same(f[i], half_value(h[i], t));
		identical &= isnan(f[i]) ? isnan(half_value(again[i], t)) : again[i] == h[i];
	}
	ok(right, "%s: every number of type %d becomes the right float", name, t);
	ok(identical, "%s: and comes back", name);
}

static void forth(const char *name, const gradcomp_operators *op, gradcomp_dtype t, int saturate)
{
	enum { N = 400003 };
	static float x[N];
	static uint16_t h[N], p[N];
	for (int i = 0; i < N; i++) {
		uint32_t b = (uint32_t)test_random();
		/* All floats; those in the range of F16; the ties of each and their
		 * neighbours; NaNs and infinities. */
		if (i % 4 == 1)
			b = (b & 0x8fffffff) | 0x30000000;
		else if (i % 4 == 2)
			b = (b & 0xfffff000) + (uint32_t)(i % 3) - 1;
		else if (i % 4 == 3)
			b = (b & 0xffff8000) + (uint32_t)(i % 3) - 1;
		if (i % 1000 == 0)
			b |= 0x7f800000;
		if (i % 1000 == 500)
			b = 0x477fe000 + ((b & 0xfff) << 1 | (b & 0x80000000)); /* about 65504..65536 */
		x[i] = test_bits(b);
	}
	int odd = (int)(test_random() % 7), right = 1;
	size_t n = N - 8;
	op->cast_from_f32(NULL, h + odd, x + odd, n, t, saturate);
	operators_cpu_variant("portable")->cast_from_f32(NULL, p + odd, x + odd, n, t, saturate);
	for (size_t i = (size_t)odd; right && i < n + (size_t)odd; i++) {
		right = same(half_value(h[i], t), rounded(x[i], t, saturate));
		if (!right)
			printf("# %a became %a, not %a\n", x[i], half_value(h[i], t), rounded(x[i], t, saturate));
	}
	ok(right, "%s: floats to type %d%s round to nearest even", name, t, saturate ? ", saturating" : "");
	ok(!memcmp(h + odd, p + odd, n * sizeof *h), "%s: the same bits as in plain code, NaNs included", name);
}

/* Gives the value of a code without its sign, counting on past the largest. */
static double fp8_value(int code, gradcomp_dtype t)
{
	int mbits = t == GRADCOMP_F8E4M3 ? 3 : 2, bias = t == GRADCOMP_F8E4M3 ? 7 : 15;
	int e = code >> mbits, m = code & ((1 << mbits) - 1);
	return e ? ldexp(m + (1 << mbits), e - bias - mbits) : ldexp(m, 1 - bias - mbits);
}

static int fp8_expected(float x, gradcomp_dtype t, int saturate)
{
	int e4m3 = t == GRADCOMP_F8E4M3, most = e4m3 ? 0x7e : 0x7b, sign = signbit(x) ? 0x80 : 0;
	uint32_t b;
	memcpy(&b, &x, sizeof b);
	if (isnan(x))
		return sign | (e4m3 ? 0x7f : 0x7e | (int)(b >> 21 & 1));
	if (isinf(x))
		return sign | (e4m3 ? (saturate ? most : 0x7f) : 0x7c);
	int best = 0;
	for (int c = 1; c <= most + 1; c++) {
		double near = fabs(fabs(x) - fp8_value(best, t)), here = fabs(fabs(x) - fp8_value(c, t));
		if (here < near || (here == near && c % 2 == 0))
			best = c;
	}
	if (fabs(x) > fp8_value(most + 1, t)) /* a double cannot tell such differences */
		best = most + 1;
	return sign | (best > most && saturate ? most : best);
}

static void fp8_back(const char *name, const gradcomp_operators *op, gradcomp_dtype t)
{
	int top = t == GRADCOMP_F8E4M3 ? 0x7f : 0x7c, right = 1, identical = 1;
	uint8_t codes[256], again[256 + 1] = {0};
	float f[256];
	for (int i = 0; i < 256; i++)
		codes[i] = (uint8_t)i;
	op->cast_to_f32(NULL, f, codes, 256, t);
	op->cast_from_f32(NULL, again, f, 256, t, 0);
	for (int i = 0; i < 256; i++) {
		int m = i & 0x7f;
		double v = m < top ? fp8_value(m, t) : m == 0x7c ? INFINITY : NAN;
		int quiet = t == GRADCOMP_F8E5M2 && m > top ? 2 : 0;
		right &= same(f[i], i & 0x80 ? -v : v) && !signbit(f[i]) == !(i & 0x80);
		identical &= again[i] == (i | quiet);
	}
	ok(right, "%s: every number of type %d becomes the right float", name, t);
	ok(identical, "%s: and comes back, NaNs with their payload, quiet", name);
}

static void fp8_forth(const char *name, const gradcomp_operators *op, gradcomp_dtype t, int saturate)
{
	enum { N = 40009 };
	static float x[N + 8];
	static uint8_t codes[N + 16];
	size_t n = 0, odd = test_random() % 8, wrong = 0;
	/* Every value, every tie, and what lies beside them. */
	for (int c = 0; c <= 0x80; c++)
		for (int tie = 0; tie < 2; tie++) {
			float v = (float)(tie ? (fp8_value(c, t) + fp8_value(c + 1, t)) / 2 : fp8_value(c, t));
			const float some[] = {v, nextafterf(v, INFINITY), nextafterf(v, -INFINITY)};
			for (int k = 0; k < 6; k++)
				x[odd + n++] = k % 2 ? -some[k / 2] : some[k / 2];
		}
	for (; n < N; n++) {
		uint32_t b = (uint32_t)test_random();
		x[odd + n] = test_bits(n % 3 == 0    ? b
		                       : n % 3 == 1  ? (b & 0x83ffffff) | 0x3c000000
		                       : n % 51 == 2 ? b | 0x7f800000
		                                     : (b & 0x81ffffff) + 0x36000000);
	}
	memset(codes, 0x5a, sizeof codes);
	op->cast_from_f32(NULL, codes + odd, x + odd, N, t, saturate);
	for (size_t i = odd; i < odd + N; i++)
		if (codes[i] != fp8_expected(x[i], t, saturate) && wrong++ < 5)
			printf("# %a became %#x, not %#x\n", x[i], codes[i], fp8_expected(x[i], t, saturate));
	ok(!wrong, "%s: floats to type %d%s round to nearest even", name, t, saturate ? ", saturating" : "");
	int whole = 1;
	for (size_t len = 0; len < 70; len++) {
		memset(codes, 0x5a, 200);
		op->cast_from_f32(NULL, codes + odd, x + odd, len, t, saturate);
		for (size_t i = 0; i < 100; i++)
			whole &= codes[i] == (i >= odd && i < odd + len ? fp8_expected(x[i], t, saturate) : 0x5a);
		float *back = test_alloc(len, odd);
		op->cast_to_f32(NULL, back, codes + odd, len, t);
		for (size_t i = 0; i < len; i++)
			whole &= fp8_expected(back[i], t, 0) == codes[odd + i];
		whole &= test_free(back, len, odd);
	}
	ok(whole, "%s: any length, and nothing written beside it", name);
}

/* cast_scaled() against its parts, one number at a time. */
static void scaled(const char *name, const gradcomp_operators *op, gradcomp_dtype t, float limit)
{
	enum { MOST = 2100 };
	static const size_t sizes[] = {0, 1, 7, 8, 9, 1023, 1024, 1025, MOST};
	static const float a = 1.0f / 3;
	size_t wide = gradcomp_dtype_bytes(t), odd = test_random() % 9;
	float *x = test_alloc(MOST, odd);
	unsigned char *want = malloc(MOST * wide), *got = malloc(MOST * wide + 1);
	int right = 1;
	for (size_t i = 0; i < MOST; i++) {
		x[i] = i % 5 ? test_bits((uint32_t)test_random()) : test_normal() * 3 * limit;
		if (i % 19 == 3)
			x[i] = i % 2 ? INFINITY : -INFINITY;
		float v = x[i] * a;
		if (limit > 0 && isfinite(v))
			v = v > limit ? limit : v < -limit ? -limit : v;
		op->cast_from_f32(NULL, want + i * wide, &v, 1, t, limit > 0);
	}
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		size_t n = sizes[s];
		memset(got, 0x5a, MOST * wide + 1);
		right &= op->cast_scaled(NULL, got, x, n, t, a, limit) == GRADCOMP_OK;
		right &= !memcmp(got, want, n * wide) && got[n * wide] == 0x5a;
	}
	ok(right & test_free(x, MOST, odd), "%s: scaled, to type %d, within %g", name, t, limit);
	free(want), free(got);
}

static void each(const char *name, const gradcomp_operators *op)
{
	static const gradcomp_dtype types[] = {GRADCOMP_F16, GRADCOMP_BF16};
	for (int t = 0; t < 2; t++) {
		back(name, op, types[t]);
		forth(name, op, types[t], 0);
		forth(name, op, types[t], 1);
	}
	for (int t = GRADCOMP_F8E4M3; t <= GRADCOMP_F8E5M2; t++) {
		fp8_back(name, op, (gradcomp_dtype)t);
		fp8_forth(name, op, (gradcomp_dtype)t, 0);
		fp8_forth(name, op, (gradcomp_dtype)t, 1);
	}
	for (int t = GRADCOMP_F32; t <= GRADCOMP_F8E5M2; t++)
		if (op->cast_scaled(NULL, NULL, NULL, 0, (gradcomp_dtype)t, 1, 0) == GRADCOMP_OK) {
			scaled(name, op, (gradcomp_dtype)t, 0);
			scaled(name, op, (gradcomp_dtype)t, 1000);
		}
	is_int(op->cast_scaled(NULL, NULL, NULL, 0, GRADCOMP_I32, 1, 0), GRADCOMP_ERR_UNSUPPORTED,
	       "%s: nor to I32, scaled", name);
	float in[5] = {1, -0.0f, INFINITY, 1e-40f, 3}, out[5] = {0};
	is_int(op->cast_from_f32(NULL, out, in, 5, GRADCOMP_F32, 0), GRADCOMP_OK, "%s: F32 from F32", name);
	ok(!memcmp(in, out, sizeof in), "%s: is a copy", name);
	is_int(op->cast_to_f32(NULL, in, out, 5, GRADCOMP_I32), GRADCOMP_ERR_UNSUPPORTED, "%s: no cast from I32", name);
	is_int(op->cast_from_f32(NULL, out, in, 5, GRADCOMP_F64, 0), GRADCOMP_ERR_UNSUPPORTED, "%s: no cast to F64",
	       name);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
