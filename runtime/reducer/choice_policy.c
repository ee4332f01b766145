/* What rank 0 decides, from numbers that all ranks have shown. Nothing here reads a clock.
 *
 * Every decision for compression costs dense steps or slow ones if it is wrong, so a trial
 * is short, ends as soon as it is clearly lost, and is not begun for less than the margin.
 * Dense steps to compare with are few where they are dear: about one per cent of the time. */
#include "choice.h"

#include <string.h>

enum {
	FIRST = 3,      /* steps of a trial after which it may be over */
	GUARD_FIRST = 2,
	GUARD_STEPS = 5,
	PATIENCE = 16
};
#define CLEARLY 1.1      /* times longer: enough said */
#define NEARLY 0.98      /* of the best: no more than noise */
#define HURRY_FIRST 0.5   /* share that is exposed, for which one step is enough, */
#define HURRY_SECOND 0.25 /* and for which three are */
#define HURRY_S 0.1       /* steps so long are decided on at once; measuring costs less than another */
#define GUARD_SHARE 0.01 /* of the time may go into dense steps */

void policy_start(policy *p)
{
	p->phase = CHOICE_LOOK;
	p->patience = 1;
	p->guarded = CHOICE_NONE;
}

static double min(double a, double b)
{
	return a < b ? a : b;
}

static uint32_t recent(const choice *c)
{
	uint32_t n = facts_steps(c);
	return n < c->wish.window ? n : c->wish.window;
}

static int usable(const choice *c, uint32_t k)
{
	return !c->policy.banned[k] && !c->wish.candidate[k].unusable;
}

static void stay(decision *v, choice_phase phase, choice_reason reason, uint32_t next)
{
	v->phase = phase;
	v->reason = reason;
	v->next = next;
}

static void go(choice *c, decision *v, uint8_t *of, uint32_t k, choice_phase phase, choice_reason reason,
               uint32_t next)
{
	stay(v, phase, reason, next);
	v->candidate = k;
	memcpy(of, c->policy.of + (size_t)k * c->ntensors, c->ntensors);
}

/* The dense candidate to compare k with. */
static uint32_t opponent(const choice *c, uint32_t k)
{
	const double *measured = c->policy.measured;
	uint32_t best = 0;
	for (uint32_t i = 1; !c->wish.candidate[k].dense && i < c->wish.n; i++)
		if (c->wish.candidate[i].dense && usable(c, i) && measured[i] > 0 && measured[i] < measured[best])
			best = i;
	return best;
}

static double best_measured(const choice *c, uint32_t but)
{
	const double *measured = c->policy.measured;
	double best = 0;
	for (uint32_t i = 0; i < c->wish.n; i++)
		if (i != but && measured[i] > 0 && usable(c, i) && (!best || measured[i] < best))
			best = measured[i];
	return best;
}

/* With candidate k from now on. */
static uint32_t until_next(const choice *c, uint32_t k)
{
	uint64_t left = c->policy.guard_at > c->steps ? c->policy.guard_at - c->steps : 1,
		 often = c->wish.interval / 10;
	/* What is held back is looked at more often than the clock. */
	if (!c->wish.candidate[k].dense && often < left)
		left = often;
	return left > CHOICE_NEXT_MAX ? CHOICE_NEXT_MAX : (uint32_t)left;
}

static void rest_until(choice *c, double steps)
{
	policy *p = &c->policy;
	double wait = (double)c->wish.interval * p->patience;
	if (steps > wait)
		wait = steps;
	p->guard_at = c->steps + (uint64_t)min(wait, CHOICE_NEXT_MAX);
	p->patience = p->patience < PATIENCE ? 2 * p->patience : PATIENCE;
	p->over = 0;
}

static void conclude(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t winner = 0;
	/* Of a base that was seen for a moment only, more is asked. */
	double limit = p->base * (p->base_steps < FIRST + 1 ? 2 - CLEARLY : NEARLY);
	for (uint32_t i = 1; i < c->wish.n; i++)
		if (p->tried[i] && usable(c, i) && p->measured[i] > 0 && p->measured[i] < limit) {
			limit = p->measured[i];
			winner = i;
		}
	p->patience = winner ? 1 : p->patience;
	p->lost += !winner && p->trials;
	rest_until(c, 0);
	go(c, v, of, winner, CHOICE_KEEP, winner ? CHOICE_WON : p->trials ? CHOICE_LOST : CHOICE_NO_GAIN,
	   until_next(c, winner));
}

/* The candidate that is predicted to be the fastest of those that were not tried. */
static uint32_t most_promising(const choice *c)
{
	const policy *p = &c->policy;
	uint32_t best = CHOICE_NONE;
	for (uint32_t i = 1; i < c->wish.n; i++)
		if (!p->tried[i] && usable(c, i) && p->predicted[i] > 0 &&
		    (best == CHOICE_NONE || p->predicted[i] < p->predicted[best]))
			best = i;
	return best;
}

static void next_trial(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t k = most_promising(c), strict = p->lost < 4 ? 1 + p->lost : 4;
	double limit = p->trials ? best_measured(c, CHOICE_NONE) * NEARLY
	                         : p->base * (1 - min(c->wish.margin * strict, 0.9));
	/* Nobody has waited long yet: steps may show more than the first ones did. */
	if (!p->trials && p->base_steps < c->wish.window && (k == CHOICE_NONE || p->predicted[k] > limit)) {
		stay(v, CHOICE_LOOK, CHOICE_GOES_ON, c->wish.window - p->base_steps);
		return;
	}
	if (k == CHOICE_NONE || p->trials == CHOICE_TRIALS || p->predicted[k] > limit) {
		conclude(c, v, of);
		return;
	}
	p->tried[k] = 1;
	p->trials++;
	go(c, v, of, k, CHOICE_TRY, CHOICE_TRIES, 1 + FIRST);
}

