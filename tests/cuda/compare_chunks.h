/* Numbers that belong together: blocks, columns of matrices, chunks that are transformed. To the bit,
 * but for sums of magnitudes. */
#ifndef TESTS_CUDA_COMPARE_CHUNKS_H
#define TESTS_CUDA_COMPARE_CHUNKS_H

#include "tests/cuda/device_arrays.h"

static float *kind_of(int kind, size_t n)
{
	float *x = malloc(4 * n + 1);
	for (size_t i = 0; i < n; i++)
		x[i] = magnitude(kind, i);
	return x;
}

/* k of the blocks of n numbers, out and back. */
static void blocks(size_t n, size_t width, int kind)
{
	const size_t all = n ? (n + width - 1) / width : 0, k = all ? 1 + test_random() % all : 0;
	float *x = kind_of(kind, n), *want = calloc(k * width + 1, 4), *got = calloc(k * width + 1, 4);
	float *sums = calloc(all + 1, 4), *got_sums = calloc(all + 1, 4), *y = malloc(4 * n + 1),
	      most = kind == SPREAD ? 1e30f : 1e38f;
	uint32_t *idx = calloc(k + 1, 4);
	int near = 1;
	for (size_t b = 0, left = k; b < all; b++)
		if (test_random() % (all - b) < left)
			idx[k - left--] = (uint32_t)b;
	watched X = watch(x, 4 * n, 4 * (n % 3)), S = watch(NULL, 4 * all, 4), I = watch(idx, 4 * k, 4),
		O = watch(NULL, 4 * k * width, 4);
	cpu->blocks_sum_abs(NULL, sums, x, n, width, most),
		gpu->blocks_sum_abs(NULL, (float *)S.at, (float *)X.at, n, width, most);
	int whole = unwatch(&S, got_sums);
	for (size_t b = 0; b < all; b++)
		near &= fabs((double)sums[b] - got_sums[b]) <= 0x1p-23 * sums[b] && got_sums[b] <= most;
	ok(whole && near, "sums of %zu in blocks of %zu, %s", n, width, kinds[kind]);
	cpu->blocks_gather(NULL, want, x, idx, k, n, width);
	gpu->blocks_gather(NULL, (float *)O.at, (float *)X.at, (uint32_t *)I.at, k, n, width);
	from_device(got, O.at, 4 * k * width);
	ok(!memcmp(want, got, 4 * k * width), "%zu of %zu blocks out", k, all);
	for (size_t i = 0; i < k * width; i++)
		want[i] = test_normal();
	to_device(O.at, want, 4 * k * width);
	cpu->blocks_scatter(NULL, x, idx, want, k, n, width);
	gpu->blocks_scatter(NULL, (float *)X.at, (uint32_t *)I.at, (float *)O.at, k, n, width);
	cpu->blocks_scatter(NULL, x, idx, NULL, k / 2, n, width);
	gpu->blocks_scatter(NULL, (float *)X.at, (uint32_t *)I.at, NULL, k / 2, n, width);
	ok(unwatch(&X, y) & unwatch(&I, NULL) & unwatch(&O, NULL) && !memcmp(x, y, 4 * n), "and back");
	free(x), free(want), free(got), free(sums), free(got_sums), free(y), free(idx);
}

static void columns(size_t n, size_t r, int kind)
{
	const float length = test_random() % 2 ? 1 : 0.1f + (float)test_uniform();
	float *x[3], *at[3], *y = malloc(4 * n * r + 1);
	watched X[3];
	int same = 1;
	for (int i = 0; i < 3; i++) {
		x[i] = kind_of(kind, n * r);
		for (size_t j = 0; j < n && i == 1; j++)
			x[i][j * r + r / 2] = 0;
		X[i] = watch(x[i], 4 * n * r, 4 * (size_t)i);
		at[i] = (float *)X[i].at;
	}
	cpu->normalise_columns_batch(NULL, x, 3, n, r, length), gpu->normalise_columns_batch(NULL, at, 3, n, r, length);
	for (int i = 0; i < 3; i++) {
		same &= unwatch(&X[i], y) && same_floats(x[i], y, n * r);
		for (size_t j = 0; j < r && kind == NORMAL && n; j++) {
			double squares = 0;
			for (size_t k = 0; k < n; k++)
				squares += (double)y[k * r + j] * y[k * r + j];
			same &= i == 1 && j == r / 2 ? squares == 0 : fabs(squares / length / length - 1) < 1e-6;
		}
		free(x[i]);
	}
	ok(same, "columns of %zu x %zu, %s", n, r, kinds[kind]);
	free(y);
}

enum { CHUNKED = 70, SENDERS = 3 }; /* more than one launch has */

