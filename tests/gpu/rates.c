/* How fast the operators are on a real device, beside a copy from device to device of as
 * many numbers: what a kernel that only moves memory can reach. Started by tests/gpu/rates:
 *
 *   rates [-b BITS] [-m FOLDER] [-t TIMES]
 *
 * BITS: the largest size is 2^BITS (27). FOLDER: of model files, whose layers are sizes,
 * too. TIMES: a file of lines "WHAT microseconds", PyTorch's for the same work. */
#include "gradcomp/sdk/lowrank.h"
#include "tests/cuda/device_arrays.h"

#include <getopt.h>

enum { REPEAT = 20, RUNS = 5, LEAST_BITS = 16, MATRICES = 512 };

typedef struct ground {
	size_t n, k, rows, columns, rank, count;
	float *x, *y, *z, *val, *P, *Q, *L;
	uint32_t *idx;
	uint8_t *bytes;
	void *scratch;
	double *out;
	int *fault, *bad, *set; /* the last one is not 0 */
	gradcomp_quantiser q;
	gradcomp_levels levels;
	/* load_tensors() and store_tensors() get these: with none, x alone. */
	gradcomp_segment segment[400];
	size_t segments;
	float *p_of[MATRICES], *q_of[MATRICES], *l_of[MATRICES], *x_of[MATRICES], *e_of[MATRICES];
} ground;

static ground g;
static int highest = 27;
static size_t scratch_bytes;

static void copy(void *c)
{
	(void)c, device_copy(g.y, g.x, 4 * g.n);
}
static void add(void *c)
{
	(void)c, gpu->add(NULL, g.y, g.x, g.n);
}
static void scale(void *c)
{
	(void)c, gpu->scale(NULL, g.y, 1.0001f, g.n);
}
static void axpy(void *c)
{
	(void)c, gpu->axpy(NULL, g.y, 1e-6f, g.x, g.n);
}
static void clamp(void *c)
{
	(void)c, gpu->clamp(NULL, g.y, g.x, (float *)g.out, g.n);
}
static void fill(void *c)
{
	(void)c, gpu->fill(NULL, g.y, 1, g.n);
}
static void reduce_bf16(void *c)
{
	(void)c, gpu->reduce(NULL, g.z, g.bytes, g.n, GRADCOMP_BF16, GRADCOMP_SUM);
}
static void to_bf16(void *c)
{
	(void)c, gpu->cast_from_f32(NULL, g.z, g.x, g.n, GRADCOMP_BF16, 0);
}
static void from_bf16(void *c)
{
	(void)c, gpu->cast_to_f32(NULL, g.y, g.z, g.n, GRADCOMP_BF16);
}
static void to_fp8(void *c)
{
	(void)c, gpu->cast_from_f32(NULL, g.z, g.x, g.n, GRADCOMP_F8E4M3, 1);
}
static void from_fp8(void *c)
{
	(void)c, gpu->cast_to_f32(NULL, g.y, g.z, g.n, GRADCOMP_F8E4M3);
}
static void sum_squares(void *c)
{
	(void)c, gpu->sum_squares(NULL, g.out + 1, g.x, g.n, g.scratch);
}
static void absmax(void *c)
{
	(void)c, gpu->absmax(NULL, (float *)(g.out + 1), g.x, g.n, g.scratch);
}
static void nonfinite(void *c)
{
	(void)c, gpu->nonfinite(NULL, g.x, g.n, g.fault);
}
static void normal(void *c)
{
	(void)c, gpu->random_normal(NULL, g.y, g.n, 1, 2, 0);
}
static void quantise(void *c)
{
	(void)c, gpu->quantise(NULL, g.bytes, g.x, g.n, &g.q);
}
static void dequantise(void *c)
{
	(void)c, gpu->dequantise(NULL, g.y, g.bytes, g.n, &g.q);
}
static void dequantise_error(void *c)
{
	(void)c, gpu->dequantise_error(NULL, g.y, g.x, g.bytes, g.n, &g.q);
}
static void sign_pack(void *c)
{
	(void)c, gpu->sign_pack(NULL, (uint32_t *)g.bytes, g.x, g.n, 4096);
}
static void sign_means(void *c)
{
	(void)c, gpu->sign_means(NULL, g.val, g.x, g.n, 4096);
}
static void sign_add(void *c)
{
	(void)c, gpu->sign_add(NULL, g.y, 1, (uint32_t *)g.bytes, g.val, g.n, 4096);
}
static void ternary(void *c)
{
	(void)c, gpu->ternary_pack(NULL, g.bytes, g.x, g.n, (float *)g.out, 1, 2, 0);
}
static void ternary_add(void *c)
{
	(void)c, gpu->ternary_add(NULL, g.y, 1, g.bytes, (float *)g.out, g.n, g.fault);
}
static void topk(void *c)
{
	(void)c, gpu->topk(NULL, g.idx, g.val, g.x, g.n, g.k, g.scratch);
}
static void mstopk(void *c)
{
	(void)c, gpu->mstopk(NULL, g.idx, g.val, g.x, g.n, g.k, 25, 1, 2, g.scratch);
}
static void scale_by(void *c)
{
	(void)c, gpu->scale_by(NULL, g.y, (float *)g.out, g.x, g.n);
}
static void axpy_by(void *c)
{
	(void)c, gpu->axpy_by(NULL, g.y, (float *)g.out, g.x, g.n);
}
static void range_check(void *c)
{
	(void)c, gpu->range_check(NULL, g.fault, g.x, g.n, -100, 100);
}
static void scaled_fp8(void *c)
{
	(void)c, gpu->cast_scaled(NULL, g.z, g.x, g.n, GRADCOMP_F8E4M3, 2, 448);
}
static void random_indices(void *c)
{
	(void)c, gpu->random_indices(NULL, g.idx, g.n / 100, g.n, 1, 2, 3);
}
static void sign_error(void *c)
{
	(void)c, gpu->sign_error(NULL, g.y, g.x, (uint32_t *)g.bytes, g.val, g.n, 4096);
}
static void blocks_sum(void *c)
{
	(void)c, gpu->blocks_sum_abs(NULL, g.y, g.x, g.n, 256, 1e30f);
}
static void levels_add(void *c)
{
	(void)c, gpu->levels_add(NULL, g.y, 1e-6f, g.bytes, g.n, &g.levels);
}

