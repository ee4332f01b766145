/* Whole buckets: many tensors loaded and stored at once, ranks' pairs added up; and what
 * becomes of a launch that fails. */
#ifndef TESTS_CUDA_COMPARE_TENSORS_H
#define TESTS_CUDA_COMPARE_TENSORS_H

#include "tests/cuda/device_arrays.h"

enum { SEGMENTS = 100 }; /* more than one launch has */

typedef struct bucket_of {
	size_t count;
	gradcomp_segment host[SEGMENTS + 1], dev[SEGMENTS + 1];
	watched x[SEGMENTS], grad[SEGMENTS], error[SEGMENTS];
} bucket_of;

/* Tensors of every type, length and alignment; `bad` of them have something that is not finite. */
static void bucket_make(bucket_of *b, size_t count, int bad)
{
	static const uint64_t lengths[] = {0, 1, 3, 33, 255, 257, 1024, 8193, 16384, 40001};
	static const gradcomp_dtype types[] = {GRADCOMP_F32, GRADCOMP_F16, GRADCOMP_BF16, GRADCOMP_F8E4M3,
	                                       GRADCOMP_F8E5M2};
	b->count = count;
	for (size_t i = 0; i < count; i++) {
		gradcomp_segment *t = &b->host[i];
		uint64_t n = lengths[i < 20 ? i % 10 : test_random() % 7];
		gradcomp_dtype type = types[test_random() % 5];
		size_t size = gradcomp_dtype_bytes(type), odd = test_random() % 3;
		int mode = (int)(test_random() % 3), in_place = type == GRADCOMP_F32 && test_random() % 2;
		float *g = malloc(4 * n + 1), *e = malloc(4 * n + 1), *x = malloc(4 * n + 1);
		void *grad = malloc(size * n + 1);
		for (uint64_t k = 0; k < n; k++)
			g[k] = test_normal(), e[k] = test_normal(), x[k] = test_normal();
		if (bad && n && (i == 1 || test_random() % 3 == 0)) {
			const uint64_t at = test_random() % n, how = test_random() % 3;
			const int overflows = type == GRADCOMP_F32 && mode == 1 && how == 2;
			g[at] = how == 0 ? NAN : overflows ? 3e38f : -INFINITY;
			e[at] = overflows ? 3e38f : e[at];
		}
		cpu->cast_from_f32(NULL, grad, g, n, type, 0);
		free(g);
		*t = (gradcomp_segment){
			.x = x, .grad = grad, .error = mode ? e : NULL, .n = n, .dtype = type, .add = mode == 1};
		b->dev[i] = *t;
		b->grad[i] = watch(grad, size * n, size * odd);
		b->x[i] = watch(x, 4 * n, 4 * (test_random() % 2));
		b->error[i] = watch(e, 4 * n, 4 * (test_random() % 2));
		b->dev[i].grad = b->grad[i].at;
		b->dev[i].x = in_place ? b->grad[i].at : b->x[i].at;
		b->dev[i].error = mode ? b->error[i].at : NULL;
		if (in_place) {
			t->x = grad;
			free(x);
		}
		if (!mode)
			free(e);
	}
}

/* Returns 1 when both hold the same, and nothing around was written. */
static int bucket_same(bucket_of *b)
{
	int same = 1;
	for (size_t i = 0; i < b->count; i++) {
		gradcomp_segment *t = &b->host[i];
		size_t size = gradcomp_dtype_bytes((gradcomp_dtype)t->dtype);
		void *grad = malloc(size * t->n + 1);
		float *x = malloc(4 * t->n + 1), *wide = malloc(8 * t->n + 1);
		same &= unwatch(&b->grad[i], grad) & unwatch(&b->x[i], x) & unwatch(&b->error[i], NULL);
		cpu->cast_to_f32(NULL, wide, grad, t->n, (gradcomp_dtype)t->dtype);
		cpu->cast_to_f32(NULL, wide + t->n, t->grad, t->n, (gradcomp_dtype)t->dtype);
		same &= same_floats(wide, wide + t->n, t->n) && (t->x == t->grad || same_floats(x, t->x, t->n));
		free(grad), free(x), free(wide), free((void *)(uintptr_t)t->error);
		if (t->x != t->grad)
			free(t->x);
		free(t->grad);
	}
	return same;
}

