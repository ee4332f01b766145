/* The rotation of block, fp8 and fp4: against its matrix in double, its laws, and what it is for. */
#include "plugins/common/compressors/rotation.h"

#include "tests/support/codec_fixture.h"
#include "tests/support/operator_input.h"

enum { N = 5000 };

static int rotation_of(rotation *r, uint64_t block, uint64_t seed, int rank)
{
	const gradcomp_layout layout = {.struct_size = sizeof layout, .rank = rank, .nranks = 2, .seed = seed};
	gradcomp_host host;
	gradcomp_error err;
	host_services(&host, operators_cpu());
	*r = (rotation){.width = 0};
	return !rotation_open(r, &host, "test", block, &layout, &err);
}

static double norm(const float *x, int n)
{
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += (double)x[i] * x[i];
	return sqrt(sum);
}

/* Row i of the Walsh-Hadamard matrix has the sign of the parity of the bits that i and j share. */
static double by_matrix(const rotation *r, const float *x, int at, int width, int i)
{
	double sum = 0;
	for (int j = 0; j < width; j++)
		sum += (__builtin_parity((unsigned)(i & j)) ? -1.0 : 1.0) * r->sign[(at + j) % (int)r->width] *
		       x[at + j];
	return sum / sqrt(width);
}

static void matrix(uint64_t block, uint64_t width)
{
	static const int sizes[] = {0, 1, 2, 3, 7, 8, 31, 33, 100, 1023, 1024, 1025, 2047, 3000};
	static float x[N], y[N];
	rotation r;
	double worst = 0, back = 0, longer = 0;
	int right = rotation_of(&r, block, 7, 0) && r.width == width;
	for (size_t k = 0; right && k < sizeof sizes / sizeof *sizes; k++) {
		const int n = sizes[k];
		for (int i = 0; i < n; i++)
			y[i] = x[i] = test_normal();
		rotation_apply(&r, y, (uint64_t)n);
		for (int at = 0, piece; at < n; at += piece) {
			for (piece = (int)r.width; piece > n - at;)
				piece /= 2;
			for (int i = 0; i < piece; i++)
				worst = fmax(worst, fabs(y[at + i] - by_matrix(&r, x, at, piece, i)));
		}
		longer = fmax(longer, n ? fabs(norm(y, n) / norm(x, n) - 1) : 0);
		rotation_undo(&r, y, (uint64_t)n);
		for (int i = 0; i < n; i++)
			back = fmax(back, fabs((double)y[i] - x[i]));
	}
	ok(right && worst < 1e-5, "blocks of %d: the matrix, of width %d, within %.1e", (int)block, (int)width, worst);
	ok(right && longer < 1e-6 && back < 1e-5, "... it is orthonormal, and comes back: %.1e, %.1e", longer, back);
}

static void laws(void)
{
	static float x[N], y[N], sum[N], apart[N];
	rotation r, same;
	double worst = 0;
	int right = rotation_of(&r, 256, 3, 0) && rotation_of(&same, 256, 4, 1), ones = 0;
	for (int i = 0; i < N; i++) {
		x[i] = test_normal(), y[i] = test_normal();
		sum[i] = 2 * x[i] - y[i];
		apart[i] = x[i];
	}
	for (int i = 0; i < 1024; i++)
		ones += r.sign[i] > 0;
	ok(right && !memcmp(r.sign, same.sign, sizeof r.sign) && ones > 400 && ones < 624,
	   "signs are the same on all ranks, %d of 1024 are 1", ones);
	for (uint64_t at = 0; at < N; at += 768)
		rotation_apply(&r, apart + at, N - at < 768 ? N - at : 768);
	rotation_apply(&r, x, N), rotation_apply(&r, y, N), rotation_apply(&r, sum, N);
	for (int i = 0; i < N; i++)
		worst = fmax(worst, fabs(2.0 * x[i] - y[i] - sum[i]));
	ok(worst < 1e-5, "it is linear, within %.1e", worst);
	ok(!memcmp(x, apart, sizeof x), "that of a run is those of its parts");
}

