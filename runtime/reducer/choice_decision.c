/* What rank 0 may say at a check. The others believe nothing that would part them from
 * what they know: another step, a candidate that is not there, parts that are none. */
#include "choice.h"

#include "error.h"

#include <math.h>

gradcomp_status decision_check(const choice *c, const decision *v, const uint8_t *in, gradcomp_error *err)
{
	uint32_t n = c->wish.n, inside = 0;
	const int first = c->group->ranks[0];
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
	if (v->rest != CHOICE_NONE &&
	    (v->rest >= n || v->rest == v->candidate || !c->wish.candidate[v->rest].dense))
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided on candidate %u for the rest of the tensors, which is no "
		                 "dense one",
		                 first, v->rest);
	for (uint32_t i = 0; i < c->ntensors; i++) {
		if (in[i] > 1)
			return error_set(err, GRADCOMP_ERR_MISMATCH,
			                 "auto: rank %d put tensor %u into part %u: must be 0 or 1", first, i,
			                 in[i]);
		inside += in[i];
	}
	if (!inside || (inside == c->ntensors) != (v->rest == CHOICE_NONE))
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "auto: rank %d decided on a part of %u of %u tensors %s another part", first,
		                 inside, c->ntensors, v->rest == CHOICE_NONE ? "without" : "beside");
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
