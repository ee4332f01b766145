/* Quantisers, signs and ternary numbers, and what a peer might send instead. */
#ifndef TESTS_CUDA_COMPARE_CODES_H
#define TESTS_CUDA_COMPARE_CODES_H

#include "tests/cuda/device_arrays.h"
#include "tests/support/coded_input.h"

static void code_bytes(uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)test_random();
}

static void dequantised(const uint8_t *payload, size_t bytes, size_t n, const gradcomp_quantiser *q,
                        const gradcomp_quantiser *g, size_t odd, const char *what)
{
	float *x = malloc(4 * n + 1), *y = malloc(4 * n + 1), *z = malloc(4 * n + 1);
	int want = 0, got = 0, same = 1;
	for (size_t i = 0; i < n; i++)
		x[i] = test_normal(), y[i] = test_normal();
	watched C = watch(payload, bytes, odd), X = watch(x, 4 * n, 4 * odd), Y = watch(y, 4 * n, 4 * odd);
	watched F = watch(&got, sizeof got, 0);
	cpu->quantised_check(NULL, &want, payload, n, q), gpu->quantised_check(NULL, (int *)F.at, C.at, n, g);
	unwatch(&F, &got);
	is_int(got, want, "check of %zu, %s", n, what);
	cpu->dequantise_add(NULL, y, 0.7f, payload, n, q), gpu->dequantise_add(NULL, (float *)Y.at, 0.7f, C.at, n, g);
	from_device(z, Y.at, 4 * n);
	same &= same_floats(y, z, n);
	cpu->dequantise(NULL, y, payload, n, q), gpu->dequantise(NULL, (float *)Y.at, C.at, n, g);
	from_device(z, Y.at, 4 * n);
	same &= same_floats(y, z, n);
	cpu->dequantise_error(NULL, x, x, payload, n, q);
	gpu->dequantise_error(NULL, (float *)X.at, (float *)X.at, C.at, n, g);
	same &= unwatch(&X, z);
	same &= same_floats(x, z, n);
	ok(same & unwatch(&Y, NULL) & unwatch(&C, NULL), "%zu back from %u bits, %s", n, q->bits, what);
	free(x), free(y), free(z);
}

static void quantiser(size_t n, int kind, gradcomp_quantiser q, float given)
{
	size_t bytes = cpu->quantised_bytes(&q, n), odd = test_random() % 4;
	float *x = malloc(4 * n + 1);
	uint8_t *want = calloc(1, bytes + 1), *got = calloc(1, bytes + 1);
	gradcomp_quantiser g = q;
	for (size_t i = 0; i < n; i++)
		x[i] = magnitude(kind, i);
	for (size_t k = 0; q.norm == GRADCOMP_NORM_ABSMAX_OR_NAN && n && k < 3; k++)
		x[test_random() % n] = k == 1 ? NAN : -INFINITY;
	watched G = watch(&given, 4, 0), X = watch(x, 4 * n, 4), O = watch(NULL, bytes, odd);
	q.given = &given, g.given = (const float *)G.at;
	cpu->quantise(NULL, want, x, n, &q), gpu->quantise(NULL, O.at, (float *)X.at, n, &g);
	int whole = unwatch(&O, got) & unwatch(&X, NULL);
	if (q.norm != GRADCOMP_NORM_L2) {
		ok(whole && !memcmp(want, got, bytes), "%zu to %u bits, %u levels, block %u, norm %u, rounding %u, %s",
		   n, q.bits, q.levels, q.block, q.norm, q.rounding, kinds[kind]);
	} else {
		/* Steps are the device's own; codes follow from them. */
		size_t blocks = (n + q.block - 1) / q.block;
		int near = 1, same = 1;
		for (size_t b = 0; b < blocks; b++) {
			size_t from = b * q.block, count = n - from < q.block ? n - from : q.block;
			float w, s;
			memcpy(&w, want + 4 * b, 4), memcpy(&s, got + 4 * b, 4);
			near &= fabs((double)w - s) <= 1e-6 * w;
			gradcomp_quantiser as_given = q;
			as_given.norm = GRADCOMP_NORM_GIVEN, as_given.given = &s, as_given.first = q.first + from;
			size_t part = cpu->quantised_bytes(&as_given, count);
			uint8_t *codes = calloc(1, part + 1);
			cpu->quantise(NULL, codes, x + from, count, &as_given);
			same &= !memcmp(codes, got + 4 * blocks + from / 8 * q.bits, part);
			free(codes);
		}
		ok(whole && near && same, "%zu to %u bits by norm, rounding %u, %s", n, q.bits, q.rounding,
		   kinds[kind]);
	}
	dequantised(got, bytes, n, &q, &g, odd, "own");
	code_bytes(got, bytes);
	dequantised(got, bytes, n, &q, &g, odd, "rubbish");
	unwatch(&G, NULL);
	free(x), free(want), free(got);
}