/* Returns the share of x that coding and decoding loses, and checks that what is added is what is read. */
static double lost(const char *spec, const float *x, int *right)
{
	static float y[N], sum[N];
	guarded wire;
	uint64_t bytes;
	double off = 0;
	codec c;
	if (!codec_open(&c, spec, 0, 2, N)) {
		codec_close(&c);
		*right = 0;
		return 1;
	}
	memset(sum, 0, sizeof sum);
	*right &= codec_code(&c, x, N, 0, &wire, &bytes) && bytes == c.plugin->code_bound(c.instance, N) &&
	          !codec_decode(&c, wire.data, bytes, y, N, 0) && !codec_decode(&c, wire.data, bytes, sum, N, 1);
	for (int i = 0; i < N; i++) {
		*right &= y[i] == sum[i];
		off += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
	}
	*right &= codec_decode(&c, wire.data, bytes - 1, y, N, 0) == GRADCOMP_ERR_MISMATCH;
	memset(wire.data, 0xff, bytes);
	*right &= codec_decode(&c, wire.data, bytes, y, N, 0) != GRADCOMP_ERR_INTERNAL;
	guard_free(&wire);
	codec_close(&c);
	return sqrt(off) / norm(x, N);
}

/* A few numbers are 50 times as large as the others. */
static void outliers(void)
{
	static const char *const pairs[][2] = {
		{"block:bits=4", "block:bits=4,rotate=yes"},
		{"block:bits=4,rounding=stochastic", "block:bits=4,rounding=stochastic,rotate=yes"},
		{"block:bits=8,block=96", "block:bits=8,block=96,rotate=yes"}};
	static const char *const also[] = {"fp8:rotate=yes", "fp8:type=e5m2,scales=e8m0,block=32,rotate=yes",
	                                   "fp4:rotate=yes", "fp4:type=mx,rotate=yes", "fp4:group=160,rotate=yes"};
	static const double most[] = {0.04, 0.08, 0.2, 0.25, 0.2};
	static float x[N];
	for (int i = 0; i < N; i++)
		x[i] = test_normal() * (i % 200 == 7 ? 50 : 1);
	for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
		int right = 1;
		const double plain = lost(pairs[k][0], x, &right), turned = lost(pairs[k][1], x, &right);
		ok(right && turned < plain, "%s: outliers cost %.4f of a vector, not %.4f", pairs[k][1], turned, plain);
	}
	for (size_t k = 0; k < sizeof also / sizeof *also; k++) {
		int right = 1;
		const double share = lost(also[k], x, &right);
		ok(right && share < most[k], "%s: loses %.4f of a vector", also[k], share);
	}
}

/* Checks that what is not finite makes its piece, and no other, so. */
static void overflown(void)
{
	static float x[N], y[N];
	guarded wire;
	uint64_t bytes;
	codec c;
	int right = 1;
	if (codec_open(&c, "block:rotate=yes", 0, 2, N)) {
		for (int i = 0; i < N; i++)
			x[i] = test_normal();
		x[300] = INFINITY;
		right &= codec_code(&c, x, N, 0, &wire, &bytes) && !codec_decode(&c, wire.data, bytes, y, N, 0);
		for (int i = 0; i < N; i++)
			right &= (i / 256 == 1) == !isfinite(y[i]);
		guard_free(&wire);
		ok(right, "block:rotate=yes: an Inf makes 256 numbers NaN, and no others");
	}
	codec_close(&c);
}

static void refused(void)
{
	static const char *const specs[] = {"block:block=8192,rotate=yes", "fp8:block=8192,rotate=yes",
	                                    "fp4:group=8192,rotate=yes"};
	codec c;
	for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
		gradcomp_status st = codec_load(&c, specs[k]);
		ok(st == GRADCOMP_ERR_INVALID &&
		           strstr(c.err.text, "rotate=yes: 8192 numbers share a scale, give at most 4096"),
		   "%s is refused: %s", specs[k], c.err.text);
		codec_close(&c);
	}
	if (!codec_load(&c, "block:rotate=yes")) {
		c.layout = (gradcomp_layout){.struct_size = sizeof c.layout, .nranks = 1, .device = GRADCOMP_CUDA};
		gradcomp_status st = c.plugin->create(&c.host, c.parsed.values, &c.layout, &c.instance, &c.err);
		ok(st == GRADCOMP_ERR_UNSUPPORTED && !c.instance && strstr(c.err.text, "on the host alone"),
		   "on a device: %s", c.err.text);
	}
	codec_close(&c);
}

int main(void)
{
	test_seed();
	matrix(256, 256);
	matrix(96, 32);
	matrix(4096, 1024);
	laws();
	outliers();
	overflown();
	refused();
	return done_testing();
}