/* Candidates' costs are known: who is worth a trial? */
static void predict(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	double of_base = choice_predict(c, 0, p->of), best = 0;
	memset(p->tried, 0, sizeof p->tried);
	p->trials = 0;
	for (uint32_t k = 1; k < c->wish.n; k++) {
		double s = usable(c, k) ? choice_predict(c, k, p->of + (size_t)k * c->ntensors) : -1;
		p->predicted[k] = 0;
		if (s < 0 || of_base < 0)
			continue;
		/* The base has been measured; no candidate makes the program itself faster. */
		double took = p->base - min(of_base - s, p->exposed);
		/* More reducers for no more than noise are not worth a trial. */
		if (c->wish.candidate[k].mixed && best > 0 && took > NEARLY * best)
			continue;
		p->predicted[k] = took;
		best = best > 0 ? min(best, took) : took;
	}
	next_trial(c, v, of);
}

/* Whether n steps, less than a window, say enough. */
static int clear(const choice *c, uint32_t n, double share, double took)
{
	if (c->steps == 1) /* it has no beginning, and is all there is */
		return share > HURRY_FIRST && took > HURRY_S;
	return share > HURRY_FIRST || (n >= FIRST && share > HURRY_SECOND);
}

/* Dense, at the start or again: is there anything to be had? */
static void look(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = recent(c);
	double took = facts_median(c->facts.took, n), exposed = min(facts_median(c->facts.exposed, n), took);
	if (n < c->wish.window && !clear(c, n, took > 0 ? exposed / took : 0, took)) {
		stay(v, CHOICE_LOOK, CHOICE_GOES_ON, n < FIRST ? n : c->wish.window - n);
		return;
	}
	p->base = p->measured[0] = took;
	p->base_steps = n;
	p->exposed = exposed;
	if (exposed < c->wish.margin * took || c->wish.n == 1) {
		rest_until(c, 0);
		stay(v, CHOICE_KEEP, c->wish.n == 1 ? CHOICE_NO_GAIN : CHOICE_HIDDEN, until_next(c, 0));
		return;
	}
	if (*c->facts.costed > 0) {
		predict(c, v, of);
		return;
	}
	stay(v, CHOICE_MEASURE, CHOICE_GOES_ON, took > HURRY_S ? 0 : FIRST - 1);
	v->measure = 1;
}

static void trial(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = recent(c), k = c->now.candidate, other = most_promising(c);
	double m = facts_median(c->facts.took, n), best = best_measured(c, k);
	int lost = m > CLEARLY * best;
	int won = m * CLEARLY < best && (other == CHOICE_NONE || p->predicted[other] > NEARLY * m);
	if (n < c->wish.window && !lost && !won) {
		stay(v, CHOICE_TRY, CHOICE_GOES_ON, c->wish.window - n);
		return;
	}
	p->measured[k] = m;
	next_trial(c, v, of);
}

static void keep(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = recent(c), k = c->now.candidate;
	int dense = c->wish.candidate[k].dense;
	if (n >= FIRST)
		p->measured[k] = facts_median(c->facts.took, n);
	p->over = !dense && *c->facts.error > c->wish.max_error ? p->over + 1 : 0;
	if (p->over > 1) {
		p->banned[k] = 1;
		p->lost++;
		rest_until(c, 0);
		uint32_t instead = opponent(c, k);
		go(c, v, of, instead, CHOICE_KEEP, CHOICE_ERROR, until_next(c, instead));
	} else if (c->steps < p->guard_at || n < FIRST) {
		stay(v, CHOICE_KEEP, CHOICE_GOES_ON,
		     p->over     ? c->wish.window
		     : n < FIRST ? FIRST
		                 : until_next(c, k));
	} else if (k == 0) {
		look(c, v, of);
	} else {
		p->guarded = k;
		p->before = p->measured[k];
		go(c, v, of, opponent(c, k), CHOICE_GUARD, CHOICE_GUARDS, 1 + GUARD_FIRST);
	}
}

static void guard(choice *c, decision *v, uint8_t *of)
{
	policy *p = &c->policy;
	uint32_t n = recent(c), k = c->now.candidate;
	double took = facts_median(c->facts.took, n), gap = took / p->before - 1;
	if (n < GUARD_STEPS && took < CLEARLY * p->before) {
		stay(v, CHOICE_GUARD, CHOICE_GOES_ON, GUARD_STEPS - n);
		return;
	}
	p->measured[k] = took;
	if (k == 0) {
		p->base = took;
		p->base_steps = n;
		p->exposed = min(facts_median(c->facts.exposed, n), took);
	}
	if (took <= p->before) {
		p->lost++;
		rest_until(c, 0);
		stay(v, CHOICE_KEEP, CHOICE_NO_LONGER_WINS, until_next(c, k));
		return;
	}
	rest_until(c, gap * (n + 1) / GUARD_SHARE);
	go(c, v, of, p->guarded, CHOICE_KEEP, CHOICE_STILL_WINS, until_next(c, p->guarded));
}

void policy_decide(choice *c, decision *v, uint8_t *of)
{
	static void (*const phases[])(choice *, decision *, uint8_t *) = {[CHOICE_LOOK] = look,
	                                                                  [CHOICE_MEASURE] = predict,
	                                                                  [CHOICE_TRY] = trial,
	                                                                  [CHOICE_KEEP] = keep,
	                                                                  [CHOICE_GUARD] = guard};
	policy *p = &c->policy;
	*v = (decision){
		.magic = CHOICE_MAGIC, .step = c->steps, .candidate = c->now.candidate};
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
		rest_until(c, 0);
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
