/* What rank 0 decides, from numbers that all ranks have shown. Nothing here reads a clock.
 *
 * Dense steps to compare with are few where they are dear: about one per cent of the time. */
#include "reducer/autotune/policy.h"
#include "reducer/autotune/tuner.h"
#include "base/error.h"

#include <string.h>
#include <math.h>

enum { GUARD_FIRST = 2, GUARD_STEPS = 5 };
#define HURRY_FIRST 0.5   /* share that is exposed, for which one step is enough, */
#define HURRY_SECOND 0.25 /* and for which three are */
#define HURRY_S 0.1       /* steps so long are decided on at once; measuring costs less than another */
#define GUARD_SHARE 0.01  /* of the time may go into dense steps */

void policy_start(policy *p)
{
	p->phase = TUNER_LOOK;
	p->patience = 1;
	p->guarded = TUNER_NONE;
}

void policy_stay(decision *v, tuner_phase phase, tuner_reason reason, uint32_t next)
{
	v->phase = phase;
	v->reason = reason;
	v->next = next;
}

void policy_go(choice *c, decision *v, uint8_t *of, uint32_t k, tuner_phase phase, tuner_reason reason,
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
	return left > TUNER_NEXT_MAX ? TUNER_NEXT_MAX : (uint32_t)left;
}

void policy_rest(choice *c, double steps)
{
	policy *p = &c->policy;
	double wait = (double)c->wish.interval * p->patience;
	if (steps > wait)
		wait = steps;
	p->guard_at = c->steps + (uint64_t)policy_min(wait, TUNER_NEXT_MAX);
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
	double took = metrics_median(c->facts.took, n), exposed = policy_min(metrics_median(c->facts.exposed, n), took);
	if (n < c->wish.window && !clear(c, n, took > 0 ? exposed / took : 0, took)) {
		policy_stay(v, TUNER_LOOK, TUNER_GOES_ON, n < POLICY_FIRST ? n : c->wish.window - n);
		return;
	}
	p->base = p->measured[0] = took;
	p->base_steps = n;
	p->exposed = exposed;
	if (exposed < c->wish.margin * took || c->wish.n == 1) {
		policy_rest(c, 0);
		policy_stay(v, TUNER_KEEP, c->wish.n == 1 ? TUNER_NO_GAIN : TUNER_HIDDEN, policy_until_next(c, 0));
		return;
	}
	if (*c->facts.costed > 0) {
		policy_predict(c, v, of);
		return;
	}
	policy_stay(v, TUNER_MEASURE, TUNER_GOES_ON, took > HURRY_S ? 0 : POLICY_FIRST - 1);
	v->measure = 1;
}

static void keep(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = policy_recent(c), k = c->now.candidate;
	int dense = c->wish.candidate[k].dense;
	if (n >= POLICY_FIRST)
		p->measured[k] = metrics_median(c->facts.took, n);
	p->over = !dense && *c->facts.error > c->wish.max_error ? p->over + 1 : 0;
	if (p->over > 1) {
		p->banned[k] = 1;
		p->lost++;
		policy_rest(c, 0);
		uint32_t instead = opponent(c, k);
		policy_go(c, v, of, instead, TUNER_KEEP, TUNER_ERROR, policy_until_next(c, instead));
	} else if (c->steps < p->guard_at || n < POLICY_FIRST) {
		policy_stay(v, TUNER_KEEP, TUNER_GOES_ON,
		            p->over            ? c->wish.window
		            : n < POLICY_FIRST ? POLICY_FIRST
		                               : policy_until_next(c, k));
	} else if (k == 0) {
		look(c, v, of);
	} else {
		p->guarded = k;
		p->before = p->measured[k];
		policy_go(c, v, of, opponent(c, k), TUNER_GUARD, TUNER_GUARDS, 1 + GUARD_FIRST);
	}
}

static void guard(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = policy_recent(c), k = c->now.candidate;
	double took = metrics_median(c->facts.took, n), gap = took / p->before - 1;
	if (n < GUARD_STEPS && took < POLICY_CLEARLY * p->before) {
		policy_stay(v, TUNER_GUARD, TUNER_GOES_ON, GUARD_STEPS - n);
		return;
	}
	p->measured[k] = took;
	if (k == 0) {
		p->base = took;
		p->base_steps = n;
		p->exposed = policy_min(metrics_median(c->facts.exposed, n), took);
	}
	if (took <= p->before) {
		p->lost++;
		policy_rest(c, 0);
		policy_stay(v, TUNER_KEEP, TUNER_NO_LONGER_WINS, policy_until_next(c, k));
		return;
	}
	policy_rest(c, gap * (n + 1) / GUARD_SHARE);
	policy_go(c, v, of, p->guarded, TUNER_KEEP, TUNER_STILL_WINS, policy_until_next(c, p->guarded));
}

