/* Payloads of sparse compressors: their bytes, index codings against plain code bit
 * by bit, value codings, and everything that must be refused. */
#include "conformance/guard.h"
#include "tests/support/operator_input.h"
#include "tests/support/sparse_bytes.h"

enum { CODINGS = 4, VALUES = 5 };

/* k ascending places below d: one in each of k equal runs, the first, or the last. */
static void places(uint32_t *idx, uint64_t d, uint64_t k, int shape)
{
	for (uint64_t j = 0; j < k; j++) {
		uint64_t from = j * d / k, to = (j + 1) * d / k;
		idx[j] = (uint32_t)(shape == 1 ? j : shape == 2 ? d - k + j : from + test_random() % (to - from));
	}
}

static void set(uint32_t *words, uint64_t bit)
{
	words[bit / 32] |= 1u << bit % 32;
}

/* Makes what the words must be, one bit at a time. */
static void words_by_formula(uint32_t *out, uint32_t coding, const uint32_t *idx, uint64_t d, uint64_t k)
{
	uint64_t bytes = index_formula(coding, d, k), l = lower_bits(d, k);
	memset(out, 0, bytes);
	if (bytes == 0)
		return;
	if (coding == SDK_SPARSE_RAW || bytes == 4 * k) {
		memcpy(out, idx, bytes);
	} else if (bytes == index_formula(SDK_SPARSE_DELTA, d, k) && coding != SDK_SPARSE_BITMAP) {
		for (uint64_t j = 0; j < k; j++) {
			for (uint64_t i = 0; i < l; i++)
				if (idx[j] >> i & 1)
					set(out, j * l + i);
			set(out, (k * l + 31) / 32 * 32 + (idx[j] >> l) + j);
		}
	} else {
		for (uint64_t j = 0; j < k; j++)
			set(out, idx[j]);
	}
}

static void index_coding(uint64_t d, uint64_t k)
{
	int right = 1, same = 1, back = 1, whole = 1;
	uint32_t *idx = malloc(4 * k + 4), *want = malloc(4 * k + 4);
	for (int shape = 0; shape < 3; shape++)
		for (uint32_t c = 0; c < CODINGS; c++) {
			uint64_t bytes = sdk_sparse_index_bytes(operators_cpu(), c, d, k);
			guarded out = guard("indices", bytes, 4), in = guard("unpacked", 4 * k, 4);
			places(idx, d, k, shape);
			words_by_formula(want, c, idx, d, k);
			sdk_sparse_index_pack(operators_cpu(), NULL, c, out.data, idx, d, k);
			right &= bytes == index_formula(c, d, k) && bytes <= 4 * k &&
			         sdk_sparse_index_bytes(operators_cpu(), SDK_SPARSE_AUTO, d, k) <= bytes;
			same &= !memcmp(out.data, want, bytes);
			back &= !sdk_sparse_index_read(operators_cpu(), c, out.data, (uint32_t *)(void *)in.data, d,
			                               k) &&
			        !memcmp(in.data, idx, 4 * k);
			whole &= guard_intact(&out) && guard_intact(&in);
			guard_free(&out), guard_free(&in);
		}
	ok(right && same && back && whole, "%llu of %llu: %llu bytes as delta, %llu as auto%s%s%s%s",
	   (unsigned long long)k, (unsigned long long)d,
	   (unsigned long long)sdk_sparse_index_bytes(operators_cpu(), SDK_SPARSE_DELTA, d, k),
	   (unsigned long long)sdk_sparse_index_bytes(operators_cpu(), SDK_SPARSE_AUTO, d, k),
	   right ? "" : ", NOT THE FORMULA'S", same ? "" : ", OTHER BITS", back ? "" : ", LOST",
	   whole ? "" : ", BOUNDS BROKEN");
	free(idx), free(want);
}

