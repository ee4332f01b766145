/* Selection by magnitude, and sparse vectors: to the bit. */
#ifndef TESTS_CUDA_COMPARE_SELECTION_H
#define TESTS_CUDA_COMPARE_SELECTION_H

#include "tests/cuda/device_arrays.h"

/* An operator of the host and that of the device wrote this. */
typedef struct result {
	uint32_t *idx;
	float *val;
	watched I, V;
} result;

static result result_make(size_t k)
{
	result r = {.idx = calloc(k + 1, 4), .val = calloc(k + 1, 4)};
	r.I = watch(r.idx, 4 * k, 4), r.V = watch(r.val, 4 * k, 0);
	return r;
}

static int result_same(result *r, size_t k)
{
	uint32_t *idx = calloc(k + 1, 4);
	float *val = calloc(k + 1, 4);
	int same = unwatch(&r->I, idx) & unwatch(&r->V, val);
	same = same && !memcmp(idx, r->idx, 4 * k) && !memcmp(val, r->val, 4 * k);
	free(idx), free(val), free(r->idx), free(r->val);
	return same;
}

#define GPU_OUT(r) (uint32_t *)(r).I.at, (float *)(r).V.at

static void top(const float *x, const float *X, size_t n, size_t k, int kind)
{
	size_t host = cpu->mstopk_scratch(n, k), bytes = gpu->topk_scratch(n, k);
	void *room = aligned_alloc(64, host + cpu->topk_scratch(n, k) + 64);
	result r = result_make(k);
	watched S = watch(NULL, bytes, 0);
	cpu->topk(NULL, r.idx, r.val, x, n, k, room);
	gpu->topk(NULL, GPU_OUT(r), X, n, k, S.at);
	ok(unwatch(&S, NULL) && result_same(&r, k), "topk %zu of %zu, %s", k, n, kinds[kind]);
	for (int samplings = 0; samplings < 40; samplings += samplings < 3 ? 1 : 13) {
		uint64_t seed = test_random(), stream = test_random();
		r = result_make(k);
		S = watch(NULL, gpu->mstopk_scratch(n, k), 0);
		cpu->mstopk(NULL, r.idx, r.val, x, n, k, samplings, seed, stream, room);
		gpu->mstopk(NULL, GPU_OUT(r), X, n, k, samplings, seed, stream, S.at);
		ok(unwatch(&S, NULL) && result_same(&r, k), "mstopk %zu of %zu, %d samplings, %s", k, n, samplings,
		   kinds[kind]);
		if (n > 5000)
			samplings += 9;
	}
	free(room);
}

static void one(int kind, size_t n)
{
	float *x = malloc(4 * n + 1);
	for (size_t i = 0; i < n; i++)
		x[i] = magnitude(kind, i);
	watched X = watch(x, 4 * n, 4 * (n % 3));
	const float *gx = (const float *)X.at;
	const size_t ks[] = {0, n ? 1 : 0, n / 100, n / 9, n / 2, n ? n - 1 : 0, n};
	for (size_t i = 0; i < 7; i++)
		if (!i || ks[i] != ks[i - 1])
			top(x, gx, n, ks[i], kind);
	ok(unwatch(&X, NULL), "x is left alone");
	free(x);
}

/* k ascending indices below n, and values; some alike in both. */
static void fill_sparse(uint32_t *idx, float *val, size_t k, size_t n, int kind)
{
	size_t left = k;
	for (size_t i = 0; i < n && left; i++)
		if (test_random() % (n - i) < left) {
			idx[k - left] = (uint32_t)i;
			val[k - left--] = magnitude(kind, i);
		}
}

static void merge(size_t k, size_t n, int kind)
{
	uint32_t *ai = calloc(k + 1, 4), *bi = calloc(k + 1, 4);
	float *av = calloc(k + 1, 4), *bv = calloc(k + 1, 4);
	void *room = aligned_alloc(64, cpu->sparse_merge_scratch(k) + 64);
	fill_sparse(ai, av, k, n, kind), fill_sparse(bi, bv, k, n, kind);
	for (size_t i = 0, j = 0; i < k; i++) {
		/* Sums that are 0. */
		for (; j < k && bi[j] < ai[i];)
			j++;
		if (j < k && bi[j] == ai[i] && test_random() % 3 == 0)
			bv[j] = -av[i];
	}
	watched AI = watch(ai, 4 * k, 0), AV = watch(av, 4 * k, 4), BI = watch(bi, 4 * k, 8), BV = watch(bv, 4 * k, 0);
	watched S = watch(NULL, gpu->sparse_merge_scratch(k), 0);
	result kept = result_make(k), left = result_make(k);
	cpu->sparse_merge(NULL, kept.idx, kept.val, left.idx, left.val, ai, av, bi, bv, k, room);
	gpu->sparse_merge(NULL, GPU_OUT(kept), GPU_OUT(left), (uint32_t *)AI.at, (float *)AV.at, (uint32_t *)BI.at,
	                  (float *)BV.at, k, S.at);
	ok(result_same(&kept, k) & result_same(&left, k) & unwatch(&S, NULL), "two of %zu of %zu merged, %s", k, n,
	   kinds[kind]);
	unwatch(&AI, NULL), unwatch(&AV, NULL), unwatch(&BI, NULL), unwatch(&BV, NULL);
	free(ai), free(bi), free(av), free(bv), free(room);
}