void policy_decide(choice *c, decision *v, uint8_t *of)
{
	static void (*const phases[])(choice *, decision *, uint8_t *) = {[TUNER_LOOK] = look,
	                                                                  [TUNER_MEASURE] = policy_predict,
	                                                                  [TUNER_TRY] = policy_trial,
	                                                                  [TUNER_KEEP] = keep,
	                                                                  [TUNER_GUARD] = guard};
	policy *p = &c->policy;
	*v = (decision){.magic = TUNER_MAGIC, .step = c->steps, .candidate = c->now.candidate};
	memcpy(of, c->now.of, c->ntensors);
	phases[p->phase](c, v, of);
	p->phase = (tuner_phase)v->phase;
	memcpy(v->predicted, p->predicted, sizeof v->predicted);
	memcpy(v->measured, p->measured, sizeof v->measured);
	v->exposed = p->exposed;
}

void policy_refused(choice *c, uint32_t k)
{
	policy *p = &c->policy;
	p->banned[k] = k != 0;
	/* Where nothing was tried yet the next best is; else what runs goes on. */
	p->phase = p->phase == TUNER_TRY ? TUNER_MEASURE : TUNER_KEEP;
	if (p->phase == TUNER_KEEP)
		policy_rest(c, 0);
}

void policy_resume(choice *c, int looks, uint64_t guard_at)
{
	policy *p = &c->policy;
	uint32_t k = c->now.candidate;
	uint8_t *of = p->of;
	*p = (policy){.phase = looks ? TUNER_LOOK : TUNER_KEEP,
	              .patience = 1,
	              .guarded = TUNER_NONE,
	              .guard_at = guard_at,
	              .base = c->last.measured[0],
	              .base_steps = c->wish.window,
	              .exposed = c->last.exposed,
	              .of = of};
	memcpy(p->predicted, c->last.predicted, sizeof p->predicted);
	memcpy(p->measured, c->last.measured, sizeof p->measured);
	memcpy(of + (size_t)k * c->ntensors, c->now.of, c->ntensors);
}

/* Which candidates are tried, and which of them wins.
 *
 * Every decision for compression costs dense steps or slow ones if it is wrong, so a trial
 * is short, ends as soon as it is clearly lost, and is not begun for less than the margin. */


/* Seconds a step, but for those of candidate `but`. */
static double best_measured(const choice *c, uint32_t but)
{
	const double *measured = c->policy.measured;
	double best = 0;
	for (uint32_t i = 0; i < c->wish.n; i++)
		if (i != but && measured[i] > 0 && policy_usable(c, i) && (!best || measured[i] < best))
			best = measured[i];
	return best;
}

/* Trials are over: the fastest that was tried stays, or the base. */
static void conclude(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t winner = 0;
	/* Of a base that was seen for a moment only, more is asked. */
	double limit = p->base * (p->base_steps < POLICY_FIRST + 1 ? 2 - POLICY_CLEARLY : POLICY_NEARLY);
	for (uint32_t i = 1; i < c->wish.n; i++)
		if (p->tried[i] && policy_usable(c, i) && p->measured[i] > 0 && p->measured[i] < limit) {
			limit = p->measured[i];
			winner = i;
		}
	p->patience = winner ? 1 : p->patience;
	p->lost += !winner && p->trials;
	policy_rest(c, 0);
	policy_go(c, v, of, winner, TUNER_KEEP, winner ? TUNER_WON : p->trials ? TUNER_LOST : TUNER_NO_GAIN,
	          policy_until_next(c, winner));
}

/* The candidate that is predicted to be the fastest of those that were not tried. */
static uint32_t most_promising(const choice *c)
{
	const policy *p = &c->policy;
	uint32_t best = TUNER_NONE;
	for (uint32_t i = 1; i < c->wish.n; i++)
		if (!p->tried[i] && policy_usable(c, i) && p->predicted[i] > 0 &&
		    (best == TUNER_NONE || p->predicted[i] < p->predicted[best]))
			best = i;
	return best;
}

static void next_trial(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t k = most_promising(c), strict = p->lost < 4 ? 1 + p->lost : 4;
	double limit = p->trials ? best_measured(c, TUNER_NONE) * POLICY_NEARLY
	                         : p->base * (1 - policy_min(c->wish.margin * strict, 0.9));
	/* Nobody has waited long yet: steps may show more than the first ones did. */
	if (!p->trials && p->base_steps < c->wish.window && (k == TUNER_NONE || p->predicted[k] > limit)) {
		policy_stay(v, TUNER_LOOK, TUNER_GOES_ON, c->wish.window - p->base_steps);
		return;
	}
	if (k == TUNER_NONE || p->trials == TUNER_TRIALS || p->predicted[k] > limit) {
		conclude(c, v, of);
		return;
	}
	p->tried[k] = 1;
	p->trials++;
	policy_go(c, v, of, k, TUNER_TRY, TUNER_TRIES, 1 + POLICY_FIRST);
}