static void values(const char *name, const gradcomp_operators *op)
{
	/* The loss is a share of the largest magnitude of a block; or of each value. */
	static const double loss[] = {0, 0x1p-8, 0x1p-11, 0.5 / 127, 0.5 / 7};
	static const uint64_t counts[] = {1, 2, 3, 31, 255, 256, 257, 1000, 5001};
	for (uint32_t v = 0; v < VALUES; v++)
		for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++) {
			uint64_t k = counts[n], d = 10 * k;
			sdk_sparse_coding c = {SDK_SPARSE_AUTO, v};
			uint64_t bytes = sdk_sparse_bytes(op, c, d, k);
			guarded out = guard("payload", bytes, 8), a = guard("indices", 4 * k, 4),
				b = guard("values", 4 * k, 4);
			sdk_sparse_pairs in = {malloc(4 * k), malloc(4 * k)};
			sdk_sparse_pairs got = {(uint32_t *)(void *)a.data, (float *)(void *)b.data};
			places(in.idx, d, k, 0);
			for (uint64_t j = 0; j < k; j++)
				in.val[j] = j % 7 == 3 ? 1e30f * test_normal() : test_normal();
			sdk_sparse_pack(op, NULL, c, out.data, in, d, k);
			const char *wrong = sdk_sparse_unpack(op, c, out.data, got, d, k);
			int close = 1;
			for (uint64_t j = 0; !wrong && j < k; j++) {
				double scale = fabs(in.val[j]);
				if (v == SDK_SPARSE_FP16 && scale > 65504) {
					close &= got.val[j] == copysignf(65504, in.val[j]);
					continue;
				}
				for (uint64_t i = j / 256 * 256;
				     v >= SDK_SPARSE_BLOCK8 && i < k && i < j / 256 * 256 + 256; i++)
					scale = fmax(scale, fabs(in.val[i]));
				close &= fabs((double)got.val[j] - in.val[j]) <= loss[v] * scale * 1.0001 + 0x1p-25;
			}
			ok(!wrong && close && !memcmp(in.idx, got.idx, 4 * k) &&
			           bytes == value_formula(v, k) + index_formula(SDK_SPARSE_AUTO, d, k) &&
			           guard_intact(&out) && guard_intact(&a) && guard_intact(&b),
			   "%s: %llu values as %s in %llu bytes%s%s", name, (unsigned long long)k,
			   sdk_sparse_value_codings[v], (unsigned long long)bytes, wrong ? ": " : "",
			   wrong ? wrong : "");
			free(in.idx), free(in.val);
			guard_free(&out), guard_free(&a), guard_free(&b);
		}
}

/* The functions below try what is refused. */

enum { D = 1000, K = 40 };
static uint32_t good[K], bad[K];

static void refused(uint32_t coding, const uint32_t *payload, const char *why, const char *what)
{
	uint32_t out[K];
	const char *said = sdk_sparse_index_read(operators_cpu(), coding, payload, out, D, K);
	ok(said && strstr(said, why), "%s, %s: a payload that %s", sdk_sparse_index_codings[coding], what,
	   said ? said : "is taken");
}

static void lies(void)
{
	uint32_t delta[K] = {0}, bits[K] = {0}, other[K];
	uint64_t low = (K * 4 + 31) / 32; /* l = 4 */
	places(good, D, K, 0);
	memcpy(bad, good, sizeof bad);
	bad[7] = bad[6];
	refused(SDK_SPARSE_RAW, bad, "do not ascend", "an index twice");
	memcpy(bad, good, sizeof bad);
	bad[K - 1] = D;
	refused(SDK_SPARSE_RAW, bad, "past the end", "d as an index");

	sdk_sparse_index_pack(operators_cpu(), NULL, SDK_SPARSE_DELTA, delta, good, D, K);
	ok(sdk_sparse_index_bytes(operators_cpu(), SDK_SPARSE_DELTA, D, K) < 4 * K && low == 5,
	   "these are coded as they should be");
	memcpy(other, delta, sizeof other);
	other[low] &= other[low] - 1;
	refused(SDK_SPARSE_DELTA, other, "more or fewer", "a bit less");
	memcpy(other, delta, sizeof other);
	for (uint32_t b = 0; b < 32; b++)
		if (!(other[low + 1] >> b & 1)) {
			other[low + 1] |= 1u << b;
			break;
		}
	refused(SDK_SPARSE_DELTA, other, "more or fewer", "a bit more");
	memset(other, 0, sizeof other);
	memset(other + low, 0xff, 5);
	refused(SDK_SPARSE_DELTA, other, "do not ascend", "the same lower bits in the same place");
	memset(other, 0xff, low * 4);
	memset(other + low, 0, sizeof other - low * 4);
	/* The last upper part is 62: 992 to 1007 with the lower bits. */
	for (uint64_t j = 0; j < K; j++)
		other[low + (62 - (K - 1) + 2 * j) / 32] |= 1u << (62 - (K - 1) + 2 * j) % 32;
	refused(SDK_SPARSE_DELTA, other, "past the end", "an index of 1007");

	sdk_sparse_index_pack(operators_cpu(), NULL, SDK_SPARSE_BITMAP, bits, good, D, K);
	bits[3] ^= 1u << 5;
	refused(SDK_SPARSE_BITMAP, bits, "more or fewer", "a bit turned");
	memset(bits, 0, sizeof bits);
	sdk_sparse_index_pack(operators_cpu(), NULL, SDK_SPARSE_BITMAP, bits, good, D, K);
	bits[D / 32] |= 1u << 30;
	bits[good[0] / 32] &= ~(1u << good[0] % 32);
	refused(SDK_SPARSE_BITMAP, bits, "past the end", "a bit behind the last");

	const gradcomp_operators *op = operators_cpu();
	float val[K];
	uint32_t payload[2 * K], idx[K];
	sdk_sparse_pairs in = {good, val}, out = {idx, val};
	for (uint32_t v = 0; v < VALUES; v++) {
		sdk_sparse_coding c = {SDK_SPARSE_RAW, v};
		uint16_t half = v == SDK_SPARSE_BF16 ? 0x7f80 : 0xfc00;
		float nan = NAN, infinite = INFINITY;
		for (int j = 0; j < K; j++)
			val[j] = test_normal();
		sdk_sparse_pack(op, NULL, c, payload, in, D, K);
		if (v == SDK_SPARSE_BF16 || v == SDK_SPARSE_FP16)
			memcpy((char *)payload + 2 * (K - 1), &half, 2);
		else
			memcpy(payload, v == SDK_SPARSE_F32 ? &nan : &infinite, 4);
		const char *said = sdk_sparse_unpack(op, c, payload, out, D, K);
		ok(said != NULL, "%s: a payload that %s", sdk_sparse_value_codings[v], said ? said : "is taken");
	}
}