static int close_to(double a, double b)
{
	return isnan(a) || isnan(b) ? isnan(a) && isnan(b) : a == b || fabs(a - b) <= 1e-12 * fabs(b);
}

/* With `finite`: what is not so is made so, and a word of all tensors is asked for. */
static void tensors_load(size_t count, int bad, int with_squares, bool finite)
{
	static bucket_of b;
	int want[SEGMENTS], got[SEGMENTS], right = 1, any = 0, word = 0, there = 0;
	double sum[SEGMENTS], found[SEGMENTS];
	bucket_make(&b, count, bad);
	watched W = watch(NULL, sizeof(int) * count, 4), Q = watch(NULL, sizeof(double) * count, 8),
		A = watch(&there, sizeof there, 4);
	for (size_t i = 0; finite && i < count; i++)
		b.host[i].add = b.dev[i].add |= GRADCOMP_SEGMENT_FINITE;
	b.host[count] = b.dev[count] = (gradcomp_segment){.grad = &word, .add = GRADCOMP_SEGMENT_ANY};
	b.dev[count].grad = A.at;
	watched S = watch(NULL, gpu->tensors_scratch(b.dev, count + finite), 0);
	gradcomp_status st = gpu->load_tensors(NULL, b.dev, count + finite, W.at, with_squares ? Q.at : NULL, S.at);
	st |= cpu->load_tensors(NULL, b.host, count + finite, want, with_squares ? sum : NULL, NULL);
	right &= unwatch(&W, got) & unwatch(&Q, found) & unwatch(&S, NULL) & unwatch(&A, &there);
	for (size_t i = 0; i < count; i++) {
		any |= want[i];
		right &= want[i] == got[i] && (!with_squares || close_to(found[i], sum[i]));
	}
	right &= bucket_same(&b) && word == (finite && bad) && there == word;
	ok(right & !st && (any != 0) == (bad != 0), "%zu tensors loaded%s%s", count,
	   bad && finite ? ", some made finite"
	   : bad         ? ", some not finite"
	                 : "",
	   with_squares ? ", sampled" : "");
}

static void tensors_store(size_t count, int poison, int with_squares)
{
	static bucket_of b;
	double sum[SEGMENTS], found[SEGMENTS];
	int right = 1;
	bucket_make(&b, count, 0);
	watched W = watch(&poison, sizeof poison, 4), Q = watch(NULL, sizeof(double) * count, 8),
		S = watch(NULL, gpu->tensors_scratch(b.dev, count), 0);
	const int *word = poison >= 0 ? W.at : NULL;
	gradcomp_status st = gpu->store_tensors(NULL, b.dev, count, word, with_squares ? Q.at : NULL, S.at);
	st |= cpu->store_tensors(NULL, b.host, count, word ? &poison : NULL, with_squares ? sum : NULL, NULL);
	right &= unwatch(&W, NULL) & unwatch(&Q, found) & unwatch(&S, NULL);
	for (size_t i = 0; with_squares && i < count; i++)
		right &= close_to(found[i], sum[i]);
	ok(bucket_same(&b) & right & !st, "%zu tensors stored%s%s", count, poison > 0 ? ", poisoned" : "",
	   with_squares ? ", sampled" : "");
}

static void tensors_filled(size_t count, int word)
{
	static bucket_of b;
	gradcomp_act host[SEGMENTS], dev[SEGMENTS];
	bucket_make(&b, count, 0);
	watched W = watch(&word, sizeof word, 4);
	/* Segments are such acts. */
	memcpy(host, b.host, sizeof host);
	memcpy(dev, b.dev, sizeof dev);
	gpu->act_if(NULL, dev, count, 3, W.at);
	cpu->act_if(NULL, host, count, 3, &word);
	ok(unwatch(&W, NULL) & bucket_same(&b), "%zu tensors filled, word %d", count, word);
}

