/* How many launches, copies and fills an operator takes; doc/dev/gpu.md has the same table, which
 * tests/cuda/emulated.t holds against what is printed here. */
#ifndef TESTS_CUDA_COMPARE_LAUNCHES_H
#define TESTS_CUDA_COMPARE_LAUNCHES_H

#include "tests/cuda/device_arrays.h"

static void launches(const char *name, long before, long want)
{
	const long took = device_queued() - before;
	is_int(took, want, "launches of %s", name);
	printf("# launches: %s %ld\n", name, took);
}

#define LAUNCHES(name, want, call) \
	do { \
		const long before = device_queued(); \
		(call); \
		launches(name, before, want); \
	} while (0)

static void launches_of_selection(const float *x, size_t n, uint32_t *idx, float *val)
{
	const size_t k = n / 100;
	watched S = watch(NULL, gpu->mstopk_scratch(n, k), 0);
	LAUNCHES("topk", 10, gpu->topk(NULL, idx, val, x, n, k, S.at));
	LAUNCHES("mstopk", 13, gpu->mstopk(NULL, idx, val, x, n, k, 25, 1, 2, S.at));
	unwatch(&S, NULL);
}

static void launches_of_matrices(float *a, float *b, float *c, float *d)
{
	enum { ROWS = 600, COLUMNS = 40, RANK = 4 };
	float *const A[] = {a, b}, *const P[] = {c, c + ROWS * RANK}, *const Q[] = {d, d + COLUMNS * RANK};
	const float *const *const cA = (const float *const *)A, *const *const cP = (const float *const *)P,
				  *const *const cQ = (const float *const *)Q;
	watched S = watch(NULL, gpu->product_scratch(2, ROWS, COLUMNS, RANK), 0);
	watched O = watch(NULL, gpu->orthonormalise_scratch(2, 700, 64), 0);
	LAUNCHES("product_mq_batch", 1, gpu->product_mq_batch(NULL, P, cA, cQ, 2, ROWS, COLUMNS, RANK, NULL));
	LAUNCHES("product_mtp_batch", 2, gpu->product_mtp_batch(NULL, Q, cA, cP, 2, ROWS, COLUMNS, RANK, S.at));
	LAUNCHES("normalise_columns_batch", 1, gpu->normalise_columns_batch(NULL, P, 2, ROWS, RANK, 1));
	LAUNCHES("low_rank_finish_batch", 1,
	         gpu->low_rank_finish_batch(NULL, A, NULL, cP, NULL, cQ, 2, ROWS, COLUMNS, RANK));
	LAUNCHES("orthonormalise_split", 1, gpu->orthonormalise_split(NULL, P, 2, ROWS, RANK, NULL));
	LAUNCHES("orthonormalise_split, divided", 4, gpu->orthonormalise_split(NULL, A, 2, 700, 64, O.at));
	unwatch(&S, NULL), unwatch(&O, NULL);
}

static void launches_of_numbers(float *x, float *y, uint8_t *codes, float *pairs, double *out, int *word)
{
	const size_t n = 5000;
	const gradcomp_quantiser q = {.struct_size = sizeof q, .bits = 8, .levels = 127, .block = 256};
	watched S = watch(NULL, gpu->sum_scratch(n), 0);
	LAUNCHES("add", 1, gpu->add(NULL, y, x, n));
	LAUNCHES("axpy", 1, gpu->axpy(NULL, y, 2, x, n));
	LAUNCHES("scale", 1, gpu->scale(NULL, y, 2, n));
	LAUNCHES("clamp", 1, gpu->clamp(NULL, y, x, x, n));
	LAUNCHES("cast_from_f32", 1, gpu->cast_from_f32(NULL, codes, x, n, GRADCOMP_BF16, 0));
	LAUNCHES("cast_to_f32", 1, gpu->cast_to_f32(NULL, y, codes, n, GRADCOMP_BF16));
	LAUNCHES("sum_abs", 2, gpu->sum_abs(NULL, out, x, n, S.at));
	LAUNCHES("absmax", 2, gpu->absmax(NULL, (float *)out, x, n, S.at));
	LAUNCHES("nonfinite", 2, gpu->nonfinite(NULL, x, n, word));
	LAUNCHES("range_check", 1, gpu->range_check(NULL, word, x, n, -1, 1));
	LAUNCHES("quantise", 1, gpu->quantise(NULL, codes, x, n, &q));
	LAUNCHES("dequantise", 1, gpu->dequantise(NULL, y, codes, n, &q));
	LAUNCHES("dequantise_error", 1, gpu->dequantise_error(NULL, y, x, codes, n, &q));
	LAUNCHES("sign_pack", 1, gpu->sign_pack(NULL, (uint32_t *)codes, x, n, 4096));
	LAUNCHES("sign_means", 1, gpu->sign_means(NULL, pairs, x, n, 4096));
	LAUNCHES("sign_add", 1, gpu->sign_add(NULL, y, 1, (uint32_t *)codes, pairs, n, 4096));
	LAUNCHES("sign_error", 1, gpu->sign_error(NULL, y, x, (uint32_t *)codes, pairs, n, 4096));
	unwatch(&S, NULL);
}

