/* Plans of steps: made from cuts, checked, freed. */
#include "schedule/step_plan.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

gradcomp_status step_plan_from_cut(step_plan *p, const uint8_t *cut, uint32_t n, gradcomp_error *err)
{
	step_plan made = {.lag = STEP_PLAN_LAG};
	for (uint32_t i = 0; i < n; i++)
		made.nbuckets += cut[i] != 0;
	made.end = calloc(made.nbuckets + 1, sizeof *made.end);
	if (!made.end)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u buckets", made.nbuckets);
	for (uint32_t i = 0, b = 0; i < n; i++)
		if (cut[i])
			made.end[b++] = i + 1;
	*p = made;
	return GRADCOMP_OK;
}

static gradcomp_status check_positions(const step_plan *p, gradcomp_error *err)
{
	uint32_t *taken = calloc(p->nbuckets, sizeof *taken);
	gradcomp_status st = GRADCOMP_OK;
	if (!taken)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u buckets", p->nbuckets);
	for (uint32_t b = 0; !st && b < p->nbuckets; b++) {
		uint32_t position = p->position[b];

		if (position >= p->nbuckets)
			st = error_set(err, GRADCOMP_ERR_INVALID, "bucket %u has position %u of %u: must be 0..%u", b,
			               position, p->nbuckets, p->nbuckets - 1);
		else if (taken[position])
			st = error_set(err, GRADCOMP_ERR_INVALID, "buckets %u and %u both have position %u",
			               taken[position] - 1, b, position);
		else
			taken[position] = b + 1;
	}
	free(taken);
	return st;
}

gradcomp_status step_plan_check(const step_plan *p, uint32_t n, gradcomp_error *err)
{
	uint32_t first = 0;
	if (!p->nbuckets || p->nbuckets > n || !p->end)
		return error_set(err, GRADCOMP_ERR_INVALID, "a plan of %u buckets for %u tensors: must be 1..%u",
		                 p->nbuckets, n, n);
	for (uint32_t b = 0; b < p->nbuckets; b++) {
		if (p->end[b] <= first || p->end[b] > n)
			return error_set(
				err, GRADCOMP_ERR_INVALID,
				"bucket %u ends before tensor %u, where tensor %u is its first and there are %u", b,
				p->end[b], first, n);
		first = p->end[b];
	}
	if (first != n)
		return error_set(err, GRADCOMP_ERR_INVALID, "the last bucket ends before tensor %u, but there are %u",
		                 first, n);
	if (p->lag > 1)
		return error_set(err, GRADCOMP_ERR_INVALID, "lag is %u: must be 0 or 1", p->lag);
	return p->position ? check_positions(p, err) : GRADCOMP_OK;
}

void step_plan_clear(step_plan *p)
{
	free(p->end);
	free(p->position);
	memset(p, 0, sizeof *p);
}