/* Acts that find and others that go by it, between words on any int's boundary. */
static void acts(size_t n, int first, int second)
{
	float *x = malloc(4 * n + 1), *y = malloc(4 * n + 1);
	int words[100] = {[33] = first, [98] = second, [1] = 1}, found[3], got[3];
	for (size_t i = 0; i < n; i++)
		x[i] = test_normal(), y[i] = test_normal();
	watched W = watch(words, sizeof words, 4), F = watch(NULL, sizeof found, 4), X = watch(x, 4 * n, 4),
		Y = watch(y, 4 * n, 0);
	for (int on = 0; on < 2; on++) {
		int *w = on ? W.at : words, *f = on ? F.at : found;
		float *to = on ? X.at : x, *from = on ? Y.at : y;
		const gradcomp_act t[] = {
			{.to = f, .from = w, .n = 34, .arg = 12, .kind = GRADCOMP_ACT_FIND},
			{.to = f + 1, .from = w + 98, .n = 1, .arg = 4, .kind = GRADCOMP_ACT_FIND},
			{.to = f + 2, .from = w + 2, .n = 31, .arg = 4, .kind = GRADCOMP_ACT_FIND_TOO},
			{.to = to, .n = n, .arg = 2, .kind = GRADCOMP_ACT_CLEAR},
			{.to = to, .from = from, .n = n, .arg = 1, .kind = GRADCOMP_ACT_COPY},
			{.to = from, .by = w + 1, .from = to, .n = n / 2, .kind = GRADCOMP_ACT_CLEAR},
			{.to = from, .by = w, .from = to, .n = n / 2, .kind = GRADCOMP_ACT_COPY},
		};
		(on ? gpu : cpu)->act_if(NULL, t, sizeof t / sizeof *t, 3, NULL);
	}
	float *gx = malloc(4 * n + 1), *gy = malloc(4 * n + 1);
	ok(unwatch(&W, NULL) & unwatch(&F, got) & unwatch(&X, gx) & unwatch(&Y, gy) && same_floats(x, gx, n) &&
	           same_floats(y, gy, n) && !memcmp(found, got, sizeof got) && got[2] == (first || second),
	   "acts on %zu numbers, %d and %d", n, first, second);
	free(x), free(y), free(gx), free(gy);
}

static void tensors_refused(void)
{
	gradcomp_segment t = {.dtype = GRADCOMP_I32};
	ok(gpu->load_tensors(NULL, &t, 1, NULL, NULL, NULL) == GRADCOMP_ERR_UNSUPPORTED &&
	           gpu->store_tensors(NULL, &t, 1, NULL, NULL, NULL) == GRADCOMP_ERR_UNSUPPORTED &&
	           cpu->load_tensors(NULL, &t, 1, NULL, NULL, NULL) == GRADCOMP_ERR_UNSUPPORTED &&
	           cpu->store_tensors(NULL, &t, 1, NULL, NULL, NULL) == GRADCOMP_ERR_UNSUPPORTED,
	   "integers are no gradients");
}

enum { MOST_PARTS = 40, MOST_RANKS = 130 };
typedef enum damage { SOUND, TWICE, SWAPPED, BEYOND, NAN_THERE, DAMAGES } damage;

static void pairs_damage(uint32_t *idx, float *val, size_t k, size_t n, damage d)
{
	size_t at = test_random() % (k - 1);
	if (d == TWICE)
		idx[at + 1] = idx[at];
	else if (d == SWAPPED) {
		uint32_t was = idx[0];
		idx[0] = idx[k - 1];
		idx[k - 1] = was;
	} else if (d == BEYOND)
		idx[k - 1] = (uint32_t)n + (uint32_t)(test_random() % 2) * (UINT32_MAX - (uint32_t)n);
	else if (d == NAN_THERE)
		val[at] = NAN;
}

