/* Element by element, sums, and random numbers. */
#ifndef TESTS_CUDA_COMPARE_ELEMENTS_H
#define TESTS_CUDA_COMPARE_ELEMENTS_H

#include "tests/cuda/device_arrays.h"

static const size_t sizes[] = {0, 1, 3, 31, 33, 1025, 5003};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Any bits: NaN, Inf, denormals, zeroes of both signs among them. */
static void any_bits(void *p, size_t bytes)
{
	uint8_t *b = p;
	for (size_t i = 0; i < bytes; i++)
		b[i] = (uint8_t)test_random();
	for (size_t i = 0; i + 4 <= bytes; i += 4)
		if (test_random() % 4 == 0) {
			static const uint32_t odd[] = {0,          0x80000000, 1,          0x807fffff,
			                               0x7f800000, 0xff800000, 0x7fc00001, 0xffa00000,
			                               0x3f800000, 0x477fefff, 0x477ff000, 0x33000001};
			memcpy(b + i, &odd[test_random() % 12], 4);
		}
}

/* Bits of `type` are the same, or both are NaN. */
static int same(const void *a, const void *b, size_t n, gradcomp_dtype type)
{
	size_t bytes = gradcomp_dtype_bytes(type);
	for (size_t i = 0; i < n; i++) {
		const uint8_t *x = (const uint8_t *)a + i * bytes, *y = (const uint8_t *)b + i * bytes;
		float f[2];
		double d[2];
		if (!memcmp(x, y, bytes))
			continue;
		if (type == GRADCOMP_F64) {
			memcpy(&d[0], x, 8), memcpy(&d[1], y, 8);
			f[0] = (float)d[0], f[1] = (float)d[1];
		} else if (type == GRADCOMP_I32 || type == GRADCOMP_I64 || type == GRADCOMP_U8) {
			return 0;
		} else {
			cpu->cast_to_f32(NULL, &f[0], x, 1, type), cpu->cast_to_f32(NULL, &f[1], y, 1, type);
		}
		if (!isnan(f[0]) || !isnan(f[1]))
			return 0;
	}
	return 1;
}

static void reduce(size_t n, size_t odd)
{
	for (int t = GRADCOMP_F32; t <= GRADCOMP_F8E5M2; t++)
		for (int o = GRADCOMP_SUM; o <= GRADCOMP_BOR; o++) {
			size_t e = gradcomp_dtype_bytes(t), bytes = n * e;
			uint8_t *a = malloc(bytes + 1), *b = malloc(bytes + 1), *c = malloc(bytes + 1);
			any_bits(a, bytes), any_bits(b, bytes);
			watched A = watch(a, bytes, odd * e), B = watch(b, bytes, odd * e);
			gradcomp_status want = cpu->reduce(NULL, a, b, n, t, o),
					got = gpu->reduce(NULL, A.at, B.at, n, t, o);
			ok(unwatch(&A, c) & unwatch(&B, NULL) && got == want && same(a, c, n, t),
			   "reduce %zu of type %d by %d", n, t, o);
			free(a), free(b), free(c);
		}
	for (int t = GRADCOMP_F32; t <= GRADCOMP_F8E5M2; t++) {
		size_t e = gradcomp_dtype_bytes(t), bytes = n * e;
		uint8_t *a = malloc(bytes + 1), *c = malloc(bytes + 1);
		any_bits(a, bytes);
		watched A = watch(a, bytes, odd * e);
		double by = test_normal();
		gradcomp_status want = cpu->scale_as(NULL, a, by, n, t), got = gpu->scale_as(NULL, A.at, by, n, t);
		ok(unwatch(&A, c) && got == want && same(a, c, n, t), "scale_as %zu of type %d", n, t);
		free(a), free(c);
	}
}

static void casts(size_t n, size_t odd)
{
	for (int t = GRADCOMP_F32; t <= GRADCOMP_F8E5M2; t++) {
		size_t e = gradcomp_dtype_bytes(t);
		float *f = malloc(4 * n + 1), *g = malloc(4 * n + 1);
		uint8_t *h = malloc(e * n + 1), *k = malloc(e * n + 1);
		for (int saturate = 0; saturate < 2; saturate++) {
			any_bits(f, 4 * n);
			watched F = watch(f, 4 * n, 4 * odd), H = watch(NULL, e * n, odd * e);
			gradcomp_status want = cpu->cast_from_f32(NULL, h, f, n, t, saturate);
			gradcomp_status got = gpu->cast_from_f32(NULL, H.at, (float *)F.at, n, t, saturate);
			ok(unwatch(&H, k) & unwatch(&F, NULL) && got == want && (want || !memcmp(h, k, e * n)),
			   "%zu floats to type %d%s", n, t, saturate ? ", saturated" : "");
		}
		any_bits(h, e * n);
		watched F = watch(NULL, 4 * n, 4 * odd), H = watch(h, e * n, odd * e);
		gradcomp_status want = cpu->cast_to_f32(NULL, f, h, n, t);
		gradcomp_status got = gpu->cast_to_f32(NULL, (float *)F.at, H.at, n, t);
		ok(unwatch(&F, g) & unwatch(&H, NULL) && got == want && (want || !memcmp(f, g, 4 * n)),
		   "%zu floats from type %d", n, t);
		free(f), free(g), free(h), free(k);
	}
}

