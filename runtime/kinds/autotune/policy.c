/* Decides on rank 0, from numbers that all ranks have shown. Nothing here reads a clock.
 *
 * Dense steps to compare with are few where they are dear: about one per cent of the time. */
#include "kinds/autotune/tuner.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

enum {
	TRIAL_FIRST = 3, /* steps of a trial after which it may stop */
	GUARD_FIRST = 2,
	GUARD_STEPS = 5,
	PATIENCE = 16
};
#define CLEARLY 1.1       /* times longer: enough said */
#define NEARLY 0.98       /* a time above this part of the best's is no gain but noise */
#define HURRY_FIRST 0.5   /* share that is exposed, for which one step is enough, */
#define HURRY_SECOND 0.25 /* and for which three are */
#define HURRY_S 0.1       /* steps so long are decided on at once; measuring costs less than another */
#define GUARD_SHARE 0.01  /* part of the time that may go into dense steps */
#define GROWS 0.75        /* steps that numbers wait longer with every step: their memory grows */

static double lesser(double a, double b)
{
	return a < b ? a : b;
}

/* Counts the steps that count, a window at most. */
static uint32_t recent(const tuner *c)
{
	uint32_t n = metrics_steps(c);
	return n < c->config.window ? n : c->config.window;
}

static int usable(const tuner *c, uint32_t k)
{
	return !c->choice.policy.banned[k] && !c->config.candidate[k].unusable;
}

void policy_start(policy *p)
{
	p->phase = TUNER_LOOK;
	p->patience = 1;
	p->guarded = TUNER_NONE;
}

static void stay(decision *v, tuner_phase phase, tuner_reason reason, uint32_t next)
{
	v->phase = phase;
	v->reason = reason;
	v->next = next;
}

static void go_to(tuner *c, decision *v, uint8_t *of, uint32_t k, tuner_phase phase, tuner_reason reason, uint32_t next)
{
	stay(v, phase, reason, next);
	v->candidate = k;
	memcpy(of, c->choice.policy.of + (size_t)k * c->ntensors, c->ntensors);
}

static uint32_t until_next(const tuner *c, uint32_t k)
{
	uint64_t left = c->choice.policy.guard_at > c->steps ? c->choice.policy.guard_at - c->steps : 1,
		 often = c->config.interval / 10;
	/* The share that is held back is looked at more often than the clock. */
	if (!c->config.candidate[k].dense && often < left)
		left = often;
	return left > TUNER_NEXT_MAX ? TUNER_NEXT_MAX : (uint32_t)left;
}

static void rest(tuner *c, double steps)
{
	policy *p = &c->choice.policy;
	double wait = (double)c->config.interval * p->patience;
	if (steps > wait)
		wait = steps;
	p->guard_at = c->steps + (uint64_t)lesser(wait, TUNER_NEXT_MAX);
	p->patience = p->patience < PATIENCE ? 2 * p->patience : PATIENCE;
	p->n_over = 0;
	p->over_wait = 0;
}

/* Trials say which candidates are tried, and which of them wins.
 *
 * Every decision for compression costs dense steps or slow ones if it is wrong, so a trial
 * is short, ends as soon as it is clearly lost, and is not begun for less than the margin. */

/* Returns the fewest seconds that a step has taken with any candidate but `but`. */
static double best_measured(const tuner *c, uint32_t but)
{
	const double *measured = c->choice.policy.measured;
	double best = 0;
	for (uint32_t i = 0; i < c->config.n; i++)
		if (i != but && measured[i] > 0 && usable(c, i) && (!best || measured[i] < best))
			best = measured[i];
	return best;
}

