/* The groups share these. */
#include "conformance/hooks.h"
#include "conformance/kit.h"

#include <stdbool.h>
#include <string.h>

bool kit_open(kit *k, ranks *s, int P, model *m)
{
	const fixture *t = &k->fixture;
	gradcomp_status st = ranks_open(s, t->plugin, t->op, t->values, P, m->n, m->dims, random_check());
	if (st)
		kit_fail(k, k->crash, "create() fails for %d ranks, %s: %s", P, m->name, s->err.text);
	return !st;
}

bool kit_step(kit *k, ranks *s, float **g, int interleave)
{
	gradcomp_status st = ranks_step(s, g, interleave);
	if (st)
		kit_fail(k, s->broke ? s->broke : k->crash, "step %llu of %d ranks%s: %s", (unsigned long long)s->step,
		         s->P, s->broke ? "" : " fails", s->err.text[0] ? s->err.text : "(without a word)");
	if (!s->intact)
		kit_fail(k, RULE_BOUNDS, "step %llu of %d ranks: bytes beside a buffer were written",
		         (unsigned long long)s->step, s->P);
	return !st && s->intact;
}

const float *kit_memory(const fixture *t, const ranks *s, int w)
{
	if ((t->plugin->traits & GRADCOMP_TRAIT_OWN_MOMENTUM) && t->plugin->state_arrays)
		return s->state[w] + (t->plugin->state_arrays - 1) * s->numel;
	return gradcomp_keeps_error(t->plugin, s->values) ? s->error[w] : NULL;
}

/* Says what such a difference comes from. */
static const char *source_of(rule r)
{
	switch (r) {
	case RULE_RESUME:
		return "something that a later step depends on is not in save(): a counter, a position, a previous "
		       "factor";
	case RULE_DECODE_ONLY:
		return "encode() counts, or keeps something outside of scratch";
	case RULE_GLOBALS:
		return "a static variable";
	case RULE_THREADS:
		return "a _Thread_local variable, or a workspace that two functions or two buckets share";
	case RULE_DEVICE:
		return "a loop in place of an operator, or one that is not the same for host and device";
	default:
		return "it hangs on the rank, the time or memory that was not set";
	}
}

static bool same(kit *k, rule r, const char *when, const char *what, int P, int w, const float *a, const float *b,
                 uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (memcmp(&a[i], &b[i], sizeof *a)) {
			kit_fail(k, r, "%s: %s of rank %d of %d is %.9g at number %llu, and %.9g without\n%s", when,
			         what, w, P, (double)b[i], (unsigned long long)i, (double)a[i], source_of(r));
			return false;
		}
	return true;
}

bool kit_alike(kit *k, rule r, const char *when, const ranks *a, float **g, const ranks *b, float **h)
{
	uint64_t d = a->numel, arrays = a->plugin->state_arrays;
	for (int w = 0; w < a->P; w++)
		if (!same(k, r, when, "the average", a->P, w, g[w], h[w], d) ||
		    !same(k, r, when, "the error memory", a->P, w, a->error[w], b->error[w], d) ||
		    !same(k, r, when, "the state", a->P, w, a->state[w], b->state[w], d * arrays))
			return false;
	return true;
}

int kit_run_alike(kit *k, rule r, const char *when, ranks *a, ranks *b, int steps)
{
	float *g[RANKS_MAX], *h[RANKS_MAX];
	int alike = 1;
	fixture_gradients_new(a, g);
	fixture_gradients_new(b, h);
	for (int n = 0; alike && n < steps; n++) {
		fixture_fill(&k->fixture, a, g, KIND_NORMAL);
		for (int w = 0; w < a->P; w++)
			memcpy(h[w], g[w], a->numel * sizeof(float));
		alike = kit_step(k, a, g, 0) && kit_step(k, b, h, 1) && kit_alike(k, r, when, a, g, b, h);
	}
	fixture_gradients_free(a, g);
	fixture_gradients_free(b, h);
	return alike;
}