/* Merges two pairs: the one that is not finite stays, and the other is left. */
static void merge_overflown(float v)
{
	uint32_t ai = 4, bi = 9;
	float one = 1;
	watched AI = watch(&ai, 4, 0), AV = watch(&one, 4, 4), BI = watch(&bi, 4, 8), BV = watch(&v, 4, 0);
	watched S = watch(NULL, gpu->sparse_merge_scratch(1), 0);
	result kept = result_make(1), left = result_make(1);
	gpu->sparse_merge(NULL, GPU_OUT(kept), GPU_OUT(left), (uint32_t *)AI.at, (float *)AV.at, (uint32_t *)BI.at,
	                  (float *)BV.at, 1, S.at);
	kept.idx[0] = 9, left.idx[0] = 4, left.val[0] = 1;
	memcpy(kept.val, &v, sizeof v);
	ok(result_same(&kept, 1) & result_same(&left, 1) & unwatch(&S, NULL), "of two pairs %g is the larger", v);
	unwatch(&AI, NULL), unwatch(&AV, NULL), unwatch(&BI, NULL), unwatch(&BV, NULL);
}

static int check(const watched *I, const watched *V, size_t k, size_t n)
{
	int fault = 0;
	watched F = watch(&fault, sizeof fault, 0);
	gpu->sparse_check(NULL, (int *)F.at, (uint32_t *)I->at, V ? (float *)V->at : NULL, k, n);
	unwatch(&F, &fault);
	return fault;
}

static void sparse(size_t k, size_t n)
{
	uint32_t *idx = calloc(k + 1, 4), bad;
	float *val = calloc(k + 1, 4), *x = malloc(4 * n + 1), *y = malloc(4 * n + 1), nan = NAN;
	fill_sparse(idx, val, k, n, NORMAL);
	for (size_t i = 0; i < n; i++)
		x[i] = magnitude(NORMAL, i);
	watched I = watch(idx, 4 * k, 4), V = watch(val, 4 * k, 0), X = watch(x, 4 * n, 0), G = watch(NULL, 4 * k, 4);
	is_int(check(&I, &V, k, n) | check(&I, NULL, k, n), 0, "%zu of %zu are sound", k, n);
	gpu->gather(NULL, (float *)G.at, (float *)X.at, (uint32_t *)I.at, k), from_device(y, G.at, 4 * k);
	int same = 1;
	for (size_t j = 0; j < k; j++)
		same &= y[j] == x[idx[j]];
	ok(unwatch(&G, NULL) && same, "gather %zu of %zu", k, n);
	gpu->scatter(NULL, (float *)X.at, (uint32_t *)I.at, (float *)V.at, k), cpu->scatter(NULL, x, idx, val, k);
	gpu->scatter_add(NULL, (float *)X.at, n, (uint32_t *)I.at, (float *)V.at, k, 0.3f);
	cpu->scatter_add(NULL, x, n, idx, val, k, 0.3f);
	from_device(y, X.at, 4 * n);
	ok(!memcmp(x, y, 4 * n), "scatter and scatter_add");
	gpu->scatter(NULL, (float *)X.at, (uint32_t *)I.at, NULL, k / 2), cpu->scatter(NULL, x, idx, NULL, k / 2);
	/* A peer might send this. */
	for (size_t j = 0; j < k; j++) {
		const uint32_t bads[] = {(uint32_t)n, GRADCOMP_NO_INDEX, GRADCOMP_NO_INDEX - 1, (uint32_t)n + 5};
		if (test_random() % 3 == 0) {
			idx[j] = bads[test_random() % 4];
			continue;
		}
		x[idx[j]] += 2 * val[j];
	}
	to_device(I.at, idx, 4 * k);
	is_int(gpu->scatter_add(NULL, (float *)X.at, n, (uint32_t *)I.at, (float *)V.at, k, 2), GRADCOMP_OK,
	       "bad indices");
	ok(unwatch(&X, y) && !memcmp(x, y, 4 * n), "are left out");
	for (int what = 0; k > 1 && what < 4; what++) {
		fill_sparse(idx, val, k, n, NORMAL);
		size_t j = test_random() % k;
		to_device(I.at, idx, 4 * k), to_device(V.at, val, 4 * k);
		bad = what == 0 ? idx[j ? j - 1 : 1] : what == 1 ? (uint32_t)n : 0;
		if (what < 2)
			to_device((float *)I.at + (what ? k - 1 : j), &bad, 4);
		else if (what == 2)
			to_device((float *)V.at + j, &nan, 4);
		is_int(check(&I, &V, k, n), what < 3, "fault %d of %zu", what, k);
	}
	ok(unwatch(&I, NULL) & unwatch(&V, NULL), "nothing written outside");
	free(idx), free(val), free(x), free(y);
}