static void pairs_sum(size_t parts, size_t ranks, size_t most, damage d)
{
	gradcomp_sparse host[MOST_PARTS], dev[MOST_PARTS];
	watched Y[MOST_PARTS], F = watch(NULL, 0, 0);
	gradcomp_pairs *ph = calloc(parts * ranks + 1, sizeof *ph), *pd = calloc(parts * ranks + 1, sizeof *pd);
	watched *I = calloc(parts * ranks + 1, sizeof *I), *V = calloc(parts * ranks + 1, sizeof *V);
	int fault = 0, right = 1, seen;
	unwatch(&F, NULL);
	for (size_t p = 0; p < parts; p++) {
		host[p].n = dev[p].n = p % 5 == 4 ? 0 : 2 + test_random() % most;
		host[p].y = malloc(4 * host[p].n + 1);
		Y[p] = watch(NULL, 4 * host[p].n, 4 * (p % 2));
		dev[p].y = Y[p].at;
	}
	for (size_t i = 0; i < parts * ranks; i++) {
		size_t n = host[i % parts].n, k = 0;
		uint32_t *idx = malloc(4 * n + 1);
		float *val = malloc(4 * n + 1);
		int every = 1 + (int)(test_random() % 9);
		for (size_t j = 0; j < n; j++)
			if (test_random() % (unsigned)every == 0)
				idx[k] = (uint32_t)j, val[k++] = test_normal();
		if (i == 0 && d && k > 1)
			pairs_damage(idx, val, k, n, d);
		I[i] = watch(idx, 4 * k, 0), V[i] = watch(val, 4 * k, 0);
		ph[i] = (gradcomp_pairs){idx, val, k};
		pd[i] = (gradcomp_pairs){I[i].at, V[i].at, k};
	}
	F = watch(&fault, sizeof fault, 4);
	gpu->sparse_sum(NULL, dev, parts, pd, ranks, 0.3f, F.at);
	cpu->sparse_sum(NULL, host, parts, ph, ranks, 0.3f, &fault);
	right &= unwatch(&F, &seen) && seen == fault && (d == SOUND ? !fault : fault);
	for (size_t p = 0; p < parts; p++) {
		float *y = malloc(4 * host[p].n + 1);
		right &= unwatch(&Y[p], y) && (d || same_floats(y, host[p].y, host[p].n));
		free(y), free(host[p].y);
	}
	for (size_t i = 0; i < parts * ranks; i++) {
		right &= unwatch(&I[i], NULL) & unwatch(&V[i], NULL);
		free((void *)(uintptr_t)ph[i].idx), free((void *)(uintptr_t)ph[i].val);
	}
	free(ph), free(pd), free(I), free(V);
	static const char *const what[DAMAGES] = {"", ", an index twice", ", indices out of order", ", one beyond",
	                                          ", a NaN"};
	ok(right, "pairs of %zu ranks in %zu parts%s", ranks, parts, what[d]);
}

/* Pairs of a rank in a payload as long as all others': k of n indices for each part, behind them the values. */
static void payload_of_pairs(uint32_t *idx, const gradcomp_sparse *part, const size_t *k, size_t parts)
{
	for (size_t p = 0; p < parts; idx += 2 * k[p++])
		for (size_t j = 0, have = 0; j < part[p].n; j++)
			if (test_random() % (part[p].n - j) < k[p] - have) {
				const float v = test_normal();
				memcpy(idx + k[p] + have, &v, sizeof v);
				idx[have++] = (uint32_t)j;
			}
}

static void pairs_alike(size_t parts, size_t ranks, size_t most, int damaged)
{
	gradcomp_sparse host[MOST_PARTS], dev[MOST_PARTS];
	size_t k[MOST_PARTS], words = 0, n = 0, at = 0;
	gradcomp_pairs *ph = calloc(parts * ranks, sizeof *ph), *pd = calloc(parts * ranks, sizeof *pd);
	int fault = 0, seen;
	for (size_t p = 0; p < parts; p++) {
		host[p].n = dev[p].n = 2 + test_random() % most;
		k[p] = 2 + test_random() % (host[p].n - 1);
		words += 2 * k[p];
		n += host[p].n;
	}
	uint32_t *payload = malloc(4 * ranks * words);
	float *want = malloc(4 * n), *got = malloc(4 * n);
	for (size_t r = 0; r < ranks; r++)
		payload_of_pairs(payload + r * words, host, k, parts);
	if (damaged)
		payload[(ranks - 1) * words] = UINT32_MAX;
	watched P = watch(payload, 4 * ranks * words, 0), Y = watch(NULL, 4 * n, 4), F = watch(&fault, sizeof fault, 0);
	for (size_t p = 0, from = 0; p < parts; at += host[p].n, from += 2 * k[p++]) {
		host[p].y = want + at;
		dev[p].y = (float *)Y.at + at;
		for (size_t r = 0; r < ranks; r++) {
			const uint32_t *h = payload + r * words + from, *d = (uint32_t *)P.at + r * words + from;
			ph[r * parts + p] = (gradcomp_pairs){h, (const float *)(const void *)(h + k[p]), k[p]};
			pd[r * parts + p] = (gradcomp_pairs){d, (const float *)(const void *)(d + k[p]), k[p]};
		}
	}
	gpu->sparse_sum(NULL, dev, parts, pd, ranks, 0.3f, F.at);
	cpu->sparse_sum(NULL, host, parts, ph, ranks, 0.3f, &fault);
	const int whole = unwatch(&F, &seen) & unwatch(&Y, got) & unwatch(&P, NULL);
	ok(whole && seen == fault && fault == damaged && (damaged || same_floats(want, got, n)),
	   "pairs of %zu ranks in %zu parts, in payloads of one length%s", ranks, parts, damaged ? ", damaged" : "");
	free(ph), free(pd), free(payload), free(want), free(got);
}

