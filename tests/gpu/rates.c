/* How fast the operators are on a real device: bytes read and written a second, next
 * to those of a copy from device to device. Selections and low-rank steps as times in
 * microseconds, for tests/gpu/run to put next to PyTorch's. */
#include "tests/cuda/device_arrays.h"

enum { REPEAT = 20 };

typedef struct ground {
	size_t n, k, rows, columns, rank;
	float *x, *y, *z, *val, *P, *Q, *L;
	uint32_t *idx;
	uint8_t *bytes;
	void *scratch;
	double *out;
	gradcomp_quantiser q;
} ground;

static ground g;

static void copy(void *c) { (void)c, gpu->copy(NULL, g.y, g.x, 4 * g.n); }
static void add(void *c) { (void)c, gpu->add(NULL, g.y, g.x, g.n); }
static void scale(void *c) { (void)c, gpu->scale(NULL, g.y, 1.0001f, g.n); }
static void axpy(void *c) { (void)c, gpu->axpy(NULL, g.y, 1e-6f, g.x, g.n); }
static void to_bf16(void *c) { (void)c, gpu->cast_from_f32(NULL, g.z, g.x, g.n, GRADCOMP_BF16, 0); }
static void from_bf16(void *c) { (void)c, gpu->cast_to_f32(NULL, g.y, g.z, g.n, GRADCOMP_BF16); }
static void to_fp8(void *c) { (void)c, gpu->cast_from_f32(NULL, g.z, g.x, g.n, GRADCOMP_F8E4M3, 1); }
static void sum_squares(void *c) { (void)c, gpu->sum_squares(NULL, g.out, g.x, g.n, g.scratch); }
static void absmax(void *c) { (void)c, gpu->absmax(NULL, (float *)g.out, g.x, g.n, g.scratch); }
static void nonfinite(void *c) { (void)c, gpu->nonfinite(NULL, g.x, g.n, (int *)g.out); }
static void histogram(void *c) { (void)c, gpu->histogram(NULL, g.idx, g.x, g.n); }
static void uniform(void *c) { (void)c, gpu->random_uniform(NULL, g.y, g.n, 1, 2, 0); }
static void quantise(void *c) { (void)c, gpu->quantise(NULL, g.bytes, g.x, g.n, &g.q); }
static void dequantise(void *c) { (void)c, gpu->dequantise(NULL, g.y, g.bytes, g.n, &g.q); }
static void sign_pack(void *c) { (void)c, gpu->sign_pack(NULL, (uint32_t *)g.bytes, g.x, g.n, 4096); }
static void sign_means(void *c) { (void)c, gpu->sign_means(NULL, g.val, g.x, g.n, 4096); }
static void ternary(void *c) { (void)c, gpu->ternary_pack(NULL, g.bytes, g.x, g.n, (float *)g.out, 1, 2, 0); }
static void topk(void *c) { (void)c, gpu->topk(NULL, g.idx, g.val, g.x, g.n, g.k, g.scratch); }
static void mstopk(void *c) { (void)c, gpu->mstopk(NULL, g.idx, g.val, g.x, g.n, g.k, 25, 1, 2, g.scratch); }

/* A step of PowerSGD on one rank, without its collectives. */
static void low_rank(void *c)
{
	float *const P[] = {g.P}, *const Q[] = {g.Q}, *const X[] = {g.x}, *const E[] = {g.y};
	const float *const cX[] = {g.x}, *const cP[] = {g.P}, *const cQ[] = {g.Q}, *const cL[] = {g.L};
	(void)c;
	gpu->orthonormalise_batch(NULL, Q, 1, g.columns, g.rank);
	gpu->product_mq_batch(NULL, P, cX, cQ, 1, g.rows, g.columns, g.rank, g.scratch);
	gpu->orthonormalise_batch(NULL, P, 1, g.rows, g.rank);
	gpu->product_mtp_batch(NULL, Q, cX, cP, 1, g.rows, g.columns, g.rank, g.scratch);
	gpu->low_rank_finish_batch(NULL, X, E, cP, cL, cQ, 1, g.rows, g.columns, g.rank);
}

/* Bytes an element, read and written. */
static const struct {
	const char *name;
	void (*work)(void *);
	double bytes;
} works[] = {
	{"copy", copy, 8},
	{"add", add, 12},
	{"scale", scale, 8},
	{"axpy", axpy, 12},
	{"to BF16", to_bf16, 6},
	{"from BF16", from_bf16, 6},
	{"to F8E4M3", to_fp8, 5},
	{"sum_squares", sum_squares, 4},
	{"absmax", absmax, 4},
	{"nonfinite", nonfinite, 4},
	{"histogram", histogram, 4},
	{"random_uniform", uniform, 4},
	{"quantise 8 bits", quantise, 5},
	{"dequantise 8 bits", dequantise, 5},
	{"sign_pack", sign_pack, 4.125},
	{"sign_means", sign_means, 4},
	{"ternary_pack", ternary, 4.2},
};

int main(void)
{
	const char *why;
	gpu = device_table(&why);
	cpu = operators_cpu_variant("portable");
	if (!gpu) {
		printf("%s\n", why);
		return 77;
	}
	size_t most = (size_t)1 << 27, room = gpu->mstopk_scratch(most, most / 100) + (256 << 20);
	g.x = device_alloc(4 * most), g.y = device_alloc(4 * most), g.z = device_alloc(4 * most);
	g.idx = device_alloc(most / 8), g.val = device_alloc(most / 8), g.bytes = device_alloc(2 * most);
	g.P = device_alloc(1 << 24), g.Q = device_alloc(1 << 24), g.L = device_alloc(1 << 24);
	g.scratch = device_alloc(room), g.out = device_alloc(8);
	g.q = (gradcomp_quantiser){.struct_size = sizeof g.q, .bits = 8, .levels = 127, .block = 256};
	g.n = most;
	gpu->random_normal(NULL, g.x, g.n, 3, 4, 0);
	gpu->random_normal(NULL, g.y, g.n, 5, 6, 0);
	gpu->fill(NULL, (float *)g.out, 6, 1);
	double copied = 0;
	printf("%-20s %10s %8s\n", "2^27 numbers", "GB/s", "of copy");
	for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
		double rate = works[i].bytes * (double)g.n / device_seconds(works[i].work, NULL, REPEAT) / 1e9;
		copied = i ? copied : rate;
		printf("%-20s %10.0f %7.0f%%\n", works[i].name, rate, 100 * rate / copied);
	}
	gpu->random_normal(NULL, g.x, g.n, 3, 4, 0);
	for (int bits = 22; bits <= 27; bits++) {
		g.n = (size_t)1 << bits, g.k = g.n / 100;
		printf("topk 2^%d %.1f us\n", bits, 1e6 * device_seconds(topk, NULL, REPEAT));
		printf("mstopk 2^%d %.1f us\n", bits, 1e6 * device_seconds(mstopk, NULL, REPEAT));
	}
	g.rows = g.columns = 4096;
	for (g.rank = 1; g.rank <= 64; g.rank *= 4) {
		gpu->random_normal(NULL, g.x, g.rows * g.columns, 3, 4, 0);
		gpu->random_normal(NULL, g.Q, g.columns * g.rank, 7, 8, 0);
		gpu->random_normal(NULL, g.L, g.columns * g.rank, 9, 8, 0);
		printf("lowrank r=%zu %.1f us\n", g.rank, 1e6 * device_seconds(low_rank, NULL, REPEAT));
	}
	double last = get_double(g.out);
	return last != last;
}