/* Trials are over: the fastest that was tried stays, or the base. */
static void conclude(tuner *c, decision *v, uint8_t *of)
{
	policy *p = &c->choice.policy;
	uint32_t winner = 0;
	/* More is asked where the base was seen for a moment only. */
	double limit = p->base * (p->base_steps < TRIAL_FIRST + 1 ? 2 - CLEARLY : NEARLY);
	for (uint32_t i = 1; i < c->config.n; i++)
		if (p->tried[i] && usable(c, i) && p->measured[i] > 0 && p->measured[i] < limit) {
			limit = p->measured[i];
			winner = i;
		}
	p->patience = winner ? 1 : p->patience;
	p->lost += !winner && p->trials;
	rest(c, 0);
	go_to(c, v, of, winner, TUNER_KEEP,
	      winner      ? TUNER_WON
	      : p->trials ? TUNER_LOST
	                  : TUNER_NO_GAIN,
	      until_next(c, winner));
}

/* The candidate that is predicted to be the fastest of those that were not tried. */
static uint32_t most_promising(const tuner *c)
{
	const policy *p = &c->choice.policy;
	uint32_t best = TUNER_NONE;
	for (uint32_t i = 1; i < c->config.n; i++)
		if (!p->tried[i] && usable(c, i) && p->predicted[i] > 0 &&
		    (best == TUNER_NONE || p->predicted[i] < p->predicted[best]))
			best = i;
	return best;
}

static void next_trial(tuner *c, decision *v, uint8_t *of)
{
	policy *p = &c->choice.policy;
	uint32_t k = most_promising(c), strict = p->lost < 4 ? 1 + p->lost : 4;
	double limit = p->trials ? best_measured(c, TUNER_NONE) * NEARLY
	                         : p->base * (1 - lesser(c->config.margin * strict, 0.9));
	/* Nobody has waited long yet: steps may show more than the first ones did. */
	if (!p->trials && p->base_steps < c->config.window && (k == TUNER_NONE || p->predicted[k] > limit)) {
		stay(v, TUNER_LOOK, TUNER_GOES_ON, c->config.window - p->base_steps);
		return;
	}
	if (k == TUNER_NONE || p->trials == TUNER_TRIALS || p->predicted[k] > limit) {
		conclude(c, v, of);
		return;
	}
	p->tried[k] = 1;
	p->trials++;
	go_to(c, v, of, k, TUNER_TRY, TUNER_TRIES, 1 + TRIAL_FIRST);
}

/* The exchange was measured in the base's buckets. Before anything is tried it is timed at the size of the
 * best candidate's messages, and all is predicted again. */
static void fit_first(tuner *c, decision *v, double message)
{
	c->choice.policy.fitted = 1;
	stay(v, TUNER_MEASURE, TUNER_GOES_ON, 0);
	v->fit = (uint32_t)fmin(fmax(message, TUNER_FIT_MIN), TUNER_FIT_MAX);
}

/* Candidates' costs are known: who is worth a trial? */
static void predict_all(tuner *c, decision *v, uint8_t *of)
{
	policy *p = &c->choice.policy;
	double of_base = tuner_predict(c, 0, p->of, NULL), best = 0, message = 0;
	memset(p->tried, 0, sizeof p->tried);
	p->trials = 0;
	for (uint32_t k = 1; k < c->config.n; k++) {
		double size = 0, s = usable(c, k) ? tuner_predict(c, k, p->of + (size_t)k * c->ntensors, &size) : -1;
		p->predicted[k] = 0;
		if (s < 0 || of_base < 0)
			continue;
		/* The base has been measured; no candidate makes the program itself faster. */
		double took = p->base - lesser(of_base - s, p->exposed);
		/* More reducers for no more than noise are not worth a trial. */
		if (c->config.candidate[k].mixed && best > 0 && took > NEARLY * best)
			continue;
		p->predicted[k] = took;
		if (!(best > 0 && best <= took) && !c->config.candidate[k].dense)
			message = size;
		best = best > 0 ? lesser(best, took) : took;
	}
	if (message > 0 && !p->fitted)
		fit_first(c, v, message);
	else
		next_trial(c, v, of);
}