/* Checks what is found on the device and used there: factors, limits of a cast, ranges. */
static void found(size_t n, size_t odd)
{
	float *y = malloc(4 * n + 1), *x = malloc(4 * n + 1), *z = malloc(4 * n + 1), a = test_normal(), want, got;
	double sum = fabs(test_normal()) * (double)n;
	any_bits(y, 4 * n), any_bits(x, 4 * n);
	watched Y = watch(y, 4 * n, 4 * odd), X = watch(x, 4 * n, 4 * odd), A = watch(&a, 4, 0), S = watch(&sum, 8, 0);
	cpu->axpy_by(NULL, y, &a, x, n), gpu->axpy_by(NULL, (float *)Y.at, (float *)A.at, (float *)X.at, n);
	from_device(z, Y.at, 4 * n);
	ok(same_floats(y, z, n), "axpy_by %zu", n);
	cpu->scale_by(NULL, y, &a, x, n), gpu->scale_by(NULL, (float *)Y.at, (float *)A.at, (float *)X.at, n);
	from_device(z, Y.at, 4 * n);
	ok(same_floats(y, z, n), "scale_by %zu", n);
	cpu->scale_by(NULL, y, &a, y, n), gpu->scale_by(NULL, (float *)Y.at, (float *)A.at, (float *)Y.at, n);
	ok(unwatch(&Y, z) && same_floats(y, z, n), "scale_by in place");
	for (uint32_t kind = 0; kind < 3; kind++) {
		cpu->moment(NULL, &want, &sum, (double)n + 1, 2.5, kind);
		gpu->moment(NULL, (float *)A.at, (double *)S.at, (double)n + 1, 2.5, kind);
		from_device(&got, A.at, 4);
		ok(!memcmp(&want, &got, 4), "moment %u", kind);
	}
	for (int i = 0; i < 4; i++) {
		int faults[2] = {0};
		for (size_t j = 0; j < n; j++)
			x[j] = test_normal();
		if (n)
			x[test_random() % n] = i == 1 ? -2 : i == 2 ? 2.5f : i == 3 ? NAN : 0;
		for (size_t j = 0; j < n; j++)
			x[j] = x[j] < -1 && i != 1 ? 0 : x[j] > 2 && i != 2 ? 0 : x[j];
		watched F = watch(&faults[1], sizeof(int), 0);
		to_device(X.at, x, 4 * n);
		cpu->range_check(NULL, &faults[0], x, n, -1, 2);
		gpu->range_check(NULL, (int *)F.at, (float *)X.at, n, -1, 2);
		ok(unwatch(&F, &faults[1]) && faults[0] == (n && i) && faults[1] == faults[0], "range_check %d of %zu",
		   i, n);
	}
	ok(unwatch(&X, NULL) & unwatch(&A, NULL) & unwatch(&S, NULL), "nothing written outside");
	free(y), free(x), free(z);
}

static void scaled(size_t n, size_t odd)
{
	static const float limits[] = {0, 1.5f, 65504.0f / 3};
	float *x = malloc(4 * n + 1);
	any_bits(x, 4 * n);
	for (int t = GRADCOMP_F32; t <= GRADCOMP_F8E5M2; t++)
		for (int l = 0; l < 3; l++) {
			size_t e = gradcomp_dtype_bytes(t);
			uint8_t *h = malloc(e * n + 1), *k = malloc(e * n + 1);
			watched X = watch(x, 4 * n, 4 * odd), H = watch(NULL, e * n, odd * e);
			gradcomp_status want = cpu->cast_scaled(NULL, h, x, n, t, 1.0f / 3, limits[l]);
			gradcomp_status got = gpu->cast_scaled(NULL, H.at, (float *)X.at, n, t, 1.0f / 3, limits[l]);
			ok(unwatch(&H, k) & unwatch(&X, NULL) && got == want && (want || same(h, k, n, t)),
			   "%zu floats, scaled, to type %d within %g", n, t, limits[l]);
			free(h), free(k);
		}
	free(x);
}

