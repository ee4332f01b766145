/* How many bytes of the device's memory operators read and write for a number; doc/dev/gpu.md has the same tables, which
 * tests/cuda/raced.t holds against what is printed here. */
#ifndef TESTS_CUDA_COMPARE_TRAFFIC_H
#define TESTS_CUDA_COMPARE_TRAFFIC_H

#include "tests/cuda/device_arrays.h"
#include "tests/support/coded_input.h"

enum { TRAFFIC = 1 << 16, TRAFFIC_RANKS = 128 };

static long bytes_read, bytes_written;

static void traffic(const char *name, size_t n)
{
	long r = 0, w = 0;
	device_moved(&r, &w);
	printf("# traffic: %s %.2f %.2f\n", name, (double)(r - bytes_read) / (double)n,
	       (double)(w - bytes_written) / (double)n);
}

/* Of a call that works on n numbers. */
#define MOVED(name, n, call) \
	do { \
		device_moved(&bytes_read, &bytes_written); \
		(call); \
		traffic(name, n); \
	} while (0)

static void traffic_of_numbers(const float *x, float *y, uint8_t *codes, float *pairs, float *out)
{
	const size_t n = TRAFFIC;
	const gradcomp_quantiser q = {.struct_size = sizeof q, .bits = 8, .levels = 127, .block = 256};
	watched S = watch(NULL, gpu->sum_scratch(n), 0);
	MOVED("add", n, gpu->add(NULL, y, x, n));
	MOVED("axpy", n, gpu->axpy(NULL, y, 2, x, n));
	MOVED("scale", n, gpu->scale(NULL, y, 2, n));
	MOVED("clamp", n, gpu->clamp(NULL, y, x, x, n));
	MOVED("cast_from_f32", n, gpu->cast_from_f32(NULL, codes, x, n, GRADCOMP_BF16, 0));
	MOVED("cast_to_f32", n, gpu->cast_to_f32(NULL, y, codes, n, GRADCOMP_BF16));
	MOVED("sum_abs", n, gpu->sum_abs(NULL, (double *)(void *)out, x, n, S.at));
	MOVED("absmax", n, gpu->absmax(NULL, out, x, n, S.at));
	MOVED("nonfinite", n, gpu->nonfinite(NULL, x, n, (int *)(void *)out));
	MOVED("range_check", n, gpu->range_check(NULL, (int *)(void *)out, x, n, -9, 9));
	MOVED("quantise", n, gpu->quantise(NULL, codes, x, n, &q));
	MOVED("dequantise", n, gpu->dequantise(NULL, y, codes, n, &q));
	MOVED("dequantise_error", n, gpu->dequantise_error(NULL, y, x, codes, n, &q));
	MOVED("sign_pack", n, gpu->sign_pack(NULL, (uint32_t *)(void *)codes, x, n, 4096));
	MOVED("sign_means", n, gpu->sign_means(NULL, pairs, x, n, 4096));
	MOVED("sign_add", n, gpu->sign_add(NULL, y, 1, (uint32_t *)(void *)codes, pairs, n, 4096));
	MOVED("sign_error", n, gpu->sign_error(NULL, y, x, (uint32_t *)(void *)codes, pairs, n, 4096));
	unwatch(&S, NULL);
}

static void traffic_of_tensors(float *x, float *y, float *error, int *bad)
{
	const gradcomp_segment t = {.x = y, .grad = x, .error = error, .n = TRAFFIC, .dtype = GRADCOMP_F32, .add = 1};
	watched S = watch(NULL, gpu->tensors_scratch(&t, 1), 0);
	MOVED("load_tensors", t.n, gpu->load_tensors(NULL, &t, 1, bad, NULL, S.at));
	MOVED("store_tensors", t.n, gpu->store_tensors(NULL, &t, 1, NULL, NULL, S.at));
	unwatch(&S, NULL);
}

static void traffic_of_chunks(const float *x, float *y, float *val, uint32_t *idx, int *word)
{
	enum { WIDTH = 64, K = TRAFFIC / WIDTH / 4, SIDE = 128, CHUNK = 64, KEPT = 32 };
	const size_t n = TRAFFIC;
	const gradcomp_levels l = {
		.struct_size = sizeof l, .bits = 8, .levels = 1, .block = 256, .value = {0, 1}, .edge = {0, 0.5f}};
	const gradcomp_matrix t = {y, SIDE, SIDE};
	const gradcomp_coefficients from[] = {{val, (const uint16_t *)idx}, {val, (const uint16_t *)idx}};
	uint32_t chosen[K];
	for (uint32_t i = 0; i < K; i++)
		chosen[i] = 4 * i + i % 3;
	to_device(idx, chosen, sizeof chosen);
	MOVED("blocks_sum_abs", n, gpu->blocks_sum_abs(NULL, y, x, n, WIDTH, 1e30f));
	MOVED("blocks_gather", K * WIDTH, gpu->blocks_gather(NULL, val, x, idx, K, n, WIDTH));
	MOVED("blocks_scatter", K * WIDTH, gpu->blocks_scatter(NULL, y, idx, val, K, n, WIDTH));
	MOVED("levels_pack", n, gpu->levels_pack(NULL, val, x, n, &l));
	MOVED("levels_read", n, gpu->levels_read(NULL, y, val, n, &l));
	MOVED("levels_add", n, gpu->levels_add(NULL, y, 1, val, n, &l));
	MOVED("dct_topk", SIDE * SIDE, gpu->dct_topk(NULL, val, (uint16_t *)idx, &t, 1, CHUNK, KEPT));
	MOVED("dct_back", SIDE * SIDE, gpu->dct_back(NULL, &t, 1, CHUNK, KEPT, from, 2, 1, 0, word));
}