static void judge_trial(tuner *c, decision *v, uint8_t *of)
{
	policy *p = &c->choice.policy;
	uint32_t n = recent(c), k = c->parts.now.candidate, other = most_promising(c);
	double m = metrics_median(c->choice.metrics.took, n), best = best_measured(c, k);
	int lost = m > CLEARLY * best;
	int won = m * CLEARLY < best && (other == TUNER_NONE || p->predicted[other] > NEARLY * m);
	if (n < c->config.window && !lost && !won) {
		stay(v, TUNER_TRY, TUNER_GOES_ON, c->config.window - n);
		return;
	}
	p->measured[k] = m;
	p->left[k] = lesser(metrics_median(c->choice.metrics.exposed, n), m);
	next_trial(c, v, of);
}

/* Finds the dense candidate to compare k with. */
static uint32_t opponent(const tuner *c, uint32_t k)
{
	const double *measured = c->choice.policy.measured;
	uint32_t best = 0;
	for (uint32_t i = 1; !c->config.candidate[k].dense && i < c->config.n; i++)
		if (c->config.candidate[i].dense && usable(c, i) && measured[i] > 0 && measured[i] < measured[best])
			best = i;
	return best;
}

/* Returns 1 when n steps, less than a window, say enough. */
static int clear(const tuner *c, uint32_t n, double share, double took)
{
	if (c->steps == 1) /* it has no beginning, and is all there is */
		return share > HURRY_FIRST && took > HURRY_S;
	return share > HURRY_FIRST || (n >= TRIAL_FIRST && share > HURRY_SECOND);
}

/* Dense, at the start or again: is there anything to be had? */
static void look(tuner *c, decision *v, uint8_t *of)
{
	policy *p = &c->choice.policy;
	uint32_t n = recent(c);
	double took = metrics_median(c->choice.metrics.took, n),
	       exposed = lesser(metrics_median(c->choice.metrics.exposed, n), took);
	if (n < c->config.window && !clear(c, n, took > 0 ? exposed / took : 0, took)) {
		stay(v, TUNER_LOOK, TUNER_GOES_ON, n < TRIAL_FIRST ? n : c->config.window - n);
		return;
	}
	p->base = p->measured[0] = took;
	p->base_steps = n;
	p->exposed = exposed;
	p->fitted = 0;
	if (exposed < c->config.margin * took || c->config.n == 1) {
		rest(c, 0);
		stay(v, TUNER_KEEP, c->config.n == 1 ? TUNER_NO_GAIN : TUNER_HIDDEN, until_next(c, 0));
		return;
	}
	if (*c->choice.metrics.costed > 0) {
		predict_all(c, v, of);
		return;
	}
	stay(v, TUNER_MEASURE, TUNER_GOES_ON, took > HURRY_S ? 0 : TRIAL_FIRST - 1);
	v->measure = 1;
}

/* Steps that a number waits, of which this share is held back. */
static double waits(double share)
{
	return share < 1 ? 1 / (1 - share) : HUGE_VAL;
}

/* Too much is held back. Of gradients that are noise a compressor takes out the same small part in
 * every step: the share stays where it is, and up to twice the wait is borne with. One whose memory
 * grows makes numbers wait for a step more with every step, which shows after some part of the wait. */
static int holds_too_much(tuner *c)
{
	policy *p = &c->choice.policy;
	double share = *c->choice.metrics.error, wait = waits(share), twice = 2 * waits(c->config.max_error);
	double since = (double)(c->steps - p->over_at);
	if (share <= c->config.max_error) {
		p->n_over = 0;
		p->over_wait = 0;
		return 0;
	}
	p->n_over = share >= 1 || wait > twice ? p->n_over + 1 : 0;
	if (p->over_wait > 0 && since < fmax(c->config.window, p->over_wait / 4))
		return p->n_over > 1;
	int grows = p->over_wait > 0 && wait - p->over_wait > GROWS * since;
	p->over_wait = lesser(wait, twice);
	p->over_at = c->steps;
	return grows || p->n_over > 1;
}