/* Every coding there and back; then rubbish, which both must read alike or call a fault. */
static void codings(size_t k, size_t d)
{
	uint32_t *idx = calloc(k + 1, 4), *got = calloc(k + 1, 4);
	float *val = calloc(k + 1, 4);
	fill_sparse(idx, val, k, d, NORMAL);
	for (uint32_t coding = GRADCOMP_INDEX_RAW; coding <= GRADCOMP_INDEX_ALL; coding++) {
		size_t words = cpu->index_words(d, k, coding);
		uint32_t *want = calloc(words + 1, 4), *packed = calloc(words + 1, 4);
		int faults[2] = {0};
		if (coding == GRADCOMP_INDEX_ALL && k != d) {
			free(want), free(packed);
			continue;
		}
		watched I = watch(idx, 4 * k, 4), W = watch(NULL, 4 * words, 4), O = watch(NULL, 4 * k, 8),
			F = watch(&faults[1], sizeof(int), 0), S = watch(NULL, gpu->index_scratch(d, k, coding), 0);
		cpu->index_pack(NULL, want, idx, d, k, coding);
		gpu->index_pack(NULL, (uint32_t *)W.at, (uint32_t *)I.at, d, k, coding);
		from_device(packed, W.at, 4 * words);
		gpu->index_unpack(NULL, (int *)F.at, (uint32_t *)O.at, (uint32_t *)W.at, d, k, coding, S.at);
		from_device(got, O.at, 4 * k), from_device(&faults[1], F.at, sizeof(int));
		ok(!memcmp(want, packed, 4 * words) && !memcmp(idx, got, 4 * k) && !faults[1],
		   "%zu of %zu in %zu words, coding %u", k, d, words, coding);
		for (int i = 0; words && i < 4; i++) {
			uint32_t *other = calloc(k + 1, 4);
			int fault = 0;
			faults[0] = faults[1] = 0;
			if (i < 3)
				want[test_random() % words] ^= 1u << test_random() % 32;
			else
				for (size_t w = 0; w < words; w++)
					want[w] = (uint32_t)test_random();
			to_device(W.at, want, 4 * words), to_device(F.at, &fault, sizeof fault);
			cpu->index_unpack(NULL, &faults[0], other, want, d, k, coding, NULL);
			gpu->index_unpack(NULL, (int *)F.at, (uint32_t *)O.at, (uint32_t *)W.at, d, k, coding, S.at);
			from_device(got, O.at, 4 * k), from_device(&faults[1], F.at, sizeof(int));
			ok(faults[0] == faults[1] && (faults[0] || !memcmp(other, got, 4 * k)), "rubbish %d: %s", i,
			   faults[0] ? "a fault" : "read alike");
			free(other);
		}
		ok(unwatch(&I, NULL) & unwatch(&W, NULL) & unwatch(&O, NULL) & unwatch(&F, NULL) & unwatch(&S, NULL),
		   "nothing written outside");
		free(want), free(packed);
	}
	free(idx), free(got), free(val);
}

static void test_selection(void)
{
	static const size_t ns[] = {0, 1, 31, 33, 1025, 6001};
	const uint32_t all_ones = 0x7fffffff;
	float cuda_nan;
	memcpy(&cuda_nan, &all_ones, sizeof cuda_nan);
	for (int kind = 0; kind < KINDS; kind++) {
		for (int i = 0; i < 6; i++)
			if (i < 4 || i % 2 == kind % 2 || kind == NORMAL)
				one(kind, ns[i]);
		merge(1, 5, kind), merge(37, 60, kind), merge(700, 2000, kind), merge(50, 50, kind),
			merge(30, 100000, kind);
		merge(9000, 20000, kind);
	}
	merge_overflown(INFINITY), merge_overflown(-INFINITY), merge_overflown(cuda_nan);
	codings(1, 1), codings(1, 1000000), codings(2, 33), codings(37, 60), codings(1025, 5000), codings(50, 50);
	codings(700, 200000), codings(9000, 10000), codings(3, 4000000000u / 1000);
	sparse(0, 10), sparse(1, 1), sparse(33, 100), sparse(1025, 5000);
	/* With candidates, and where they do not fit. */
	one(NORMAL, 70001), one(TIES, 66000);
}

#endif
