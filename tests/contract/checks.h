/* What every compressor must do, whatever it is (gradcomp/compressor.h, "The
 * contract"). Each check makes its own ranks and fresh random gradients, and
 * prints TAP. */
#ifndef CONTRACT_CHECKS_H
#define CONTRACT_CHECKS_H

#include <math.h>

#include "check/subject.h"
#include "unit/operators.h"

static int opened(const subject *t, ranks *s, int P, model *m)
{
	gradcomp_status st = ranks_open(s, t->plugin, t->op, t->values, P, m->n, m->dims, test_random());
	if (st)
		ok(0, "%s: P=%d, %s: create fails (%d): %s", t->spec, P, m->name, st, s->err.text);
	return !st;
}

static int stepped(const subject *t, ranks *s, float **g, int interleave)
{
	gradcomp_status st = ranks_step(s, g, interleave);
	if (st)
		ok(0, "%s: a step fails (%d): %s", t->spec, st, s->err.text);
	return !st;
}

static int agree(const ranks *s, float **g)
{
	for (int w = 1; w < s->P; w++)
		if (memcmp(g[w], g[0], s->layout[0].numel * sizeof(float)))
			return 0;
	return 1;
}

/* sum of u = P a + sum of e', bucket by bucket. */
static int conserved(const subject *t, const ranks *s, float **a, const double *sum, const double *mag)
{
	int remembers = !!(t->plugin->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK);
	for (uint32_t k = 0; k < s->nbuckets; k++) {
		uint64_t from = s->buckets[k].offset, to = from + s->buckets[k].numel;
		double scale = 0;
		for (uint64_t i = from; i < to; i++)
			scale = fmax(scale, mag[i]);
		for (uint64_t i = from; i < to; i++) {
			double got = (double)s->P * a[0][i];
			for (int w = 0; remembers && w < s->P; w++)
				got += s->error[w][i];
			if (!(fabs(got - sum[i]) <= s->P * (t->relative * scale + t->absolute * s->P) + 1e-42)) {
				printf("# bucket %u, number %llu: %.9g is accounted for, %.9g went in\n", k,
				       (unsigned long long)(i - from), got, sum[i]);
				return 0;
			}
		}
	}
	return 1;
}

/* Several steps with fresh gradients; buckets change between them. */
static void check_steps(const subject *t, int P, model *m, int kind)
{
	int remembers = !!(t->plugin->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK), sums = 1, same = 1, honest = 1;
	float *g[RANKS_MAX];
	ranks s;
	if (!opened(t, &s, P, m))
		return;
	uint64_t d = s.layout[0].numel;
	double *sum = calloc(d + 1, sizeof *sum), *mag = calloc(d + 1, sizeof *mag);
	if (!sum || !mag)
		exit(1);
	gradients_new(&s, g);
	for (int step = 0; step < 4; step++) {
		fill(t, &s, g, kind);
		memset(sum, 0, d * sizeof *sum);
		memset(mag, 0, d * sizeof *mag);
		for (int w = 0; w < P; w++)
			for (uint64_t i = 0; i < d; i++) {
				float u = remembers ? g[w][i] + s.error[w][i] : g[w][i];
				sum[i] += u;
				mag[i] += fabs(u);
			}
		ranks_plan(&s, step % 2 ? 1 + test_random() % (d + 1) : UINT64_MAX);
		if (!stepped(t, &s, g, step & 1))
			break;
		sums &= conserved(t, &s, g, sum, mag);
		same &= agree(&s, g);
		uint64_t want = t->bytes ? t->bytes(t->values, &s) : s.sent;
		if (s.sent != want) {
			printf("# %llu bytes were sent, %llu are right\n", (unsigned long long)s.sent,
			       (unsigned long long)want);
			honest = 0;
		}
	}
	ok(sums && same && honest && s.whole && s.step == 4, "%s: P=%d, %s, %s:%s%s%s%s", t->spec, P, m->name,
	   kind_names[kind], sums ? " conserved" : " NOT CONSERVED", same ? ", agreed" : ", RANKS DIFFER",
	   honest ? ", bytes as said" : ", OTHER BYTES", s.whole ? "" : ", BOUNDS BROKEN");
	free(sum), free(mag);
	gradients_free(&s, g);
	ranks_close(&s);
}