static void keep(tuner *c, decision *v, uint8_t *of)
{
	policy *p = &c->choice.policy;
	uint32_t n = recent(c), k = c->parts.now.candidate;
	int dense = c->config.candidate[k].dense;
	if (n >= TRIAL_FIRST)
		p->measured[k] = metrics_median(c->choice.metrics.took, n);
	if (!dense && holds_too_much(c)) {
		p->banned[k] = 1;
		p->lost++;
		rest(c, 0);
		uint32_t instead = opponent(c, k);
		go_to(c, v, of, instead, TUNER_KEEP, TUNER_ERROR, until_next(c, instead));
	} else if (c->steps < p->guard_at || n < TRIAL_FIRST) {
		stay(v, TUNER_KEEP, TUNER_GOES_ON,
		     p->n_over         ? c->config.window
		     : n < TRIAL_FIRST ? TRIAL_FIRST
		                       : until_next(c, k));
	} else if (k == 0) {
		look(c, v, of);
	} else {
		p->guarded = k;
		p->before = p->measured[k];
		go_to(c, v, of, opponent(c, k), TUNER_GUARD, TUNER_GUARDS, 1 + GUARD_FIRST);
	}
}

static void guard(tuner *c, decision *v, uint8_t *of)
{
	policy *p = &c->choice.policy;
	uint32_t n = recent(c), k = c->parts.now.candidate,
		 enough = c->config.window < GUARD_STEPS ? c->config.window : GUARD_STEPS;
	double took = metrics_median(c->choice.metrics.took, n), gap = took / p->before - 1;
	if (n < enough && took < CLEARLY * p->before) {
		stay(v, TUNER_GUARD, TUNER_GOES_ON, enough - n);
		return;
	}
	p->measured[k] = took;
	if (k == 0) {
		p->base = took;
		p->base_steps = n;
		p->exposed = lesser(metrics_median(c->choice.metrics.exposed, n), took);
	}
	if (took <= p->before) {
		p->lost++;
		rest(c, 0);
		stay(v, TUNER_KEEP, TUNER_NO_LONGER_WINS, until_next(c, k));
		return;
	}
	rest(c, gap * (n + 1) / GUARD_SHARE);
	go_to(c, v, of, p->guarded, TUNER_KEEP, TUNER_STILL_WINS, until_next(c, p->guarded));
}

void policy_decide(tuner *c, decision *v, uint8_t *of)
{
	static void (*const phases[])(tuner *, decision *, uint8_t *) = {[TUNER_LOOK] = look,
	                                                                 [TUNER_MEASURE] = predict_all,
	                                                                 [TUNER_TRY] = judge_trial,
	                                                                 [TUNER_KEEP] = keep,
	                                                                 [TUNER_GUARD] = guard};
	policy *p = &c->choice.policy;
	*v = (decision){.magic = TUNER_MAGIC, .step = c->steps, .candidate = c->parts.now.candidate};
	memcpy(of, c->parts.now.of, c->ntensors);
	phases[p->phase](c, v, of);
	p->phase = (tuner_phase)v->phase;
	memcpy(v->predicted, p->predicted, sizeof v->predicted);
	memcpy(v->measured, p->measured, sizeof v->measured);
	v->exposed = p->exposed;
}

void policy_refused(tuner *c, uint32_t k)
{
	policy *p = &c->choice.policy;
	p->banned[k] = k != 0;
	/* Where nothing was tried yet the next best is; else what runs goes on. */
	p->phase = p->phase == TUNER_TRY ? TUNER_MEASURE : TUNER_KEEP;
	if (p->phase == TUNER_KEEP)
		rest(c, 0);
}