static void quantisers(void)
{
	static const size_t sizes[] = {0, 1, 31, 33, 1025, 4999};
	for (unsigned bits = 2; bits <= 8; bits *= 2)
		for (unsigned norm = 0; norm < 4; norm++)
			for (unsigned rounding = 0; rounding < 3; rounding++)
				for (int s = 0; s < 6; s++) {
					unsigned most = (1u << (bits - 1)) - 1;
					gradcomp_quantiser q = {.struct_size = sizeof q,
					                        .bits = bits,
					                        .levels = 1 + (unsigned)test_random() % most,
					                        .block = s % 3 == 0   ? 32
					                                 : s % 3 == 1 ? 2080
					                                              : 256,
					                        .norm = norm,
					                        .rounding = rounding,
					                        .seed = test_random(),
					                        .stream = test_random(),
					                        .first = test_random() % 9};
					quantiser(sizes[s], (int)(test_random() % KINDS), q, (float)test_uniform());
				}
	gradcomp_quantiser bad = {.struct_size = sizeof bad, .bits = 3, .levels = 1, .block = 32};
	is_int(gpu->quantised_bytes(&bad, 100), 0, "settings out of range");
}

static void signs(size_t n, size_t segment)
{
	size_t words = cpu->sign_words(n, segment), runs = n ? (n + segment - 1) / segment : 0;
	float *x = malloc(4 * n + 1), *y = malloc(4 * n + 1), *z = malloc(4 * n + 1);
	float *pairs = calloc(2 * runs + 1, 4), *got_pairs = calloc(2 * runs + 1, 4);
	uint32_t *bits = calloc(words + 1, 4), *got = calloc(words + 1, 4);
	int near = 1;
	for (size_t i = 0; i < n; i++)
		x[i] = test_random() % 9 ? test_normal() : i % 2 ? -0.0f : 0, y[i] = test_normal();
	watched X = watch(x, 4 * n, 4), Y = watch(y, 4 * n, 8), B = watch(NULL, 4 * words, 4),
		P = watch(NULL, 8 * runs, 4);
	cpu->sign_pack(NULL, bits, x, n, segment), gpu->sign_pack(NULL, (uint32_t *)B.at, (float *)X.at, n, segment);
	cpu->sign_means(NULL, pairs, x, n, segment), gpu->sign_means(NULL, (float *)P.at, (float *)X.at, n, segment);
	from_device(got_pairs, P.at, 8 * runs);
	for (size_t i = 0; i < 2 * runs; i++)
		near &= fabsf(pairs[i] - got_pairs[i]) <= 1e-6f * fabsf(pairs[i]);
	ok(near, "means of %zu in runs of %zu", n, segment);
	watched V = watch(pairs, 4 * runs, 4), W = watch(NULL, 8 * runs, 4);
	cpu->sign_pairs(NULL, got_pairs, pairs, runs), gpu->sign_pairs(NULL, (float *)W.at, (float *)V.at, runs);
	float *twice = malloc(8 * runs + 1);
	ok(unwatch(&W, twice) & unwatch(&V, NULL) && !memcmp(twice, got_pairs, 8 * runs), "%zu pairs of one magnitude",
	   runs);
	free(twice);
	from_device(got_pairs, P.at, 8 * runs);
	memcpy(pairs, got_pairs, 8 * runs);
	cpu->sign_add(NULL, y, -0.3f, bits, pairs, n, segment);
	gpu->sign_add(NULL, (float *)Y.at, -0.3f, (uint32_t *)B.at, (float *)P.at, n, segment);
	ok(unwatch(&Y, z) && same_floats(y, z, n), "values of signs added");
	cpu->sign_error(NULL, x, x, bits, pairs, n, segment);
	gpu->sign_error(NULL, (float *)X.at, (float *)X.at, (uint32_t *)B.at, (float *)P.at, n, segment);
	ok(unwatch(&X, z) && same_floats(x, z, n), "and taken away");
	ok(unwatch(&B, got) & unwatch(&P, NULL) && !memcmp(bits, got, 4 * words), "signs of %zu in runs of %zu", n,
	   segment);
	free(x), free(y), free(z), free(pairs), free(got_pairs), free(bits), free(got);
}