/* Runs a and b on equal gradients and says whether everything stays equal. */
static int run_alike(const subject *t, ranks *a, ranks *b, int steps)
{
	float *g[RANKS_MAX], *h[RANKS_MAX];
	int alike = 1;
	gradients_new(a, g);
	gradients_new(b, h);
	for (int k = 0; alike && k < steps; k++) {
		fill(t, a, g, KIND_NORMAL);
		for (int w = 0; w < a->P; w++)
			memcpy(h[w], g[w], a->layout[0].numel * sizeof(float));
		alike = stepped(t, a, g, 0) && stepped(t, b, h, 1);
		for (int w = 0; w < a->P; w++) {
			alike &= !memcmp(g[w], h[w], a->layout[0].numel * sizeof(float));
			alike &= !memcmp(a->error[w], b->error[w], a->layout[0].numel * sizeof(float));
		}
	}
	gradients_free(a, g);
	gradients_free(b, h);
	return alike;
}

static void check_resume(const subject *t, int P, model *m)
{
	ranks a, b;
	float *g[RANKS_MAX];
	gradcomp_status st = GRADCOMP_OK;
	if (!opened(t, &a, P, m))
		return;
	if (ranks_open(&b, t->plugin, t->op, t->values, P, m->n, m->dims, a.layout[0].seed)) {
		ranks_close(&a);
		ok(0, "%s: create works once and not twice", t->spec);
		return;
	}
	ranks_plan(&a, 3000);
	ranks_plan(&b, 3000);
	ok(run_alike(t, &a, &b, 2), "%s: P=%d, %s: the same in two runs, buckets in turn or interleaved", t->spec,
	   P, m->name);
	gradients_new(&a, g);
	fill(t, &a, g, KIND_NORMAL);
	stepped(t, &a, g, 0); /* now a is a step ahead of b */
	for (int w = 0; !st && w < P; w++)
		st = ranks_carry(&a, &b, w);
	is_int(st, GRADCOMP_OK, "%s: P=%d, %s: state is saved and loaded", t->spec, P, m->name);
	ok(!st && run_alike(t, &a, &b, 3), "%s: P=%d, %s: goes on to the bit after a load", t->spec, P, m->name);
	fill(t, &a, g, KIND_NORMAL);
	a.abandon = 1;
	stepped(t, &a, g, 1);
	a.abandon = 0;
	b.step++;
	ok(run_alike(t, &a, &b, 3), "%s: P=%d, %s: a step that is given up after encode leaves no trace", t->spec,
	   P, m->name);
	gradients_free(&a, g);
	ranks_close(&a);
	ranks_close(&b);
}

/* A state that is cut short or belongs to another model is refused, and leaves
 * the instance as it was. */
static void check_bad_state(const subject *t)
{
	ranks s, other;
	uint64_t bytes = 0, less = 0;
	int refused = 1, told = 1;
	if (!t->plugin->save) {
		ok(!t->plugin->load, "%s: has no state of its own", t->spec);
		return;
	}
	if (!opened(t, &s, 1, &models[6]))
		return;
	t->plugin->save(s.instance[0], NULL, 0, &bytes, &s.err);
	char *good = calloc(1, bytes + 1), *now = calloc(1, bytes + 1);
	t->plugin->save(s.instance[0], good, bytes, &less, &s.err);
	is_int(less, bytes, "%s: save gives as much as it said", t->spec);
	if (bytes)
		ok(t->plugin->save(s.instance[0], now, bytes - 1, &less, &s.err) < 0, "%s: save wants its room",
		   t->spec);
	for (uint64_t n = 0; n < bytes; n += 1 + bytes / 97) {
		guarded g = guard("a state cut short", n, 8);
		memcpy(g.data, good, n);
		s.err.text[0] = 0;
		refused &= t->plugin->load(s.instance[0], g.data, n, &s.err) < 0;
		told &= s.err.text[0] != 0;
		guard_free(&g);
	}
	ok(refused && told, "%s: a state cut short is refused in words", t->spec);
	if (opened(t, &other, 1, &models[7])) {
		ok(t->plugin->load(other.instance[0], good, bytes, &other.err) < 0,
		   "%s: another model's state is refused: %s", t->spec, other.err.text);
		ranks_close(&other);
	}
	t->plugin->save(s.instance[0], now, bytes, &less, &s.err);
	ok(!memcmp(now, good, bytes), "%s: and nothing has changed", t->spec);
	for (int k = 0; k < 200; k++) {
		memcpy(now, good, bytes);
		now[test_random() % bytes] ^= (char)(1 + test_random() % 255);
		t->plugin->load(s.instance[0], now, bytes, &s.err);
	}
	ok(1, "%s: 200 damaged states did no harm", t->spec);
	free(good), free(now);
	ranks_close(&s);
}

