/* The rules of every compressor (conformance) as TAP, and ranks that say when they
 * fail. */
#ifndef TESTS_CONTRACT_CONFORMANCE_TAP_H
#define TESTS_CONTRACT_CONFORMANCE_TAP_H

#include <math.h>

#include "conformance/kit.h"
#include "tests/support/operator_input.h"

static int opened(const fixture *t, ranks *s, int P, model *m)
{
	gradcomp_status st = ranks_open(s, t->plugin, t->op, t->values, P, m->n, m->dims, test_random());
	if (st)
		ok(0, "%s: P=%d, %s: create fails (%d): %s", t->spec, P, m->name, st, s->err.text);
	return !st;
}

static int stepped(const fixture *t, ranks *s, float **g, int interleave)
{
	gradcomp_status st = ranks_step(s, g, interleave);
	if (st)
		ok(0, "%s: a step fails (%d): %s", t->spec, st, s->err.text);
	return !st;
}

/* Checks every rule that applies, on 1 to `ranks_max` ranks; further ones, and long runs, only with the defaults. */
static void check_contract(const fixture *t, int ranks_max)
{
	static kit_result r;
	const kit_options o = {.ranks_min = 1,
	                       .ranks_max = ranks_max,
	                       .seed = test_random() % 1000000000,
	                       .far = !strchr(t->spec, ':'),
	                       .seconds = 60};
	memset(&r, 0, sizeof r);
	kit_run_fixture(&o, t, &r);
	for (int i = RULE_NONE + 1; i < RULES; i++)
		if (r.result[i] != RESULT_SKIP)
			ok(r.result[i] == RESULT_OK, "%s: %s: %s", t->spec, rule_name((rule)i), r.text[i]);
	if (r.rules_broken)
		printf("# repeat with: gradcomp plugin-check --seed %llu --ranks 1..%d, and the parameters of %s\n",
		       (unsigned long long)o.seed, ranks_max, t->spec);
}

#endif
