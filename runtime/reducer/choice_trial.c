/* Which candidates are tried, and which of them wins.
 *
 * Every decision for compression costs dense steps or slow ones if it is wrong, so a trial
 * is short, ends as soon as it is clearly lost, and is not begun for less than the margin. */
#include "choice_policy.h"

#include <string.h>

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
	policy_go(c, v, of, winner, CHOICE_KEEP, winner ? CHOICE_WON : p->trials ? CHOICE_LOST : CHOICE_NO_GAIN,
	          policy_until_next(c, winner));
}

/* The candidate that is predicted to be the fastest of those that were not tried. */
static uint32_t most_promising(const choice *c)
{
	const policy *p = &c->policy;
	uint32_t best = CHOICE_NONE;
	for (uint32_t i = 1; i < c->wish.n; i++)
		if (!p->tried[i] && policy_usable(c, i) && p->predicted[i] > 0 &&
		    (best == CHOICE_NONE || p->predicted[i] < p->predicted[best]))
			best = i;
	return best;
}

static void next_trial(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t k = most_promising(c), strict = p->lost < 4 ? 1 + p->lost : 4;
	double limit = p->trials ? best_measured(c, CHOICE_NONE) * POLICY_NEARLY
	                         : p->base * (1 - policy_min(c->wish.margin * strict, 0.9));
	/* Nobody has waited long yet: steps may show more than the first ones did. */
	if (!p->trials && p->base_steps < c->wish.window && (k == CHOICE_NONE || p->predicted[k] > limit)) {
		policy_stay(v, CHOICE_LOOK, CHOICE_GOES_ON, c->wish.window - p->base_steps);
		return;
	}
	if (k == CHOICE_NONE || p->trials == CHOICE_TRIALS || p->predicted[k] > limit) {
		conclude(c, v, of);
		return;
	}
	p->tried[k] = 1;
	p->trials++;
	policy_go(c, v, of, k, CHOICE_TRY, CHOICE_TRIES, 1 + POLICY_FIRST);
}

/* Candidates' costs are known: who is worth a trial? */
void policy_predict(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	double of_base = choice_predict(c, 0, p->of), best = 0;
	memset(p->tried, 0, sizeof p->tried);
	p->trials = 0;
	for (uint32_t k = 1; k < c->wish.n; k++) {
		double s = policy_usable(c, k) ? choice_predict(c, k, p->of + (size_t)k * c->ntensors) : -1;
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
	double m = facts_median(c->facts.took, n), best = best_measured(c, k);
	int lost = m > POLICY_CLEARLY * best;
	int won = m * POLICY_CLEARLY < best && (other == CHOICE_NONE || p->predicted[other] > POLICY_NEARLY * m);
	if (n < c->wish.window && !lost && !won) {
		policy_stay(v, CHOICE_TRY, CHOICE_GOES_ON, c->wish.window - n);
		return;
	}
	p->measured[k] = m;
	next_trial(c, v, of);
}
