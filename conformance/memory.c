/* create() without memory: an error, and nothing left behind. Everything that was
 * taken is given back. */
#include "conformance/call.h"
#include "conformance/hooks.h"
#include "conformance/kit.h"

void memory_group(kit *k)
{
	const fixture *t = &k->fixture;
	int before = host_allocated, plain = hooks_outstanding(), failed = 0;
	float *g[RANKS_MAX];
	ranks s;
	for (int n = 0; n < 200; n++) {
		host_fail_at = n;
		gradcomp_status st =
			ranks_open(&s, t->plugin, t->op, t->values, 1, fixture_models[6].n, fixture_models[6].dims, 1);
		int used_up = host_fail_at == 0;
		host_fail_at = -1;
		if (!st)
			ranks_close(&s);
		if (!st && !used_up)
			break;
		failed += st != 0;
		if (st && (st != GRADCOMP_ERR_NOMEM || !s.err.text[0]))
			kit_fail(k, RULE_MEMORY, "create() without memory for allocation %d returns %d: %s", n + 1, st,
			         s.err.text[0] ? s.err.text : "(without a word)");
		if (st && s.instance[0])
			kit_fail(k, RULE_MEMORY, "create() fails and leaves something in *instance");
	}
	call_begin(CALL_DESTROY, 0, 1, 0);
	t->plugin->destroy(NULL);
	call_end();
	if (host_allocated != before || hooks_outstanding() != plain)
		kit_fail(k, RULE_MEMORY,
		         "after %d failures of create() %d blocks of host->alloc and %d of malloc are left", failed,
		         host_allocated - before, hooks_outstanding() - plain);
	before = host_allocated, plain = hooks_outstanding();
	for (int n = 0; n < 3; n++) {
		if (!kit_open(k, &s, 2, &fixture_models[6]))
			return;
		fixture_gradients_new(&s, g);
		fixture_fill(t, &s, g, KIND_NORMAL);
		kit_step(k, &s, g, 0);
		fixture_gradients_free(&s, g);
		ranks_close(&s);
	}
	if (host_allocated != before || hooks_outstanding() != plain)
		kit_fail(k, RULE_MEMORY, "after 3 jobs of 2 ranks %d blocks of host->alloc and %d of malloc are left",
		         host_allocated - before, hooks_outstanding() - plain);
	kit_ok(k, RULE_MEMORY, "each of %d allocations may fail; nothing is left behind", failed);
}
