/* Checks what the methods of gradcomp's own compressors promise beyond the contract: their bytes and their values. */
#ifndef TESTS_CONTRACT_METHOD_RULES_H
#define TESTS_CONTRACT_METHOD_RULES_H

#include "tests/contract/conformance_tap.h"

static uint64_t bytes_none(const gradcomp_value *v, const ranks *s)
{
	(void)v;
	return 4 * s->layout[0].numel;
}

static uint64_t bytes_cast(const gradcomp_value *v, const ranks *s)
{
	(void)v;
	return 2 * s->layout[0].numel;
}

static uint64_t bytes_threshold(const gradcomp_value *v, const ranks *s)
{
	uint64_t bytes = 0;
	(void)v;
	for (uint32_t b = 0; b < s->nbuckets; b++)
		bytes += (s->buckets[b].numel + 3) / 4;
	return bytes;
}

static uint64_t bytes_topk(const gradcomp_value *v, const ranks *s)
{
	uint64_t bytes = 0;
	for (uint32_t b = 0; b < s->nbuckets; b++) {
		double k = round(v[0].f * (double)s->buckets[b].numel);
		bytes += s->buckets[b].numel ? 8 * (uint64_t)fmax(k, 1) : 0;
	}
	return bytes;
}

static uint64_t bytes_powersgd(const gradcomp_value *v, const ranks *s)
{
	uint64_t floats = 0;
	for (uint32_t i = 0; i < s->layout[0].ntensors; i++) {
		const gradcomp_tensor *t = &s->tensors[i];
		uint64_t n = t->dims[0], m = t->ndim > 1 ? t->dims[1] : 0, r = (uint64_t)v[0].i;
		r = r < n ? r : n;
		r = r < m ? r : m;
		/* s->step has been counted already */
		if (!r || (double)(n + m) * (double)r * v[1].f >= (double)(n * m) || s->step - 1 < (uint64_t)v[2].i)
			floats += t->numel;
		else
			floats += (n + m) * r;
	}
	return 4 * floats;
}

/* However large finite gradients are, saturating makes no Inf of them. */
static void cast_values(const fixture *t)
{
	int finite = 1;
	for (int P = 1; P <= 9; P++) {
		ranks s;
		float *g[RANKS_MAX];
		if (!opened(t, &s, P, &fixture_models[5]))
			return;
		fixture_gradients_new(&s, g);
		for (int w = 0; w < P; w++)
			for (uint64_t i = 0; i < s.layout[0].numel; i++)
				g[w][i] = i % 4 == 0   ? 65504
				          : i % 4 == 1 ? -3.4e38f
				          : i % 4 == 2 ? 65519
				                       : 1e20f * test_normal();
		finite &= stepped(t, &s, g, 0);
		for (uint64_t i = 0; i < s.layout[0].numel; i++)
			finite &= isfinite(g[0][i]) && (i % 4 != 0 || fabs(g[0][i] - 65504) < 65504 * 9 * 0x1p-7);
		fixture_gradients_free(&s, g);
		ranks_close(&s);
	}
	ok(finite, "%s: no Inf out of 65504, 65519, 1e20 and 3.4e38 on 1 to 9 ranks", t->spec);
}

/* One lie at a time, each of which must be refused before anything changes. */
enum { LIE_TWICE, LIE_ORDER, LIE_RANGE, LIE_NAN, LIE_INF, LIE_SHORT, LIE_LONG, LIES };
static const char *const lies[] = {"an index twice", "descending indices", "an index too large", "a NaN",
                                   "an Inf",         "too few bytes",      "too many bytes"};
static int topk_told;
static guarded lie;

static void topk_tamper(ranks *s, gradcomp_payload *in, uint32_t n)
{
	(void)n;
	uint64_t k = in[1].bytes / 8, d = s->layout[0].numel;
	guard_free(&lie);
	lie = guard("a lie", in[1].bytes + 8, 8);
	memcpy(lie.data, in[1].data, in[1].bytes);
	float *val = (float *)(void *)lie.data;
	uint32_t *idx = (uint32_t *)(void *)lie.data + k;
	in[1].data = lie.data;
	switch (topk_told) {
	case LIE_TWICE:
		idx[1] = idx[0];
		break;
	case LIE_ORDER:
		idx[0] = idx[k - 1];
		break;
	case LIE_RANGE:
		idx[k - 1] = (uint32_t)d;
		break;
	case LIE_NAN:
		val[k / 2] = NAN;
		break;
	case LIE_INF:
		val[k - 1] = INFINITY;
		break;
	default:
		in[1].bytes += topk_told == LIE_LONG ? 8 : (uint64_t)-8;
	}
}

static void topk_lies(const fixture *t)
{
	for (topk_told = 0; topk_told < LIES; topk_told++) {
		ranks s;
		float *g[RANKS_MAX];
		if (!opened(t, &s, 3, &fixture_models[5]))
			return;
		fixture_gradients_new(&s, g);
		fixture_fill(t, &s, g, KIND_NORMAL);
		s.tamper = topk_tamper;
		gradcomp_status st = ranks_step(&s, g, 0);
		int clean = 1;
		for (uint64_t i = 0; i < s.layout[0].numel; i++)
			clean &= s.error[0][i] == 0;
		ok(st == GRADCOMP_ERR_MISMATCH && clean, "%s: %s from rank 1 is refused: %s", t->spec, lies[topk_told],
		   st ? s.err.text : "(it was not)");
		fixture_gradients_free(&s, g);
		ranks_close(&s);
	}
	guard_free(&lie);
}