static void indices(size_t k, size_t n)
{
	uint32_t *a = malloc(4 * k + 1), *b = malloc(4 * k + 1);
	uint64_t seed = test_random(), stream = test_random(), which = test_random() >> 8;
	watched B = watch(NULL, 4 * k, 4);
	cpu->random_indices(NULL, a, k, n, seed, stream, which);
	gpu->random_indices(NULL, (uint32_t *)B.at, k, n, seed, stream, which);
	ok(unwatch(&B, b) && !memcmp(a, b, 4 * k), "%zu random indices of %zu", k, n);
	free(a), free(b);
}

/* Checks what is done if a word says so. */
static void guarded(size_t n, size_t odd)
{
	float *x = malloc(4 * n + 1), *y = malloc(4 * n + 1), *want = malloc(4 * n + 1);
	any_bits(x, 4 * n);
	for (int set = 0; set < 4; set++) {
		int word = set & 1 ? -7 : 0, when = set >> 1;
		any_bits(y, 4 * n);
		watched X = watch(x, 4 * n, 4 * odd), Y = watch(y, 4 * n, 4 * odd), W = watch(&word, 4, 0);
		memcpy(want, (word != 0) == when ? x : y, 4 * n);
		gpu->copy_if(NULL, (float *)Y.at, (const float *)X.at, n, (const int *)W.at, when);
		from_device(y, Y.at, 4 * n);
		ok(!memcmp(y, want, 4 * n), "copy_if %zu, word %d, %d", n, word, when);
		gpu->fill_if(NULL, (float *)Y.at, 3, n, (const int *)W.at), cpu->fill_if(NULL, want, 3, n, &word);
		ok(unwatch(&X, NULL) & unwatch(&Y, y) & unwatch(&W, NULL) && !memcmp(y, want, 4 * n),
		   "fill_if %zu, word %d", n, word);
	}
	free(x), free(y), free(want);
}

static void words(void)
{
	static const gradcomp_dtype types[] = {GRADCOMP_F32, GRADCOMP_F64, GRADCOMP_F16, GRADCOMP_BF16, GRADCOMP_I64};
	unsigned char many[100 * 24];
	for (int at = -1; at < 100; at += 33) {
		int host = 5, dev = 5;
		memset(many, 0, sizeof many);
		/* Bytes between the words do not count. */
		for (int i = 0; i < 100; i++)
			many[i * 24 + 4] = 1;
		if (at >= 0)
			many[at * 24 + 3] = 0x80;
		watched M = watch(many, sizeof many, 0), O = watch(&dev, 4, 0);
		cpu->any_set(NULL, &host, many, 4, 24, 100);
		gpu->any_set(NULL, (int *)O.at, M.at, 4, 24, 100);
		ok(unwatch(&M, NULL) & unwatch(&O, &dev) && host == (at >= 0) && dev == host, "any_set, word %d", at);
	}
	for (size_t t = 0; t < sizeof types / sizeof *types; t++)
		for (int word = 0; word < 2; word++) {
			size_t size = gradcomp_dtype_bytes(types[t]);
			unsigned char one[8] = {9}, host[8];
			watched O = watch(one, size, 0), W = watch(&word, 4, 0);
			cpu->put_flag(NULL, host, types[t], &word);
			gpu->put_flag(NULL, O.at, types[t], (const int *)W.at);
			ok(unwatch(&O, one) & unwatch(&W, NULL) && !memcmp(host, one, size), "put_flag of type %d, %d",
			   (int)types[t], word);
		}
}