static gradcomp_status fail(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof err->text, fmt, ap);
	va_end(ap);
	return status;
}

static const gradcomp_host host = {.struct_size = sizeof host, .fail = fail};

static gradcomp_status schedule(sdk_sparse_schedule *s, double density, const char *warmup, gradcomp_error *err)
{
	gradcomp_value v[SDK_SPARSE_INDICES] = {[SDK_SPARSE_DENSITY] = {.f = density},
	                                        [SDK_SPARSE_WARMUP] = {.s = warmup},
	                                        [SDK_SPARSE_WARMUP_STEPS] = {.i = 10},
	                                        [SDK_SPARSE_START_STEP] = {.i = 3}};
	return sdk_sparse_schedule_read(s, &host, v, "this", err);
}

static void densities(void)
{
	static const double listed[] = {0.25, 0.0625, 0.015625, 0.004};
	static const char *const wrong[] = {
		"0",        "2",       "-0.1", "0.5/",  "/0.5",
		"0.5//0.1", "0.5,0.1", "nan",  "1e-10", "0.5x",
		"exp2",     "1e",      ".",    "0x1",   "1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1"};
	sdk_sparse_schedule s;
	gradcomp_error err;
	int right = 1;
	ok(!schedule(&s, 0.001, "0.25/0.0625/0.015625/0.004", &err), "a list of densities is read");
	for (uint64_t step = 0; step < 60; step++) {
		uint64_t at = step < 3 ? 0 : (step - 3) / 10;
		right &= sdk_sparse_density(&s, step) == (step < 3 ? 1 : at < 4 ? listed[at] : 0.001);
	}
	ok(right, "each lasts its steps, after those that are dense");
	ok(!schedule(&s, 0.001, "exp", &err) && s.count == 4 && s.warmup[0] == 0.25 && s.warmup[3] == 0.00390625,
	   "exp: 1/4, 1/16, 1/64, 1/256, then 0.001");
	ok(!schedule(&s, 0.5, "exp", &err) && s.count == 0, "exp: nothing above 0.25");
	ok(!schedule(&s, 1e-9, "exp", &err) && s.count == 14, "exp down to 1e-9");
	ok(!schedule(&s, 0.1, "1e-3/2.5e-1/.5/1", &err) && s.warmup[0] == 1e-3 && s.warmup[1] == 0.25 &&
	           s.warmup[2] == 0.5 && s.warmup[3] == 1,
	   "numbers as users write them");
	ok(!schedule(&s, 0.1, "", &err) && s.count == 0 && sdk_sparse_density(&s, 3) == 0.1, "none at all");
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		ok(schedule(&s, 0.1, wrong[i], &err) == GRADCOMP_ERR_INVALID && strstr(err.text, "warmup="),
		   "refused: %s", err.text);
	is_int(sdk_sparse_share(0.01, 0), 0, "nothing of nothing");
	is_int(sdk_sparse_share(1e-9, 1000), 1, "at least one");
	is_int(sdk_sparse_share(1, 1000), 1000, "at most all");
	is_int(sdk_sparse_share(0.0015, 1000), 2, "rounded, halves up");
}

int main(void)
{
	static const uint64_t sizes[][2] = {{0, 0},          {1, 1},          {2, 1},
	                                    {3, 2},          {31, 7},         {32, 32},
	                                    {33, 32},        {64, 1},         {100, 50},
	                                    {1000, 999},     {4096, 1024},    {4097, 1023},
	                                    {100000, 100},   {1 << 20, 1049}, {1 << 20, 1 << 16},
	                                    {UINT32_MAX, 1}, {UINT32_MAX, 2}, {UINT32_MAX, 5000},
	                                    {1u << 31, 3}};
	test_seed();
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
		index_coding(sizes[i][0], sizes[i][1]);
	for (int i = 0; i < 200; i++) {
		uint64_t d = 1 + test_random() % 3000;
		index_coding(d, 1 + test_random() % d);
	}
	test_variants(values);
	lies();
	densities();
	return done_testing();
}