static void traffic_of_matrices(float *a, float *b, float *c, float *d)
{
	enum { ROWS = 1024, COLUMNS = 64, RANK = 4, TALL = 4096, WIDE_ROWS = 700, WIDE_RANK = 64 };
	const float *const A[] = {a}, *const P[] = {c}, *const Q[] = {d};
	const size_t n = ROWS * COLUMNS;
	watched S = watch(NULL, gpu->product_scratch(1, ROWS, COLUMNS, RANK), 0);
	watched O = watch(NULL, gpu->orthonormalise_scratch(1, WIDE_ROWS, WIDE_RANK), 0);
	MOVED("product_mq_batch", n, gpu->product_mq_batch(NULL, &c, A, Q, 1, ROWS, COLUMNS, RANK, NULL));
	MOVED("product_mtp_batch", n, gpu->product_mtp_batch(NULL, &d, A, P, 1, ROWS, COLUMNS, RANK, S.at));
	MOVED("low_rank_finish_batch", n, gpu->low_rank_finish_batch(NULL, &a, &b, P, Q, Q, 1, ROWS, COLUMNS, RANK));
	MOVED("normalise_columns_batch", TALL * RANK, gpu->normalise_columns_batch(NULL, &b, 1, TALL, RANK, 1));
	MOVED("orthonormalise_split", TALL * RANK, gpu->orthonormalise_split(NULL, &b, 1, TALL, RANK, NULL));
	MOVED("orthonormalise_split, divided", WIDE_ROWS * WIDE_RANK,
	      gpu->orthonormalise_split(NULL, &b, 1, WIDE_ROWS, WIDE_RANK, O.at));
	unwatch(&S, NULL), unwatch(&O, NULL);
}

static void traffic_of_selection(const float *x, float *val, uint32_t *idx)
{
	const size_t n = TRAFFIC, k = n / 100;
	watched S = watch(NULL, gpu->mstopk_scratch(n, k), 0);
	MOVED("topk", n, gpu->topk(NULL, idx, val, x, n, k, S.at));
	MOVED("mstopk", n, gpu->mstopk(NULL, idx, val, x, n, k, 25, 1, 2, S.at));
	unwatch(&S, NULL);
}

/* A sum of what P ranks sent, `code` bytes a number, is to move four bytes and P codes: a hundredth more is for ends of
 * sectors. */
static void sum_row(const char *name, double code, const double *moved)
{
	static const int ranks[] = {2, 8, TRAFFIC_RANKS};
	for (int i = 0; i < 3; i++)
		ok(moved[i] <= 1.01 * (4 + ranks[i] * code), "%s: a sum of %d ranks moves %.2f bytes a number", name,
		   ranks[i], moved[i]);
	printf("# sum: %s | %.2f | %.2f | %.2f | %.1f\n", name, code, moved[0], moved[1], moved[2]);
}

static double moved_by(size_t n)
{
	long r = 0, w = 0;
	device_moved(&r, &w);
	return (double)(r - bytes_read + w - bytes_written) / (double)n;
}

static void traffic_of_sum(const char *name, const coded_input *c, float *y, float *scale, int *word)
{
	const size_t n = TRAFFIC / 4;
	gradcomp_coded part = {.y = y, .n = n, .segment = c->part[0].segment, .scale = scale};
	const void *sent[TRAFFIC_RANKS];
	size_t values, codes;
	double moved[3];
	int i = 0;
	coded_sizes(c, &(gradcomp_coded){.n = n, .segment = part.segment}, &values, &codes);
	part.codes = (coded_width(c) * values + 3) / 4 * 4;
	const size_t bytes = (part.codes + codes + 31) / 32 * 32;
	uint8_t *zeros = calloc(TRAFFIC_RANKS, bytes);
	watched S = watch(zeros, TRAFFIC_RANKS * bytes, 0);
	for (size_t r = 0; r < TRAFFIC_RANKS; r++)
		sent[r] = (uint8_t *)S.at + r * bytes;
	for (size_t ranks = 2; ranks <= TRAFFIC_RANKS; ranks *= ranks == 2 ? 4 : 16) {
		device_moved(&bytes_read, &bytes_written);
		gpu->codes_sum(NULL, &c->coding, &part, 1, sent, ranks, 1, word);
		moved[i++] = moved_by(n);
	}
	sum_row(name, (double)(coded_width(c) * values + codes) / (double)n, moved);
	unwatch(&S, NULL);
	free(zeros);
}