/* Every block of 256, in another order. */
enum { WIDTH = 256 };
static void blocks_gather(void *c)
{
	(void)c, gpu->blocks_gather(NULL, g.y, g.x, g.idx, g.n / WIDTH, g.n, WIDTH);
}
static void blocks_scatter(void *c)
{
	(void)c, gpu->blocks_scatter(NULL, g.y, g.idx, g.x, g.n / WIDTH, g.n, WIDTH);
}
static void levels_pack(void *c)
{
	(void)c, gpu->levels_pack(NULL, g.bytes, g.x, g.n, &g.levels);
}
static void levels_read(void *c)
{
	(void)c, gpu->levels_read(NULL, g.y, g.bytes, g.n, &g.levels);
}

/* The rows have 1024 numbers, as demo has them. */
enum { DCT_ROW = 1024, DCT_CHUNK = 64, DCT_KEPT = 32 };
static void dct_topk(void *c)
{
	const gradcomp_matrix t = {g.x, g.n / DCT_ROW, DCT_ROW};
	(void)c;
	gpu->dct_topk(NULL, g.val, (uint16_t *)g.idx, &t, 1, DCT_CHUNK, DCT_KEPT);
}

static void dct_back(void *c)
{
	const gradcomp_matrix t = {g.y, g.n / DCT_ROW, DCT_ROW};
	const gradcomp_coefficients from = {g.val, (uint16_t *)g.idx};
	(void)c;
	gpu->dct_back(NULL, &t, 1, DCT_CHUNK, DCT_KEPT, &from, 1, 1, 0, g.fault);
}

static void columns(void *c)
{
	(void)c;
	gpu->normalise_columns_batch(NULL, g.q_of, g.count, g.columns, g.rank, 1);
}