/* A pair of a vector that has no numbers. */
static void pairs_of_nothing(void)
{
	uint32_t idx = 0;
	float val = 1;
	int fault = 0, seen = 0;
	watched I = watch(&idx, 4, 0), V = watch(&val, 4, 0), F = watch(&fault, sizeof fault, 0);
	gradcomp_sparse to = {NULL, 0};
	gradcomp_pairs h = {&idx, &val, 1}, d = {I.at, V.at, 1};
	gpu->sparse_sum(NULL, &to, 1, &d, 1, 1, F.at);
	cpu->sparse_sum(NULL, &to, 1, &h, 1, 1, &fault);
	ok(unwatch(&I, NULL) & unwatch(&V, NULL) & unwatch(&F, &seen) && fault && seen,
	   "a pair of a vector of no numbers");
}

static void launches_fail(void)
{
	enum { N = 70000, K = 700 };
	float *x = malloc(4 * N);
	for (size_t i = 0; i < N; i++)
		x[i] = test_normal();
	watched X = watch(x, 4 * N, 0), S = watch(NULL, gpu->topk_scratch(N, K), 0), I = watch(NULL, 4 * K, 0),
		V = watch(NULL, 4 * K, 0);
	int named = 1;
	long k = 1;
	ok(!cpu->failed() && !gpu->failed(), "nothing has failed");
	for (const char *why = "";; k++) {
		device_fail_launch(k);
		gpu->topk(NULL, I.at, V.at, X.at, N, K, S.at);
		gpu->scale(NULL, X.at, 1, 1);
		why = gpu->failed();
		if (!why || strncmp(why, "topk: ", 6))
			break;
		named &= strlen(why) > 6 && !gpu->failed();
	}
	device_fail_launch(0);
	ok(named && k > 8, "each of %ld launches of topk that fails is told by its name, once", k - 1);
	unwatch(&X, NULL), unwatch(&S, NULL), unwatch(&I, NULL), unwatch(&V, NULL);
	free(x);
}

static void test_tensors(void)
{
	for (int i = 0; i < 16; i++)
		tensors_load(i & 1 ? 13 : SEGMENTS, i & 2, i & 4, i & 8);
	for (int i = 0; i < 12; i++)
		tensors_store(i & 1 ? 13 : SEGMENTS, i / 4 - 1, i & 2);
	tensors_load(0, 0, 1, false), tensors_load(0, 0, 1, true), tensors_store(0, 0, 1);
	tensors_filled(SEGMENTS, 1), tensors_filled(13, 0), tensors_filled(0, 1);
	for (int i = 0; i < 12; i++)
		acts(i < 4 ? 0 : i < 8 ? 777 : 40000, i & 1, i & 2);
	tensors_refused();
	pairs_sum(1, 1, 100, SOUND), pairs_sum(1, 9, 30000, SOUND), pairs_sum(7, 4, 9000, SOUND);
	pairs_sum(MOST_PARTS, 3, 300, SOUND), pairs_sum(2, MOST_RANKS, 500, SOUND), pairs_sum(5, 0, 500, SOUND);
	pairs_alike(1, 1, 9000, 0), pairs_alike(3, 5, 9000, 0), pairs_alike(MOST_PARTS, 3, 300, 0);
	pairs_alike(3, MOST_RANKS, 500, 0), pairs_alike(3, MOST_RANKS, 500, 1);
	pairs_of_nothing();
	if (device_can_fail)
		launches_fail();
}

/* Sends what a peer might. */
static void test_damage(void)
{
	for (int i = 0; i < 24; i++)
		pairs_sum(1 + test_random() % 3, 1 + test_random() % 3, 30000, (damage)(i % DAMAGES));
}

#endif
