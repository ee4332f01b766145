/* add, scale, reduce, scale_as and nonfinite: element by element, in every type,
 * at every alignment, with the same bits on every path. */
#include <math.h>

#include "tests/support/operator_input.h"

static const char *const type_names[] = {"F32", "F16", "BF16", "F64", "I32", "I64", "U8"};
static const size_t type_bytes[] = {4, 2, 2, 8, 4, 8, 1};
static const char *const op_names[] = {"SUM", "MAX", "MIN", "BOR"};

/* One element as double; exact for all that is used here (integers are small). */
static double get(const void *p, size_t i, gradcomp_dtype t)
{
	float f;
	switch (t) {
	case GRADCOMP_F32:
		return ((const float *)p)[i];
	case GRADCOMP_F64:
		return ((const double *)p)[i];
	case GRADCOMP_I32:
		return ((const int32_t *)p)[i];
	case GRADCOMP_I64:
		return (double)((const int64_t *)p)[i];
	case GRADCOMP_U8:
		return ((const uint8_t *)p)[i];
	default:
		operators_cpu_variant("portable")->cast_to_f32(NULL, &f, (const uint16_t *)p + i, 1, t);
		return f;
	}
}

static void set(void *p, size_t i, gradcomp_dtype t, double v)
{
	float f = (float)v;
	switch (t) {
	case GRADCOMP_F32:
		((float *)p)[i] = f;
		break;
	case GRADCOMP_F64:
		((double *)p)[i] = v;
		break;
	case GRADCOMP_I32:
		((int32_t *)p)[i] = (int32_t)v;
		break;
	case GRADCOMP_I64:
		((int64_t *)p)[i] = (int64_t)v;
		break;
	case GRADCOMP_U8:
		((uint8_t *)p)[i] = (uint8_t)v;
		break;
	default:
		operators_cpu_variant("portable")->cast_from_f32(NULL, (uint16_t *)p + i, &f, 1, t, 0);
	}
}

static double fresh(gradcomp_dtype t)
{
	if (t == GRADCOMP_U8)
		return (double)(test_random() % 100);
	if (t == GRADCOMP_I32 || t == GRADCOMP_I64)
		return (double)(test_random() % 2000000) - 1e6;
	switch (test_random() % 40) {
	case 0:
		return NAN;
	case 1:
		return INFINITY;
	case 2:
		return -INFINITY;
	case 3:
		return 0;
	case 4:
		return test_normal() * (t == GRADCOMP_F16 ? 1e-7 : 1e-39);
	default:
		return test_normal() * 100;
	}
}

static double applied(double a, double b, gradcomp_op op, gradcomp_dtype t)
{
	if (op == GRADCOMP_SUM)
		return t == GRADCOMP_F32 || t == GRADCOMP_F16 || t == GRADCOMP_BF16 ? (float)a + (float)b : a + b;
	if (op == GRADCOMP_BOR) /* integers alone have it */
		return t <= GRADCOMP_F64 ? 0 : (double)((int64_t)a | (int64_t)b);
	if (isnan(a) || isnan(b))
		return NAN;
	return op == GRADCOMP_MAX ? (a > b ? a : b) : a < b ? a : b;
}

static void one(const char *name, const gradcomp_operators *op, gradcomp_dtype t, gradcomp_op o, size_t n)
{
	size_t odd = test_random() % 9, bytes = (n + odd) * type_bytes[t] + 64;
	char *acc = malloc(bytes), *in = malloc(bytes), *plain = malloc(bytes), one_value[8];
	char *a = acc + odd * type_bytes[t], *x = in + odd * type_bytes[t];
	double *want = malloc((n + 1) * sizeof *want);
	memset(acc, 0x5a, bytes);
	for (size_t i = 0; i < n; i++) {
		set(a, i, t, fresh(t));
		set(x, i, t, fresh(t));
		set(one_value, 0, t, applied(get(a, i, t), get(x, i, t), o, t));
		want[i] = get(one_value, 0, t);
	}
	memcpy(plain, acc, bytes);
	gradcomp_status s = op->reduce(NULL, a, x, n, t, o);
	if (o == GRADCOMP_BOR && (t <= GRADCOMP_F64)) {
		case_of("reduce: none of bits of floats", s == GRADCOMP_ERR_UNSUPPORTED, "%s: %s of %s", name,
		        op_names[o], type_names[t]);
	} else {
		int right = s == GRADCOMP_OK, clean = 1;
		for (size_t i = 0; i < n; i++) {
			double got = get(a, i, t);
			right &= isnan(want[i]) ? isnan(got) : got == want[i];
		}
		for (size_t i = 0; i < bytes; i++)
			if (acc + i < a || acc + i >= a + n * type_bytes[t])
				clean &= acc[i] == 0x5a;
		case_of("reduce, and nothing written outside", right && clean,
		        "%s: %s of %zu %s, %zu past an even place", name, op_names[o], n, type_names[t], odd);
		operators_cpu_variant("portable")->reduce(NULL, plain + odd * type_bytes[t], x, n, t, o);
		int same = 1;
		for (size_t i = 0; i < n; i++)
			same &= isnan(want[i]) ||
			        !memcmp(a + i * type_bytes[t], plain + (odd + i) * type_bytes[t], type_bytes[t]);
		case_of("reduce, to the bit as in plain code", same, "%s: %s of %zu %s", name, op_names[o], n,
		        type_names[t]);
	}
	free(acc), free(in), free(plain), free(want);
}