static void sum_abs(void *c)
{
	(void)c, gpu->sum_abs(NULL, g.out + 1, g.x, g.n, g.scratch);
}
static void dequantise_add(void *c)
{
	(void)c, gpu->dequantise_add(NULL, g.y, 1e-6f, g.bytes, g.n, &g.q);
}
static void codes_sum(void *c)
{
	const gradcomp_coding coding = {
		.struct_size = sizeof coding, .kind = GRADCOMP_CODING_QUANTISED, .quantiser = &g.q};
	const gradcomp_coded to = {.y = g.y, .n = g.n, .codes = (g.n + g.q.block - 1) / g.q.block * sizeof(float)};
	const void *const sent[4] = {g.bytes, g.bytes, g.bytes, g.bytes};
	(void)c;
	gpu->codes_sum(NULL, &coding, &to, 1, sent, 4, 0.25f, g.fault);
}
static void quantised_check(void *c)
{
	(void)c, gpu->quantised_check(NULL, g.fault, g.bytes, g.n, &g.q);
}
static void scale_bf16(void *c)
{
	(void)c, gpu->scale_as(NULL, g.z, 0.5, g.n, GRADCOMP_BF16);
}
static void power_pack(void *c)
{
	(void)c, gpu->power_pack(NULL, g.bytes, g.x, g.n, 1, 2, 0);
}
static void power_read(void *c)
{
	(void)c, gpu->power_read(NULL, g.y, g.bytes, g.n, g.fault);
}
static void power_add(void *c)
{
	(void)c, gpu->power_add(NULL, g.y, g.bytes, g.n, g.fault);
}
static void float8_pack(void *c)
{
	(void)c, gpu->float8_pack(NULL, g.bytes, g.x, g.n, 256, GRADCOMP_F8E4M3, 0);
}
static void float8_read(void *c)
{
	(void)c, gpu->float8_read(NULL, g.y, g.bytes, g.n, 256, GRADCOMP_F8E4M3, 0, g.fault);
}
static void float8_add(void *c)
{
	(void)c, gpu->float8_add(NULL, g.y, g.bytes, g.n, 256, GRADCOMP_F8E4M3, 0, g.fault);
}
static void copy_if(void *c)
{
	(void)c, gpu->copy_if(NULL, g.y, g.x, g.n, g.set, 1);
}
static void fill_if(void *c)
{
	(void)c, gpu->fill_if(NULL, g.y, 1, g.n, g.set);
}
static void copy_bytes(void *c)
{
	(void)c, gpu->copy(NULL, g.y, g.x, 4 * g.n);
}

/* All numbers as one matrix of rank 4. */
static size_t wide(void)
{
	return g.n < 1024 ? 1 : 1024;
}
static void product_mq(void *c)
{
	(void)c, sdk_product_mq(gpu, NULL, g.P, g.x, g.Q, g.n / wide(), wide(), 4, g.scratch);
}

static void product_mtp(void *c)
{
	(void)c, sdk_product_mtp(gpu, NULL, g.L, g.x, g.P, g.n / wide(), wide(), 4, g.scratch);
}

static void finish(void *c)
{
	(void)c;
	sdk_low_rank_finish(gpu, NULL, g.y, g.z, g.P, g.L, g.Q, g.n / wide(), wide(), 4);
}

/* A bucket's way in, with error memory, and out. */
static void load(void *c)
{
	gradcomp_segment one = {
		.x = g.y, .grad = g.x, .error = (float *)g.z, .n = g.n, .dtype = GRADCOMP_F32, .add = 1};
	(void)c;
	gpu->load_tensors(NULL, g.segments ? g.segment : &one, g.segments ? g.segments : 1, g.bad, NULL, g.scratch);
}

static void store(void *c)
{
	gradcomp_segment one = {.x = g.x, .grad = g.y, .n = g.n, .dtype = GRADCOMP_F32};
	(void)c;
	gpu->store_tensors(NULL, g.segments ? g.segment : &one, g.segments ? g.segments : 1, NULL, NULL, g.scratch);
}

/* The result has unit columns, and is put in again: as in a step with a warm start. */
static void orthonormalise(void *c)
{
	(void)c;
	gpu->orthonormalise_split(NULL, g.p_of, g.count, g.rows, g.rank, g.scratch);
}