int kit_places(const kit *k)
{
	return k->options->far ? KIT_PLACES : 0;
}

kit_place kit_reach(const kit *k, int which)
{
	const int P = k->options->ranks_max < 2 ? 1 : 2;
	switch (which) {
	case 0:
		return (kit_place){P, fixture_many(), 1 + random_check() % 60, kit_some_step(), false};
	case 1:
		return (kit_place){P, fixture_many(), UINT64_MAX, kit_some_step(), false};
	case 2:
		return (kit_place){P == 1 ? 1 : RANKS_MAX, &fixture_few, 40, kit_some_step(), false};
	case 3:
		return (kit_place){P, &fixture_models[6], 3000, REACH_STEP, true};
	default:
		return (kit_place){P, fixture_large(0), UINT64_MAX, kit_some_step(), false};
	}
}

bool kit_declined(const ranks *s, gradcomp_status st)
{
	return s->err.text[0] && (st == GRADCOMP_ERR_UNSUPPORTED || st == GRADCOMP_ERR_RANGE ||
	                          (st == GRADCOMP_ERR_NOMEM && (host_refused || hooks_refused)));
}

gradcomp_status kit_open_at(const kit *k, ranks *s, const kit_place *p, uint64_t seed)
{
	const fixture *t = &k->fixture;
	gradcomp_status st;
	ranks_far = p->far;
	host_most = hooks_most = p->far ? REACH_MEMORY : SIZE_MAX / 4;
	st = ranks_open(s, t->plugin, t->op, t->values, p->P, p->m->n, p->m->dims, seed);
	ranks_far = false;
	host_most = hooks_most = SIZE_MAX / 4;
	if (st)
		return st;
	ranks_plan(s, p->most);
	s->step = p->from;
	return GRADCOMP_OK;
}

uint64_t kit_some_step(void)
{
	uint64_t bits = random_check() % 36, some = random_check() % 5;
	switch (random_check() % 3) {
	case 0:
		return 0;
	case 1:
		return ((uint64_t)4 << bits) + some - 2;
	default:
		return REACH_STEP + some;
	}
}

/* Returns the type whose rounding a round of rank 0's loses for good: of sums, or of the numbers that a code is. */
static gradcomp_dtype rounded_to(const ranks *s, const gradcomp_round *rd)
{
	gradcomp_code_layout l = {.struct_size = sizeof l};
	if (rd->pattern == GRADCOMP_SUMMED)
		return rd->dtype;
	if (rd->pattern != GRADCOMP_CODED || !s->plugin->code_layout)
		return GRADCOMP_F32;
	s->plugin->code_layout(s->instance[0], 0, &l);
	return l.coding.kind == GRADCOMP_CODING_FLOAT16 ? l.coding.type : GRADCOMP_F32;
}

void kit_rounding(fixture *t)
{
	ranks s;
	int half = 0, bhalf = 0;
	for (int P = 1; P <= 2; P++)
		for (int m = 5; m < MODELS; m++) {
			if (ranks_open(&s, t->plugin, t->op, t->values, P, fixture_models[m].n, fixture_models[m].dims,
			               1))
				continue;
			for (s.step = 0; s.step < 4; s.step++) {
				gradcomp_plan plan = {.struct_size = sizeof plan};
				if (ranks_call(&s, &(call){.which = CALL_PLAN, .bucket = &s.buckets[0], .plan = &plan}))
					continue;
				for (uint32_t r = 0; r < plan.nrounds && r < GRADCOMP_MAX_ROUNDS; r++) {
					const gradcomp_dtype to = rounded_to(&s, &plan.rounds[r]);
					half |= to == GRADCOMP_F16;
					bhalf |= to == GRADCOMP_BF16;
				}
			}
			ranks_close(&s);
		}
	t->relative = bhalf ? 0x1p-7 : half ? 0x1p-10 : 3e-5;
	t->absolute = half ? 0x1p-23 : bhalf ? 0x1p-132 : 0;
	t->largest = half ? 4000 : 0;
}
