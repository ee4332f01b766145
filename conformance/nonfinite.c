/* NaN and Inf, for those that pass them on: there, and only there. And codes, of sums that overflow. */
#include <math.h>

#include "conformance/kit.h"

static void nonfinite_of(kit *k, int P)
{
	float *g[RANKS_MAX];
	ranks s;
	if (!kit_open(k, &s, P, &fixture_models[5]))
		return;
	fixture_gradients_new(&s, g);
	fixture_fill(&k->fixture, &s, g, KIND_NORMAL);
	uint64_t nan_at = random_check() % 4000, inf_at = nan_at + 1 + random_check() % 90;
	g[random_check() % (uint64_t)P][nan_at] = NAN;
	g[random_check() % (uint64_t)P][inf_at] = -INFINITY;
	uint64_t d = kit_step(k, &s, g, 0) ? s.numel : 0;
	for (uint64_t i = 0; i < d; i++)
		for (int w = 0; w < P; w++) {
			float a = g[w][i];
			int right = i == nan_at ? isnan(a) : i == inf_at ? isinf(a) && a < 0 : isfinite(a);
			if (!right) {
				kit_fail(k, RULE_NONFINITE,
				         "a NaN at %llu, -Inf at %llu of %d ranks: rank %d has %g at %llu",
				         (unsigned long long)nan_at, (unsigned long long)inf_at, P, w, (double)a,
				         (unsigned long long)i);
				i = d;
				break;
			}
		}
	fixture_gradients_free(&s, g);
	ranks_close(&s);
}

void nonfinite_group(kit *k)
{
	if (!(k->fixture.plugin->traits & GRADCOMP_TRAIT_PASSES_NONFINITE)) {
		kit_skip(k, RULE_NONFINITE, "the host keeps NaN and Inf away");
		return;
	}
	for (int P = 1; P <= 3; P++)
		nonfinite_of(k, P);
	kit_ok(k, RULE_NONFINITE, "NaN and Inf come out where they went in, on 1 to 3 ranks");
}

enum { OVERFLOWING = 600 };

static float overflowing(int w, int P)
{
	return w && w == P - 1 && P > 2 ? -1e38f : 3e38f;
}

/* Returns true when rank w's numbers of a run show that a sum has overflowed; or none has, since codes kept back
 * what was too much. */
static bool shown_or_kept(kit *k, const ranks *s, float *const *g, int w, int from, int to)
{
	double sum = 0;
	bool kept = true;
	for (int r = 0; r < s->P; r++)
		sum += overflowing(r, s->P);
	for (int i = from; i < to; i++) {
		double got = (double)s->P * g[w][i];

		if (!isfinite(g[w][i]))
			return true;
		for (int r = 0; kit_memory(&k->fixture, s, r) && r < s->P; r++)
			got += kit_memory(&k->fixture, s, r)[i];
		kept &= fabs(got - sum) <= 1e-3 * sum;
	}
	return kept;
}

/* False: a failure has been reported. */
static bool overflows(kit *k, int P)
{
	static model vector = {"600 numbers", 1, {{OVERFLOWING, 0}}};
	float *g[RANKS_MAX];
	ranks s;
	bool right;
	if (!kit_open(k, &s, P, &vector))
		return false;
	fixture_gradients_new(&s, g);
	for (int w = 0; w < P; w++)
		for (int i = 0; i < OVERFLOWING; i++)
			g[w][i] = overflowing(w, P);
	right = kit_step(k, &s, g, 0);
	/* A run for each rank. */
	for (int w = 0; right && w < P; w++)
		for (int c = 0; right && c < P; c++) {
			right = shown_or_kept(k, &s, g, w, OVERFLOWING * c / P, OVERFLOWING * (c + 1) / P);
			if (!right)
				kit_fail(
					k, RULE_CODE,
					"gradients whose sum overflows: of %d ranks' rank %d has %g at %d, no NaN or Inf in that run, and "
					"not the rest in error memory",
					P, w, (double)g[w][OVERFLOWING * c / P], OVERFLOWING * c / P);
		}
	fixture_gradients_free(&s, g);
	ranks_close(&s);
	return right;
}

/* Payloads whose sum, or what they were rounded to, is not finite: decode() ends all the same, and nothing of it
 * waits in error memory for the next step. */
static void forgets(kit *k, int P, float largest)
{
	static model vector = {"600 numbers", 1, {{OVERFLOWING, 0}}};
	float *g[RANKS_MAX];
	ranks s;
	bool right;
	if (!kit_open(k, &s, P, &vector))
		return;
	fixture_gradients_new(&s, g);
	for (int w = 0; w < P; w++)
		for (int i = 0; i < OVERFLOWING; i++)
			g[w][i] = i % 7 == 3 ? 0.5f : largest;
	right = kit_step(k, &s, g, 0);
	for (int w = 0; right && kit_memory(&k->fixture, &s, w) && w < P; w++)
		for (int i = 0; right && i < OVERFLOWING; i++) {
			right = isfinite(kit_memory(&k->fixture, &s, w)[i]);
			if (!right)
				kit_fail(k, RULE_CONSERVATION,
				         "finite gradients of %g, whose sum may overflow: rank %d of %d has %g in "
				         "its error memory, at %d\n"
				         "decode() keeps of an average that is not finite",
				         (double)largest, w, P, (double)kit_memory(&k->fixture, &s, w)[i], i);
		}
	fixture_gradients_free(&s, g);
	ranks_close(&s);
}

void nonfinite_overflow_group(kit *k)
{
	const uint32_t traits = k->fixture.plugin->traits;
	bool coded = ranks_planned(k->fixture.plugin) & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED);
	/* Where nobody looks at sums it is the plugin's to limit numbers, too. */
	bool going = coded && (!(traits & GRADCOMP_TRAIT_PASSES_NONFINITE) || traits & GRADCOMP_TRAIT_LOSSLESS);
	for (int P = 2; going && P <= 3; P++)
		going = overflows(k, P);
	if (!coded)
		k->crash = RULE_CONSERVATION;
	for (int P = 2; !coded && P <= 3 && !(traits & GRADCOMP_TRAIT_PASSES_NONFINITE); P++) {
		forgets(k, P, 3e38f);
		forgets(k, P, 6e4f);
	}
}