/* With gradients of few magnitudes, top-k's average and memory are known. */
static void topk_values(const fixture *t)
{
	topk_lies(t);
	ranks s;
	float *g[RANKS_MAX];
	int right = 1;
	if (!opened(t, &s, 2, &fixture_models[5]))
		return;
	fixture_gradients_new(&s, g);
	uint64_t d = s.layout[0].numel;
	fixture_fill(t, &s, g, KIND_TIES);
	float *u[2];
	for (int w = 0; w < 2; w++) {
		u[w] = malloc(d * sizeof(float));
		memcpy(u[w], g[w], d * sizeof(float));
	}
	if (stepped(t, &s, g, 0)) {
		uint64_t k = bytes_topk(t->values, &s) / 8;
		float *want = calloc(d, sizeof *want);
		for (int w = 0; w < 2; w++) {
			uint64_t left = k;
			for (int size = 2; size >= 0; size--)
				for (uint64_t i = 0; i < d; i++) {
					int taken = fabsf(u[w][i]) == (float)size && left;
					if (fabsf(u[w][i]) != (float)size)
						continue;
					left -= (uint64_t)taken;
					want[i] += taken ? 0.5f * u[w][i] : 0;
					right &= s.error[w][i] == (taken ? 0 : u[w][i]);
				}
		}
		ok(right, "%s: keeps exactly what it does not send, lower index first", t->spec);
		ok(!memcmp(want, g[0], d * sizeof *want), "%s: the average is that of what was sent", t->spec);
		free(want);
	}
	free(u[0]), free(u[1]);
	fixture_gradients_free(&s, g);
	ranks_close(&s);
}

/* A rank that gave nothing owes nothing: its error is against its own factor. */
static void powersgd_own(const fixture *t)
{
	model one = {"a matrix", 1, {{60, 80}}};
	ranks s;
	float *g[RANKS_MAX];
	if (!opened(t, &s, 3, &one))
		return;
	fixture_gradients_new(&s, g);
	fixture_fill(t, &s, g, KIND_NORMAL);
	memset(g[1], 0, 4800 * sizeof(float));
	int zero = stepped(t, &s, g, 0);
	for (int i = 0; i < 4800; i++)
		zero &= s.error[1][i] == 0;
	ok(zero, "%s: a rank with a gradient of zero keeps an error of zero", t->spec);
	fixture_gradients_free(&s, g);
	ranks_close(&s);
}

/* Gradients of rank 2 through factors of rank 4: exact once the factor has seen
 * them. And with any gradient: what is sent adds up to what was given. */
static void powersgd_values(const fixture *t)
{
	powersgd_own(t);
	model one = {"a matrix", 1, {{60, 80}}};
	ranks s;
	float *g[RANKS_MAX], left[2][60], right[2][80];
	if (!opened(t, &s, 3, &one))
		return;
	fixture_gradients_new(&s, g);
	for (int k = 0; k < 2; k++) {
		for (int i = 0; i < 60; i++)
			left[k][i] = test_normal();
		for (int j = 0; j < 80; j++)
			right[k][j] = test_normal();
	}
	double worst = 0;
	for (int step = 0; step < 4; step++) {
		double mean[4800] = {0};
		for (int w = 0; w < 3; w++) {
			float a = test_normal(), b = test_normal();
			for (int i = 0; i < 4800; i++) {
				g[w][i] =
					a * left[0][i / 80] * right[0][i % 80] + b * left[1][i / 80] * right[1][i % 80];
				mean[i] += (g[w][i] + s.error[w][i]) / 3.0;
			}
		}
		if (!stepped(t, &s, g, 0))
			break;
		worst = 0;
		for (int i = 0; i < 4800; i++)
			worst = fmax(worst, fabs(g[0][i] - mean[i]));
	}
	ok(worst < 1e-4, "%s: gradients of rank 2 come through, within %.1e", t->spec, worst);
	double total = 0, off = 0, sum[4800] = {0};
	for (int step = 0; step < 200; step++) {
		for (int w = 0; w < 3; w++)
			for (int i = 0; i < 4800; i++)
				g[w][i] = (float)((i * 7919 + w) % 101) - 50; /* full rank, the same every step */
		if (!stepped(t, &s, g, 0))
			break;
		for (int i = 0; i < 4800; i++)
			sum[i] += g[0][i];
	}
	for (int i = 0; i < 4800; i++) {
		double want = 200 * ((i * 7919 % 101 + (i * 7919 + 1) % 101 + (i * 7919 + 2) % 101) / 3.0 - 50);
		total += want * want;
		off += (sum[i] - want) * (sum[i] - want);
	}
	ok(sqrt(off / total) < 0.15, "%s: after 200 steps all but %.3f of a constant gradient has come through",
	   t->spec, sqrt(off / total));
	fixture_gradients_free(&s, g);
	ranks_close(&s);
}

/* Without a warm start each step looks in another random direction. */
static void powersgd_fresh(const fixture *t)
{
	model one = {"a matrix", 1, {{60, 80}}};
	float *g[2][RANKS_MAX];
	ranks s[2];
	for (int k = 0; k < 2; k++) {
		if (ranks_open(&s[k], t->plugin, t->op, t->values, 1, 1, one.dims, 99))
			return;
		fixture_gradients_new(&s[k], g[k]);
		s[k].step = (uint64_t)k;
	}
	fixture_fill(t, &s[0], g[0], KIND_NORMAL);
	memcpy(g[1][0], g[0][0], 4800 * sizeof(float));
	int ran = stepped(t, &s[0], g[0], 0) && stepped(t, &s[1], g[1], 0);
	ok(ran && memcmp(g[0][0], g[1][0], 4800 * sizeof(float)), "%s: steps 0 and 1 begin with different factors",
	   t->spec);
	for (int k = 0; k < 2; k++) {
		fixture_gradients_free(&s[k], g[k]);
		ranks_close(&s[k]);
	}
}

#endif