/* A step of PowerSGD on one rank, without its collectives. */
static void low_rank(void *c)
{
	const float *const *x = (const float *const *)g.x_of, *const *P = (const float *const *)g.p_of,
			   *const *Q = (const float *const *)g.q_of, *const *L = (const float *const *)g.l_of;
	(void)c;
	gpu->orthonormalise_split(NULL, g.q_of, g.count, g.columns, g.rank, g.scratch);
	gpu->product_mq_batch(NULL, g.p_of, x, Q, g.count, g.rows, g.columns, g.rank, g.scratch);
	gpu->orthonormalise_split(NULL, g.p_of, g.count, g.rows, g.rank, g.scratch);
	gpu->product_mtp_batch(NULL, g.q_of, x, P, g.count, g.rows, g.columns, g.rank, g.scratch);
	gpu->low_rank_finish_batch(NULL, g.x_of, g.e_of, P, L, Q, g.count, g.rows, g.columns, g.rank);
}

/* Bytes an element, read and written, and what share of the copy's rate is wanted at 2^27. */
static const struct {
	const char *name;
	void (*work)(void *);
	double bytes, goal;
} works[] = {
	{"copy", copy, 8, 0}, /* the first */
	{"add", add, 12, 0.85},
	{"scale", scale, 8, 0.85},
	{"axpy", axpy, 12, 0.85},
	{"clamp", clamp, 8, 0.85},
	{"fill", fill, 4, 0},
	{"reduce BF16", reduce_bf16, 6, 0.85},
	{"to BF16", to_bf16, 6, 0.85},
	{"from BF16", from_bf16, 6, 0.85},
	{"to F8E4M3", to_fp8, 5, 0.85},
	{"from F8E4M3", from_fp8, 5, 0.85},
	{"sum_squares", sum_squares, 4, 0.85},
	{"absmax", absmax, 4, 0.85},
	{"nonfinite", nonfinite, 4, 0.85},
	{"random_normal", normal, 4, 0},
	{"quantise 8 bits", quantise, 5, 0.70},
	{"dequantise 8 bits", dequantise, 5, 0.70},
	{"dequantise_error 8 bits", dequantise_error, 9, 0.70},
	{"sign_pack", sign_pack, 4.125, 0.70},
	{"sign_means", sign_means, 4, 0.70},
	{"sign_add", sign_add, 8.125, 0.70},
	{"ternary_pack", ternary, 4.2, 0},
	{"ternary_add", ternary_add, 8.2, 0},
	{"scale_by", scale_by, 8, 0.85},
	{"axpy_by", axpy_by, 12, 0.85},
	{"range_check", range_check, 4, 0.85},
	{"cast_scaled to F8E4M3", scaled_fp8, 5, 0.85},
	{"random_indices of 1 %", random_indices, 0.04, 0},
	{"sign_error", sign_error, 8.125, 0.70},
	{"copy, of the table", copy_bytes, 8, 0.85},
	{"sum_abs", sum_abs, 4, 0.85},
	{"scale_as BF16", scale_bf16, 4, 0.85},
	{"quantise 8 bits, once more", quantise, 5, 0}, /* its codes are read by the next two */
	{"dequantise_add 8 bits", dequantise_add, 9, 0.70},
	{"codes_sum of four ranks, 8 bits", codes_sum, 8, 0},
	{"quantised_check 8 bits", quantised_check, 1, 0},
	{"power_pack", power_pack, 5.125, 0},
	{"power_read", power_read, 5.125, 0},
	{"power_add", power_add, 9.125, 0},
	{"float8_pack", float8_pack, 5, 0},
	{"float8_read", float8_read, 5, 0},
	{"float8_add", float8_add, 9, 0},
	{"copy_if", copy_if, 8, 0},
	{"fill_if", fill_if, 4, 0},
	{"product_mq r=4", product_mq, 4, 0},
	{"product_mtp r=4", product_mtp, 4, 0},
	{"blocks_sum_abs, 256 each", blocks_sum, 4, 0.85},
	{"levels_pack 8 bits", levels_pack, 5, 0},
	{"levels_read 8 bits", levels_read, 5, 0},
	{"levels_add 8 bits", levels_add, 9, 0},
	/* g.z holds floats from here on. */
	{"low_rank_finish r=4", finish, 12, 0},
	{"load_tensors", load, 12, 0.85},
	{"store_tensors", store, 8, 0.85},
};
enum { WORKS = sizeof works / sizeof *works };

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static int wrong;

