/* What rank 0 decides, from numbers that all ranks have shown. Nothing here reads a clock.
 *
 * Dense steps to compare with are few where they are dear: about one per cent of the time. */
#include "choice_policy.h"

#include <string.h>

enum { GUARD_FIRST = 2, GUARD_STEPS = 5 };
#define HURRY_FIRST 0.5   /* share that is exposed, for which one step is enough, */
#define HURRY_SECOND 0.25 /* and for which three are */
#define HURRY_S 0.1       /* steps so long are decided on at once; measuring costs less than another */
#define GUARD_SHARE 0.01  /* of the time may go into dense steps */

void policy_start(policy *p)
{
	p->phase = CHOICE_LOOK;
	p->patience = 1;
	p->guarded = CHOICE_NONE;
}

void policy_stay(decision *v, choice_phase phase, choice_reason reason, uint32_t next)
{
	v->phase = phase;
	v->reason = reason;
	v->next = next;
}

void policy_go(choice *c, decision *v, uint8_t *of, uint32_t k, choice_phase phase, choice_reason reason,
               uint32_t next)
{
	policy_stay(v, phase, reason, next);
	v->candidate = k;
	memcpy(of, c->policy.of + (size_t)k * c->ntensors, c->ntensors);
}

uint32_t policy_until_next(const choice *c, uint32_t k)
{
	uint64_t left = c->policy.guard_at > c->steps ? c->policy.guard_at - c->steps : 1,
		 often = c->wish.interval / 10;
	/* What is held back is looked at more often than the clock. */
	if (!c->wish.candidate[k].dense && often < left)
		left = often;
	return left > CHOICE_NEXT_MAX ? CHOICE_NEXT_MAX : (uint32_t)left;
}

void policy_rest(choice *c, double steps)
{
	policy *p = &c->policy;
	double wait = (double)c->wish.interval * p->patience;
	if (steps > wait)
		wait = steps;
	p->guard_at = c->steps + (uint64_t)policy_min(wait, CHOICE_NEXT_MAX);
	p->patience = p->patience < POLICY_PATIENCE ? 2 * p->patience : POLICY_PATIENCE;
	p->over = 0;
}

/* The dense candidate to compare k with. */
static uint32_t opponent(const choice *c, uint32_t k)
{
	const double *measured = c->policy.measured;
	uint32_t best = 0;
	for (uint32_t i = 1; !c->wish.candidate[k].dense && i < c->wish.n; i++)
		if (c->wish.candidate[i].dense && policy_usable(c, i) && measured[i] > 0 && measured[i] < measured[best])
			best = i;
	return best;
}

/* Whether n steps, less than a window, say enough. */
static int clear(const choice *c, uint32_t n, double share, double took)
{
	if (c->steps == 1) /* it has no beginning, and is all there is */
		return share > HURRY_FIRST && took > HURRY_S;
	return share > HURRY_FIRST || (n >= POLICY_FIRST && share > HURRY_SECOND);
}

/* Dense, at the start or again: is there anything to be had? */
static void look(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = policy_recent(c);
	double took = facts_median(c->facts.took, n), exposed = policy_min(facts_median(c->facts.exposed, n), took);
	if (n < c->wish.window && !clear(c, n, took > 0 ? exposed / took : 0, took)) {
		policy_stay(v, CHOICE_LOOK, CHOICE_GOES_ON, n < POLICY_FIRST ? n : c->wish.window - n);
		return;
	}
	p->base = p->measured[0] = took;
	p->base_steps = n;
	p->exposed = exposed;
	if (exposed < c->wish.margin * took || c->wish.n == 1) {
		policy_rest(c, 0);
		policy_stay(v, CHOICE_KEEP, c->wish.n == 1 ? CHOICE_NO_GAIN : CHOICE_HIDDEN, policy_until_next(c, 0));
		return;
	}
	if (*c->facts.costed > 0) {
		policy_predict(c, v, of);
		return;
	}
	policy_stay(v, CHOICE_MEASURE, CHOICE_GOES_ON, took > HURRY_S ? 0 : POLICY_FIRST - 1);
	v->measure = 1;
}