static void traffic_of_codes(float *y, float *scale, int *word)
{
	static const struct {
		const char *name;
		gradcomp_coding_kind kind;
		uint32_t bits, block;
	} rows[] = {
		{"quantised, 8 bits", GRADCOMP_CODING_QUANTISED, 8, 256},
		{"quantised, 4 bits", GRADCOMP_CODING_QUANTISED, 4, 256},
		{"levels, 4 bits", GRADCOMP_CODING_LEVELS, 4, 256},
		{"signs", GRADCOMP_CODING_SIGNS, 0, 4096},
		{"magnitudes", GRADCOMP_CODING_MAGNITUDES, 0, 4096},
		{"ternary", GRADCOMP_CODING_TERNARY, 0, 0},
		{"8-bit floats", GRADCOMP_CODING_FLOAT8, 0, 256},
		{"powers of two", GRADCOMP_CODING_POWERS, 0, 0},
		{"16-bit floats", GRADCOMP_CODING_FLOAT16, 0, 0},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		static coded_input c;
		c = (coded_input){
			.coding = {.struct_size = sizeof c.coding,
		                   .kind = rows[i].kind,
		                   .quantiser = &c.q,
		                   .levels = &c.l,
		                   .block = rows[i].block,
		                   .type = rows[i].kind == GRADCOMP_CODING_FLOAT16 ? GRADCOMP_BF16 : GRADCOMP_F8E4M3},
			.q = {.struct_size = sizeof c.q, .bits = rows[i].bits, .levels = 7, .block = rows[i].block},
			.l = {.struct_size = sizeof c.l, .bits = rows[i].bits, .levels = 7, .block = rows[i].block},
			.part[0].segment =
				rows[i].bits || rows[i].kind > GRADCOMP_CODING_MAGNITUDES ? 0 : rows[i].block};
		traffic_of_sum(rows[i].name, &c, y, scale, word);
	}
}

/* Pairs of one number in a hundred. */
static void traffic_of_pairs(float *y, int *word)
{
	enum { K = TRAFFIC / 100 };
	const gradcomp_sparse part = {y, TRAFFIC};
	gradcomp_pairs pairs[TRAFFIC_RANKS];
	uint32_t *host = calloc((size_t)TRAFFIC_RANKS * 2, 4 * K);
	double moved[3];
	int i = 0;
	for (size_t r = 0; r < TRAFFIC_RANKS; r++)
		for (uint32_t j = 0; j < K; j++)
			host[2 * K * r + j] = 100 * j + (uint32_t)r % 100;
	watched S = watch(host, (size_t)TRAFFIC_RANKS * 8 * K, 0);
	for (size_t r = 0; r < TRAFFIC_RANKS; r++) {
		const uint32_t *idx = (uint32_t *)S.at + 2 * K * r;
		pairs[r] = (gradcomp_pairs){idx, (const float *)(const void *)(idx + K), K};
	}
	for (size_t ranks = 2; ranks <= TRAFFIC_RANKS; ranks *= ranks == 2 ? 4 : 16) {
		device_moved(&bytes_read, &bytes_written);
		gpu->sparse_sum(NULL, &part, 1, pairs, ranks, 1, word);
		moved[i++] = moved_by(TRAFFIC);
	}
	sum_row("pairs, one in a hundred", 8.0 * K / TRAFFIC, moved);
	unwatch(&S, NULL);
	free(host);
}

static void test_traffic(void)
{
	float *host = malloc(4 * TRAFFIC);
	long r, w;
	for (size_t i = 0; i < TRAFFIC; i++)
		host[i] = test_normal();
	watched X = watch(host, 4 * TRAFFIC, 0), Y = watch(host, 4 * TRAFFIC, 0), Z = watch(host, 4 * TRAFFIC, 0),
		I = watch(host, 4 * TRAFFIC, 0), O = watch(NULL, 4096, 0);
	float *const x = X.at, *const y = Y.at, *const z = Z.at;
	if (device_moved(&r, &w)) {
		traffic_of_selection(x, y, I.at);
		traffic_of_numbers(x, y, Z.at, I.at, O.at);
		traffic_of_tensors(x, y, z, O.at);
		traffic_of_chunks(x, y, z, I.at, O.at);
		traffic_of_codes(y, O.at, O.at);
		traffic_of_pairs(y, O.at);
		to_device(y, host, 4 * TRAFFIC);
		to_device(z, host, 4 * TRAFFIC);
		traffic_of_matrices(x, y, z, I.at);
	}
	ok(unwatch(&X, NULL) & unwatch(&Y, NULL) & unwatch(&Z, NULL) & unwatch(&I, NULL) & unwatch(&O, NULL),
	   "nothing written outside");
	free(host);
}

#endif