/* Microseconds of a call: the median of a few runs. */
static double microseconds(void (*work)(void *))
{
	double us[RUNS];
	for (int i = 0; i < RUNS; i++)
		us[i] = 1e6 * device_seconds(work, NULL, REPEAT);
	/* A kernel that was not launched took no time. */
	const char *why = gpu->failed();
	if (why) {
		printf("not ok - the next figure is of a launch that failed: %s\n", why);
		wrong = 1;
	}
	qsort(us, RUNS, sizeof *us, ascending);
	return us[RUNS / 2];
}

static char told_name[200][64];
static double told_us[200];
static size_t told;

static void read_times(const char *path)
{
	FILE *f = path ? fopen(path, "r") : NULL;
	char line[200];
	while (f && told < 200 && fgets(line, sizeof line, f)) {
		char *last = strrchr(line, ' ');
		if (last && (told_us[told] = strtod(last, NULL)) > 0) {
			*last = '\0';
			snprintf(told_name[told++], sizeof *told_name, "%.63s", line);
		}
	}
	if (f)
		fclose(f);
}

/* `goal`: how many times as fast as PyTorch it should be; 0: none is set. */
static void beside_torch(const char *what, double us, const char *whose, double goal)
{
	for (size_t i = 0; i < told; i++)
		if (!strcmp(told_name[i], what)) {
			printf("figure: %s = %.1f us; %.2f times as fast as %s", what, us, told_us[i] / us, whose);
			if (goal > 0)
				printf("; goal >= %g", goal);
			putchar('\n');
			return;
		}
	printf("figure: %s = %.1f us\n", what, us);
}

static void blocks(void)
{
	for (int bits = LEAST_BITS; bits <= highest; bits++) {
		g.n = (size_t)1 << bits;
		gpu->random_indices(NULL, g.idx, g.n / WIDTH, g.n / WIDTH, 1, 2, 3);
		printf("figure: blocks_gather, all of 256, 2^%d = %.1f GB/s\n", bits,
		       8 * (double)g.n / microseconds(blocks_gather) / 1e3);
		printf("figure: blocks_scatter, all of 256, 2^%d = %.1f GB/s\n", bits,
		       8 * (double)g.n / microseconds(blocks_scatter) / 1e3);
	}
}

static void powers_of_two(void)
{
	for (int bits = LEAST_BITS; bits <= highest; bits++) {
		double copied = 0;
		g.n = (size_t)1 << bits;
		for (int i = 0; i < WORKS; i++) {
			double rate = works[i].bytes * (double)g.n / microseconds(works[i].work) / 1e3;
			printf("figure: %s 2^%d = %.1f GB/s", works[i].name, bits, rate);
			if (!i)
				copied = rate;
			else
				printf("; %.3f of the copy's rate", rate / copied);
			if (bits == 27 && works[i].goal > 0)
				printf("; goal >= %.2f", works[i].goal);
			putchar('\n');
		}
	}
}

static void gather(void *c)
{
	(void)c, gpu->gather(NULL, g.val, g.x, g.idx, g.k);
}
static void scatter(void *c)
{
	(void)c, gpu->scatter(NULL, g.y, g.idx, g.val, g.k);
}
static void scatter_add(void *c)
{
	(void)c, gpu->scatter_add(NULL, g.y, g.n, g.idx, g.val, g.k, 1e-6f);
}
static void sparse_check(void *c)
{
	(void)c, gpu->sparse_check(NULL, g.fault, g.idx, g.val, g.k, g.n);
}
static void index_pack(void *c)
{
	(void)c, gpu->index_pack(NULL, (uint32_t *)g.bytes, g.idx, g.n, g.k, GRADCOMP_INDEX_DELTA);
}

