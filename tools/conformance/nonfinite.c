/* NaN and Inf, for those that pass them on: there, and only there. And codes, of sums that overflow. */
#include <math.h>

#include "tools/conformance/kit.h"

static void nonfinite_of(kit *k, int P)
{
	float *g[RANKS_MAX];
	ranks s;

	if (!kit_open(k, &s, P, &fixture_models[5]))
		return;
	fixture_gradients_new(&s, g);
	fixture_fill(&k->fixture, &s, g, KIND_NORMAL);
	uint64_t nan_at = check_random() % 4000, inf_at = nan_at + 1 + check_random() % 90;
	g[check_random() % (uint64_t)P][nan_at] = NAN;
	g[check_random() % (uint64_t)P][inf_at] = -INFINITY;
	uint64_t d = kit_step(k, &s, g, 0) ? s.layout[0].numel : 0;
	for (uint64_t i = 0; i < d; i++)
		for (int w = 0; w < P; w++) {
			float a = g[w][i];
			int right = i == nan_at ? isnan(a) : i == inf_at ? isinf(a) && a < 0 : isfinite(a);
			if (!right) {
				kit_fail(k, RULE_NONFINITE, "a NaN at %llu, -Inf at %llu of %d ranks: rank %d has %g at %llu",
				         (unsigned long long)nan_at, (unsigned long long)inf_at, P, w, (double)a,
				         (unsigned long long)i);
				i = d;
				break;
			}
		}
	fixture_gradients_free(&s, g);
	ranks_close(&s);
}

void group_nonfinite(kit *k)
{
	if (!(k->fixture.plugin->traits & GRADCOMP_TRAIT_PASSES_NONFINITE)) {
		kit_skip(k, RULE_NONFINITE, "the host keeps NaN and Inf away");
		return;
	}
	for (int P = 1; P <= 3; P++)
		nonfinite_of(k, P);
	kit_ok(k, RULE_NONFINITE, "NaN and Inf come out where they went in, on 1 to 3 ranks");
}

/* False: a failure has been reported. */
static bool overflows(kit *k, int P)
{
	enum { NUMBERS = 600 };
	static model vector = {"600 numbers", 1, {{NUMBERS, 0}}};
	float *g[RANKS_MAX];
	ranks s;
	bool right;

	if (!kit_open(k, &s, P, &vector))
		return false;
	fixture_gradients_new(&s, g);
	for (int w = 0; w < P; w++)
		for (int i = 0; i < NUMBERS; i++)
			g[w][i] = w && w == P - 1 && P > 2 ? -1e38f : 3e38f;
	right = kit_step(k, &s, g, 0);
	/* A run for each rank. */
	for (int w = 0; right && w < P; w++)
		for (int c = 0; right && c < P; c++) {
			bool found = false;
			for (int i = NUMBERS * c / P; i < NUMBERS * (c + 1) / P; i++)
				found |= !isfinite(g[w][i]);
			right = found;
			if (!found)
				kit_fail(k, RULE_CODE,
				         "gradients whose sum overflows: of %d ranks' rank %d has %g at %d, and no NaN or Inf in that run", P,
				         w, (double)g[w][NUMBERS * c / P], NUMBERS * c / P);
		}
	fixture_gradients_free(&s, g);
	ranks_close(&s);
	return right;
}

void group_overflow(kit *k)
{
	bool going = ranks_planned(k->fixture.plugin) & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED);

	for (int P = 2; going && P <= 3; P++)
		going = overflows(k, P);
}
