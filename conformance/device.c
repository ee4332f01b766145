/* TRAIT_CUDA: the same bits as on the host, and no touch but by operators. */
#include "conformance/kit.h"

#include <stdbool.h>

/* A parameter may need the host; then the plugin refuses with an error. */
static bool refused(kit *k, ranks *b)
{
	float *g[RANKS_MAX];
	gradcomp_status st;
	fixture_gradients_new(b, g);
	fixture_fill(&k->fixture, b, g, KIND_NORMAL);
	st = ranks_step(b, g, 0);
	fixture_gradients_free(b, g);
	if (st == GRADCOMP_ERR_UNSUPPORTED && b->err.text[0])
		kit_skip(k, RULE_DEVICE, "refused with these parameters: %s", b->err.text);
	return st == GRADCOMP_ERR_UNSUPPORTED;
}

/* Runs that were alike. */
static int compared(kit *k, const kit_place *p, int steps)
{
	const uint64_t seed = random_check();
	gradcomp_status st = GRADCOMP_OK;
	int alike = 0;
	ranks a, b;
	if (kit_open_at(k, &a, p, seed))
		return 0;
	ranks_device = GRADCOMP_CUDA;
	st = kit_open_at(k, &b, p, seed);
	ranks_device = GRADCOMP_HOST;
	if (!st) {
		alike = kit_run_alike(k, RULE_DEVICE, "on the fenced device", &a, &b, steps);
		ranks_close(&b);
	}
	ranks_close(&a);
	return alike;
}

void device_group(kit *k)
{
	const fixture *t = &k->fixture;
	long steps = 0;
	ranks trial;
	if (!(t->plugin->traits & GRADCOMP_TRAIT_CUDA)) {
		kit_skip(k, RULE_DEVICE, "trait CUDA is not there");
		return;
	}
	if (t->plugin->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED)) {
		kit_skip(k, RULE_DEVICE, "the code functions work on host memory");
		return;
	}
	ranks_device = GRADCOMP_CUDA;
	gradcomp_status st =
		ranks_open(&trial, t->plugin, t->op, t->values, 1, fixture_models[6].n, fixture_models[6].dims, 1);
	ranks_device = GRADCOMP_HOST;
	int no = st == GRADCOMP_ERR_UNSUPPORTED && trial.err.text[0];
	if (no)
		kit_skip(k, RULE_DEVICE, "refused with these parameters: %s", trial.err.text);
	else if (st)
		kit_fail(k, RULE_DEVICE, "create() for a device fails: %s", trial.err.text);
	else
		no = refused(k, &trial);
	if (!st)
		ranks_close(&trial);
	for (int m = 0; m < MODELS && !no; m++)
		for (int P = 1; P <= 3; P++)
			steps += compared(k, &(kit_place){P, &fixture_models[m], UINT64_MAX, 0, false}, 3);
	k->since = KIT_FURTHER;
	/* Not of many buckets and tensors: opening and shutting the fence takes as long as there are buffers. */
	for (int n = 2; n < kit_places(k) && !no; n++) {
		kit_place p = kit_reach(k, n);
		steps += compared(k, &p, 2);
	}
	if (!no)
		kit_ok(k, RULE_DEVICE, "%ld runs with fenced buffers, the bits of the host", steps);
}