static void ternary(size_t n, int kind, int rubbish)
{
	size_t bytes = (n + 4) / 5;
	float *x = malloc(4 * n + 1), *y = malloc(4 * n + 1), scale = 0;
	uint8_t *want = calloc(1, bytes + 1), *got = calloc(1, bytes + 1);
	uint64_t seed = test_random(), stream = test_random(), first = test_random() % 9;
	int fault = 0, found = 0;
	for (size_t i = 0; i < n; i++) {
		x[i] = magnitude(kind, i);
		scale = fabsf(x[i]) > scale ? fabsf(x[i]) : scale;
	}
	watched S = watch(&scale, 4, 0), X = watch(x, 4 * n, 4), C = watch(NULL, bytes, 1), F = watch(&found, 4, 0);
	cpu->ternary_pack(NULL, want, x, n, &scale, seed, stream, first);
	gpu->ternary_pack(NULL, C.at, (float *)X.at, n, (float *)S.at, seed, stream, first);
	from_device(got, C.at, bytes);
	ok(!memcmp(want, got, bytes), "%zu ternary, %s", n, kinds[kind]);
	if (rubbish) {
		code_bytes(want, bytes);
		to_device(C.at, want, bytes);
	}
	cpu->ternary_add(NULL, x, 0.6f, want, &scale, n, &fault);
	gpu->ternary_add(NULL, (float *)X.at, 0.6f, C.at, (float *)S.at, n, (int *)F.at);
	unwatch(&F, &found);
	ok(unwatch(&X, y) & unwatch(&C, NULL) & unwatch(&S, NULL) && same_floats(x, y, n) && fault == found,
	   "added back%s", rubbish ? ", of rubbish" : "");
	free(x), free(y), free(want), free(got);
}

