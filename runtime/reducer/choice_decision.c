/* What rank 0 may say at a check. The others believe nothing that would part them from
 * what they know: another step, a candidate that is not there, parts that are none. */
#include "choice.h"

#include "error.h"

#include <math.h>

static gradcomp_status check_parts(const choice *c, const decision *v, const uint8_t *of, gradcomp_error *err)
{
	const candidate *all = c->wish.candidate;
	const int first = c->group->ranks[0], mixed = all[v->candidate].mixed;
	uint32_t used[CHOICE_CANDIDATES] = {0}, parts = 0;
	for (uint32_t i = 0; i < c->ntensors; i++) {
		uint32_t k = of[i];
		if (k >= c->wish.n || all[k].mixed || all[k].unusable || (!mixed && k && k != v->candidate))
			return error_set(err, GRADCOMP_ERR_MISMATCH,
			                 "auto: rank %d gave tensor %u to candidate %u, which is left out, none of 0..%u or "
			                 "not part of '%s'",
			                 first, i, k, c->wish.n - 1, all[v->candidate].text);
		parts += !used[k]++;
	}
	if (mixed ? parts < 2 || parts > CHOICE_PARTS : !used[v->candidate])
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
	if (v->magic != CHOICE_MAGIC)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d's decision begins with %#llx and is none", first,
		                 (unsigned long long)v->magic);
	if (v->step != c->steps)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided for step %llu, this rank is at step %llu", first,
		                 (unsigned long long)v->step, (unsigned long long)c->steps);
	if (v->phase > CHOICE_GUARD || v->reason >= CHOICE_REASONS || v->measure > 1 || v->next > CHOICE_NEXT_MAX)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided on phase %u for reason %u, with the next check in %u "
		                 "steps: must be 0..%d, "
		                 "0..%d and 0..%u",
		                 first, v->phase, v->reason, v->next, CHOICE_GUARD, CHOICE_REASONS - 1,
		                 CHOICE_NEXT_MAX);
	if (v->candidate >= n || c->wish.candidate[v->candidate].unusable)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided on candidate %u, which is none of 0..%u or left out", first,
		                 v->candidate, n - 1);
	st = check_parts(c, v, of, err);
	if (st)
		return st;
	for (uint32_t k = 0; k < CHOICE_CANDIDATES; k++)
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