void policy_resume(tuner *c, int looks, uint64_t guard_at)
{
	policy *p = &c->choice.policy;
	uint32_t k = c->parts.now.candidate;
	uint8_t *of = p->of;
	*p = (policy){.phase = looks ? TUNER_LOOK : TUNER_KEEP,
	              .patience = 1,
	              .guarded = TUNER_NONE,
	              .guard_at = guard_at,
	              .base = c->choice.last.measured[0],
	              .base_steps = c->config.window,
	              .exposed = c->choice.last.exposed,
	              .of = of};
	memcpy(p->predicted, c->choice.last.predicted, sizeof p->predicted);
	memcpy(p->measured, c->choice.last.measured, sizeof p->measured);
	memcpy(of + (size_t)k * c->ntensors, c->parts.now.of, c->ntensors);
}

/* The functions below read what rank 0 says at a check.
 *
 * The others believe nothing that would part them from
 * what they know: another step, a candidate that is not there, parts that are none. */

static gradcomp_status check_parts(const tuner *c, const decision *v, const uint8_t *of, gradcomp_error *err)
{
	const candidate *all = c->config.candidate;
	const int first = c->group->ranks[0], mixed = all[v->candidate].mixed;
	uint32_t used[TUNER_CANDIDATES] = {0}, parts = 0;
	for (uint32_t i = 0; i < c->ntensors; i++) {
		uint32_t k = of[i];
		if (k >= c->config.n || all[k].mixed || all[k].unusable || (!mixed && k && k != v->candidate))
			return error_set(
				err, GRADCOMP_ERR_MISMATCH,
				"auto: rank %d gave tensor %u to candidate %u, which is left out, none of 0..%u or "
				"not part of '%s'",
				first, i, k, c->config.n - 1, all[v->candidate].text);
		parts += !used[k]++;
	}
	if (mixed ? parts < 2 || parts > TUNER_PARTS : !used[v->candidate])
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided on '%s' in %u parts, and for %u of %u tensors", first,
		                 all[v->candidate].text, parts, used[v->candidate], c->ntensors);
	return GRADCOMP_OK;
}

gradcomp_status policy_check_decision(const tuner *c, const decision *v, const uint8_t *of, gradcomp_error *err)
{
	uint32_t n = c->config.n;
	const int first = c->group->ranks[0];
	gradcomp_status st;
	if (v->magic != TUNER_MAGIC)
		return error_set(err, GRADCOMP_ERR_MISMATCH, "auto: rank %d's decision begins with %#llx and is none",
		                 first, (unsigned long long)v->magic);
	if (v->step != c->steps)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided for step %llu, this rank is at step %llu", first,
		                 (unsigned long long)v->step, (unsigned long long)c->steps);
	if (v->phase > TUNER_GUARD || v->reason >= TUNER_REASONS || v->measure > 1 || v->next > TUNER_NEXT_MAX)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided on phase %u for reason %u, with the next check in %u "
		                 "steps: must be 0..%d, "
		                 "0..%d and 0..%u",
		                 first, v->phase, v->reason, v->next, TUNER_GUARD, TUNER_REASONS - 1, TUNER_NEXT_MAX);
	if (v->fit && (v->fit < TUNER_FIT_MIN || v->fit > TUNER_FIT_MAX || v->candidate || c->parts.now.candidate))
		return error_set(
			err, GRADCOMP_ERR_MISMATCH,
			"auto: rank %d wants all-reduces of %u bytes timed with candidate %u: must be %u..%u with the "
			"base, which is 0",
			first, v->fit, v->candidate, TUNER_FIT_MIN, TUNER_FIT_MAX);
	if (v->candidate >= n || c->config.candidate[v->candidate].unusable)
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
			                 "auto: rank %d tells of steps of %g and %g seconds", first, v->predicted[k],
			                 v->measured[k]);
	if (!(v->exposed >= 0 && isfinite(v->exposed)))
		return error_set(err, GRADCOMP_ERR_MISMATCH, "auto: rank %d tells of %g exposed seconds", first,
		                 v->exposed);
	return GRADCOMP_OK;
}