static void index_unpack(void *c)
{
	(void)c;
	gpu->index_unpack(NULL, g.fault, (uint32_t *)g.z, (uint32_t *)g.bytes, g.n, g.k, GRADCOMP_INDEX_DELTA,
	                  g.scratch);
}

static void sparse_merge(void *c)
{
	uint32_t *const idx = (uint32_t *)g.z;
	float *const val = g.z + 2 * g.k;
	(void)c;
	gpu->sparse_merge(NULL, idx, val, idx + g.k, val + g.k, g.idx, g.val, g.idx, g.val, g.k, g.scratch);
}

static void sparse_sum(void *c)
{
	const gradcomp_sparse to = {.y = g.y, .n = g.n};
	const gradcomp_pairs pair = {.idx = g.idx, .val = g.val, .k = g.k}, from[4] = {pair, pair, pair, pair};
	(void)c;
	gpu->sparse_sum(NULL, &to, 1, from, 4, 0.25f, g.fault);
}

static void pairs(int bits)
{
	static const struct {
		const char *name;
		void (*work)(void *);
	} sparse[] = {
		{"gather", gather},
		{"scatter", scatter},
		{"scatter_add", scatter_add},
		{"sparse_check", sparse_check},
		{"sparse_sum of four ranks", sparse_sum},
		{"sparse_merge", sparse_merge},
		{"index_pack", index_pack},
		{"index_unpack", index_unpack},
	};
	for (size_t i = 0; i < sizeof sparse / sizeof sparse[0]; i++)
		printf("figure: %s, 1%% of 2^%d = %.1f us\n", sparse[i].name, bits, microseconds(sparse[i].work));
}

static void selections(void)
{
	char what[64];
	for (int bits = LEAST_BITS; bits <= highest; bits++) {
		g.n = (size_t)1 << bits, g.k = g.n / 100;
		snprintf(what, sizeof what, "topk 1%% of 2^%d", bits);
		beside_torch(what, microseconds(topk), "torch.topk", bits == 24 ? 5 : 0);
		pairs(bits);
		snprintf(what, sizeof what, "mstopk 1%% of 2^%d", bits);
		beside_torch(what, microseconds(mstopk), "torch.topk", bits == 24 ? 8 : 0);
	}
}

/* `count` matrices, one behind the other; g.count is how many of them there is room for. */
static void matrices(size_t count, size_t rows, size_t columns, size_t rank)
{
	size_t room = ((size_t)1 << highest) / (rows * columns), left = ((size_t)1 << 22) / (rows * rank),
	       right = ((size_t)1 << 22) / (columns * rank);
	g.count = count < MATRICES ? count : MATRICES;
	g.count = g.count < room ? g.count : room;
	g.count = g.count < left ? g.count : left;
	g.count = g.count < right ? g.count : right;
	g.rows = rows, g.columns = columns;
	for (size_t i = 0; i < g.count; i++) {
		g.x_of[i] = g.x + i * rows * columns, g.e_of[i] = g.y + i * rows * columns;
		g.p_of[i] = g.P + i * rows * rank, g.q_of[i] = g.Q + i * columns * rank,
		g.l_of[i] = g.L + i * columns * rank;
	}
	g.rank = rank < rows ? rank : rows;
	g.rank = g.rank < columns ? g.rank : columns;
	gpu->random_normal(NULL, g.x, g.count * rows * columns, 3, 4, 0);
	gpu->random_normal(NULL, g.P, g.count * rows * rank, 5, 4, 0);
	gpu->random_normal(NULL, g.Q, g.count * columns * rank, 7, 8, 0);
	gpu->random_normal(NULL, g.L, g.count * columns * rank, 9, 8, 0);
}

static void transforms(void)
{
	for (int bits = LEAST_BITS; bits <= highest; bits++) {
		g.n = (size_t)1 << bits;
		printf("figure: dct_topk, 32 of 64x64, 2^%d = %.1f us\n", bits, microseconds(dct_topk));
		printf("figure: dct_back, 32 of 64x64, 2^%d = %.1f us\n", bits, microseconds(dct_back));
	}
}

