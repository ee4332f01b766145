/* A check: metrics, a decision, and what follows from it, between two steps. */
#include "kinds/autotune/tuner_gpu.h"
#include "kinds/autotune/tuner_internal.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

void tuner_assignment_clear(assignment *a)
{
	free(a->of);
	a->of = NULL;
}

/* A rank that falls out here is the only one that knows. */
static gradcomp_status fails(tuner *c, gradcomp_status st, const gradcomp_error *err)
{
	job_fail(c->job, st, err->text);
	return st;
}

gradcomp_status tuner_change(tuner *c, const assignment *to, tuner_reason why, int *refused, gradcomp_error *err)
{
	gradcomp_error inner = {0};
	int back = why == TUNER_STILL_WINS && partition_aside_is(c, to);
	partition *made = back ? c->parts.aside : NULL;
	*refused = 0;
	gradcomp_status st = back ? GRADCOMP_OK : partition_make(c, to, &made, &inner);
	if (st) {
		if (transport_failure(c->job->transport, err))
			return error_set(err, st, "%s", inner.text);
		log_line(&c->job->log, GRADCOMP_LOG_INFO, "auto: '%s' is left out: %s",
		         c->config.candidate[to->candidate].text, inner.text);
		c->config.candidate[to->candidate].unusable |= to->candidate != 0;
		*refused = 1;
		return GRADCOMP_OK;
	}
	partition *old = c->parts.partition;
	if (back)
		c->parts.aside = NULL;
	else
		st = partition_aside_end(c, err);
	if (!st && why != TUNER_GUARDS)
		st = residual_carry_take(c, old, err);
	pthread_mutex_lock(&c->lock);
	c->parts.partition = made;
	pthread_mutex_unlock(&c->lock);
	if (why == TUNER_GUARDS)
		c->parts.aside = old;
	else
		partition_free(c, old, 0);
	if (st)
		return fails(c, st, err);
	c->parts.now.candidate = to->candidate;
	memcpy(c->parts.now.of, to->of, c->ntensors);
	c->parts.changed_at = c->steps;
	partition_resolve(c, made);
	tuner_note_change(c, why);
	return GRADCOMP_OK;
}

/* Why a candidate is left out is logged at the next check, by one rank. */
void tuner_measure(tuner *c)
{
	for (uint32_t i = 0; i < c->config.n; i++) {
		candidate *k = &c->config.candidate[i];
		gradcomp_error err = {0};
		if (k->costed || k->unusable)
			continue;
		gradcomp_status st = tuner_candidate_resolve(&c->job->specs, c->wants.collective, k, &err);
		if (!st)
			st = candidate_cost_measure(c, k, &err);
		k->costed = 1;
		if (st && i) {
			k->unusable = 1;
			k->why = strdup(err.text);
		}
	}
}

/* Goes through one round of a check; v->next == 0: another one. */
static gradcomp_status check_once(tuner *c, decision *v, uint8_t *of, gradcomp_error *err)
{
	int refused = 0;
	metrics_fill(c);
	gradcomp_status st = metrics_share(c, err);
	memset(v, 0, sizeof *v);
	if (!st && c->group->me == 0)
		policy_decide(c, v, of);
	if (!st)
		st = group_broadcast(c->group, v, sizeof *v, GRADCOMP_U8, 0, err);
	if (!st)
		st = group_broadcast(c->group, of, c->ntensors, GRADCOMP_U8, 0, err);
	if (st)
		return st;
	st = policy_check_decision(c, v, of, err);
	if (st)
		return fails(c, st, err);
	if (v->measure && !v->next)
		tuner_measure(c);
	if (v->fit)
		st = tuner_fit(c, v->fit, err);
	if (st)
		return st;
	c->turns.measure = v->measure && v->next;
	assignment to = {v->candidate, of};
	if (to.candidate != c->parts.now.candidate || memcmp(of, c->parts.now.of, c->ntensors))
		st = tuner_change(c, &to, (tuner_reason)v->reason, &refused, err);
	/* Dense steps have won: nothing was changed, and what was set aside is over. */
	if (!st && !refused && v->phase != TUNER_GUARD) {
		st = partition_aside_end(c, err);
		if (st)
			fails(c, st, err);
	}
	if (st)
		return st;
	uint32_t reason = v->reason == TUNER_GOES_ON ? c->choice.last.reason : v->reason;
	c->choice.last = *v;
	c->choice.last.reason = reason;
	if (!refused) {
		tuner_log(c, v);
		return GRADCOMP_OK;
	}
	v->next = 0;
	if (c->group->me == 0)
		policy_refused(c, to.candidate);
	return GRADCOMP_OK;
}

gradcomp_status tuner_check(tuner *c, gradcomp_error *err)
{
	uint8_t *of = calloc(c->ntensors, 1);
	decision v = {0};
	gradcomp_status st = GRADCOMP_OK;
	if (!of) {
		error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a decision");
		return fails(c, GRADCOMP_ERR_NOMEM, err);
	}
	memcpy(of, c->parts.now.of, c->ntensors);
	pthread_mutex_lock(&c->lock);
	st = tuner_gpu_settle(c, err);
	pthread_mutex_unlock(&c->lock);
	if (st)
		fails(c, st, err);
	/* Candidates may be refused one after another, but not for ever. */
	for (uint32_t round = 0; !st && !v.next; round++) {
		st = check_once(c, &v, of, err);
		if (!st && round == 2 * TUNER_CANDIDATES) {
			st = error_set(err, GRADCOMP_ERR_MISMATCH, "auto: rank %d comes to no decision",
			               c->group->ranks[0]);
			fails(c, st, err);
		}
	}
	c->next_check = c->steps + v.next;
	free(of);
	return st;
}
