/* The SDK's small parts, each against what its header says: reference in double or bit by bit. Low-rank,
 * sparse, sign and coded bases have the tests of the compressors that are made of them. */
#include "gradcomp/sdk.h"

#include <math.h>
#include <stdlib.h>

#include "operators/operator_tables.h"
#include "tests/support/tap.h"

static uint64_t state = 1;

static uint32_t draw(void)
{
	return (uint32_t)(sdk_hash(state++, 42) >> 32);
}

static void bits(void)
{
	enum { MOST = 67, GUARD = 0xa5 };
	int same = 1, single = 1, walls = 1, reference = 1, clean = 1;
	for (uint32_t width = 1; width <= 32; width++)
		for (uint64_t n = 0; n <= MOST; n++) {
			uint32_t in[MOST], out[MOST + 1];
			uint8_t packed[4 * MOST + 8];
			uint64_t bytes = sdk_bits_bytes(n, width), mask = (1ull << width) - 1;
			same &= bytes == (n * width + 7) / 8;
			for (uint64_t i = 0; i < n; i++)
				in[i] = draw();
			memset(packed, GUARD, sizeof packed);
			sdk_bits_pack(packed, in, n, width);
			walls &= packed[bytes] == GUARD;
			for (uint64_t b = 0; b < 8 * bytes; b++) {
				uint32_t bit = packed[b / 8] >> b % 8 & 1;
				if (b < n * width)
					reference &= bit == (in[b / width] >> b % width & 1);
				else
					clean &= !bit;
			}
			out[n] = GUARD;
			sdk_bits_unpack(out, packed, n, width);
			walls &= out[n] == GUARD;
			for (uint64_t i = 0; i < n; i++) {
				same &= out[i] == (in[i] & mask);
				single &= sdk_bits_at(packed, i, width) == (in[i] & mask);
			}
		}
	ok(same, "codes of 1 to 32 bits come back, 0 to %d of them", MOST);
	ok(single, "... one by one, too");
	ok(reference, "... the first in the lowest bits of the first byte");
	ok(clean, "... and what is left of the last byte is 0");
	ok(walls, "nothing is written behind");
	is_int(sdk_bits_bytes(1ull << 58, 32), 1ll << 60, "lengths do not overflow");
	is_int(sdk_bits_signed(0x5, 3), -3, "three bits, signed");
	is_int(sdk_bits_signed(0x3, 3), 3, "... and positive");
	is_int(sdk_bits_signed(0x80000000u, 32), INT32_MIN, "32 bits, signed");
	is_int(sdk_bits_signed(1, 1), -1, "a single bit, signed");
	is_int(sdk_bits_signed(0xfff5, 3), -3, "what lies above the code is ignored");
}

static void hash(void)
{
	enum { BINS = 97, DRAWS = 97000 };
	long count[BINS] = {0};
	double chi = 0;
	for (uint64_t i = 0; i < DRAWS; i++)
		count[sdk_hash_below(sdk_hash(i, 7), BINS)]++;
	for (int b = 0; b < BINS; b++)
		chi += (double)((count[b] - DRAWS / BINS) * (count[b] - DRAWS / BINS)) / (DRAWS / BINS);
	ok(chi > 50 && chi < 160, "consecutive keys fill %d bins evenly: chi squared is %.1f", BINS, chi);
	is_int(sdk_hash_below(UINT64_MAX, UINT32_MAX), UINT32_MAX - 1, "the largest hash stays below n");
	is_int(sdk_hash_below(UINT64_MAX, 1), 0, "n may be 1");
	ok(sdk_hash(0, 0) != sdk_hash(0, 1) && sdk_hash(0, 0) != sdk_hash(1, 0), "key and seed count");
	ok(sdk_hash(0, 0) == 0xe220a8397b1dcdafull && sdk_hash(1, 0) == 0x6e789e6aa1b965f4ull,
	   "seed 0 gives splitmix64's published numbers");
}