/* Powers of two; floats of 8 or 4 bits, or rubbish. */
static void small_floats(size_t n, int kind, int rubbish, uint32_t block, gradcomp_dtype type, int powers)
{
	const size_t bytes = block ? gradcomp_float8_scales(n, block, (uint32_t)powers) + gradcomp_float8_codes(n, type)
	                           : n + (n + 7) / 8;
	float *x = malloc(4 * n + 1), *y = malloc(4 * n + 1), *z = malloc(4 * n + 1);
	uint8_t *want = calloc(1, bytes + 1), *got = calloc(1, bytes + 1);
	uint64_t seed = test_random(), stream = test_random(), first = test_random() % 9;
	int fault = 0, found = 0;
	for (size_t i = 0; i < n; i++)
		x[i] = magnitude(kind, i), y[i] = test_normal();
	for (size_t k = 0; kind % 2 && n && k < 3; k++)
		x[test_random() % n] = k == 1 ? NAN : INFINITY;
	watched X = watch(x, 4 * n, 4), C = watch(NULL, bytes, 1), F = watch(&found, 4, 0), Y = watch(y, 4 * n, 0);
	if (block)
		cpu->float8_pack(NULL, want, x, n, block, type, powers),
			gpu->float8_pack(NULL, C.at, (float *)X.at, n, block, type, powers);
	else
		cpu->power_pack(NULL, want, x, n, seed, stream, first),
			gpu->power_pack(NULL, C.at, (float *)X.at, n, seed, stream, first);
	from_device(got, C.at, bytes);
	ok(!memcmp(want, got, bytes), "%zu %s, %s", n,
	   !block                    ? "powers of two"
	   : type == GRADCOMP_F8E4M3 ? "E4M3"
	   : type == GRADCOMP_F4E2M1 ? "E2M1"
	                             : "E5M2",
	   kinds[kind]);
	if (rubbish) {
		code_bytes(want, bytes);
		to_device(C.at, want, bytes);
	}
	if (block) {
		cpu->float8_add(NULL, y, want, n, block, type, powers, &fault);
		gpu->float8_add(NULL, (float *)Y.at, C.at, n, block, type, powers, (int *)F.at);
		cpu->float8_read(NULL, x, want, n, block, type, powers, &fault);
		gpu->float8_read(NULL, (float *)X.at, C.at, n, block, type, powers, (int *)F.at);
	} else {
		cpu->power_add(NULL, y, want, n, &fault), gpu->power_add(NULL, (float *)Y.at, C.at, n, (int *)F.at);
		cpu->power_read(NULL, x, want, n, &fault), gpu->power_read(NULL, (float *)X.at, C.at, n, (int *)F.at);
	}
	unwatch(&F, &found);
	ok(unwatch(&X, z) & unwatch(&C, NULL) && (rubbish || same_floats(x, z, n)) && fault == found, "read%s",
	   rubbish ? ", of rubbish" : "");
	ok(unwatch(&Y, z) && (rubbish || same_floats(y, z, n)), "and added");
	free(x), free(y), free(z), free(want), free(got);
}

/* Numbers whose levels are given, there and back; then rubbish. */
static void levels(size_t n, int kind, uint32_t bits, uint32_t block)
{
	gradcomp_levels l = {.struct_size = sizeof l, .bits = bits, .block = block};
	l.levels = 1 + (uint32_t)test_random() % ((1u << (bits - 1)) - 1);
	for (uint32_t c = 1; c <= l.levels; c++) {
		l.value[c] = (float)pow((double)c / l.levels, 2);
		l.edge[c] = (l.value[c - 1] + l.value[c]) / 2;
	}
	const size_t bytes = (n + block - 1) / block * 4 + (n * bits + 7) / 8;
	float *x = malloc(4 * n + 1), *y = malloc(4 * n + 1), *z = malloc(4 * n + 1);
	uint8_t *want = calloc(1, bytes + 1), *got = calloc(1, bytes + 1);
	for (size_t i = 0; i < n; i++)
		x[i] = magnitude(kind, i), y[i] = test_normal();
	if (n && kind == HEAVY)
		x[n / 2] = -INFINITY;
	watched X = watch(x, 4 * n, 4), Y = watch(y, 4 * n, 0), C = watch(NULL, bytes, test_random() % 4);
	cpu->levels_pack(NULL, want, x, n, &l), gpu->levels_pack(NULL, C.at, (float *)X.at, n, &l);
	from_device(got, C.at, bytes);
	ok(!memcmp(want, got, bytes), "%zu to %u levels of %u bits, %s", n, l.levels, bits, kinds[kind]);
	for (int rubbish = 0; rubbish < 2; rubbish++) {
		if (rubbish) {
			code_bytes(want, bytes);
			to_device(C.at, want, bytes);
		}
		cpu->levels_add(NULL, y, 0.7f, want, n, &l), gpu->levels_add(NULL, (float *)Y.at, 0.7f, C.at, n, &l);
		cpu->levels_read(NULL, x, want, n, &l), gpu->levels_read(NULL, (float *)X.at, C.at, n, &l);
		from_device(z, X.at, 4 * n);
		int same = same_floats(x, z, n);
		from_device(z, Y.at, 4 * n);
		ok(same && same_floats(y, z, n), "read and added%s", rubbish ? ", of rubbish" : "");
	}
	ok(unwatch(&X, NULL) & unwatch(&Y, NULL) & unwatch(&C, NULL), "nothing written outside");
	free(x), free(y), free(z), free(want), free(got);
}

