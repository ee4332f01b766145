/* Two runs of the same, a run that was saved and loaded, a step that was given up. */
#include <stdbool.h>
#include <string.h>

#include "conformance/kit.h"

static bool twins(kit *k, ranks *a, ranks *b, const kit_place *p)
{
	const uint64_t seed = random_check();
	gradcomp_status st = kit_open_at(k, a, p, seed);
	if (st && !kit_declined(a, st))
		kit_fail(k, k->crash, "create() fails for %d ranks, %s: %s", p->P, p->m->name, a->err.text);
	if (st)
		return false;
	if (kit_open_at(k, b, p, seed)) {
		kit_fail(k, RULE_GLOBALS, "create() works once and not twice: %s", b->err.text);
		ranks_close(a);
		return false;
	}
	return true;
}

static int step_alone(kit *k, ranks *s, int abandon)
{
	float *g[RANKS_MAX];
	int went;
	fixture_gradients_new(s, g);
	fixture_fill(&k->fixture, s, g, KIND_NORMAL);
	s->abandon = abandon;
	went = kit_step(k, s, g, 1);
	s->abandon = 0;
	fixture_gradients_free(s, g);
	return went;
}

static bool carried(kit *k, ranks *a, ranks *b)
{
	for (int w = 0; w < a->P; w++)
		if (ranks_carry(a, b, w)) {
			kit_fail(k, RULE_RESUME, "rank %d of %d: the state of its own run is refused: %s", w, a->P,
			         b->err.text);
			return false;
		}
	return true;
}

/* Compares everything that lasts, before and after an encode() that led to nothing. */
static void given_up(kit *k, ranks *a, ranks *b)
{
	uint64_t bytes[2] = {0, 0};
	guarded g[2] = {{.map = NULL}, {.map = NULL}};
	for (int i = 0; a->plugin->save && i < 2; i++) {
		a->plugin->save(a->instance[0], NULL, 0, &bytes[i], &a->err);
		g[i] = guard("a saved state", bytes[i], 8);
		a->plugin->save(a->instance[0], g[i].data, bytes[i], &bytes[i], &a->err);
		if (!i && !step_alone(k, a, 1))
			break;
	}
	if (!a->plugin->save)
		step_alone(k, a, 1);
	if (g[1].map && (bytes[0] != bytes[1] || memcmp(g[0].data, g[1].data, bytes[0])))
		kit_fail(k, RULE_DECODE_ONLY, "what save() gives has changed in an encode() without decode()");
	b->step = a->step;
	kit_run_alike(k, RULE_DECODE_ONLY, "after an encode() that was given up", a, b, 3);
	guard_free(&g[0]);
	guard_free(&g[1]);
}

/* The first goes `before` steps on alone. */
static void resume_of(kit *k, const kit_place *p, int before)
{
	bool going;
	ranks a, b;
	if (!twins(k, &a, &b, p))
		return;
	going = kit_run_alike(k, RULE_THREADS, "with buckets interleaved", &a, &b, 3);
	a.light = before >= 100;
	for (int n = 0; going && n < before; n++)
		going = step_alone(k, &a, 0);
	a.light = false;
	if (going && carried(k, &a, &b) && kit_run_alike(k, RULE_RESUME, "after a load", &a, &b, 3))
		given_up(k, &a, &b);
	ranks_close(&a);
	ranks_close(&b);
}

void resume_group(kit *k)
{
	for (int P = 1; P <= 3; P++)
		resume_of(k, &(kit_place){P, &fixture_models[6], 3000, 0, false}, 2);
	resume_of(k, &(kit_place){2, &fixture_models[0], 3000, 0, false}, 2);
	k->since = KIT_FURTHER;
	resume_of(k, &(kit_place){2, &fixture_models[7], 3000, REACH_STEP, false}, 2);
	if (k->options->far)
		resume_of(k, &(kit_place){2, &fixture_few, 3000, 0, false}, REACH_STEPS - 10);
	for (int n = 0; n < kit_places(k); n++) {
		kit_place p = kit_reach(k, n);
		resume_of(k, &p, 1);
	}
	kit_ok(k, RULE_RESUME, "3 steps after a load, bit for bit, on 1 to 3 ranks; after %d steps, too", REACH_STEPS);
	kit_ok(k, RULE_DECODE_ONLY, "3 steps after an encode() that was given up, bit for bit");
	kit_ok(k, RULE_THREADS, "buckets in turn or interleaved, the same bits");
}