static void vectors(size_t n, size_t odd)
{
	float *y = malloc(4 * n + 1), *x = malloc(4 * n + 1), *z = malloc(4 * n + 1), a = test_normal(), limit = 0.5f;
	any_bits(y, 4 * n), any_bits(x, 4 * n);
	watched Y = watch(y, 4 * n, 4 * odd), X = watch(x, 4 * n, 4 * (odd + n % 2)), L = watch(&limit, 4, 0);
	float *gy = (float *)Y.at, *gx = (float *)X.at;
	cpu->add(NULL, y, x, n), gpu->add(NULL, gy, gx, n);
	cpu->axpy(NULL, y, a, x, n), gpu->axpy(NULL, gy, a, gx, n);
	cpu->scale(NULL, y, a, n), gpu->scale(NULL, gy, a, n);
	from_device(z, gy, 4 * n);
	ok(same_floats(y, z, n), "add, axpy and scale %zu", n);
	cpu->clamp(NULL, y, y, &limit, n), gpu->clamp(NULL, gy, gy, (float *)L.at, n);
	from_device(z, gy, 4 * n);
	ok(same_floats(y, z, n), "clamp %zu", n);
	gpu->copy(NULL, gy, gx, 4 * n);
	from_device(z, gy, 4 * n);
	ok(!memcmp(x, z, 4 * n), "copy %zu", n);
	gpu->fill(NULL, gy, a, n), cpu->fill(NULL, y, a, n);
	ok(unwatch(&Y, z) & unwatch(&X, NULL) & unwatch(&L, NULL) && !memcmp(y, z, 4 * n), "fill %zu", n);

	int bad = 7;
	for (size_t i = 0; i < n; i++)
		x[i] = magnitude(SPREAD, i);
	X = watch(x, 4 * n, 4 * odd);
	watched B = watch(&bad, sizeof bad, 0);
	gpu->nonfinite(NULL, (float *)X.at, n, (int *)B.at);
	from_device(&bad, B.at, sizeof bad);
	is_int(bad, 0, "%zu finite numbers", n);
	if (n) {
		float nan = test_random() % 2 ? NAN : -INFINITY;
		to_device((float *)X.at + (test_random() % n), &nan, 4);
		gpu->nonfinite(NULL, (float *)X.at, n, (int *)B.at);
		from_device(&bad, B.at, sizeof bad);
		is_int(bad, 1, "one of %zu is not", n);
	}
	ok(unwatch(&X, NULL) & unwatch(&B, NULL), "nothing written outside");
	free(y), free(x), free(z);
}

static void sums(size_t n, int kind)
{
	float *x = malloc(4 * n + 1), most = 0, got;
	double want[2] = {0};
	for (size_t i = 0; i < n; i++) {
		/* Sums of squares of the largest floats stay finite in double. */
		x[i] = magnitude(kind, i);
		want[0] += fabs(x[i]), want[1] += (double)x[i] * x[i];
		most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
	}
	watched X = watch(x, 4 * n, 4), S = watch(NULL, gpu->sum_scratch(n), 0), O = watch(NULL, 8, 0);
	double *out = (double *)O.at, r[2];
	gpu->sum_abs(NULL, out, (float *)X.at, n, S.at), r[0] = get_double(out);
	gpu->sum_squares(NULL, out, (float *)X.at, n, S.at), r[1] = get_double(out);
	for (int i = 0; i < 2; i++)
		ok(fabs(r[i] - want[i]) <= 2 * (double)n * 0x1p-52 * want[i], "sum %d of %zu, %s", i, n, kinds[kind]);
	gpu->absmax(NULL, (float *)out, (float *)X.at, n, S.at);
	from_device(&got, out, 4);
	ok(got == most, "largest of %zu, %s", n, kinds[kind]);
	ok(unwatch(&X, NULL) & unwatch(&S, NULL) & unwatch(&O, NULL), "nothing written outside");
	free(x);
}

static void numbers(size_t n)
{
	uint64_t seed = test_random(), stream = test_random(), first = test_random() >> test_random() % 64;
	float *a = malloc(4 * n + 1), *b = malloc(4 * n + 1);
	if (test_random() % 4 == 0)
		first = UINT64_MAX - n / 2;
	watched B = watch(NULL, 4 * n, 4 * (n % 4));
	cpu->random_normal(NULL, a, n, seed, stream, first);
	gpu->random_normal(NULL, (float *)B.at, n, seed, stream, first);
	ok(unwatch(&B, b) && !memcmp(a, b, 4 * n), "%zu normal numbers from %llu", n, (unsigned long long)first);
	free(a), free(b);
}

static void test_elements(void)
{
	for (int s = 0; s < SIZES; s++)
		for (size_t odd = 0; odd < 2; odd++) {
			if (s != SIZES - 1 || !odd)
				reduce(sizes[s], odd), casts(sizes[s], odd), scaled(sizes[s], odd);
			found(sizes[s], odd);
			indices(sizes[s], sizes[s]), indices(sizes[s], sizes[s] + test_random() % 100000);
			vectors(sizes[s], odd);
			guarded(sizes[s], odd);
		}
	words();
	for (int kind = 0; kind < KINDS; kind++)
		for (int s = 0; s < SIZES; s++)
			sums(sizes[s], kind);
	sums(100000, NORMAL);
	for (int s = 0; s < SIZES; s++)
		for (int i = 0; i < 4; i++)
			numbers(sizes[s]);
}

#endif