/* Matrices transformed, and brought back from what some ranks sent. */
static void chunks(size_t count, uint32_t chunk, uint32_t k, int kind)
{
	static const uint64_t shapes[][2] = {{1, 1}, {5, 130}, {0, 3}, {64, 64}, {1, 333}, {70, 65}, {130, 3}};
	const uint64_t down = chunk & 0xffff, across = chunk >> 16 ? chunk >> 16 : chunk;
	gradcomp_matrix host[CHUNKED], dev[CHUNKED];
	watched X[CHUNKED];
	float *x[CHUNKED];
	size_t sent = 0;
	for (size_t i = 0; i < count; i++) {
		const uint64_t *shape = shapes[i < 7 ? i : test_random() % 3], n = shape[0], m = shape[1];
		x[i] = kind_of(kind, n * m);
		X[i] = watch(x[i], 4 * n * m, 4 * (i % 3));
		host[i] = (gradcomp_matrix){x[i], n, m}, dev[i] = (gradcomp_matrix){(float *)X[i].at, n, m};
		for (uint64_t row = 0; row < n; row += down)
			for (uint64_t column = 0; column < m; column += across) {
				uint64_t numbers =
					(n - row < down ? n - row : down) * (m - column < across ? m - column : across);
				sent += numbers < k ? numbers : k;
			}
	}
	float *val = calloc(sent + 1, 4), *got_val = calloc(sent + 1, 4), *y = malloc(4 * 64 * 200);
	uint16_t *place = calloc(sent + 1, 2), *got_place = calloc(sent + 1, 2);
	gradcomp_coefficients from[SENDERS], there[SENDERS];
	watched V[SENDERS], P[SENDERS];
	for (int r = 0; r < SENDERS; r++) {
		V[r] = watch(NULL, 4 * sent, 4), P[r] = watch(NULL, 2 * sent, 2);
		from[r] = (gradcomp_coefficients){calloc(sent + 1, 4), calloc(sent + 1, 2)};
		there[r] = (gradcomp_coefficients){(float *)V[r].at, (uint16_t *)P[r].at};
		for (size_t i = 0; i < count; i++)
			for (uint64_t j = 0; r && j < host[i].n * host[i].m; j++)
				x[i][j] = magnitude(kind, j + (size_t)r);
		for (size_t i = 0; i < count; i++)
			to_device(dev[i].x, x[i], 4 * host[i].n * host[i].m);
		cpu->dct_topk(NULL, (float *)(uintptr_t)from[r].val, (uint16_t *)(uintptr_t)from[r].place, host, count,
		              chunk, k);
		gpu->dct_topk(NULL, (float *)V[r].at, (uint16_t *)P[r].at, dev, count, chunk, k);
		from_device(got_val, V[r].at, 4 * sent), from_device(got_place, P[r].at, 2 * sent);
		ok(!memcmp(from[r].val, got_val, 4 * sent) && !memcmp(from[r].place, got_place, 2 * sent),
		   "%u coefficients of chunks of %llu x %llu, %zu matrices, %s", k, (unsigned long long)down,
		   (unsigned long long)across, count, kinds[kind]);
	}
	/* The last one with what is wrong. */
	static const uint32_t tried[] = {0, GRADCOMP_DCT_ADD, GRADCOMP_DCT_SENDERS,
	                                 GRADCOMP_DCT_SENDERS | GRADCOMP_DCT_SIGN, GRADCOMP_DCT_SIGN};
	for (size_t f = 0; f < sizeof tried / sizeof *tried; f++) {
		const uint32_t flags = tried[f];
		const size_t ranks = 1 + test_random() % SENDERS;
		const float a = flags % 2 ? -1 : 1 / (float)ranks;
		int faults[2] = {0}, same = 1;
		watched F = watch(&faults[1], sizeof(int), 0);
		/* A peer might send this. */
		const int wrong = flags == GRADCOMP_DCT_SIGN && sent;
		if (wrong) {
			uint16_t *bad = (uint16_t *)(uintptr_t)from[0].place;
			bad[test_random() % sent] = (uint16_t)(test_random() % 2 ? 65535 : 4096);
			to_device(P[0].at, bad, 2 * sent);
		}
		cpu->dct_back(NULL, host, count, chunk, k, from, ranks, a, flags, &faults[0]);
		gpu->dct_back(NULL, dev, count, chunk, k, there, ranks, a, flags, (int *)F.at);
		unwatch(&F, &faults[1]);
		for (size_t i = 0; i < count; i++) {
			from_device(y, dev[i].x, 4 * host[i].n * host[i].m);
			same &= same_floats(x[i], y, host[i].n * host[i].m);
			to_device(dev[i].x, x[i], 4 * host[i].n * host[i].m);
		}
		ok(faults[0] == faults[1] && faults[0] == wrong && (faults[0] || same),
		   "back, of %zu ranks, flags %u%s", ranks, flags, faults[0] ? ": a fault" : "");
	}
	int whole = 1;
	for (size_t i = 0; i < count; i++)
		whole &= unwatch(&X[i], NULL), free(x[i]);
	for (int r = 0; r < SENDERS; r++) {
		whole &= unwatch(&V[r], NULL) & unwatch(&P[r], NULL);
		free((void *)(uintptr_t)from[r].val), free((void *)(uintptr_t)from[r].place);
	}
	ok(whole, "nothing written outside");
	free(val), free(got_val), free(place), free(got_place), free(y);
}

static void test_chunks(void)
{
	static const size_t widths[] = {1, 31, 256, 1025, 5000};
	for (int kind = 0; kind < KINDS; kind++) {
		for (int w = 0; w < 5; w++)
			blocks(w == kind % 5 ? 0 : 1 + test_random() % 4000, widths[w], kind);
		columns(1 + test_random() % 300, 1 + test_random() % 20, kind);
		chunks(kind == NORMAL ? 7 : 1 + test_random() % 3, kind % 2 ? 64 : 9 + (uint32_t)test_random() % 20,
		       1 + (uint32_t)test_random() % 40, kind);
	}
	columns(0, 3, NORMAL), columns(700, 64, NORMAL);
	chunks(6, 64, 32, NORMAL), chunks(CHUNKED, 33, 7, NORMAL), chunks(4, 64, 4096, TIES);
	chunks(7, GRADCOMP_DCT_SIDES(35, 13), 32, NORMAL), chunks(7, GRADCOMP_DCT_SIDES(1, 37), 5, TIES);
	chunks(3, GRADCOMP_DCT_SIDES(64, 1), 9, NORMAL);
}

#endif