static void low_ranks(void)
{
	char what[64];
	size_t n = highest < 24 ? 256 : 4096;
	for (size_t r = 1; r <= 64; r *= 2) {
		matrices(1, n, n, r);
		snprintf(what, sizeof what, "orthonormalise %zux%zu", n, r);
		double us = microseconds(orthonormalise);
		if (n == 4096 && r == 4)
			printf("figure: orthonormalise 4096x4, alone = %.1f us; goal <= 15\n", us);
		beside_torch(what, us, "torch.linalg.qr", 0);
		printf("figure: normalise_columns %zux%zu = %.1f us\n", n, r, microseconds(columns));
		matrices(1, n, n, r);
		snprintf(what, sizeof what, "low-rank step %zux%zu r=%zu", n, n, r);
		beside_torch(what, microseconds(low_rank), "the same in PyTorch", 0);
	}
}

typedef struct layer {
	size_t rows, columns, count;
	int done;
} layer;

/* The layers of a model file; how many. */
static size_t read_layers(const char *folder, const char *model, layer *to, size_t most)
{
	char path[512], line[300], dims[100];
	size_t n = 0;
	snprintf(path, sizeof path, "%s/%s.model", folder, model);
	FILE *f = fopen(path, "r");
	while (f && n < most && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%*u = %*s %99[0-9x] ", dims) != 1)
			continue;
		char *p = dims;
		to[n] = (layer){.rows = strtoull(dims, &p, 10), .columns = 1, .count = 1};
		while (*p == 'x')
			to[n].columns *= strtoull(p + 1, &p, 10);
		n += to[n].rows * to[n].columns > 0;
	}
	if (f)
		fclose(f);
	else
		printf("# %s cannot be read\n", path);
	return n;
}

static const layer *walked;
static size_t walked_count, walked_work;

/* One call a layer, one layer behind the other. */
static void all_layers(void *c)
{
	const ground kept = g;
	(void)c;
	for (size_t i = 0, at = 0; i < walked_count; i++, at += g.n) {
		g.n = walked[i].rows * walked[i].columns;
		g.x = kept.x + at, g.y = kept.y + at;
		works[walked_work].work(NULL);
	}
	g = kept;
}

static void layers_of(const char *folder, const char *model)
{
	static layer layers[400];
	size_t n = read_layers(folder, model, layers, 400), numel = 0;
	double copied = 0, low = 0;
	char what[64];
	for (size_t i = 0; i < n; i++)
		numel += layers[i].rows * layers[i].columns;
	if (!n || numel > (size_t)1 << highest) {
		printf("# %s: %zu layers of %zu numbers are not measured\n", model, n, numel);
		return;
	}
	walked = layers, walked_count = n;
	gpu->random_normal(NULL, g.x, numel, 3, 4, 0);
	for (walked_work = 0; walked_work < WORKS; walked_work++) {
		double rate = works[walked_work].bytes * (double)numel / microseconds(all_layers) / 1e3;
		printf("figure: %s, %zu layers of %s = %.1f GB/s", works[walked_work].name, n, model, rate);
		if (!walked_work)
			copied = rate;
		else
			printf("; %.3f of the copy's rate", rate / copied);
		putchar('\n');
	}
	/* All tensors in one call, as a reducer has them. */
	for (int out = 0; out < 2; out++) {
		size_t at = 0;
		for (size_t i = 0; i < n; at += g.segment[i++].n)
			g.segment[i] = (gradcomp_segment){.x = (out ? g.x : g.y) + at,
			                                  .grad = (out ? g.y : g.x) + at,
			                                  .error = out ? NULL : (float *)g.z + at,
			                                  .n = layers[i].rows * layers[i].columns,
			                                  .dtype = GRADCOMP_F32,
			                                  .add = !out};
		g.segments = n;
		size_t need = gpu->tensors_scratch(g.segment, n);
		if (need <= scratch_bytes)
			printf("figure: %s, all of %s in one call = %.1f GB/s\n",
			       out ? "store_tensors" : "load_tensors", model,
			       (out ? 8 : 12) * (double)numel / microseconds(out ? store : load) / 1e3);
		g.segments = 0;
	}
	/* Matrices of one shape are one batch. */
	for (size_t i = 0; i < n; i++) {
		if (layers[i].done || layers[i].rows < 2 || layers[i].columns < 2)
			continue;
		for (size_t j = i + 1; j < n; j++)
			if (layers[j].rows == layers[i].rows && layers[j].columns == layers[i].columns)
				layers[i].count++, layers[j].done = 1;
		matrices(layers[i].count, layers[i].rows, layers[i].columns, 4);
		if (g.count != layers[i].count ||
		    gpu->product_scratch(g.count, g.rows, g.columns, g.rank) > scratch_bytes ||
		    gpu->orthonormalise_scratch(g.count, g.rows > g.columns ? g.rows : g.columns, g.rank) >
		            scratch_bytes) {
			printf("# %s: %zu matrices of %zux%zu are too many\n", model, layers[i].count, layers[i].rows,
			       layers[i].columns);
			return;
		}
		low += microseconds(low_rank);
	}
	snprintf(what, sizeof what, "low-rank step of %s r=4", model);
	beside_torch(what, low, "the same in PyTorch", 0);
}

