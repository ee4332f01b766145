/* NaN and Inf, for those that pass them on: there, and only there. */
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
