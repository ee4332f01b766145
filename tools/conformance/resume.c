/* Two runs of the same, a run that was saved and loaded, a step that was given up. */
#include <stdbool.h>
#include <string.h>

#include "tools/conformance/kit.h"

static bool twins(kit *k, ranks *a, ranks *b, int P, model *m)
{
	const fixture *t = &k->fixture;

	if (!kit_open(k, a, P, m))
		return false;
	if (ranks_open(b, t->plugin, t->op, t->values, P, m->n, m->dims, a->layout[0].seed)) {
		kit_fail(k, RULE_GLOBALS, "create() works once and not twice: %s", b->err.text);
		ranks_close(a);
		return false;
	}
	ranks_plan(a, 3000);
	ranks_plan(b, 3000);
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

/* Everything that lasts, before and after an encode() that led to nothing. */
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

static void resume_of(kit *k, int P, model *m)
{
	ranks a, b;

	if (!twins(k, &a, &b, P, m))
		return;
	if (kit_run_alike(k, RULE_THREADS, "with buckets interleaved", &a, &b, 3) && step_alone(k, &a, 0) &&
	    step_alone(k, &a, 0) && carried(k, &a, &b) && kit_run_alike(k, RULE_RESUME, "after a load", &a, &b, 3))
		given_up(k, &a, &b);
	ranks_close(&a);
	ranks_close(&b);
}

void group_resume(kit *k)
{
	for (int P = 1; P <= 3; P++)
		resume_of(k, P, &fixture_models[6]);
	resume_of(k, 2, &fixture_models[7]);
	resume_of(k, 2, &fixture_models[0]);
	kit_ok(k, RULE_RESUME, "3 steps after a load, bit for bit, on 1 to 3 ranks");
	kit_ok(k, RULE_DECODE_ONLY, "3 steps after an encode() that was given up, bit for bit");
	kit_ok(k, RULE_THREADS, "buckets in turn or interleaved, the same bits");
}