static void scaled(const char *name, const gradcomp_operators *op, gradcomp_dtype t, size_t n)
{
	double *x = malloc((n + 2) * sizeof *x), factor = 1.0 / (double)(1 + test_random() % 9);
	double *want = malloc((n + 1) * sizeof *want);
	char *p = (char *)x + type_bytes[t], one_value[8];
	int right = 1;
	for (size_t i = 0; i < n; i++) {
		set(p, i, t, fresh(t));
		double v = get(p, i, t);
		set(one_value, 0, t, t == GRADCOMP_F64 ? v * factor : (double)((float)v * (float)factor));
		want[i] = get(one_value, 0, t);
	}
	right &= op->scale_as(NULL, p, factor, n, t) == GRADCOMP_OK;
	for (size_t i = 0; i < n; i++)
		right &= isnan(want[i]) ? isnan(get(p, i, t)) : get(p, i, t) == want[i];
	case_of("scale_as", right, "%s: %zu %s times %g", name, n, type_names[t], factor);
	free(x), free(want);
}

static void floats(const char *name, const gradcomp_operators *op, size_t n)
{
	size_t odd = test_random() % 9;
	float *x = test_alloc(n, odd), *y = test_alloc(n, odd + 1), *z = test_alloc(n, 0), a = test_normal();
	int bad = 7;
	for (size_t i = 0; i < n; i++) {
		x[i] = test_normal() * (i % 7 ? 1 : 1e-40f);
		y[i] = test_normal();
		z[i] = (y[i] + x[i]) * a;
	}
	op->add(NULL, y, x, n);
	op->scale(NULL, y, a, n);
	case_of("add and scale", !memcmp(y, z, n * sizeof *y), "%s: %zu", name, n);
	op->nonfinite(NULL, x, n, &bad);
	case_of("nonfinite: none of finite numbers", bad == 0, "%s: %zu", name, n);
	static const uint32_t wrong[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001};
	for (size_t k = 0; k < 40 && n; k++) {
		size_t at = k == 0 ? 0 : k == 1 ? n - 1 : test_random() % n;
		float keep = x[at];
		x[at] = test_bits(wrong[k % 5]);
		op->nonfinite(NULL, x, n, &bad);
		case_of("nonfinite: one NaN or Inf is found wherever it is", bad == 1, "%s: at %zu of %zu", name, at,
		        n);
		x[at] = keep;
	}
	case_of("add and scale: nothing written outside",
	        test_free(x, n, odd) & test_free(y, n, odd + 1) & test_free(z, n, 0), "%s: %zu", name, n);
}

static void each(const char *name, const gradcomp_operators *op)
{
	static const size_t sizes[] = {0, 1, 2, 7, 8, 31, 33, 1000, 4097, 20011};
	for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
		floats(name, op, sizes[s]);
		for (int t = GRADCOMP_F32; t <= GRADCOMP_U8; t++) {
			for (int o = GRADCOMP_SUM; o <= GRADCOMP_BOR; o++)
				one(name, op, (gradcomp_dtype)t, (gradcomp_op)o, sizes[s]);
			if (t <= GRADCOMP_F64)
				scaled(name, op, (gradcomp_dtype)t, sizes[s]);
		}
	}
	tap_cases(name);
	float most = test_bits(0x7f7fffff);
	int32_t i = 1;
	int bad = 7;
	op->nonfinite(NULL, &most, 1, &bad);
	is_int(bad, 0, "%s: the largest float is finite", name);
	is_int(op->scale_as(NULL, &i, 2, 1, GRADCOMP_I32), GRADCOMP_ERR_UNSUPPORTED, "%s: integers are not scaled",
	       name);
}

int main(void)
{
	test_seed();
	test_variants(each);
	return done_testing();
}