int main(int argc, char **argv)
{
	const char *why, *models = NULL, *times = NULL;
	int c;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((c = getopt(argc, argv, "b:m:t:")) != -1)
		switch (c) {
		case 'b':
			highest = atoi(optarg);
			break;
		case 'm':
			models = optarg;
			break;
		case 't':
			times = optarg;
			break;
		default:
			return 2;
		}
	if (highest < LEAST_BITS || highest > 27) {
		fprintf(stderr, "rates: -b %d: must be %d to 27\n", highest, LEAST_BITS);
		return 2;
	}
	gpu = device_table(&why);
	cpu = operators_cpu_variant("portable");
	if (!gpu) {
		printf("1..0 # SKIP %s\n", why);
		return 77;
	}
	read_times(times);
	size_t most = (size_t)1 << highest;
	scratch_bytes = gpu->mstopk_scratch(most, most / 100) + (256 << 20);
	g.x = device_alloc(4 * most), g.y = device_alloc(4 * most), g.z = device_alloc(4 * most);
	g.idx = device_alloc(most / 8 + (1 << 16)), g.val = device_alloc(most / 8), g.bytes = device_alloc(2 * most);
	g.P = device_alloc(1 << 24), g.Q = device_alloc(1 << 24), g.L = device_alloc(1 << 24);
	g.scratch = device_alloc(scratch_bytes), g.out = device_alloc(16), g.fault = device_alloc(4),
	g.bad = device_alloc(4 * 400);
	g.set = device_alloc(4);
	g.q = (gradcomp_quantiser){.struct_size = sizeof g.q, .bits = 8, .levels = 127, .block = 256};
	g.levels = (gradcomp_levels){.struct_size = sizeof g.levels, .bits = 8, .levels = 127, .block = 256};
	for (int i = 1; i < 128; i++) {
		g.levels.value[i] = (float)(i * i) / (127 * 127);
		g.levels.edge[i] = (g.levels.value[i - 1] + g.levels.value[i]) / 2;
	}
	g.n = most;
	gpu->random_normal(NULL, g.x, g.n, 3, 4, 0);
	gpu->random_normal(NULL, g.y, g.n, 5, 6, 0);
	gpu->fill(NULL, (float *)g.out, 6, 1);
	gpu->any_set(NULL, g.set, g.out, 4, 4, 1);
	gpu->random_normal(NULL, g.P, 1 << 22, 5, 4, 0);
	gpu->random_normal(NULL, g.Q, 1 << 22, 7, 8, 0);
	/* Codes and types that are read are of numbers, not rubbish. */
	quantise(NULL), to_bf16(NULL);
	powers_of_two();
	gpu->random_normal(NULL, g.x, most, 3, 4, 0);
	selections();
	blocks();
	transforms();
	low_ranks();
	for (int i = 0; models && i < 3; i++)
		layers_of(models, (const char *const[]){"resnet50", "bert-base", "gpt2"}[i]);
	double last = get_double(g.out + 1);
	wrong |= last != last;
	printf("%s 1 - no launch failed\n1..1\n", wrong ? "not ok" : "ok");
	return wrong;
}
