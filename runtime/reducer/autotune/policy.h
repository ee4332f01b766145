/* Inside of rank 0's policy: what its two files share. Nothing of it reads a clock. */
#ifndef REDUCER_AUTOTUNE_POLICY_H
#define REDUCER_AUTOTUNE_POLICY_H

#include "reducer/autotune/tuner.h"

enum {
	POLICY_FIRST = 3, /* steps after which a trial may stop */
	POLICY_PATIENCE = 16
};
#define POLICY_CLEARLY 1.1 /* times longer: enough said */
#define POLICY_NEARLY 0.98 /* of the best: no more than noise */

static inline double policy_min(double a, double b)
{
	return a < b ? a : b;
}

/* Steps that count, a window at most. */
static inline uint32_t policy_recent(const choice *c)
{
	uint32_t n = metrics_steps(c);
	return n < c->wish.window ? n : c->wish.window;
}

static inline int policy_usable(const choice *c, uint32_t k)
{
	return !c->policy.banned[k] && !c->wish.candidate[k].unusable;
}

/* Decisions: with what runs, or with candidate k from now on; the next check is after `next` steps. */
void policy_stay(decision *v, tuner_phase phase, tuner_reason reason, uint32_t next);
void policy_go(choice *c, decision *v, uint8_t *of, uint32_t k, tuner_phase phase, tuner_reason reason,
               uint32_t next);
/* Steps to the next check while candidate k is kept. */
uint32_t policy_until_next(const choice *c, uint32_t k);
/* Nothing is compared for so many steps, and as many intervals as it has patience for. */
void policy_rest(choice *c, double steps);

/* choice_trial.c: candidates' costs are known: who is worth a trial? Then one that runs. */
void policy_predict(choice *c, decision *v, uint8_t *of);
void policy_trial(choice *c, decision *v, uint8_t *of);

#endif
