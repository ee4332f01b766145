/* E[a] = mean u: the same gradients under many seeds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/conformance/kit.h"

enum { NUMBERS = 96, RANKS = 2 };

void group_unbiased(kit *k)
{
	static model vector = {"96 numbers", 1, {{NUMBERS, 0}}};
	fixture *t = &k->fixture;
	int times = k->options->thorough ? 4000 : 600, remembers = 0;
	double sum[NUMBERS] = {0}, squares[NUMBERS] = {0}, worst = 0, want[NUMBERS] = {0};
	float u[RANKS][NUMBERS], *g[RANKS_MAX];
	const gradcomp_value *values = t->values;

	if (!(t->plugin->traits & GRADCOMP_TRAIT_UNBIASED)) {
		kit_skip(k, RULE_UNBIASED, "trait UNBIASED is not there");
		return;
	}
	if (t->plain)
		t->values = t->plain;
	for (int w = 0; w < RANKS; w++)
		for (int i = 0; i < NUMBERS; i++) {
			u[w][i] = check_normal();
			want[i] += u[w][i] / (double)RANKS;
		}
	for (int n = 0; n < times; n++) {
		ranks s;
		if (!kit_open(k, &s, RANKS, &vector))
			return;
		fixture_gradients_new(&s, g);
		for (int w = 0; w < RANKS; w++)
			memcpy(g[w], u[w], sizeof u[w]);
		if (!kit_step(k, &s, g, 0))
			n = times;
		for (int i = 0; i < NUMBERS; i++) {
			sum[i] += g[0][i];
			squares[i] += (double)g[0][i] * g[0][i];
		}
		for (int i = 0; kit_memory(t, &s, 0) && i < NUMBERS; i++)
			remembers |= kit_memory(t, &s, 0)[i] != 0;
		fixture_gradients_free(&s, g);
		ranks_close(&s);
	}
	t->values = values;
	if (remembers) {
		kit_skip(k, RULE_UNBIASED, "with these parameters error memory makes up for the bias");
		return;
	}
	for (int i = 0; i < NUMBERS; i++) {
		double mean = sum[i] / times, var = fmax(squares[i] / times - mean * mean, 0);
		double z = fabs(mean - want[i]) / (sqrt(var / times) + 1e-6);
		worst = fmax(worst, z);
		if (z > 6) {
			kit_fail(k, RULE_UNBIASED, "number %d: %.6g on average of %d runs, %.6g is right, %.1f standard errors away",
			         i, mean, times, want[i], z);
			return;
		}
	}
	kit_ok(k, RULE_UNBIASED, "%d numbers under %d seeds: within %.1f standard errors of the mean", NUMBERS, times,
	       worst);
}