static void sketch(void)
{
	enum { N = 3001, HEAVY = 17 };
	static float x[N], y[N], sum[N], of_x[5 * 1024], of_y[5 * 1024], of_sum[5 * 1024], parts[5 * 1024], out[N];
	sdk_sketch s = {.rows = 5, .columns = 1024, .seed = 99};
	double norm = 0, worst = 0, linear = 0;
	int heavy = 1;
	is_int(sdk_sketch_floats(&s), 5 * 1024, "floats of a table");
	for (int i = 0; i < N; i++) {
		x[i] = i % (N / HEAVY) ? (float)draw() / 4e9f - 0.5f : i % 2 ? 400.0f : -400.0f;
		y[i] = (float)draw() / 4e9f - 0.5f;
		sum[i] = x[i] + y[i];
		norm += (double)sum[i] * (double)sum[i];
	}
	sdk_sketch_add(&s, of_x, 1, x, N, 0);
	sdk_sketch_add(&s, of_y, 1, y, N, 0);
	sdk_sketch_add(&s, of_sum, 1, sum, N, 0);
	for (int i = 0; i < 5 * 1024; i++)
		linear = fmax(linear, fabs((double)of_x[i] + (double)of_y[i] - (double)of_sum[i]));
	ok(linear < 1e-3, "the table of a sum is the sum of tables, to %g", linear);
	sdk_sketch_estimate(&s, of_sum, out, N, 0);
	for (int i = 0; i < N; i++) {
		worst = fmax(worst, fabs((double)out[i] - (double)sum[i]));
		heavy &= fabs((double)sum[i]) < 100 || fabs((double)out[i] - (double)sum[i]) < 100;
	}
	ok(worst < 4 * sqrt(norm / 1024) * 3, "estimates are within a few standard errors: %g of %g", worst,
	   sqrt(norm / 1024));
	ok(heavy, "large numbers are found");
	/* Buckets of the same vector. */
	sdk_sketch_add(&s, parts, 1, sum, 1000, 0);
	sdk_sketch_add(&s, parts, 1, sum + 1000, 0, 1000);
	sdk_sketch_add(&s, parts, 1, sum + 1000, N - 1000, 1000);
	sdk_sketch_estimate(&s, of_sum, x, 7, 1500);
	ok(!memcmp(parts, of_sum, sizeof parts), "in buckets it is the same table, to the bit");
	ok(!memcmp(x, out + 1500, 7 * sizeof *x), "... and any run of it can be asked for");
	sdk_sketch_add(&s, parts, -1, sum, N, 0);
	linear = 0;
	for (int i = 0; i < 5 * 1024; i++)
		linear = fmax(linear, fabs((double)parts[i]));
	ok(linear < 1e-2, "what is added with -1 goes away");
}

static void planes(void)
{
	static const float special[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-38f, 3.4e38f};
	int back = 1, turned = 1, bit = 1;
	for (uint64_t n = 0; n <= 41; n++) {
		float x[41], y[41];
		uint8_t p[SDK_PLANES * 50], t[50] = {0}, u[50] = {0};
		for (uint64_t i = 0; i < n; i++) {
			uint32_t any = draw();
			memcpy(&x[i], &any, sizeof any);
			if (i < sizeof special / sizeof *special)
				x[i] = special[i];
		}
		sdk_planes_join(y, p, 50, sdk_planes_split(p, 50, x, n), n);
		back &= !memcmp(x, y, n * sizeof *x);
		sdk_planes_turn(t, p, n);
		for (uint64_t b = 0; b < 8; b++)
			for (uint64_t i = 0; i < n / 8 * 8; i++)
				bit &= (t[b * (n / 8) + i / 8] >> i % 8 & 1) == (p[i] >> b & 1);
		sdk_planes_turn_back(u, t, n);
		turned &= !memcmp(u, p, n);
	}
	ok(back, "floats come back from planes to the bit, NaN, Inf and denormals too");
	ok(turned && bit, "bytes come back from planes of bits, whose bits are where they should be");
}

static gradcomp_status fail(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof err->text, fmt, ap);
	va_end(ap);
	return err->status = status;
}