/* All ranks' codes at once. */
static void coded_sums(unsigned kind, size_t parts, size_t ranks, int how, int damaged)
{
	coded_input c;
	coded_make(&c, kind, parts, ranks, 600);
	if (damaged)
		coded_damage(&c);
	float *want = malloc((c.n + 1) * sizeof *want);
	gradcomp_quantiser q = c.q;
	gradcomp_coding coding = c.coding;
	const int wrong = coded_sum(&c, want, how > 0);
	int found = 0, whole = 1;
	watched P[CODED_RANKS], G = watch(&c.given, 4, 0), S = watch(c.scale, sizeof c.scale, 0),
				X = watch(c.x, 4 * c.n, 4), Y = watch(c.y, 4 * c.n, 4), F = watch(&found, 4, 0);
	const void *payload[CODED_RANKS];
	for (size_t r = 0; r < ranks; r++) {
		P[r] = watch(c.payload[r], c.bytes, 4 * (r % 3));
		payload[r] = P[r].at;
	}
	float *const y = (float *)(how == 2 ? X.at : Y.at), *const x = (float *)X.at;
	size_t at = 0;
	for (size_t i = 0; i < parts; at += c.part[i++].n) {
		c.part[i].y = y + at;
		c.part[i].x = how ? x + at : NULL;
		c.part[i].scale = (const float *)S.at + i;
	}
	q.given = (const float *)G.at;
	coding.quantiser = &q;
	gpu->codes_sum(NULL, &coding, c.part, parts, payload, ranks, c.a, (int *)F.at);
	whole &= unwatch(&F, &found);
	for (size_t r = 0; r < ranks; r++)
		whole &= unwatch(&P[r], NULL);
	whole &= unwatch(how == 2 ? &X : &Y, c.y) & unwatch(how == 2 ? &Y : &X, NULL) & unwatch(&S, NULL) &
	         unwatch(&G, NULL);
	ok(whole && found == wrong && (wrong || same_floats(want, c.y, c.n)), "%s of %zu ranks, %zu parts%s",
	   coded_kinds[kind], ranks, parts, damaged ? ", damaged" : "");
	free(want);
	coded_free(&c);
}

static void test_coded_sums(void)
{
	static const size_t ranks[] = {0, 1, 3, 131};
	for (unsigned kind = 0; kind < CODED_KINDS; kind++)
		for (int r = 0; r < 4; r++)
			for (int how = 0; how < 3; how++) {
				coded_sums(kind, how == 1 ? 45 : 2, ranks[r], how, 0);
				coded_sums(kind, 2, ranks[r], how, 1);
			}
}

static void test_codes(void)
{
	static const size_t sizes[] = {0, 1, 4, 31, 33, 1025, 3001}, segments[] = {1, 31, 32, 100, 3000, 100000};
	quantisers();
	test_coded_sums();
	for (int s = 0; s < 7; s++) {
		for (int g = 0; g < 6; g++)
			signs(sizes[s], segments[g]);
		for (int kind = 0; kind < KINDS; kind++)
			ternary(sizes[s], kind, kind % 2);
		for (int kind = 0; kind < KINDS; kind++)
			levels(sizes[s], kind, kind % 2 ? 8 : 4,
			       kind % 3 ? 32 * (1 + (uint32_t)test_random() % 8) : 1056);
		for (int kind = 0; kind < 2 * KINDS; kind++) {
			small_floats(sizes[s], kind % KINDS, kind >= KINDS, 0, GRADCOMP_F32, 0);
			for (int as = 0; as < 4; as++)
				small_floats(sizes[s], kind % KINDS, kind >= KINDS, as & 2 ? 32 : 1056,
				             as & 1 ? GRADCOMP_F8E4M3 : GRADCOMP_F8E5M2, kind >> 1 & 1);
			for (int scales = 0; scales < 3; scales++)
				small_floats(sizes[s], kind % KINDS, kind >= KINDS, kind >> 1 & 1 ? 32 : 1056,
				             GRADCOMP_F4E2M1, scales);
		}
	}
}

#endif