/* create() without memory: an error, and nothing left behind. */
static void check_memory(const subject *t)
{
	int before = host_allocated, failed = 0, told = 1;
	ranks s;
	for (int k = 0; k < 50; k++) {
		host_fail_at = k;
		gradcomp_status st = ranks_open(&s, t->plugin, t->op, t->values, 1, models[6].n, models[6].dims, 1);
		int used_up = host_fail_at == 0;
		host_fail_at = -1;
		if (!st) {
			ranks_close(&s);
			if (!used_up)
				break;
		}
		failed += st != 0;
		told &= !st || (st == GRADCOMP_ERR_NOMEM && s.err.text[0]);
	}
	t->plugin->destroy(NULL);
	ok(told, "%s: %d ways to run out of memory, each reported", t->spec, failed);
	is_int(host_allocated, before, "%s: nothing is left behind", t->spec);
}

/* NaN and Inf, for those that pass them on: there, and only there. */
static void check_nonfinite(const subject *t, int P)
{
	ranks s;
	float *g[RANKS_MAX];
	if (!(t->plugin->traits & GRADCOMP_TRAIT_PASSES_NONFINITE) || !opened(t, &s, P, &models[5]))
		return;
	gradients_new(&s, g);
	fill(t, &s, g, KIND_NORMAL);
	uint64_t nan_at = test_random() % 4000, inf_at = nan_at + 1 + test_random() % 90;
	g[test_random() % (uint64_t)P][nan_at] = NAN;
	g[test_random() % (uint64_t)P][inf_at] = -INFINITY;
	if (stepped(t, &s, g, 0)) {
		int right = agree(&s, g);
		for (uint64_t i = 0; i < s.layout[0].numel; i++)
			right &= i == nan_at   ? isnan(g[0][i])
			         : i == inf_at ? g[0][i] == -INFINITY
			                       : isfinite(g[0][i]);
		ok(right, "%s: P=%d: a NaN and an Inf come out where they went in", t->spec, P);
	}
	gradients_free(&s, g);
	ranks_close(&s);
}

/* Payloads of a peer that lies: any answer but a crash or a write out of bounds,
 * and a refusal has words. */
static guarded lie;

static void tamper(ranks *s, gradcomp_payload *in, uint32_t n)
{
	int w = n > 1; /* rank 0's own stays */
	(void)s;
	uint64_t bytes = test_random() % 3 ? in[w].bytes : test_random() % (in[w].capacity + 1);
	guard_free(&lie);
	lie = guard("a lie", bytes, 8);
	memcpy(lie.data, in[w].data, bytes < in[w].bytes ? bytes : in[w].bytes);
	for (uint64_t k = test_random() % 4; bytes && k--;)
		lie.data[test_random() % bytes] ^= (char)(1 + test_random() % 255);
	in[w].data = lie.data;
	in[w].bytes = bytes;
}

static void check_liar(const subject *t)
{
	int refused = 0, told = 1, whole = 1;
	ranks s;
	float *g[RANKS_MAX];
	if (!(t->plugin->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED)))
		return;
	for (int k = 0; k < 300; k++) {
		if (!opened(t, &s, 2, &models[k % 8]))
			return;
		gradients_new(&s, g);
		fill(t, &s, g, KIND_NORMAL);
		s.tamper = tamper;
		s.err.text[0] = 0;
		if (ranks_step(&s, g, 0)) {
			refused++;
			told &= s.err.text[0] != 0;
		}
		whole &= s.whole;
		gradients_free(&s, g);
		ranks_close(&s);
	}
	guard_free(&lie);
	ok(refused > 0 && told && whole,
	   "%s: of 300 tampered payloads %d were refused, in words, the others did no harm", t->spec, refused);
}

__attribute__((unused)) static void check_contract(const subject *t)
{
	static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9};
	for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
		for (size_t p = 0; p < sizeof sizes / sizeof sizes[0]; p++) {
			check_steps(t, sizes[p], &models[m], KIND_NORMAL);
			if (sizes[p] == 3 || sizes[p] == 1)
				for (int kind = 1; kind < KINDS_ALL; kind++)
					check_steps(t, sizes[p], &models[m], kind);
		}
	for (int P = 1; P <= 3; P++) {
		check_resume(t, P, &models[6]);
		check_nonfinite(t, P);
	}
	check_resume(t, 2, &models[0]);
	check_bad_state(t);
	check_memory(t);
	check_liar(t);
}

#endif