static void launches_of_tensors(float *x, float *y, float *error, int *bad)
{
	gradcomp_segment t[3];
	for (size_t i = 0; i < 3; i++)
		t[i] = (gradcomp_segment){.x = y + 1000 * i,
		                          .grad = x + 1000 * i,
		                          .error = error + 1000 * i,
		                          .n = 900,
		                          .dtype = GRADCOMP_F32,
		                          .add = 1};
	watched S = watch(NULL, gpu->tensors_scratch(t, 3), 0);
	LAUNCHES("load_tensors", 2, gpu->load_tensors(NULL, t, 3, bad, NULL, S.at));
	const gradcomp_act act[] = {{.to = bad + 1, .from = bad, .n = 1, .kind = GRADCOMP_ACT_FIND},
	                            {.to = y, .from = x, .n = 900, .kind = GRADCOMP_ACT_COPY},
	                            {.to = y, .n = 900, .kind = GRADCOMP_ACT_CLEAR}};
	LAUNCHES("act_if", 1, gpu->act_if(NULL, act, 3, 0, NULL));
	LAUNCHES("store_tensors", 1, gpu->store_tensors(NULL, t, 3, NULL, NULL, S.at));
	unwatch(&S, NULL);
}

static void launches_of_chunks(float *x, float *y, uint32_t *idx, float *val, int *word)
{
	const gradcomp_levels l = {
		.struct_size = sizeof l, .bits = 8, .levels = 1, .block = 256, .value = {0, 1}, .edge = {0, 0.5f}};
	const gradcomp_matrix t[] = {{y, 70, 100}, {y + 7000, 1, 300}};
	const gradcomp_coefficients from = {val, (const uint16_t *)idx};
	const uint32_t two[] = {1, 3};
	to_device(idx, two, sizeof two);
	LAUNCHES("blocks_sum_abs", 1, gpu->blocks_sum_abs(NULL, y, x, 5000, 100, 1e30f));
	LAUNCHES("blocks_gather", 1, gpu->blocks_gather(NULL, y, x, idx, 2, 5000, 100));
	LAUNCHES("blocks_scatter", 1, gpu->blocks_scatter(NULL, y, idx, NULL, 2, 5000, 100));
	LAUNCHES("levels_pack", 1, gpu->levels_pack(NULL, val, x, 5000, &l));
	LAUNCHES("levels_read", 1, gpu->levels_read(NULL, y, val, 5000, &l));
	LAUNCHES("levels_add", 1, gpu->levels_add(NULL, y, 1, val, 5000, &l));
	LAUNCHES("dct_topk", 1, gpu->dct_topk(NULL, val, (uint16_t *)idx, t, 2, 64, 32));
	LAUNCHES("dct_back", 1, gpu->dct_back(NULL, t, 2, 64, 32, &from, 1, 1, 0, word));
}

/* As many at 128 ranks as at two, where payloads have one length. */
static void launches_of_pairs(const uint32_t *payload, float *y, int *word)
{
	enum { PARTS = 32, RANKS = 128, K = 5 };
	gradcomp_sparse part[PARTS];
	gradcomp_pairs *pairs = calloc(PARTS * RANKS, sizeof *pairs);
	for (int p = 0; p < PARTS; p++)
		part[p] = (gradcomp_sparse){y + 100 * p, 100};
	for (int i = 0; i < PARTS * RANKS; i++) {
		const uint32_t *idx = payload + 2 * K * i;
		pairs[i] = (gradcomp_pairs){idx, (const float *)(const void *)(idx + K), K};
	}
	for (size_t ranks = 2; ranks <= RANKS; ranks *= 64)
		LAUNCHES("sparse_sum", 1, gpu->sparse_sum(NULL, part, PARTS, pairs, ranks, 1, word));
	free(pairs);
}

/* As many at 128 ranks and 40 parts as at two and one. */
static void launches_of_sums(const uint8_t *payload, float *y, int *word)
{
	static const size_t ranks[] = {2, 128}, parts[] = {1, 40};
	const gradcomp_quantiser q = {.struct_size = sizeof q, .bits = 8, .levels = 127, .block = 256};
	const gradcomp_coding coding = {.struct_size = sizeof coding, .quantiser = &q};
	gradcomp_coded part[40];
	const void *sent[128];
	for (size_t i = 0; i < 40; i++)
		part[i] = (gradcomp_coded){.y = y + 100 * i, .n = 100, .values = 4 * i, .codes = 160 + 100 * i};
	for (size_t r = 0; r < 128; r++)
		sent[r] = payload;
	launches_of_pairs((const uint32_t *)payload, y, word);
	for (int k = 0; k < 2; k++)
		LAUNCHES("codes_sum", 1, gpu->codes_sum(NULL, &coding, part, parts[k], sent, ranks[k], 1, word));
}

static void test_launches(void)
{
	enum { N = 70000 };
	float *host = malloc(4 * N);
	for (size_t i = 0; i < N; i++)
		host[i] = test_normal();
	watched X = watch(host, 4 * N, 0), Y = watch(host, 4 * N, 0), Z = watch(host, 4 * N, 0),
		I = watch(host, 4 * N, 0);
	float *const x = (float *)X.at, *const y = (float *)Y.at, *const z = (float *)Z.at;
	double *const out = (double *)I.at;
	launches_of_numbers(x, y, (uint8_t *)Z.at, z + N / 2, out, (int *)I.at);
	launches_of_sums((const uint8_t *)x, y, (int *)I.at);
	launches_of_tensors(x, y, z, (int *)I.at);
	launches_of_chunks(x, y, (uint32_t *)I.at, z, (int *)I.at + N / 2);
	launches_of_matrices(x, y, z, z + N / 2);
	launches_of_selection(x, N, (uint32_t *)I.at, y);
	ok(unwatch(&X, NULL) & unwatch(&Y, NULL) & unwatch(&Z, NULL) & unwatch(&I, NULL), "nothing written outside");
	free(host);
}

#endif