static void headers(void)
{
	static const gradcomp_host host = {.struct_size = sizeof host, .fail = fail};
	const gradcomp_layout layout = {.struct_size = sizeof layout, .nranks = 2, .rank = 1};
	const gradcomp_bucket bucket = {.struct_size = sizeof bucket, .index = 3, .numel = 10};
	const gradcomp_work work = {.struct_size = sizeof work, .bucket = &bucket, .step = 5};
	uint64_t memory[2][8], bytes;
	gradcomp_payload p[2] = {{memory[0], sizeof memory[0], 0}, {memory[1], sizeof memory[1], 0}};
	gradcomp_round round = sdk_payload_round(16);
	sdk_payload_header *h = (sdk_payload_header *)memory[1];
	gradcomp_error err = {0};
	is_int(round.bound, 16 + sizeof(sdk_payload_header), "a round has room for the header");
	ok(!(round.flags & GRADCOMP_ROUND_FIXED) && round.pattern == GRADCOMP_GATHERED,
	   "... and gathers payloads of any length");
	memcpy(sdk_payload_begin(&p[0]), "sixteen bytes..", 16);
	sdk_payload_end(&p[0], "mine", 1, &work, 16);
	sdk_payload_begin(&p[1]);
	sdk_payload_end(&p[1], "mine", 1, &work, 0);
#define EXPECT(name, version) sdk_payload_expect(&host, &layout, name, version, &work, p, 2, 16, &err)
	is_int(EXPECT("mine", 1), GRADCOMP_OK, "two payloads pass, one of them empty");
	is_str(sdk_payload_body(&p[0], &bytes), "sixteen bytes..", "what is behind the header");
	is_int(bytes, 16, "... and its length");
	is_int(EXPECT("yours", 1), GRADCOMP_ERR_MISMATCH, "another plugin");
	is_int(EXPECT("mine", 2), GRADCOMP_ERR_MISMATCH, "another version");
	like(err.text, "mine: rank 0 sent a payload of another plugin or version for bucket 3",
	     "... and the rank is named");
	p[1].bytes = sizeof *h - 1;
	is_int(EXPECT("mine", 1), GRADCOMP_ERR_MISMATCH, "cut short");
	like(err.text, "mine: rank 1 sent a payload without a header", "... in words");
	p[1].bytes = sizeof *h + 8;
	is_int(EXPECT("mine", 1), GRADCOMP_ERR_MISMATCH, "longer than the header says");
	h->bytes = UINT64_MAX;
	is_int(EXPECT("mine", 1), GRADCOMP_ERR_MISMATCH, "a length that wraps around");
	h->bytes = 17, p[1].bytes = sizeof *h + 17;
	is_int(EXPECT("mine", 1), GRADCOMP_ERR_MISMATCH, "more than was planned");
	h->bytes = 0, p[1].bytes = sizeof *h, h->step = 6;
	is_int(EXPECT("mine", 1), GRADCOMP_ERR_MISMATCH, "another step");
	like(err.text, "rank 1 sent bucket 3 of step 6, bucket 3 of step 5 is right", "... in words");
	h->step = 5, h->bucket = 2;
	is_int(EXPECT("mine", 1), GRADCOMP_ERR_MISMATCH, "another bucket");
	is_int(sdk_payload_expect(&host, &layout, "mine", 1, &work, p, 1, 16, &err), GRADCOMP_ERR_INTERNAL,
	       "a rank too few");
	is_int(sdk_gathered_round(24).bound, 24, "a round of one length");
	p[0].bytes = 24, p[1].bytes = 23;
	is_int(sdk_gathered_expect(&host, &layout, "mine", &work, p, 2, 24, &err), GRADCOMP_ERR_MISMATCH,
	       "one payload is shorter");
	like(err.text, "mine: rank 1 sent 23 bytes for bucket 3 of 10 numbers, 24 are right", "... in words");
}

static void carving(void)
{
	_Alignas(64) static char memory[1024];
	sdk_scratch count = {0}, cut = {.memory = memory};
	char *a, *b, *c;
	sdk_scratch_take(&count, 1), sdk_scratch_take(&count, 64), sdk_scratch_take(&count, 0);
	is_int(count.bytes, 128, "without memory lengths are counted, in multiples of 64");
	a = sdk_scratch_take(&cut, 1), b = sdk_scratch_take(&cut, 64), c = sdk_scratch_take(&cut, 0);
	ok(a == memory && b == memory + 64 && c == memory + 128, "parts follow one another, aligned");
	is_int(cut.bytes, count.bytes, "... and take what was counted");
}

static void residual(void)
{
	float u[5] = {1, -2, 3, 0, 1e-30f}, sent[5] = {0.5f, -2, 3.5f, 0, 0}, e[5] = {9, 9, 9, 9, 9};
	const uint32_t idx[2] = {1, 4};
	const gradcomp_bucket bucket = {.struct_size = sizeof bucket, .numel = 5};
	gradcomp_work work = {.struct_size = sizeof work,
	                      .bucket = &bucket,
	                      .flat = u,
	                      .error_flat = e,
	                      .operators = operators_cpu()};
	sdk_residual_all(&work);
	ok(!memcmp(e, u, sizeof u), "all of u");
	sdk_residual_take(&work, sent);
	ok(e[0] == 0.5f && e[1] == 0 && e[2] == -0.5f && e[3] == 0 && e[4] == 1e-30f, "less what was sent");
	sdk_residual_all(&work);
	sdk_residual_sent(&work, idx, 2);
	ok(e[0] == 1 && e[1] == 0 && e[2] == 3 && e[4] == 0, "0 where numbers were sent as they are");
	sdk_residual_none(&work);
	ok(e[0] == 0 && e[2] == 0, "nothing");
	work.error_flat = NULL;
	sdk_residual_none(&work);
	ok(1, "... without error memory, too");
}

static void streams(void)
{
	gradcomp_layout a = {.struct_size = sizeof a, .rank = 0, .seed = 5}, b = a;
	b.rank = 1;
	ok(sdk_random_stream(&a, 3) != sdk_random_stream(&b, 3) && sdk_random_stream(&a, 3) != sdk_random_stream(&a, 4),
	   "each rank and step has a stream");
	ok(sdk_random_rank_seed(&a) != sdk_random_rank_seed(&b) && sdk_random_rank_seed(&a) != a.seed,
	   "each rank has a seed");
}

int main(void)
{
	bits();
	hash();
	sketch();
	planes();
	headers();
	carving();
	residual();
	streams();
	return done_testing();
}