/* Candidates' costs are known: who is worth a trial? */
void policy_predict(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	double of_base = tuner_predict(c, 0, p->of), best = 0;
	memset(p->tried, 0, sizeof p->tried);
	p->trials = 0;
	for (uint32_t k = 1; k < c->wish.n; k++) {
		double s = policy_usable(c, k) ? tuner_predict(c, k, p->of + (size_t)k * c->ntensors) : -1;
		p->predicted[k] = 0;
		if (s < 0 || of_base < 0)
			continue;
		/* The base has been measured; no candidate makes the program itself faster. */
		double took = p->base - policy_min(of_base - s, p->exposed);
		/* More reducers for no more than noise are not worth a trial. */
		if (c->wish.candidate[k].mixed && best > 0 && took > POLICY_NEARLY * best)
			continue;
		p->predicted[k] = took;
		best = best > 0 ? policy_min(best, took) : took;
	}
	next_trial(c, v, of);
}

void policy_trial(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = policy_recent(c), k = c->now.candidate, other = most_promising(c);
	double m = metrics_median(c->facts.took, n), best = best_measured(c, k);
	int lost = m > POLICY_CLEARLY * best;
	int won = m * POLICY_CLEARLY < best && (other == TUNER_NONE || p->predicted[other] > POLICY_NEARLY * m);
	if (n < c->wish.window && !lost && !won) {
		policy_stay(v, TUNER_TRY, TUNER_GOES_ON, c->wish.window - n);
		return;
	}
	p->measured[k] = m;
	next_trial(c, v, of);
}

/* What rank 0 may say at a check. The others believe nothing that would part them from
 * what they know: another step, a candidate that is not there, parts that are none. */



static gradcomp_status check_parts(const choice *c, const decision *v, const uint8_t *of, gradcomp_error *err)
{
	const candidate *all = c->wish.candidate;
	const int first = c->group->ranks[0], mixed = all[v->candidate].mixed;
	uint32_t used[TUNER_CANDIDATES] = {0}, parts = 0;
	for (uint32_t i = 0; i < c->ntensors; i++) {
		uint32_t k = of[i];
		if (k >= c->wish.n || all[k].mixed || all[k].unusable || (!mixed && k && k != v->candidate))
			return error_set(err, GRADCOMP_ERR_MISMATCH,
			                 "auto: rank %d gave tensor %u to candidate %u, which is left out, none of 0..%u or "
			                 "not part of '%s'",
			                 first, i, k, c->wish.n - 1, all[v->candidate].text);
		parts += !used[k]++;
	}
	if (mixed ? parts < 2 || parts > TUNER_PARTS : !used[v->candidate])
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided on '%s' in %u parts, and for %u of %u tensors", first,
		                 all[v->candidate].text, parts, used[v->candidate], c->ntensors);
	return GRADCOMP_OK;
}

gradcomp_status decision_check(const choice *c, const decision *v, const uint8_t *of, gradcomp_error *err)
{
	uint32_t n = c->wish.n;
	const int first = c->group->ranks[0];
	gradcomp_status st;
	if (v->magic != TUNER_MAGIC)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d's decision begins with %#llx and is none", first,
		                 (unsigned long long)v->magic);
	if (v->step != c->steps)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided for step %llu, this rank is at step %llu", first,
		                 (unsigned long long)v->step, (unsigned long long)c->steps);
	if (v->phase > TUNER_GUARD || v->reason >= TUNER_REASONS || v->measure > 1 || v->next > TUNER_NEXT_MAX)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided on phase %u for reason %u, with the next check in %u "
		                 "steps: must be 0..%d, "
		                 "0..%d and 0..%u",
		                 first, v->phase, v->reason, v->next, TUNER_GUARD, TUNER_REASONS - 1,
		                 TUNER_NEXT_MAX);
	if (v->candidate >= n || c->wish.candidate[v->candidate].unusable)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided on candidate %u, which is none of 0..%u or left out", first,
		                 v->candidate, n - 1);
	st = check_parts(c, v, of, err);
	if (st)
		return st;
	for (uint32_t k = 0; k < TUNER_CANDIDATES; k++)
		if (!(v->predicted[k] >= 0 && isfinite(v->predicted[k]) && v->measured[k] >= 0 &&
		      isfinite(v->measured[k])))
			return error_set(err, GRADCOMP_ERR_MISMATCH,
			                 "auto: rank %d tells of steps of %g and %g seconds", first,
			                 v->predicted[k], v->measured[k]);
	if (!(v->exposed >= 0 && isfinite(v->exposed)))
		return error_set(err, GRADCOMP_ERR_MISMATCH, "auto: rank %d tells of %g exposed seconds", first,
		                 v->exposed);
	return GRADCOMP_OK;
}
