/* States that are cut short, damaged, or of another model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/call.h"
#include "conformance/kit.h"

/* *out is made as long as save() says. */
static int saved(kit *k, ranks *s, guarded *out)
{
	uint64_t bytes = 0, written = 0;
	if (ranks_call(s, &(call){.which = CALL_SAVE, .bytes = &bytes}))
		return kit_fail(k, RULE_SAVED_STATE, "save() of the length fails: %s", s->err.text), 0;
	*out = guard("the saved state", bytes, 8);
	if (ranks_call(s, &(call){.which = CALL_SAVE, .to = out->data, .capacity = bytes, .bytes = &written}) ||
	    written != bytes)
		return kit_fail(k, RULE_SAVED_STATE, "save() promised %llu bytes and gave %llu",
		                (unsigned long long)bytes, (unsigned long long)written),
		       0;
	if (bytes &&
	    ranks_call(s, &(call){.which = CALL_SAVE, .to = out->data, .capacity = bytes - 1, .bytes = &written}) >= 0)
		return kit_fail(k, RULE_SAVED_STATE, "save() takes a buffer that is one byte too short"), 0;
	return 1;
}

/* Checks that load() refuses `bytes` bytes of `state` in words; the instance must be as `good` then. */
static int load(kit *k, ranks *s, const void *state, uint64_t bytes, const guarded *good, const char *what,
                int must_refuse)
{
	guarded in = guard("the state that is loaded", bytes, 8), after = {.map = NULL};
	gradcomp_status st;
	int fine = 1;
	memcpy(in.data, state, bytes);
	guard_lock(&in, 1);
	s->err = (gradcomp_error){.status = GRADCOMP_OK};
	st = ranks_call(s, &(call){.which = CALL_LOAD, .from = in.data, .capacity = bytes});
	guard_free(&in);
	if (st >= 0) {
		if (must_refuse)
			kit_fail(k, RULE_SAVED_STATE, "%s is taken\nload() compares neither length nor mark", what);
		return !must_refuse;
	}
	if (!s->err.text[0])
		return kit_fail(k, RULE_SAVED_STATE, "%s is refused without a word", what), 0;
	if (!saved(k, s, &after))
		return 0;
	if (after.bytes != good->bytes || memcmp(after.data, good->data, good->bytes)) {
		kit_fail(k, RULE_SAVED_STATE,
		         "%s is refused, but the instance has changed\nload() copies before it has checked all", what);
		fine = 0;
	}
	guard_free(&after);
	return fine;
}

/* Damage that cannot be detected may be accepted; then a step must still end. */
static int damaged(kit *k, const guarded *good, int times)
{
	float *g[RANKS_MAX];
	int taken = 0;
	for (int n = 0; n < times; n++) {
		ranks s;
		char *copy = malloc(good->bytes + 1);
		if (!copy || !kit_open(k, &s, 1, &fixture_models[6])) {
			free(copy);
			return taken;
		}
		memcpy(copy, good->data, good->bytes);
		for (uint64_t edits = 1 + random_check() % 3; edits; edits--)
			copy[random_check() % good->bytes] = (char)(random_check() % 3 ? random_check() : 0xff);
		if (!ranks_call(&s, &(call){.which = CALL_LOAD, .from = copy, .capacity = good->bytes})) {
			taken++;
			fixture_gradients_new(&s, g);
			fixture_fill(&k->fixture, &s, g, KIND_NORMAL);
			ranks_step(&s, g, 0);
			if (!s.intact || s.broke)
				kit_fail(k, RULE_SAVED_STATE,
				         "a damaged state was taken, and the next step leaves its buffers: %s",
				         s.err.text);
			fixture_gradients_free(&s, g);
		}
		free(copy);
		ranks_close(&s);
	}
	return taken;
}

void saved_state_group(kit *k)
{
	ranks s, other;
	guarded good = {.map = NULL}, others = {.map = NULL};
	float *g[RANKS_MAX];
	int fine = 1, cut = 0, taken = 0, times = k->options->thorough ? 2000 : 100;
	char what[100];
	if (!k->fixture.plugin->save) {
		kit_skip(k, RULE_SAVED_STATE, "there is no state beyond the host's arrays");
		return;
	}
	if (!kit_open(k, &s, 1, &fixture_models[6]))
		return;
	fixture_gradients_new(&s, g);
	fixture_fill(&k->fixture, &s, g, KIND_NORMAL);
	fine = kit_step(k, &s, g, 0) && saved(k, &s, &good);
	for (uint64_t n = 0; fine && n < good.bytes; n += 1 + good.bytes / 97, cut++) {
		snprintf(what, sizeof what, "a state cut off after %llu of %llu bytes", (unsigned long long)n,
		         (unsigned long long)good.bytes);
		fine = load(k, &s, good.data, n, &good, what, 1);
	}
	if (fine && kit_open(k, &other, 1, &fixture_models[7])) {
		if (saved(k, &other, &others)) {
			fine = load(k, &other, good.data, good.bytes, &others, "the state of another model",
			            good.bytes != others.bytes);
			guard_free(&others);
		}
		ranks_close(&other);
	}
	if (fine && good.bytes)
		taken = damaged(k, &good, times);
	if (fine)
		kit_ok(k, RULE_SAVED_STATE,
		       "%d cut short refused in words; of %d damaged ones %d were taken, without harm", cut,
		       good.bytes ? times : 0, taken);
	guard_free(&good);
	fixture_gradients_free(&s, g);
	ranks_close(&s);
}