static void keep(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = policy_recent(c), k = c->now.candidate;
	int dense = c->wish.candidate[k].dense;
	if (n >= POLICY_FIRST)
		p->measured[k] = facts_median(c->facts.took, n);
	p->over = !dense && *c->facts.error > c->wish.max_error ? p->over + 1 : 0;
	if (p->over > 1) {
		p->banned[k] = 1;
		p->lost++;
		policy_rest(c, 0);
		uint32_t instead = opponent(c, k);
		policy_go(c, v, of, instead, CHOICE_KEEP, CHOICE_ERROR, policy_until_next(c, instead));
	} else if (c->steps < p->guard_at || n < POLICY_FIRST) {
		policy_stay(v, CHOICE_KEEP, CHOICE_GOES_ON,
		            p->over            ? c->wish.window
		            : n < POLICY_FIRST ? POLICY_FIRST
		                               : policy_until_next(c, k));
	} else if (k == 0) {
		look(c, v, of);
	} else {
		p->guarded = k;
		p->before = p->measured[k];
		policy_go(c, v, of, opponent(c, k), CHOICE_GUARD, CHOICE_GUARDS, 1 + GUARD_FIRST);
	}
}

static void guard(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = policy_recent(c), k = c->now.candidate;
	double took = facts_median(c->facts.took, n), gap = took / p->before - 1;
	if (n < GUARD_STEPS && took < POLICY_CLEARLY * p->before) {
		policy_stay(v, CHOICE_GUARD, CHOICE_GOES_ON, GUARD_STEPS - n);
		return;
	}
	p->measured[k] = took;
	if (k == 0) {
		p->base = took;
		p->base_steps = n;
		p->exposed = policy_min(facts_median(c->facts.exposed, n), took);
	}
	if (took <= p->before) {
		p->lost++;
		policy_rest(c, 0);
		policy_stay(v, CHOICE_KEEP, CHOICE_NO_LONGER_WINS, policy_until_next(c, k));
		return;
	}
	policy_rest(c, gap * (n + 1) / GUARD_SHARE);
	policy_go(c, v, of, p->guarded, CHOICE_KEEP, CHOICE_STILL_WINS, policy_until_next(c, p->guarded));
}

void policy_decide(choice *c, decision *v, uint8_t *of)
{
	static void (*const phases[])(choice *, decision *, uint8_t *) = {[CHOICE_LOOK] = look,
	                                                                  [CHOICE_MEASURE] = policy_predict,
	                                                                  [CHOICE_TRY] = policy_trial,
	                                                                  [CHOICE_KEEP] = keep,
	                                                                  [CHOICE_GUARD] = guard};
	policy *p = &c->policy;
	*v = (decision){.magic = CHOICE_MAGIC, .step = c->steps, .candidate = c->now.candidate};
	memcpy(of, c->now.of, c->ntensors);
	phases[p->phase](c, v, of);
	p->phase = (choice_phase)v->phase;
	memcpy(v->predicted, p->predicted, sizeof v->predicted);
	memcpy(v->measured, p->measured, sizeof v->measured);
	v->exposed = p->exposed;
}

void policy_refused(choice *c, uint32_t k)
{
	policy *p = &c->policy;
	p->banned[k] = k != 0;
	/* Where nothing was tried yet the next best is; else what runs goes on. */
	p->phase = p->phase == CHOICE_TRY ? CHOICE_MEASURE : CHOICE_KEEP;
	if (p->phase == CHOICE_KEEP)
		policy_rest(c, 0);
}

void policy_resume(choice *c, int looks, uint64_t guard_at)
{
	policy *p = &c->policy;
	uint32_t k = c->now.candidate;
	uint8_t *of = p->of;
	*p = (policy){.phase = looks ? CHOICE_LOOK : CHOICE_KEEP,
	              .patience = 1,
	              .guarded = CHOICE_NONE,
	              .guard_at = guard_at,
	              .base = c->last.measured[0],
	              .base_steps = c->wish.window,
	              .exposed = c->last.exposed,
	              .of = of};
	memcpy(p->predicted, c->last.predicted, sizeof p->predicted);
	memcpy(p->measured, c->last.measured, sizeof p->measured);
	memcpy(of + (size_t)k * c->ntensors, c->now.of, c->ntensors);
}
